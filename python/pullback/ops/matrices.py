"""Diagonals, cross products, powers, and norms of vectors and matrices, composed of other ops."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, Final, Literal

from ..errors import AxisError, DTypeError, ShapeError
from ..interop.wrong_calls import one_of
from ..tensors.dtypes import as_dtype
from ..tensors.operand import as_tensor, converted
from ..tensors.ranges import arange, eye
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, DTypeLike
from ._shapes import broadcast_shapes, integer, ints, kept, normalize_axes, real
from .by_name import in_dtype, in_float, widened
from .conversion import constant, copy
from .elementwise import abs as absolute, equal, greater, isfinite, logical_and, logical_or, sign, where
from .gather import take_along_axis
from .linalg import matmul
from .movement import concat
from .operands import as_tensors
from .reduce import count_nonzero, max, min, sum
from .roots import length, squeezed
from .shape import broadcast_to, moveaxis, reshape
from .solves import inverse, require_matrix, require_square
from .spectral import singular_values

MATRIX_NORMS: Final = ("fro", "nuc", 2, -2, 1, -1, math.inf, -math.inf)


def diagonal(x: ArrayLike, /, *, offset: int = 0) -> Tensor:
    """Returns the elements x[..., i, i + offset] of each matrix. Raises ShapeError for fewer than two axes."""
    return _diagonal("diagonal", x, offset)


def _diagonal(name: str, x: Any, offset: Any) -> Tensor:
    """Returns the diagonals for the function with this name, which errors name."""
    x = as_tensor(x)
    require_matrix(name, x)
    rows, columns = x.shape[-2:]
    _, offset, _ = sorted((-rows, integer(name, "offset", offset), columns))  # beyond these bounds, diagonals are empty
    first = -offset if offset < 0 else 0
    length = len(range(rows)[first:][: len(range(columns)[first + offset :])])
    kept = x[..., first : first + length, :]
    positions = reshape(arange(first + offset, first + offset + length, device=x.device), (length, 1))
    picked = take_along_axis(kept, broadcast_to(positions, (*kept.shape[:-1], 1)), axis=-1)
    return reshape(picked, kept.shape[:-1])


def trace(x: ArrayLike, /, *, offset: int = 0, dtype: DTypeLike | None = None) -> Tensor:
    """Returns the sum of each matrix's diagonal. Raises ShapeError for fewer than two axes."""
    wanted = None if dtype is None else converted("trace", "dtype", dtype, as_dtype)
    return sum(_diagonal("trace", x, offset), axis=-1, dtype=wanted)


def cross(a: ArrayLike, b: ArrayLike, *, axis: int = -1) -> Tensor:
    """Returns the cross products of vectors of length 3 along an axis. Raises ShapeError for another length."""
    a, b = as_tensors("cross", a, b)
    axis = integer("cross", "axis", axis)
    for argument, t in (("a", a), ("b", b)):
        if not -t.ndim <= axis < t.ndim:
            raise AxisError(
                f"cross: {argument} has shape {t.shape}, which has no axis {axis}. Give vectors of length 3 along axis=."
            )
    a, b = moveaxis(a, axis, -1), moveaxis(b, axis, -1)
    if a.shape[-1] != 3 or b.shape[-1] != 3:
        raise ShapeError(
            f"cross: axis {axis} of a has length {a.shape[-1]} and that of b {b.shape[-1]}; both must be 3. Pass axis= for vectors "
            f"along another axis."
        )
    broadcast_shapes("cross", [a.shape, b.shape])
    next_a, next_b = (concat([v[..., 1:], v[..., :1]], axis=-1) for v in (a, b))
    last_a, last_b = (concat([v[..., 2:], v[..., :2]], axis=-1) for v in (a, b))
    return moveaxis(next_a * last_b - last_a * next_b, -1, axis)


