"""Newton-Schulz iterations, which bring the singular values of matrices near 1, on stacks of matrices of one shape."""

from __future__ import annotations

from typing import Final

from ..backends.autocast import autocast
from ..ops.by_name import reshaped, view
from ..ops.elementwise import maximum, sqrt
from ..ops.linalg import matmul, matrix_transpose
from ..ops.reduce import sum
from ..ops.shape import SLICE
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
    rows, columns = x.shape[1:]
    long = max(rows, columns) >= LONG * min(rows, columns) and not narrow
    together = TOGETHER if long else 1
    a, b, c = coefficients
    with autocast("bfloat16" if narrow else "float32"):
        for first in range(0, steps, together):
            gram = matmul(x, matrix_transpose(x)) if rows <= columns else matmul(matrix_transpose(x), x)
            numbers = [scale] if first + together >= steps else []
            if not first:
                norm = 1 / maximum(sqrt(_trace(gram)), eps)
                gram = gram * norm * norm
                numbers.append(norm)
            factor = _factor(gram, (a * eye, b, c), min(together, steps - first), numbers)
            x = matmul(factor, x) if rows <= columns else matmul(x, factor)
    return x


def _trace(gram: Tensor) -> Tensor:
    """Returns the trace of each Gram matrix, the square of the norm, in the shape (n, 1, 1). No pass over x computes it."""
    count, side = gram.shape[:2]
    diagonal = view(SLICE, reshaped(gram, (count, side * side)), (slice(None), slice(None, None, side + 1)))
    return reshaped(sum(diagonal, axis=1), (count, 1, 1))


def _factor(gram: Tensor, coefficients: tuple[Tensor, Tensor, Tensor], count: int, numbers: list[Tensor]) -> Tensor:
    """Returns the matrix by which `count` iterations multiply, times all numbers. a comes as a multiple of the identity matrix."""
    a, b, c = coefficients
    factor = None
    for i in range(count):
        each = matmul(gram, gram) * c + gram * b + a
        if i < count - 1:
            gram = matmul(each, matmul(gram, each))
        else:
            for number in numbers:  # here, because these products and sums run as one pass over the matrix
                each = each * number
        factor = each if factor is None else matmul(each, factor)
    assert factor is not None
    return factor
