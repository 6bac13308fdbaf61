"""Matrix products: matmul, and the products that are built from it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from ..autodiff.primitive import Op, apply
from ..backends.autocast import rounded
from ..duck import attribute
from ..errors import ShapeError
from ..tensors.operand import own
from ..tensors.ranges import arange
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from ._shapes import broadcast_shapes, integer, ints, normalize_axis
from .by_name import aligned, reshaped, view
from .conversion import settled
from .declare import normal, op
from .elementwise import multiply
from .gather import take_along_axis
from .kinds import BILINEAR
from .operands import as_tensors
from .reduce import sum_over
from .shape import SLICE, broadcast_to, expand_dims, matrix_transpose, moveaxis, permute_dims, reshape

__all__ = ["einsum", "inner", "kron", "matmul", "matrix_transpose", "outer", "tensordot", "vecdot"]


def _products(a: Any, b: Any, y: Any) -> dict[str, int]:
    products = y.size * a.shape[-1]
    return {"fmas": products, "matmul_flops": 2 * products}


class Outer:
    """Per-example gradients (batch, m, n) as the factors of leftᵀ right: `left` (batch, rows, m) and `right` (batch, rows, n)."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left, self.right = left, right
        self.shape = (left.shape[0], left.shape[2], right.shape[2])

    def formed(self, some: slice) -> Tensor:
        """Returns the gradients of these examples, multiplied out."""
        left, right = [view(SLICE, x, (some,)) for x in (self.left, self.right)]
        return matmul(matrix_transpose(left), right)

    def total(self) -> Tensor:
        """Returns the sum over all examples, as one product over the rows of all of them."""
        left, right = [reshape(x, (math.prod(x.shape[:2]), x.shape[2])) for x in (self.left, self.right)]
        return matmul(matrix_transpose(left), right)


def _outer(of_all: Any, left: Tensor, right: Tensor) -> Any:
    """Returns the factors of leftᵀ right if left and right are one matrix each per example, otherwise None."""
    return Outer(of_all(left), of_all(right)) if left.ndim == right.ndim == 2 else None


