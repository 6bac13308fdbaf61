"""Pseudo-inverses and what follows from them: pinv, lstsq, matrix_rank."""

from __future__ import annotations

import builtins
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from ..autodiff.primitive import ZERO, apply
from ..errors import ShapeError
from ..interop.unknown_names import attach_hints
from ..tensors.creation import full, zeros_like
from ..tensors.dtypes import result_type
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from . import lapack
from ._shapes import broadcast_shapes, real
from .batch_rules import everywhere
from .by_name import in_dtype, in_float, widened
from .conversion import stop_gradient
from .declare import op
from .elementwise import greater, square
from .kinds import OWN_OF_TWO
from .lapack import FROM_LAPACK
from .linalg import matmul
from .operands import as_tensors
from .reduce import count_nonzero, max, sum
from .shape import broadcast_to, expand_dims, matrix_transpose, reshape
from .solves import count, matrix, scale_of
from .spectral import between, singular_values, svd_cost, thin_svd


def _pinv_pullback(g: Tensor, x: Tensor, y: Tensor, values: int) -> Tensor:
    """Golub & Pereyra's rule, for changes of x that keep its rank; and that of the singular values, if there are any."""
    n = x.shape[-1]
    gx = _pseudo_inverse_pullback(g[..., :n, :], x, y[..., :n, :]) if values else _pseudo_inverse_pullback(g, x, y)
    if values:
        u, s, v = thin_svd(x)
        gx = gx + between(u, g[..., n, : s.shape[-1]], v)
    return gx


