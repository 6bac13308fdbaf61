"""Eigenvalues of symmetric matrices, and singular values: eigh, eigvalsh, svd, svdvals.

An op has one result, so these pack theirs into the rows of one array: a row of zeros (the mark), a row of values, then the vectors
as columns. The functions return views of it.

If two values are equal up to rounding, their vectors are arbitrary, and the derivatives of these vectors divide by zero. A
derivative then is NaN, unless no vector of the pair has a cotangent. The mark tells apart two functions whose vectors have a
cotangent of zero: that of the values alone, which has a derivative at equal values, and one such as v log(w) vᵀ at w = 1, whose
derivative the rules do not know. (`matrix_function` knows it.) A cotangent of the mark is -0 if it comes from `_values` alone, and
otherwise 0 or more, because slices fill with 0 and -0 + 0 is 0.

References for the rules: M. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic differentiation"
(2008); J. Townsend, "Differentiating the singular value decomposition" (2016).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..autodiff.listeners import listeners
from ..autodiff.primitive import apply
from ..interop.unknown_names import attach_hints
from ..tensors.creation import zeros, zeros_like
from ..tensors.dtypes import finfo
from ..tensors.ranges import eye
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from . import lapack
from ._shapes import Shape, flag
from .batch_rules import leading
from .by_name import padded, view
from .declare import no_flops, normal, op
from .elementwise import (
    abs as absolute,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    not_equal,
    signbit,
    sqrt,
    where,
)
from .kinds import OWN, VIEW
from .lapack import FROM_LAPACK
from .linalg import matmul
from .movement import concat, pad
from .reduce import any as any_of, max as max_of, sum as sum_of
from .shape import expand_dims, matrix_transpose
from .solves import count, matrix, scale_of, square as square_matrix


def _rows(x: Tensor) -> Tensor:
    return expand_dims(x, axis=-2)


def _columns(x: Tensor) -> Tensor:
    return expand_dims(x, axis=-1)


def _diagonal(s: Tensor) -> Tensor:
    """Returns the diagonal matrices with these elements."""
    return where(eye(s.shape[-1], dtype="bool", device=s.device), _columns(s), 0.0)


def _on_diagonal(x: Tensor) -> Tensor:
    """Returns the elements on the diagonal of each square matrix."""
    return sum_of(where(eye(x.shape[-1], dtype="bool", device=x.device), x, 0.0), axis=-1)


def _off_diagonal(x: Tensor) -> Tensor:
    """Returns square matrices with zeros in place of their diagonals."""
    return where(eye(x.shape[-1], dtype="bool", device=x.device), 0.0, x)


def between(left: Tensor, values: Tensor, right: Tensor) -> Tensor:
    """Returns left diag(values) rightᵀ."""
    return matmul(left * _rows(values), matrix_transpose(right))


def _product(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Returns a b cᵀ."""
    return matmul(matmul(a, b), matrix_transpose(c))


def _spread(g: Tensor, y_shape: Shape) -> Tensor:
    return pad(_rows(g), [*((0, 0),) * (len(y_shape) - 2), (1, y_shape[-2] - 2), (0, 0)], constant_values=-0.0)


_row_of_values = op(
    "row_of_values", kind=VIEW, reference=lambda xp, x: x[..., 1, :], pullback=lambda g, x_shape: _spread(g, x_shape),
    cost=no_flops, example=normal((2, 4, 3)),
)


def _values(y: Tensor) -> Tensor:
    """Returns the row of values, whose cotangent fills the mark with -0."""
    return view(_row_of_values, y)


# ---- pairs of equal values


def bound(values: Tensor, size: int, axis: int = -1) -> Tensor:
    """Returns the gap up to which values along the axis may be equal but for rounding. size: the larger side of the matrix."""
    if not values.shape[-1]:
        return zeros((*values.shape[:-1], 1), dtype=values.dtype, device=values.device)
    return max_of(absolute(values), axis=axis, keepdims=True) * (4.0 * math.sqrt(size) * finfo(values.dtype).eps)


