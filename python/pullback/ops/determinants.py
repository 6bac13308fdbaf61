"""Determinants: det and slogdet."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..autodiff.primitive import apply
from ..interop.unknown_names import attach_hints
from ..tensors.ranges import eye
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from . import lapack
from .batch_rules import leading
from .cumulative import product_of_others
from .declare import op
from .elementwise import mask_nan_gradient, sign, where
from .kinds import OWN
from .lapack import FROM_LAPACK
from .linalg import matmul
from .reduce import sum
from .shape import expand_dims, matrix_transpose
from .solves import count, inverse_transposed, square, well_conditioned
from .spectral import thin_svd

EXAMPLE = well_conditioned((2, 4, 4))


def _lu_cost(x: Any, y: Any) -> dict[str, int]:
    return {"fmas": count(x.shape) * (x.shape[-1] ** 3 // 3), "special_ops": count(x.shape) * x.shape[-1]}


def _cofactors_pullback(g: Tensor, x: Tensor) -> Tensor:
    """The second derivative of the determinant, which is a polynomial, at any x, also a singular one.

    With x = u diag(s) vᵀ, the derivative is that at diag(s), between u and vᵀ. There the derivative by element (i, i) is the sum of
    w_ij g_jj, and by (i, j) it is -w_ij g_ji, where w_ij is the product of all s but s_i and s_j.
    """
    u, s, v = thin_svd(x)
    one = eye(x.shape[-1], dtype="bool", device=x.device)
    w = where(one, 0.0, product_of_others(where(one, 1.0, expand_dims(s, axis=-2))))
    inside = matmul(matmul(matrix_transpose(u), g), v)
    diagonal = sum(w * expand_dims(sum(where(one, inside, 0.0), axis=-2), axis=-2), axis=-1)
    changed = where(one, expand_dims(diagonal, axis=-1), -(w * matrix_transpose(inside)))
    turns = sign(apply(_det, (u,)) * apply(_det, (v,)))
    return _as_matrix(turns) * matmul(matmul(u, changed), matrix_transpose(v))


_cofactors = op(
    "cofactors", kind=OWN, takes="float", batch=leading, reference=lapack.cofactors, same_bits=FROM_LAPACK, ulp=64,
    pullback=_cofactors_pullback, example=EXAMPLE, cost=lambda x, y: {"fmas": 12 * count(x.shape) * x.shape[-1] ** 3},
)


def _as_matrix(g: Tensor) -> Tensor:
    return expand_dims(expand_dims(g, axis=-1), axis=-1)


_det = op(
    "det", kind=OWN, takes="float", batch=leading, reference=lambda xp, x: xp.linalg.det(x), same_bits=FROM_LAPACK, ulp=64,
    pullback=lambda g, x: _as_matrix(g) * apply(_cofactors, (x,)), example=EXAMPLE, cost=_lu_cost,
)


def _slogdet_pullback(g: Tensor, x: Tensor) -> Tensor:
    by_logarithm = _as_matrix(g[..., 1])
    return mask_nan_gradient(by_logarithm, by_logarithm * inverse_transposed(x))


_slogdet = op(
    "slogdet", kind=OWN, takes="float", batch=leading, reference=lapack.slogdet, same_bits=FROM_LAPACK, ulp=64,
    pullback=_slogdet_pullback, example=EXAMPLE, cost=_lu_cost,
)


def det(x: ArrayLike, /) -> Tensor:
    """Returns the determinant of each matrix, by LU with partial pivoting.

    The derivative is the matrix of cofactors (Jacobi's formula), computed from singular values, so the first two derivatives are
    right for singular matrices, too. `slogdet` does not overflow. Raises ShapeError if x is not square. Cost: 2 n³ / 3 FLOPs.
    """
    return apply(_det, (square("det", x),))


@attach_hints
class SlogdetResult(NamedTuple):
    """The result of `slogdet`: the sign of the determinant, and the logarithm of its absolute value."""

    sign: Tensor
    logabsdet: Tensor


def slogdet(x: ArrayLike, /) -> SlogdetResult:
    """Returns the sign of the determinant of each matrix, and the logarithm of its absolute value, by LU with partial pivoting.

    A singular matrix has the sign 0, the logarithm -infinity and a gradient of NaN. The derivative of the logarithm is the
    transposed inverse (Giles 2008), that of the sign is 0. Raises ShapeError if x is not square. Cost: 2 n³ / 3 FLOPs.
    """
    y = apply(_slogdet, (square("slogdet", x),))
    return SlogdetResult(y[..., 0], y[..., 1])


__all__ = ["det", "slogdet"]
