"""Newton-Schulz iterations, which bring the singular values of matrices near 1, on stacks of matrices of one shape."""

from __future__ import annotations

from typing import Final

from ..amp import autocast
from ..ops.elementwise import maximum, sqrt
from ..ops.linalg import matmul, matrix_transpose
from ..ops.reduce import sum
from ..tensors.tensor import Tensor

# The most iterations that are computed from one Gram matrix. They cost products of the shorter side only, but an error of the Gram
# matrix grows in each by up to the square of the first coefficient. With 5 iterations together, float32 loses a decimal digit or
# two of the result for matrices with small singular values. With 3, the error is that of single iterations.
TOGETHER: Final = 3
LONG: Final = 1.5  # the ratio of the longer side to the shorter one from which on iterations are computed together


def orthogonal(
    x: Tensor, eye: Tensor, coefficients: tuple[Tensor, Tensor, Tensor], eps: Tensor, scale: Tensor, steps: int, narrow: bool
) -> Tensor:
    """Returns scale * f(x), where f applies `steps` iterations X ← (a + b A + c A²) X with A = X Xᵀ to x / max(|x|, eps).

    A matrix that is taller than wide is multiplied from the right, X ← X (a + b A + c A²) with A = XᵀX, which is the same.

    Args:
        x: matrices of shape (n, rows, columns), float32 or float64. |x| is the Frobenius norm of each.
        eye: the identity matrix of the shorter side.
        coefficients, eps, scale: a, b and c, and two more numbers for each matrix, of shape (n, 1, 1).
        narrow: the factors of products are rounded to bfloat16, and their sums are float32. x must be float32.
    """
    a, b, c = coefficients
    rows, columns = x.shape[1:]
    long = max(rows, columns) >= LONG * min(rows, columns) and not narrow
    together = TOGETHER if long else 1
    with autocast("bfloat16" if narrow else "float32"):
        for first in range(0, steps, together):
            gram = matmul(x, matrix_transpose(x)) if rows <= columns else matmul(matrix_transpose(x), x)
            norm = None
            if not first:  # The trace of the Gram matrix is the square of the norm, which saves passes over x.
                norm = 1 / maximum(sqrt(sum(gram * eye, axis=(1, 2), keepdims=True)), eps)
                gram = gram * norm * norm
            factor = _factor(gram, (a * eye, b * eye, c), min(together, steps - first))
            for number in (norm, scale if first + together >= steps else None):
                factor = factor if number is None else factor * number
            x = matmul(factor, x) if rows <= columns else matmul(x, factor)
    return x


def _factor(gram: Tensor, coefficients: tuple[Tensor, Tensor, Tensor], count: int) -> Tensor:
    """Returns the matrix by which `count` iterations multiply. a and b come as multiples of the identity matrix."""
    a, b, c = coefficients
    factor = None
    for i in range(count):
        each = matmul(gram * c + b, gram) + a
        factor = each if factor is None else matmul(each, factor)
        if i < count - 1:
            gram = matmul(each, matmul(gram, each))
    assert factor is not None
    return factor