def _pairs(values: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns halves of the gaps between all pairs of values and of their sums, with 1 if these are not to be divided by; and where
    two different values are equal up to rounding. Products and whole sums of values could overflow.
    """
    half, own = 0.5 * values, eye(values.shape[-1], dtype="bool", device=values.device)
    gaps = _rows(half) - _columns(half)
    close = logical_and(less_equal(absolute(gaps), 0.5 * _columns(bound(values, size))), logical_not(own))
    skipped = logical_or(close, own)
    return where(skipped, 1.0, gaps), where(skipped, 1.0, _rows(half) + _columns(half)), close


def _has_cotangent(mark: Tensor, of_values: Tensor, of_vectors: Tensor | None = None) -> Tensor:
    """Returns which of the values have a vector with a cotangent, or a cotangent themselves in a function that uses vectors."""
    marked = logical_or(logical_not(signbit(mark)), not_equal(mark, 0))
    found = logical_and(marked, not_equal(of_values, 0))
    return found if of_vectors is None else logical_or(found, any_of(not_equal(of_vectors, 0), axis=-2))


def _each_pair(of: Any, x: Tensor) -> Tensor:
    return of(_rows(x), _columns(x))


def _trap(has_cotangent: Tensor, cotangent: Tensor) -> Tensor:
    """Returns NaN where there is a cotangent, and otherwise 0, whose derivative by the cotangent is NaN."""
    return sqrt(where(has_cotangent, math.nan, 0.0 * cotangent))


def _moves(t: Tensor) -> Tensor:
    """Returns for each matrix, in the shape of a matrix, whether its tangent is not zero: then vectors of equal values may jump."""
    return _columns(_columns(any_of(not_equal(t, 0), axis=(-2, -1))))


# ---- eigh


def _eigh_pullback(g: Tensor, y: Tensor) -> Tensor:
    """Section 3.1 of Giles's paper, for the symmetric part of x."""
    (w, v), (gw, gv) = [(t[..., 1, :], t[..., 2:, :]) for t in (y, g)]
    gaps, _, close = _pairs(w, v.shape[-1])
    turned, live, total = matmul(matrix_transpose(v), gv), _has_cotangent(g[..., 0, :], gw, gv), sum_of(gv, axis=-2)
    trap = _trap(_each_pair(logical_or, live), _each_pair(Tensor.__add__, total))
    inside = where(close, trap, 0.25 * (turned - matrix_transpose(turned)) / gaps) + _diagonal(gw)
    return _product(v, inside, v)


def _eigh_tangent(op: Any, inputs: Any, y: Tensor, params: Any, tangents: Any) -> Tensor:
    w, v = y[..., 1, :], y[..., 2:, :]
    gaps, _, close = _pairs(w, v.shape[-1])
    turned = _product(matrix_transpose(v), tangents[0], matrix_transpose(v))
    turned = 0.5 * (turned + matrix_transpose(turned))
    inside = where(close, _trap(_moves(tangents[0]), turned), 0.5 * turned / gaps)
    return concat([zeros_like(y[..., :1, :]), _rows(_on_diagonal(turned)), matmul(v, _off_diagonal(inside))], axis=-2)


_eigh = op(
    "eigh", kind=OWN, takes="float", batch=leading, reference=lapack.eigh, same_bits=FROM_LAPACK, ulp=64,
    example=normal((2, 4, 4)), pullback=_eigh_pullback, tangent=_eigh_tangent,
    cost=lambda x, y: {"fmas": count(x.shape) * (9 * x.shape[-1] ** 3 // 2)},
)


def _marked(vectors: Tensor, y: Tensor) -> Tensor:
    """Returns the vectors as they are. If a derivative of them is pulled back, the mark of the values y has a cotangent of 0."""
    mark = y[..., :1, :]
    return vectors - (mark - mark)


def _without_derivative(g: Tensor, values: Tensor, size: int, tiny: bool) -> Tensor:
    """Returns the cotangents of the values, with NaN where a function that uses vectors has no derivative. tiny: also at 0."""
    live, (_, _, close) = _has_cotangent(g[..., 0, :], g[..., 1, :]), _pairs(values, size)
    bad = any_of(logical_and(close, _each_pair(logical_or, live)), axis=-1)
    if tiny:
        bad = logical_or(bad, logical_and(live, less_equal(values, bound(values, size))))
    return where(bad, math.nan, g[..., 1, :])


def _eigvalsh_pullback(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    vectors = _marked(apply(_eigh, (x,))[..., 2:, :], y)
    return between(vectors, _without_derivative(g, y[..., 1, :], x.shape[-1], False), vectors)


def _eigvalsh_tangent(op: Any, inputs: Any, y: Tensor, params: Any, tangents: Any) -> Tensor:
    vectors = matrix_transpose(_marked(apply(_eigh, tuple(inputs))[..., 2:, :], y))
    moved = _rows(_on_diagonal(_product(vectors, tangents[0], vectors)))
    return concat([zeros_like(moved), moved], axis=-2)


_eigvalsh = op(
    "eigvalsh", kind=OWN, takes="float", batch=leading, reference=lapack.eigvalsh, same_bits=FROM_LAPACK, ulp=64,
    example=normal((2, 4, 4)), pullback=_eigvalsh_pullback, tangent=_eigvalsh_tangent,
    cost=lambda x, y: {"fmas": count(x.shape) * (2 * x.shape[-1] ** 3 // 3)},
)


# ---- svd


def _factors(y: Tensor, x_shape: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the u, s and v of the thin decomposition."""
    m, n = x_shape[-2:]
    k = min(m, n)
    return y[..., 2 : m + 2, :k], y[..., 1, :k], y[..., m + 2 :, :k]


def _svd_pullback(g: Tensor, x_shape: tuple[int, ...], y: Tensor, full: bool) -> Tensor:
    """Townsend's rule, with quotients by differences and by sums of the singular values in place of those by both.

    The cotangents of the additional columns of full matrices count as zero, because these are arbitrary.
    """
    (u, s, v), (gu, gs, gv) = _factors(y, x_shape), _factors(g, x_shape)
    (m, n), k = x_shape[-2:], s.shape[-1]
    gaps, sums, close = _pairs(s, max(m, n))
    live = _has_cotangent(g[..., 0, :k], gs, concat([gu, gv], axis=-2))
    total = sum_of(gu, axis=-2) + sum_of(gv, axis=-2)
    turned_u, turned_v = matmul(matrix_transpose(u), gu), matmul(matrix_transpose(v), gv)
    of_u, of_v = turned_u - matrix_transpose(turned_u), turned_v - matrix_transpose(turned_v)
    apart = 0.25 * (of_u + of_v) / gaps + 0.25 * (of_u - of_v) / sums
    trap = _trap(_each_pair(logical_or, live), _each_pair(Tensor.__add__, total))
    left = matmul(u, where(close, trap, apart) + _diagonal(gs))
    tiny = less_equal(s, bound(s, max(m, n)))

    def outside(vectors: Tensor, cotangents: Tensor, turned: Tensor) -> Tensor:
        quotients = (cotangents - matmul(vectors, turned)) / _rows(where(tiny, 1.0, s))
        return where(_rows(tiny), _rows(_trap(live, total)), quotients)

    if m > k:
        left = left + outside(u, gu, turned_u)
    gx = matmul(left, matrix_transpose(v))
    return gx + matmul(u, matrix_transpose(outside(v, gv, turned_v))) if n > k else gx


def _svd_tangent(op: Any, inputs: Any, y: Tensor, params: Any, tangents: Any) -> Tensor:
    """Townsend's rule in forward mode. The additional columns of full matrices count as constant."""
    (t,), (m, n) = tangents, inputs[0].shape[-2:]
    (u, s, v), k = _factors(y, (m, n)), min(m, n)
    gaps, sums, close = _pairs(s, max(m, n))
    by_v, by_u = matmul(t, v), matmul(matrix_transpose(t), u)
    turned = matmul(matrix_transpose(u), by_v)
    even, odd = 0.5 * (turned + matrix_transpose(turned)), 0.5 * (turned - matrix_transpose(turned))
    even = where(close, _trap(_moves(t), even), 0.5 * even / gaps)
    odd = 0.5 * odd / sums
    tiny = less_equal(s, bound(s, max(m, n)))

    def outside(vectors: Tensor, moved: Tensor, turned: Tensor) -> Tensor:
        rest = moved - matmul(vectors, turned)
        return where(_rows(tiny), _trap(not_equal(moved, 0), moved), rest / _rows(where(tiny, 1.0, s)))

    tu, tv = matmul(u, _off_diagonal(even + odd)), matmul(v, _off_diagonal(even - odd))
    tu = tu + outside(u, by_v, turned) if m > k else tu
    tv = tv + outside(v, by_u, matrix_transpose(turned)) if n > k else tv
    moved = concat([_rows(zeros_like(s)), _rows(_on_diagonal(turned)), tu, tv], axis=-2)
    return padded(moved, (0,) * y.ndim, (*(0,) * (y.ndim - 1), y.shape[-1] - k))


def svd_cost(x: Any, full: bool, y: Any) -> dict[str, int]:
    """Golub & Van Loan, Matrix Computations (4th ed.), figure 8.6.1, with or without a QR factorisation before."""
    n, m = sorted(x.shape[-2:])
    plain = 4 * m * m * n + 8 * m * n * n + 9 * n**3 if full else 14 * m * n * n + 8 * n**3
    after_qr = 4 * m * m * n + 22 * n**3 if full else 6 * m * n * n + 20 * n**3
    return {"fmas": count(x.shape) * (min(plain, after_qr) // 2)}


_svd = op(
    "svd", kind=OWN, takes="float", batch=leading, reference=lapack.svd, same_bits=FROM_LAPACK, ulp=64,
    example=normal((2, 5, 3), params=(False,)), pullback=_svd_pullback, tangent=_svd_tangent, cost=svd_cost,
)


def thin_svd(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the u, s and v of x = u diag(s) vᵀ, where u and v have as many columns as there are singular values."""
    return _factors(apply(_svd, (x,), (False,)), x.shape)


def _svdvals_pullback(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    (u, _, v), (m, n) = thin_svd(x), x.shape[-2:]
    gs = _without_derivative(g, y[..., 1, :], max(m, n), m != n)
    return between(_marked(u, y), gs, v)


def _svdvals_tangent(op: Any, inputs: Any, y: Tensor, params: Any, tangents: Any) -> Tensor:
    u, _, v = thin_svd(inputs[0])
    moved = matmul(matrix_transpose(_marked(u, y)), matmul(tangents[0], v))
    moved = _rows(_on_diagonal(moved))
    return concat([zeros_like(moved), moved], axis=-2)


def _svdvals_cost(x: Any, called: int, y: Any) -> dict[str, int]:
    """Golub & Van Loan, figure 8.6.1, as above."""
    n, m = sorted(x.shape[-2:])
    return {"fmas": count(x.shape) * min(2 * m * n * n - 2 * n**3 // 3, m * n * n + n**3)}


_svdvals = op(
    "svdvals", kind=OWN, takes="float", batch=leading, reference=lapack.svdvals, same_bits=FROM_LAPACK, ulp=64,
    example=normal((2, 5, 3), params=(1,)), pullback=_svdvals_pullback, tangent=_svdvals_tangent, cost=_svdvals_cost,
)


def singular_values(name: str, x: ArrayLike) -> Tensor:
    """Returns the singular values for the function with this name, which errors tell."""
    return _values(apply(_svdvals, (matrix(name, x),), (lapack.caller(name),)))


# ---- public functions


@attach_hints
class EighResult(NamedTuple):
    """The result of `eigh`: eigenvalues in ascending order, and the eigenvectors as the columns of a matrix."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def eigh(x: ArrayLike, /) -> EighResult:
    """Returns the eigenvalues of each symmetric matrix in ascending order, and its orthonormal eigenvectors as columns.

    As in JAX, x stands for its symmetric part (x + xᵀ) / 2, so the gradient is symmetric. The derivative is that of Giles (2008).
    The sign of an eigenvector is arbitrary, and the derivative is that of the vectors returned. It is NaN for the vectors of
    eigenvalues that are equal up to rounding; `matrix_function` has the derivative of V f(W) Vᵀ there. Raises ShapeError if x is
    not square, LinAlgError if it is not finite. Cost: about 9 n³ FLOPs.
    """
    y = apply(_eigh, (square_matrix("eigh", x),))
    return EighResult(_values(y), y[..., 2:, :])


def eigvalsh(x: ArrayLike, /) -> Tensor:
    """Returns the eigenvalues of each symmetric matrix in ascending order, of its symmetric part as in `eigh`.

    The derivative is finite for equal eigenvalues, too; it computes the eigenvectors. Raises ShapeError if x is not square,
    LinAlgError if it is not finite. Cost: 4 n³ / 3 FLOPs.
    """
    return _values(apply(_eigvalsh, (square_matrix("eigvalsh", x),)))


@attach_hints
class SVDResult(NamedTuple):
    """The result of `svd`, with x = U diag(S) Vh and S in descending order."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def svd(x: ArrayLike, /, *, full_matrices: bool = True) -> SVDResult:
    """Returns the singular value decomposition x = U diag(S) Vh of each matrix (m, n), with S in descending order.

    full_matrices: U is (m, m) and Vh is (n, n). Otherwise they have only the min(m, n) columns and rows that belong to S.

    The derivative is that of Townsend, "Differentiating the singular value decomposition" (2016). The signs of the singular vectors
    are arbitrary, and the derivative is that of the vectors returned. It is NaN for the vectors of singular values that are equal
    up to rounding, and for those of a zero singular value if m is not n. As in PyTorch, the cotangents of the additional columns of
    full matrices are ignored. Raises ShapeError for fewer than two axes, LinAlgError if x is not finite. Cost: figure 8.6.1 of
    Golub & Van Loan's Matrix Computations (4th ed.).
    """
    full = flag("svd", "full_matrices", full_matrices)
    x = matrix("svd", x)
    m, n = x.shape[-2:]
    # the second derivatives of vectors beside the others lose digits in reverse over reverse mode unless the elements are about 1
    size, inverse = scale_of(x) if listeners.differentiates and m != n and 0 not in (m, n) else (None, None)
    y = apply(_svd, (x if inverse is None else x * inverse,), (full,))
    k, left, right = min(m, n), m if full else min(m, n), n if full else min(m, n)
    s = _values(y)[..., :k]
    s = s if size is None else s * size[..., 0]
    return SVDResult(y[..., 2 : m + 2, :left], s, matrix_transpose(y[..., m + 2 :, :right]))


def svdvals(x: ArrayLike, /) -> Tensor:
    """Returns the singular values of each matrix in descending order.

    The derivative is finite for equal singular values, too; it computes the singular vectors. At a singular value of 0 it is that
    of the vectors that LAPACK chooses. Raises ShapeError for fewer than two axes, LinAlgError if x is not finite. Cost: figure
    8.6.1 of Golub & Van Loan's Matrix Computations (4th ed.).
    """
    return _values(apply(_svdvals, (matrix("svdvals", x),), (1,)))


__all__ = ["eigh", "eigvalsh", "svd", "svdvals"]
