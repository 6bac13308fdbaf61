"""Eigenvalues of symmetric matrices, and singular values: eigh, eigvalsh, svd, svdvals.

An op has one result, so `eigh` and `svd` pack theirs into the rows of one array, and the functions return views of it.

If two eigenvalues or singular values are equal, the derivatives of their vectors divide by zero. As in PyTorch and JAX the result
is then infinite or NaN. Where the cotangent does not depend on the choice of these vectors, 0 / 0 counts as 0, so derivatives of
the values alone are always finite.

References for the rules: M. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic differentiation"
(2008); J. Townsend, "Differentiating the singular value decomposition" (2016).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..autodiff.primitive import apply
from ..interop.unknown_names import attach_hints
from ..interop.wrong_calls import explain_call
from ..tensors.creation import eye
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from . import lapack
from ._shapes import flag
from .by_name import aligned
from .declare import normal, op
from .elementwise import where
from .kinds import OWN, OWN_OF_TWO, leading
from .lapack import FROM_LAPACK
from .linalg import matmul
from .shape import expand_dims, matrix_transpose
from .solves import count, matrix, square as square_matrix


def _diagonal(s: Tensor) -> Tensor:
    """Returns the diagonal matrices with these elements."""
    return where(eye(s.shape[-1], dtype="bool", device=s.device), expand_dims(s, axis=-1), 0.0)


def _apart(gaps: Tensor) -> Tensor:
    """Returns the gaps between all pairs of values, with 1 in place of the 0 between a value and itself."""
    return gaps + eye(gaps.shape[-1], dtype=gaps.dtype, device=gaps.device)


# ---- division


def _quotient(xp: Any, a: Any, b: Any) -> Any:
    return xp.where((a == 0) & (b == 0), xp.zeros((), a.dtype), xp.divide(a, b))


def _divisors(rng: Any, dtype: Any) -> Any:
    return (rng.standard_normal((3, 4)).astype(dtype), rng.uniform(1, 2, (3, 4)).astype(dtype)), ()


_divided = op(
    "quotient", kind=OWN_OF_TWO, takes="float", inputs=2, reference=_quotient, example=_divisors,
    same_bits="on a GPU CuPy computes it, and keeps denormal numbers",
    batch=lambda op, size, xs, on, params: apply(op, tuple(aligned(xs, on))),
    pullback=(lambda g, b: quotient(g, b), lambda g, b, y: -quotient(g * y, b)), cost=lambda a, b, y: {"special_ops": y.size},
)  # fmt: skip


def quotient(a: Tensor, b: Tensor) -> Tensor:
    """Returns a / b with 0 / 0 = 0. Unlike in a masked division, the derivative at 0 / 0 is infinite unless its cotangent is 0."""
    return apply(_divided, (a, b))


# ---- eigh


def _eigh_pullback(g: Tensor, y: Tensor) -> Tensor:
    """Section 3.1 of Giles's paper, for the symmetric part of x."""
    w, v = y[..., 0, :], y[..., 1:, :]
    turned = matmul(matrix_transpose(v), g[..., 1:, :])
    gaps = _apart(expand_dims(w, axis=-2) - expand_dims(w, axis=-1))
    inside = quotient(0.5 * (turned - matrix_transpose(turned)), gaps) + _diagonal(g[..., 0, :])
    return matmul(matmul(v, inside), matrix_transpose(v))


