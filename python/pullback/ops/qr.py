"""The QR factorisation of matrices."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from ..autodiff.primitive import apply
from ..errors import PullbackError
from ..interop.unknown_names import attach_hints
from ..interop.wrong_calls import one_of
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from . import lapack
from .batch_rules import leading
from .declare import normal, op
from .elementwise import abs as absolute, less_equal, where
from .kinds import OWN
from .lapack import FROM_LAPACK
from .linalg import matmul
from .matrices import diagonal
from .movement import concat, triu
from .reduce import any as any_of
from .shape import expand_dims, matrix_transpose
from .solves import count, half_diagonal, matrix, substituted
from .spectral import bound


def _pullback(g: Tensor, x: Tensor, y: Tensor, complete: bool) -> Tensor:
    """The rule of Seeger et al. (2017) and, for fewer rows than columns, of Roberts & Roberts (2020): R = [U V] with a square U.

    Raises PullbackError for the complete factorisation of a matrix with more rows than columns.
    """
    m, n = x.shape[-2:]
    if complete and m > n:
        raise PullbackError(
            f'qr: mode="complete" of a matrix with more rows than columns ({m} x {n}) has no derivative, because the additional '
            f'columns of Q are arbitrary. Use mode="reduced".'
        )
    (q, r), (gq, gr) = [(t[..., :m, :], matrix_transpose(t[..., m:, :])) for t in (y, g)]
    if m >= n:
        return _of_columns(q, r, gq, gr)
    rest = x[..., m:]
    first = _of_columns(q, r[..., :m], gq + matmul(rest, matrix_transpose(gr[..., m:])), gr[..., :m])
    return concat([first, matmul(q, gr[..., m:])], axis=-1)


def _of_columns(q: Tensor, r: Tensor, gq: Tensor, gr: Tensor) -> Tensor:
    """Returns the gradient of x = q r with a square r: NaN if an element of its diagonal is 0 up to rounding."""
    if r.shape[-1]:
        sizes = expand_dims(absolute(diagonal(r)), axis=-1)
        singular = any_of(less_equal(sizes, bound(sizes, q.shape[-2], axis=-2)), axis=-2, keepdims=True)
        r = where(singular, math.nan, r)
    lower = half_diagonal(matmul(r, matrix_transpose(triu(gr))) - matmul(matrix_transpose(gq), q))
    turned = gq + matmul(q, lower + matrix_transpose(lower))
    return matrix_transpose(substituted(r, matrix_transpose(turned), upper=True))


def _cost(x: Any, complete: bool, y: Any) -> dict[str, int]:
    """Golub & Van Loan, Matrix Computations (4th ed.), section 5.2: Householder's method, without the product that forms Q."""
    n, m = sorted(x.shape[-2:])
    return {"fmas": count(x.shape) * (m * n * n - n**3 // 3), "special_ops": count(x.shape) * n}


_qr = op(
    "qr", kind=OWN, takes="float", batch=leading, reference=lapack.qr, same_bits=FROM_LAPACK, ulp=64,
    example=normal((2, 5, 3), params=(False,)), pullback=_pullback, cost=_cost,
)


@attach_hints
class QRResult(NamedTuple):
    """The result of `qr`, with x = Q R."""

    Q: Tensor
    R: Tensor


def qr(x: ArrayLike, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QRResult:
    """Returns the orthonormal Q and the upper triangular R of each matrix x = Q R (m, n), by Householder's method.

    mode: "reduced" gives a Q of min(m, n) columns, "complete" one of m.

    The signs are LAPACK's, as in NumPy and PyTorch: the diagonal of R may be negative. The derivative is that of Seeger et al.,
    "Auto-differentiating linear algebra" (2017), and for m < n that of Roberts & Roberts, "QR and LQ decomposition matrix
    backpropagation algorithms for square, wide, and deep matrices" (2020). It needs linearly independent columns (the first m, if
    m < n) and is NaN if R has a number on its diagonal that is zero up to rounding. A complete factorisation has none if m > n:
    PullbackError.

    Raises ShapeError for fewer than two axes, ArgumentError for another mode. Cost: 2 m n² - 2 n³ / 3 FLOPs for m >= n.
    """
    one_of("qr", "mode", mode, ("reduced", "complete"))
    x = matrix("qr", x)
    m = x.shape[-2]
    y = apply(_qr, (x,), (mode == "complete",))
    return QRResult(y[..., :m, :], matrix_transpose(y[..., m:, :]))


__all__ = ["qr"]