def _pseudo_inverse_pullback(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Computes with x / c and the pseudo-inverse c y of that, because third powers of y could overflow or underflow.

    c is a power of 2 near the largest element, so that nothing is rounded, and constant, because the rule holds for every c.
    """
    if 0 in x.shape[-2:]:
        return zeros_like(x)
    size, inverse = scale_of(x)
    x, y = x * inverse, y * size
    turned, gt = matrix_transpose(y), matrix_transpose(g)
    beside, above = _product(gt, y, turned), _product(turned, y, gt)
    gx = (beside - _product(x, y, beside)) + (above - _product(above, y, x)) - _product(turned, g, turned)
    return gx * inverse * inverse


def _product(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Returns a b c in the order that takes fewer operations, so that nothing has the longer side of a matrix twice."""
    (rows, first), (second, columns) = a.shape[-2:], c.shape[-2:]
    left_first = rows * second * (first + columns) <= first * columns * (second + rows)
    return matmul(matmul(a, b), c) if left_first else matmul(a, matmul(b, c))


def _example(rng: Any, dtype: Any) -> Any:
    return (rng.standard_normal((2, 4, 3)).astype(dtype), np.full(2, 0.01, dtype)), (lapack.caller("lstsq"),)


def _cost(x: Any, rtol: Any, values: int, y: Any) -> dict[str, int]:
    """The thin `svd`, and a product."""
    n, m = sorted(x.shape[-2:])
    svd = svd_cost(x, False, y)["fmas"]
    return {"fmas": svd + count(x.shape) * m * n * n, "special_ops": count(x.shape) * n}


_pinv = op(
    "pinv", kind=OWN_OF_TWO, takes="float", inputs=2, reference=lapack.pinv, same_bits=FROM_LAPACK, ulp=64, example=_example,
    batch=everywhere, pullback=(_pinv_pullback, ZERO), cost=_cost,
)


def _tolerance(name: str, x: Tensor, rtol: Any) -> Tensor:
    """Returns the relative tolerance of each matrix, in the dtype of x.

    Raises ShapeError if it does not broadcast, DTypeError for a number that is NaN, with which no singular value would count.
    """
    batch = x.shape[:-2]
    if rtol is None:
        rtol = builtins.max(x.shape[-2:]) * float(np.finfo(x.dtype).eps)
        return full(batch, rtol, dtype=x.dtype, device=x.device)
    option = "rcond" if name == "lstsq" else "rtol"
    tolerance = as_tensor(real(name, option, rtol) if isinstance(rtol, Real) else rtol, dtype=x.dtype)
    if broadcast_shapes(name, [tolerance.shape, batch]) != batch:
        raise ShapeError(f"{name}: {option} has shape {tolerance.shape}; it must broadcast to {batch}, one for each matrix.")
    return broadcast_to(tolerance, batch)


# ---- public functions


def pinv(x: ArrayLike, /, *, rtol: ArrayLike | None = None) -> Tensor:
    """Returns the Moore-Penrose inverse (…, n, m) of each matrix (…, m, n), by its singular values.

    rtol: singular values of at most rtol times the largest count as zero; a number, or one for each matrix. None is max(m, n) times
    the epsilon of the dtype (of float32 for half precision, which is computed in float32).

    The derivative is that of Golub & Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems whose
    variables separate" (1973), which holds as long as the rank does not change. Raises ShapeError for fewer than two axes,
    LinAlgError if x is not finite.
    """
    x = matrix("pinv", x)
    wide = widened(x)
    return in_dtype(apply(_pinv, (wide, _tolerance("pinv", wide, rtol)), (0,)), x.dtype)


def matrix_rank(x: ArrayLike, /, *, rtol: ArrayLike | None = None) -> Tensor:
    """Returns the number of singular values of each matrix that are greater than rtol times the largest, with `rtol` as in `pinv`.

    The derivative is zero everywhere. Raises ShapeError for fewer than two axes, LinAlgError if x is not finite.
    """
    x = widened(matrix("matrix_rank", x))
    return _rank(singular_values("matrix_rank", x), _tolerance("matrix_rank", x, rtol))


def _rank(s: Tensor, rtol: Tensor) -> Tensor:
    """Returns the number of singular values that are greater than rtol times the largest."""
    least = rtol * (max(s, axis=-1) if s.shape[-1] else 0.0)
    return count_nonzero(greater(s, expand_dims(least, axis=-1)), axis=-1)


@attach_hints
class LstsqResult(NamedTuple):
    """The result of `lstsq`. `residuals` are the sums of squares |b - a x|² of each column of b."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def lstsq(a: ArrayLike, b: ArrayLike, /, rcond: ArrayLike | None = None) -> LstsqResult:
    """Returns the x of least norm among those that minimise |b - a x|: pinv(a) b, with two steps of refinement.

    a: matrices (…, m, n). b: matrices (…, m, k), or one vector (m,). Leading axes broadcast.
    rcond: as `rtol` of `pinv`.

    Unlike in NumPy and PyTorch the residuals are never left out, whatever the rank. The derivative is that of `pinv`. Raises
    ShapeError, and LinAlgError if a is not finite.
    """
    a, b = as_tensors("lstsq", a, b)
    a, b = matrix("lstsq", a, "a"), in_float(b)
    vector = b.ndim == 1
    if not b.ndim or b.shape[-1 if vector else -2] != a.shape[-2]:
        raise ShapeError(
            f"lstsq: b has shape {b.shape}; it must be a vector ({a.shape[-2]},) or matrices (..., {a.shape[-2]}, k) for a of "
            f"shape {a.shape}."
        )
    b = expand_dims(b, axis=1) if vector else b
    broadcast_shapes("lstsq", [a.shape[:-2], b.shape[:-2]])
    dtype, (m, n) = result_type(a, b), a.shape[-2:]
    a, b = [widened(in_dtype(t, dtype)) for t in (a, b)]
    rtol = _tolerance("lstsq", a, rcond)
    parts = apply(_pinv, (a, rtol), (lapack.caller("lstsq"),))
    x, rest = _solution(a, b, parts[..., :n, :])
    residuals = sum(square(rest), axis=-2)
    s = parts[..., n, : builtins.min(m, n)]
    rank = _rank(s, rtol)
    if vector:
        x, residuals = reshape(x, x.shape[:-1]), reshape(residuals, residuals.shape[:-1])
    return LstsqResult(in_dtype(x, dtype), in_dtype(residuals, dtype), rank, in_dtype(s, dtype))


def _solution(a: Tensor, b: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Returns x = pinv(a) b and b - a x.

    The rounding of the product loses digits if a is ill-conditioned. Two steps of refinement give them back. In exact arithmetic
    they add 0, because pinv(a) a pinv(a) is pinv(a), so they have no derivative of any order.
    """
    x = matmul(inverse, b)
    constant, target, factor = stop_gradient(inverse), stop_gradient(b), stop_gradient(a)
    refined = stop_gradient(x)
    for _ in range(2):
        refined = refined + matmul(constant, target - matmul(factor, refined))
    x = x + (refined - stop_gradient(x))
    return x, b - matmul(a, x)


__all__ = ["lstsq", "matrix_rank", "pinv"]