_eigh = op(
    "eigh", kind=OWN, takes="float", batch=leading, reference=lapack.eigh, same_bits=FROM_LAPACK, ulp=64,
    example=normal((2, 4, 4)), pullback=_eigh_pullback, cost=lambda x, y: {"fmas": count(x.shape) * (9 * x.shape[-1] ** 3 // 2)},
)  # fmt: skip


def between(left: Tensor, values: Tensor, right: Tensor) -> Tensor:
    """Returns left diag(values) rightᵀ."""
    return matmul(left * expand_dims(values, axis=-2), matrix_transpose(right))


def _eigvalsh_pullback(g: Tensor, x: Tensor) -> Tensor:
    vectors = apply(_eigh, (x,))[..., 1:, :]
    return between(vectors, g, vectors)


_eigvalsh = op(
    "eigvalsh", kind=OWN, takes="float", batch=leading, reference=lapack.eigvalsh, same_bits=FROM_LAPACK, ulp=64,
    example=normal((2, 4, 4)), pullback=_eigvalsh_pullback,
    cost=lambda x, y: {"fmas": count(x.shape) * (2 * x.shape[-1] ** 3 // 3)},
)  # fmt: skip


# ---- svd


def _svd_pullback(g: Tensor, x_shape: tuple[int, ...], y: Tensor, full: bool) -> Tensor:
    """Townsend's rule. The cotangents of the additional columns of full matrices count as zero, because these are arbitrary."""
    m, n = x_shape[-2:]
    k = min(m, n)
    (u, s, v), (gu, gs, gv) = [(t[..., :m, :k], t[..., m, :k], t[..., m + 1 :, :k]) for t in (y, g)]
    row, column = expand_dims(s, axis=-2), expand_dims(s, axis=-1)
    gaps = _apart((row - column) * (row + column))
    inside = _diagonal(gs)
    turned_u, turned_v = matmul(matrix_transpose(u), gu), matmul(matrix_transpose(v), gv)
    inside = inside + quotient(turned_u - matrix_transpose(turned_u), gaps) * row
    inside = inside + column * quotient(turned_v - matrix_transpose(turned_v), gaps)
    left = matmul(u, inside)
    if m > k:
        left = left + quotient(gu - matmul(u, turned_u), row)
    gx = matmul(left, matrix_transpose(v))
    if n > k:
        gx = gx + matmul(u, matrix_transpose(quotient(gv - matmul(v, turned_v), row)))
    return gx


def svd_cost(x: Any, full: bool, y: Any) -> dict[str, int]:
    """Golub & Van Loan, Matrix Computations (4th ed.), figure 8.6.1, with or without a QR factorisation before."""
    n, m = sorted(x.shape[-2:])
    plain = 4 * m * m * n + 8 * m * n * n + 9 * n**3 if full else 14 * m * n * n + 8 * n**3
    after_qr = 4 * m * m * n + 22 * n**3 if full else 6 * m * n * n + 20 * n**3
    return {"fmas": count(x.shape) * (min(plain, after_qr) // 2)}


_svd = op(
    "svd", kind=OWN, takes="float", batch=leading, reference=lapack.svd, same_bits=FROM_LAPACK, ulp=64,
    example=normal((2, 5, 3), params=(False,)), pullback=_svd_pullback, cost=svd_cost,
)  # fmt: skip


def thin_svd(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the u, s and v of x = u diag(s) vᵀ, where u and v have as many columns as there are singular values."""
    y = apply(_svd, (x,), (False,))
    m = x.shape[-2]
    return y[..., :m, :], y[..., m, :], y[..., m + 1 :, :]


def _svdvals_pullback(g: Tensor, x: Tensor) -> Tensor:
    u, _, v = thin_svd(x)
    return between(u, g, v)


def _svdvals_cost(x: Any, called: int, y: Any) -> dict[str, int]:
    """Golub & Van Loan, figure 8.6.1, as above."""
    n, m = sorted(x.shape[-2:])
    return {"fmas": count(x.shape) * min(2 * m * n * n - 2 * n**3 // 3, m * n * n + n**3)}


_svdvals = op(
    "svdvals", kind=OWN, takes="float", batch=leading, reference=lapack.svdvals, same_bits=FROM_LAPACK, ulp=64,
    example=normal((2, 5, 3), params=(1,)), pullback=_svdvals_pullback, cost=_svdvals_cost,
)  # fmt: skip


def singular_values(name: str, x: ArrayLike) -> Tensor:
    """Returns the singular values for the function with this name, which errors tell."""
    return apply(_svdvals, (matrix(name, x),), (lapack.caller(name),))


# ---- public functions


@attach_hints
class EighResult(NamedTuple):
    """The result of `eigh`: eigenvalues in ascending order, and the eigenvectors as the columns of a matrix."""

    eigenvalues: Tensor
    eigenvectors: Tensor


@explain_call
def eigh(x: ArrayLike, /) -> EighResult:
    """Returns the eigenvalues of each symmetric matrix in ascending order, and its orthonormal eigenvectors as columns.

    As in JAX, x stands for its symmetric part (x + xᵀ) / 2, so the gradient is symmetric. The derivative is that of Giles (2008).
    The sign of an eigenvector is arbitrary, and the derivative is that of the vectors returned. It is infinite or NaN for the
    vectors of equal eigenvalues. Raises ShapeError if x is not square, LinAlgError if it is not finite. Cost: about 9 n³ FLOPs.
    """
    y = apply(_eigh, (square_matrix("eigh", x),))
    return EighResult(y[..., 0, :], y[..., 1:, :])


@explain_call
def eigvalsh(x: ArrayLike, /) -> Tensor:
    """Returns the eigenvalues of each symmetric matrix in ascending order, of its symmetric part as in `eigh`.

    The derivative is finite for equal eigenvalues, too; it computes the eigenvectors. Raises ShapeError if x is not square,
    LinAlgError if it is not finite. Cost: 4 n³ / 3 FLOPs.
    """
    return apply(_eigvalsh, (square_matrix("eigvalsh", x),))


@attach_hints
class SVDResult(NamedTuple):
    """The result of `svd`, with x = U diag(S) Vh and S in descending order."""

    U: Tensor
    S: Tensor
    Vh: Tensor


@explain_call
def svd(x: ArrayLike, /, *, full_matrices: bool = True) -> SVDResult:
    """Returns the singular value decomposition x = U diag(S) Vh of each matrix (m, n), with S in descending order.

    full_matrices: U is (m, m) and Vh is (n, n). Otherwise they have only the min(m, n) columns and rows that belong to S.

    The derivative is that of Townsend, "Differentiating the singular value decomposition" (2016). The signs of the singular vectors
    are arbitrary, and the derivative is that of the vectors returned. It is infinite or NaN for the vectors of equal singular
    values, and for those of a zero singular value if m is not n. As in PyTorch, the cotangents of the additional columns of full
    matrices are ignored. Raises ShapeError for fewer than two axes, LinAlgError if x is not finite. Cost: figure 8.6.1 of Golub &
    Van Loan's Matrix Computations (4th ed.).
    """
    full = flag("svd", "full_matrices", full_matrices)
    x = matrix("svd", x)
    m, n = x.shape[-2:]
    y = apply(_svd, (x,), (full,))
    k, left, right = min(m, n), m if full else min(m, n), n if full else min(m, n)
    return SVDResult(y[..., :m, :left], y[..., m, :k], matrix_transpose(y[..., m + 1 :, :right]))


@explain_call
def svdvals(x: ArrayLike, /) -> Tensor:
    """Returns the singular values of each matrix in descending order.

    The derivative is finite for equal singular values, too; it computes the singular vectors. At a singular value of 0 it is that
    of the vectors that LAPACK chooses. Raises ShapeError for fewer than two axes, LinAlgError if x is not finite. Cost: figure
    8.6.1 of Golub & Van Loan's Matrix Computations (4th ed.).
    """
    return apply(_svdvals, (matrix("svdvals", x),), (1,))


__all__ = ["eigh", "eigvalsh", "svd", "svdvals"]