def _rows_and_columns(g: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the cotangent of a @ b and bᵀ, whose product is the gradient of a. Vectors become a column and a row."""
    return (g, matrix_transpose(b)) if b.ndim > 1 else (expand_dims(g, axis=1), expand_dims(b, axis=0))


def _left_factors(of_all: Any, g: Tensor, b: Tensor) -> Any:
    left, right = _rows_and_columns(g, b)
    return _outer(of_all, matrix_transpose(left), right)


def _matmul_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For matmul(a, b). If all examples share one matrix, their rows are stacked for one product."""
    a, b = xs
    if b.array.ndim == 1 + on[1]:
        return _with_vector(op, a, b, on)
    if on[0] and not on[1] and b.array.ndim == 2 and a.array.flags.c_contiguous:
        *lead, inner = a.array.shape
        return reshaped(apply(op, (reshaped(a, (math.prod(lead), inner)), b)), (*lead, b.array.shape[-1]))
    if on[1] and not on[0] and a.array.ndim == 2 and b.array.ndim == 3 and b.array.shape[2] == 1:  # one matrix, many vectors
        y = apply(op, (reshaped(b, b.array.shape[:2]), matrix_transpose(a)))
        return reshaped(y, (*y.array.shape, 1))
    return apply(op, tuple(aligned(xs, on)))


def _with_vector(op: Op, a: Tensor, b: Tensor, on: Sequence[bool]) -> Tensor:
    """For matmul of a matrix and a vector, of which one or both differ by example."""
    if not on[0]:
        return apply(op, (b, matrix_transpose(a)))
    size, m, k = a.array.shape
    if not on[1]:
        return reshaped(apply(op, (reshaped(a, (size * m, k)), b)), (size, m))
    return reshaped(apply(op, (a, reshaped(b, (size, k, 1)))), (size, m))


_matmul = op(
    "matmul",  # (…, m, k) @ (…, k, n), or (m, k) @ (k,)
    batch=_matmul_each,
    factors={
        0: lambda of_all, g, b: _left_factors(of_all, g, b),
        1: lambda of_all, g, a: _outer(of_all, a, g),
    },
    example=normal((2, 3, 4), (4, 5)),
    kind=BILINEAR,
    reference=lambda xp, a, b: xp.matmul(rounded(xp, a), rounded(xp, b)),
    inputs=2,
    pullback=(lambda g, b: matmul(*_rows_and_columns(g, b)), lambda g, a: matmul(matrix_transpose(a), g)),
    cost=_products,
)


def matmul(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns the matrix product over the last two axes. Leading axes broadcast; a 1-D operand is a row (a) or a column (b).

    Shapes: (…, m, k) and (…, k, n) give (…, m, n). Cost: 2 m k n FLOPs per product.
    Raises ShapeError if the inner lengths differ or an operand is 0-d.
    """
    x: Any = a
    y: Any = b
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        x, y = as_tensors("matmul", a, b)
    rows, columns = x.array.ndim, y.array.ndim
    if not rows or not columns:
        raise ShapeError(f"matmul: shapes {x.shape} and {y.shape}: a 0-d tensor has no product; use a * b.")
    inner = y.array.shape[0 if columns == 1 else -2]
    if x.array.shape[-1] != inner:
        raise ShapeError(
            f"matmul: shapes {x.shape} and {y.shape} do not fit: the last axis of a has length {x.shape[-1]}, axis "
            f"{0 if columns == 1 else -2} of b has {inner}. They must be equal; transpose one of them (x.mT)?"
        )
    if rows > 1 and columns > 1:
        if rows > 2 or columns > 2:
            broadcast_shapes("matmul", [x.shape[:-2], y.shape[:-2]])
        return apply(_matmul, (x, y))
    if rows == 2:
        return apply(_matmul, (x, y))
    if rows == 1 and columns == 2:
        return apply(_matmul, (matrix_transpose(y), x))
    if rows == 1:
        x = reshape(x, (1, -1) if inner else (1, 0))
    if columns == 1:
        y = reshape(y, (-1, 1) if inner else (0, 1))
    z = apply(_matmul, (x, y))
    return reshape(z, _squeezed(z, rows, columns))


def _squeezed(y: Tensor, rows: int, columns: int) -> tuple[int, ...]:
    return y.shape[:-2] + ((y.shape[-2],) if rows > 1 else ()) + ((y.shape[-1],) if columns > 1 else ())


def outer(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns the outer product of two vectors (m,) and (n,): (m, n). Raises ShapeError for other ranks."""
    a, b = as_tensors("outer", a, b)
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError(
            f"outer: a and b have the shapes {a.shape} and {b.shape}, and must be vectors. For others write a.flatten(), or "
            f"pb.expand_dims(a, axis=-1) * pb.expand_dims(b, axis=-2)."
        )
    return multiply(expand_dims(a, axis=1), b)


def vecdot(a: ArrayLike, b: ArrayLike, *, axis: int = -1) -> Tensor:
    """Returns the dot products of vectors along an axis, which must be negative; the other axes broadcast. Raises ShapeError."""
    a, b = as_tensors("vecdot", a, b)
    if not -min(a.ndim, b.ndim) <= integer("vecdot", "axis", axis) < 0:
        raise ShapeError(
            f"vecdot: axis={axis} must be negative and exist in both a, of shape {a.shape}, and b, of shape {b.shape}. It is "
            f"counted from the end, because the other axes broadcast."
        )
    if a.shape[axis] != b.shape[axis]:
        raise ShapeError(
            f"vecdot: axis {axis} has length {a.shape[axis]} in a and {b.shape[axis]} in b; they must be equal. Pass axis= for "
            f"vectors along another axis."
        )
    broadcast_shapes("vecdot", [(*t.shape[:axis], 1, *t.shape[t.ndim + axis + 1 :]) for t in (a, b)])
    x, y = moveaxis(a, axis, -1), moveaxis(b, axis, -1)
    product = matmul(expand_dims(x, axis=-2), expand_dims(y, axis=-1))
    return reshape(product, product.shape[:-2])


def inner(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns the sum of products over the last axes of a and b, or the product if one is a scalar, as NumPy does.

    Shapes: (…, n) and (*, n) give (…, *). Raises ShapeError if the last lengths differ.
    """
    a, b = as_tensors("inner", a, b)
    return multiply(a, b) if not a.ndim or not b.ndim else tensordot(a, b, axes=([a.ndim - 1], [b.ndim - 1]))


def kron(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns the Kronecker product: b times each element of a, in blocks. The shape with fewer axes gets leading ones.

    Shapes: (m, n) and (p, q) give (m p, n q).
    """
    a, b = as_tensors("kron", a, b)
    ndim = max(a.ndim, b.ndim)
    blocks, rest = [(1,) * (ndim - t.ndim) + t.shape for t in (a, b)]
    product = multiply(reshape(a, [k for n in blocks for k in (n, 1)]), reshape(b, [k for n in rest for k in (1, n)]))
    return reshape(product, [m * n for m, n in zip(blocks, rest)])


def tensordot(a: ArrayLike, b: ArrayLike, axes: int | Sequence[int | Sequence[int]] = 2) -> Tensor:
    """Returns the sum of products over pairs of axes. Raises ShapeError.

    axes: an integer n pairs the last n axes of a with the first n axes of b; two sequences of equal length list axes of a and of b,
        and two integers name one axis of each.
    """
    a, b = as_tensors("tensordot", a, b)
    given: Any = axes
    if hasattr(given, "__index__") and not attribute(given, "shape", ()):
        count = integer("tensordot", "axes", given)
        if not 0 <= count <= min(a.ndim, b.ndim):
            raise ShapeError(
                f"tensordot: axes={count} are the last {count} axes of a, of shape {a.shape}, and the first {count} of b, of shape "
                f"{b.shape}. Give the number of axes that both have, or their lists: axes=([1], [0])."
            )
        pairs = (list(range(a.ndim - count, a.ndim)), list(range(count)))
    else:
        if not hasattr(given, "__len__") or len(given) != 2 or isinstance(given, (str, dict, set)):
            raise ShapeError(f"tensordot: axes={given!r} is not an integer or a pair: the axes of a, and those of b.")
        pairs = tuple(
            [[normalize_axis("tensordot", i, t.ndim) for i in ints("tensordot", "axes", along)] for t, along in zip((a, b), given)]
        )
    if [a.shape[i] for i in pairs[0]] != [b.shape[j] for j in pairs[1]]:
        raise ShapeError(
            f"tensordot: axes {pairs[0]} of a, of shape {a.shape}, and {pairs[1]} of b, of shape {b.shape}, have different "
            f"lengths. Give the axes to sum over: axes=([1], [0])."
        )
    rows = [i for i in range(a.ndim) if i not in pairs[0]]
    columns = [j for j in range(b.ndim) if j not in pairs[1]]
    inner = math.prod([a.shape[i] for i in pairs[0]])
    left = reshape(permute_dims(a, rows + pairs[0]), (math.prod([a.shape[i] for i in rows]), inner))
    right = reshape(permute_dims(b, pairs[1] + columns), (inner, math.prod([b.shape[j] for j in columns])))
    return reshape(matmul(left, right), tuple([a.shape[i] for i in rows] + [b.shape[j] for j in columns]))


# ---- einsum


def einsum(subscripts: str, /, *operands: ArrayLike) -> Tensor:
    """Returns the Einstein summation of the operands, as NumPy's einsum does. Raises ShapeError.

    The equation ("ij,jk->ik") may contain "...", repeated letters and letters that are summed. Operands are contracted two at a
    time, from the left, as batched matrix products.
    """
    # The result of a single operand may share its memory.
    tensors = as_tensors("einsum", *operands) if operands[1:] else [own(x) for x in operands]
    terms, result = _parse(subscripts, tensors)
    lengths: dict[str, int] = {}
    for term, t in zip(terms, tensors):
        for letter, n in zip(term, t.shape):
            if lengths.setdefault(letter, n) not in (n, 1) and n != 1:
                index = f"index {letter!r}" if letter.isalpha() else "an axis of the ellipsis"
                raise ShapeError(f"einsum: {subscripts!r}: {index} has lengths {lengths[letter]} and {n}.")
            lengths[letter] = n if lengths[letter] == 1 else lengths[letter]
    left, term = _diagonal(tensors[0], terms[0])
    for i in range(1, len(tensors)):
        right, other = _diagonal(tensors[i], terms[i])
        later = set(result).union(*terms[i + 1 :])
        left, term = _contract(left, term, right, other, later)
    gone = tuple([i for i, letter in enumerate(term) if letter not in result])
    left, term = sum_over(left, gone) if gone else left, [c for c in term if c in result]
    return settled(permute_dims(left, [term.index(c) for c in result]))


def _parse(subscripts: Any, tensors: list[Tensor]) -> tuple[list[list[str]], list[str]]:
    """Returns one list of letters per operand, and that of the result. The axes of "..." are named ".1", ".2", …

    Raises ShapeError for an equation that is malformed or does not fit the operands.
    """
    if not isinstance(subscripts, str):
        raise ShapeError(f"einsum: the first argument is a {type(subscripts).__name__}; give an equation such as 'ij,jk->ik'.")
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    parts = inputs.split(",")
    for part in (*parts, output):
        if not re.fullmatch(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*", part):
            raise ShapeError(
                f"einsum: {subscripts!r}: {part!r} is no list of indices; those are letters, with '...' at most once, ',' between "
                f"operands and one '->' before the result."
            )
    if len(parts) != len(tensors):
        raise ShapeError(f"einsum: {subscripts!r} names {len(parts)} operands, but {len(tensors)} were given.")
    terms: list[list[str]] = []
    most = 0
    for part, t in zip(parts, tensors):
        before, dots, after = part.partition("...")
        hidden = t.ndim - len(before) - len(after)
        if hidden < 0 or (hidden and not dots):
            raise ShapeError(f"einsum: {subscripts!r}: {part!r} does not name the {t.ndim} axes of shape {t.shape}.")
        most = max(most, hidden)
        terms.append([*before, *[f".{k}" for k in range(hidden, 0, -1)], *after])
    ellipsis = [f".{k}" for k in range(most, 0, -1)]
    if not arrow:
        letters = sorted({c for term in terms for c in term if len(c) == 1})
        return terms, ellipsis + [c for c in letters if sum([term.count(c) for term in terms]) == 1]
    before, dots, after = output.partition("...")
    result = [*before, *(ellipsis if dots else []), *after]
    unknown = [c for c in result if not any([c in term for term in terms])]
    if unknown or len(set(result)) < len(result):
        raise ShapeError(
            f"einsum: {subscripts!r}: the result names {unknown or 'an index twice'}; each must be in an operand, once."
        )
    return terms, result


def _diagonal(x: Tensor, term: list[str]) -> tuple[Tensor, list[str]]:
    """Returns x and its letters with each letter once: axes that share a letter are replaced by their diagonal."""
    while len(set(term)) < len(term):
        letter = next(c for c in term if term.count(c) > 1)
        i = term.index(letter)
        j = term.index(letter, i + 1)
        if x.shape[i] != x.shape[j]:
            raise ShapeError(f"einsum: index {letter!r} has lengths {x.shape[i]} and {x.shape[j]} in one operand.")
        n = x.shape[i]
        shape = [n if axis == i else 1 for axis in range(x.ndim)]
        positions = broadcast_to(
            reshape(arange(n, device=x.device), shape), [1 if axis == j else m for axis, m in enumerate(x.shape)]
        )
        x = take_along_axis(x, positions, axis=j)
        x = reshape(x, [m for axis, m in enumerate(x.shape) if axis != j])
        term = term[:j] + term[j + 1 :]
    return x, term


def _contract(a: Tensor, ta: list[str], b: Tensor, tb: list[str], later: set[str]) -> tuple[Tensor, list[str]]:
    """Returns the product of two operands as one batched matmul, and its letters.

    Letters of both operands are batch axes if a later operand or the result needs them, otherwise they are summed.
    """
    for only, other in ((0, tb), (1, ta)):
        x, t = ((a, ta), (b, tb))[only]
        gone = tuple([i for i, c in enumerate(t) if c not in other and c not in later])
        if gone:
            x, t = sum_over(x, gone), [c for i, c in enumerate(t) if i not in gone]
            (a, ta), (b, tb) = ((x, t), (b, tb)) if only == 0 else ((a, ta), (x, t))
    batch = [c for c in ta if c in tb and c in later]
    inner = [c for c in ta if c in tb and c not in later]
    rows = [c for c in ta if c not in tb]
    columns = [c for c in tb if c not in ta]
    length = dict(zip([*ta, *tb], [*a.shape, *b.shape]))
    length.update({c: n for c, n in zip(ta, a.shape) if n != 1})  # a length of 1 broadcasts to any other
    a = broadcast_to(permute_dims(a, [ta.index(c) for c in batch + rows + inner]), [length[c] for c in batch + rows + inner])
    b = broadcast_to(permute_dims(b, [tb.index(c) for c in batch + inner + columns]), [length[c] for c in batch + inner + columns])
    sizes = [[length[c] for c in part] for part in (batch, rows, inner, columns)]
    m, k, n = (math.prod(part) for part in sizes[1:])
    y = matmul(reshape(a, (*sizes[0], m, k)), reshape(b, (*sizes[0], k, n)))
    return reshape(y, (*sizes[0], *sizes[1], *sizes[3])), batch + rows + columns