def vector_norm(x: ArrayLike, *, axis: int | Sequence[int] | None = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """Returns the norm (sum |x|^ord)^(1/ord) over the axes (None: all axes); ord may also be 0 and ±inf.

    The norms of integers are in float32. The gradient of a zero vector's norm is zero, and its second derivative is NaN. The norm
    of an empty vector is zero, unless ord is negative. No power overflows or vanishes: a norm is infinite only if no number of the
    dtype is as large. Raises ShapeError for the norm -inf of an empty vector.
    """
    return vector_norms("vector_norm", x, axis, keepdims, ord)


def vector_norms(name: str, given: Any, axis: Any, keepdims: Any, power: Any, option: str = "ord") -> Tensor:
    """Returns the norms for the function with this name, which errors name. option: its name of the power."""
    given, keepdims = _floats(name, as_tensor(given)), kept(name, keepdims)
    if isinstance(power, Tensor):
        real(name, option, power)  # raises DTypeError
    if not isinstance(power, Real) or power != power:
        one_of(name, option, power, [2, 1, 0, math.inf, -math.inf], "another power")
    axes = normalize_axes(name, axis, given.ndim)
    x = widened(given)  # in half precision the sum of squares could overflow
    return in_dtype(_norms_of_floats(name, x, axes, keepdims, power), given.dtype)


def _norms_of_floats(name: str, x: Tensor, axes: tuple[int, ...], keepdims: bool, ord: Any) -> Tensor:
    if ord in (math.inf, -math.inf):
        return _extreme(name, ord, absolute(x), axes, keepdims)
    if ord == 0:
        return count_nonzero(x, axis=axes, keepdims=keepdims).astype(x.dtype)
    if ord == 1:
        return sum(x * sign(x), axis=axes, keepdims=keepdims)
    if ord == 2:
        y = length(x, axes)
    else:
        largest = constant(_extreme(name, math.inf, absolute(x), axes, True))  # relative to it the powers do not all underflow
        scale = where(logical_and(greater(largest, 0), isfinite(largest)), largest, 1.0)
        total = sum(_powers(x / scale, ord), axis=axes, keepdims=True)
        edge = logical_or(equal(total, 0), equal(total, math.inf)) if ord > 0 else equal(total, 0)
        at_edge = length(where(edge, x, 0.0), axes) if ord > 0 else math.inf
        y = where(edge, at_edge, scale * where(edge, 1.0, total) ** (1 / ord))
    return y if keepdims else squeezed(y, axes)


def _powers(x: Tensor, power: float) -> Tensor:
    """Returns |x|^power. Where that has a cusp or a pole at 0, the derivative there is 0, as that of |x|."""
    if power >= 1:
        return absolute(x) ** power
    zero = equal(x, 0)
    return where(zero, 0.0 if power > 0 else math.inf, absolute(where(zero, 1.0, x)) ** power)


def _floats(name: str, x: Tensor) -> Tensor:
    """Returns integers in float32, because their powers could overflow, and floats as they are. Raises DTypeError for bools."""
    if x.dtype.kind == "b":
        raise DTypeError(f"{name}: x has dtype bool, and norms are those of numbers. Convert it: x.astype(pb.float32).")
    return in_float(x)


def _extreme(name: str, ord: float, sizes: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """Returns the largest of numbers that are not negative if ord is positive, otherwise the smallest. The largest of none is 0.

    Raises ShapeError for the smallest of none.
    """
    if ord < 0:
        if any([sizes.shape[axis] == 0 for axis in axes]):
            raise ShapeError(f"{name}: ord={ord:g} is the smallest of some numbers, and here there are none. Check the size first.")
        return min(sizes, axis=axes, keepdims=keepdims)
    if 0 not in sizes.shape:
        return max(sizes, axis=axes, keepdims=keepdims)
    return sum(sizes, axis=axes, keepdims=keepdims)  # there is nothing to add up


def matrix_norm(x: ArrayLike, *, keepdims: bool = False, ord: float | Literal["fro", "nuc"] = "fro") -> Tensor:
    """Returns a norm of each matrix in the last two axes. The norms of integers are in float32.

    ord: "fro" for the Frobenius norm; "nuc" for the sum of the singular values, 2 or -2 for the largest or smallest of them; 1 or
    -1 for the largest or smallest absolute column sum; inf or -inf for the largest or smallest absolute row sum. As in NumPy 2 the
    norm of an empty matrix is 0. Raises ShapeError for fewer than two axes, another ord, or the smallest of no numbers.
    """
    return _matrix_norm("matrix_norm", x, keepdims, ord)


def _matrix_norm(name: str, x: Any, keepdims: Any, ord: Any) -> Tensor:
    """Returns the norms for the function with this name, which errors name."""
    x, keepdims = as_tensor(x), kept(name, keepdims)
    require_matrix(name, x)
    x = _floats(name, x)
    one_of(name, "ord", ord, MATRIX_NORMS)
    if ord == "fro":
        return vector_norms(name, x, (-2, -1), keepdims, 2)
    if ord in ("nuc", 2, -2):
        values = in_dtype(singular_values(name, widened(x)), x.dtype)
    else:
        values = sum(absolute(x), axis=-2 if ord in (1, -1) else -1)
    y = sum(values, axis=-1) if ord == "nuc" else _extreme(name, float(ord), values, (values.ndim - 1,), False)
    return reshape(y, (*y.shape, 1, 1)) if keepdims else y


def matrix_power(x: ArrayLike, n: int, /) -> Tensor:
    """Returns the n-th power of each square matrix by repeated squaring, and that of its inverse if n is negative.

    Raises ShapeError if x is not square, LinAlgError if it is singular and n negative.
    """
    exponent = integer("matrix_power", "n", n)
    x = inverse("matrix_power", x) if exponent < 0 else as_tensor(x)
    require_square("matrix_power", x)
    exponent = builtins.abs(exponent)
    if not exponent:
        return copy(broadcast_to(eye(x.shape[-1], dtype=x.dtype, device=x.device), x.shape))
    if exponent in (1, 3):
        return copy(x) if exponent == 1 else matmul(matmul(x, x), x)
    result = None
    while exponent:
        if exponent & 1:
            result = x if result is None else matmul(result, x)
        exponent >>= 1
        x = matmul(x, x) if exponent else x
    assert result is not None
    return result


def norm(
    x: ArrayLike,
    ord: float | Literal["fro", "nuc"] | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
) -> Tensor:
    """Returns a norm as NumPy's norm does: of vectors along one axis, or of matrices over two.

    If neither ord nor axis is given, it is the 2-norm of all elements. With an ord alone, x must have one axis or two. The norms of
    integers are in float32. Raises ShapeError.
    """
    x = as_tensor(x)
    if axis is None and ord is None:
        return vector_norms("norm", x, None, keepdims, 2)
    axes = tuple(range(x.ndim) if axis is None else ints("norm", "axis", axis))
    normalize_axes("norm", axes, x.ndim)  # for its errors
    if len(axes) == 1:
        return vector_norms("norm", x, axes, keepdims, 2 if ord is None else ord)
    if len(axes) != 2:
        over = f"all {len(axes)} axes of shape {x.shape}" if axis is None else f"axis={axes}"
        raise ShapeError(
            f"norm: a norm over {over} is neither one of vectors, along one axis, nor one of matrices, over two. Give one or two "
            f"axes in axis=, or use pb.linalg.vector_norm, which takes any number of them."
        )
    y = _matrix_norm("norm", moveaxis(x, axes, (-2, -1)), keepdims, "fro" if ord is None else ord)
    return moveaxis(y, (-2, -1), axes) if keepdims else y
