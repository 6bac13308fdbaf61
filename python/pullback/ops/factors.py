"""A gradient of each example of a batch, in the factors that its pullback has before it multiplies them.

The gradient of a dense layer's weight for one example is a product of two thin matrices, that of an embedding a few rows. Inner
products of such gradients, and their sum over all examples, do not need the batch times the parameters that they stand for.
"""

from __future__ import annotations

import math

from ..tensors.tensor import Tensor
from .by_name import reshaped
from .elementwise import equal
from .gather import Rows, take_along_axis
from .linalg import Outer, matmul
from .movement import concat
from .reduce import sum, sum_over
from .shape import broadcast_to, expand_dims, matrix_transpose, reshape

EVERY = slice(None)  # all examples
CHUNK_ELEMENTS = 2**22  # of gradients that are formed at once where forming them is the cheapest way


class Dense:
    """The gradients themselves: (batch, *shape)."""

    def __init__(self, gradients: Tensor) -> None:
        self.all, self.shape = gradients, gradients.shape

    def formed(self, some: slice) -> Tensor:
        """Returns the gradients of these examples."""
        return self.all if some == EVERY else self.all[some]

    def total(self) -> Tensor:
        """Returns the sum over all examples."""
        return sum_over(self.all, (0,))


Factored = Dense | Outer | Rows


def transposed(x: Factored) -> Factored:
    """The gradients of the transpose of what these are the gradients of."""
    if isinstance(x, Outer):
        return Outer(x.right, x.left)
    return Dense(matrix_transpose(x.formed(EVERY)))


def inner(a: Factored, b: Factored) -> Tensor:
    """The inner product of two gradients of each example: (batch,)."""
    if isinstance(a, Outer) and isinstance(b, Outer) and _thin(a, b):
        if a.left.shape[1] == b.left.shape[1] == 1:
            return reshaped(sum_over(a.left * b.left, (1, 2)) * sum_over(a.right * b.right, (1, 2)), (a.left.shape[0],))
        return sum(_pairs(a.left, b.left) * _pairs(a.right, b.right), axis=(1, 2))
    if isinstance(a, Rows) and isinstance(b, Rows):
        same = equal(expand_dims(a.indices, axis=2), expand_dims(b.indices, axis=1))
        return sum(_pairs(a.values, b.values) * same.astype(a.values.dtype), axis=(1, 2))
    if isinstance(a, Outer) and isinstance(b, Rows):
        rows, count = a.left.shape[1], b.indices.shape[1]
        chosen = take_along_axis(a.left, broadcast_to(expand_dims(b.indices, axis=1), (a.left.shape[0], rows, count)), axis=2)
        return sum(chosen * _pairs(a.right, b.values), axis=(1, 2))
    if isinstance(a, Rows) and isinstance(b, Outer):
        return inner(b, a)
    return _by_forming(a, b)


def _pairs(x: Tensor, y: Tensor) -> Tensor:
    """The inner products of all rows of x with all rows of y: (batch, rows of x, rows of y)."""
    return matmul(x, matrix_transpose(y))


def _thin(a: Outer, b: Outer) -> bool:
    """True if the inner products of rows are fewer operations than the gradients."""
    (_, s, m), (_, t, n) = a.left.shape, b.right.shape
    return s * t * (m + n) <= (s + t) * m * n


def _by_forming(a: Factored, b: Factored) -> Tensor:
    """Forms the gradients of some examples after the other, unless they are formed already."""
    size, found = a.shape[0], []
    step = size if isinstance(a, Dense) and isinstance(b, Dense) else max(1, CHUNK_ELEMENTS // max(math.prod(a.shape[1:]), 1))
    for some in [EVERY] if step >= size else [slice(k, k + step) for k in range(0, size, step)]:
        gradients = _rows_of(a.formed(some))
        found.append(sum(gradients * (gradients if b is a else _rows_of(b.formed(some))), axis=1))
    return found[0] if len(found) == 1 else concat(found)


def _rows_of(gradients: Tensor) -> Tensor:
    """The gradient of each example as one row."""
    return reshape(gradients, (gradients.shape[0], math.prod(gradients.shape[1:])))
