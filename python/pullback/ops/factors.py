"""A gradient of each example of a batch, in the factors that its pullback has before it multiplies them.

The gradient of a dense layer's weight for one example is a product of two thin matrices, that of an embedding a few rows. Inner
products of such gradients, and their sum over all examples, do not need the batch times the parameters that they stand for.
"""

from __future__ import annotations

import math

from ..tensors.tensor import Tensor
from .elementwise import equal
from .index import scatter_add, take_along_axis
from .linalg import matmul
from .reduce import sum, sum_over
from .shape import broadcast_to, concat, expand_dims, flatten, matrix_transpose, reshape, reshaped, stack

EVERY = slice(None)  # example
CHUNK_ELEMENTS = 2**22  # of gradients that are formed at once where forming them is the cheapest way


class Dense:
    """The gradients themselves: (batch, *shape)."""

    def __init__(self, all_of_them: Tensor) -> None:
        self.all, self.shape = all_of_them, all_of_them.shape

    def formed(self, some: slice) -> Tensor:
        """The gradients of these examples."""
        return self.all if some == EVERY else self.all[some]

    def total(self) -> Tensor:
        """The sum over all examples."""
        return sum_over(self.all, (0,))

    def transposed(self) -> Dense:
        return Dense(matrix_transpose(self.all))


class Outer:
    """leftᵀ right: of `left` (batch, rows, m) and `right` (batch, rows, n) the gradients (batch, m, n)."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left, self.right = left, right
        self.shape = (left.shape[0], left.shape[2], right.shape[2])

    def formed(self, some: slice) -> Tensor:
        """The gradients of these examples."""
        return matmul(matrix_transpose(self.left[some]), self.right[some])

    def total(self) -> Tensor:
        """One product over the rows of all examples."""
        left, right = [reshape(x, (math.prod(x.shape[:2]), x.shape[2])) for x in (self.left, self.right)]
        return matmul(matrix_transpose(left), right)

    def transposed(self) -> Outer:
        return Outer(self.right, self.left)


class Rows:
    """Values (batch, rows, n) added into a table of shape (length, n) at indices (batch, rows).

    A table of another rank stands as the matrix of its rows, so that its gradients are to be compared element by element.
    """

    def __init__(self, indices: Tensor, values: Tensor, length: int) -> None:
        self.indices, self.values = indices, values
        self.shape = (indices.shape[0], length, values.shape[2])

    def formed(self, some: slice) -> Tensor:
        """The gradients of these examples."""
        return stack([scatter_add(self.values[k], self.indices[k], self.shape[1:], 0) for k in range(self.shape[0])[some]])

    def total(self) -> Tensor:
        values = reshape(self.values, (self.indices.size, self.values.shape[2]))
        return scatter_add(values, flatten(self.indices), self.shape[1:], 0)

    def transposed(self) -> Dense:
        return Dense(self.formed(EVERY)).transposed()


Factored = Dense | Outer | Rows


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
    """Whether the inner products of rows are fewer operations than the gradients."""
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
