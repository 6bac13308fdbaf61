"""Lengths of and distances between vectors along an axis. Half precision is computed in float32 and rounded once."""

from __future__ import annotations

import math
from typing import Any

from ..ops._shapes import broadcast_shapes, epsilon, flag
from ..ops.by_name import in_dtype, in_float, widened
from ..ops.conversion import same_dtype
from ..ops.elementwise import greater, maximum, where
from ..ops.matrices import vector_norms
from ..ops.operands import as_tensors
from ..ops.reduce import sum
from ..ops.shape import broadcast_arrays
from ..tensors.dtypes import finfo
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from .module import Module


def normalize(x: Any, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Tensor:
    """Returns x divided by its p-norm along the axis, or by eps where that is larger. Raises ShapeError."""
    x = in_float(as_tensor(x))
    wide = widened(x)
    return in_dtype(wide / maximum(vector_norms("normalize", wide, axis, True, p, "p"), epsilon("normalize", eps)), x.dtype)


def cosine_similarity(x1: Any, x2: Any, axis: int = 1, eps: float = 1e-8) -> Tensor:
    """Returns the cosine of the angle between vectors along the axis: their product over their lengths, which are at least eps.

    The shapes broadcast, and the axis is that of the common shape. A vector of zeros has cosine 0. Vectors are not scaled: where
    the product of their lengths is above a quarter of the largest number (float32: lengths of 9e18), the cosine is NaN. Raises
    ShapeError.
    """
    least = epsilon("cosine_similarity", eps)
    a, b, dtype = _pair("cosine_similarity", x1, x2)
    a, b = broadcast_arrays(a, b)
    lengths = [maximum(vector_norms("cosine_similarity", x, axis, False, 2), least) for x in (a, b)]
    size = lengths[0] * lengths[1]
    size = where(greater(size, finfo(size.dtype).max / 4), math.nan, size)  # its reciprocal, which derivatives have, would be 0
    return in_dtype(sum(a * b, axis=axis) / size, dtype)


def pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False) -> Tensor:
    """Returns the p-norm of x1 - x2 + eps along the last axis. The shapes broadcast. Raises ShapeError."""
    a, b, dtype = _pair("pairwise_distance", x1, x2)
    return in_dtype(vector_norms("pairwise_distance", a - b + epsilon("pairwise_distance", eps), -1, keepdims, p, "p"), dtype)


def _pair(name: str, x1: Any, x2: Any) -> tuple[Tensor, Tensor, Any]:
    """Returns both as floating-point tensors of one dtype, half precision widened, and the dtype of the result.

    Raises ShapeError if the shapes do not broadcast.
    """
    a, b = same_dtype([in_float(x) for x in as_tensors(name, x1, x2)])
    broadcast_shapes(name, [a.shape, b.shape])
    return widened(a), widened(b), a.dtype


class CosineSimilarity(Module):
    """Returns the cosine of the angle between vectors along the axis (see nn.functional.cosine_similarity).

    >>> nn.CosineSimilarity(axis=0)(pb.tensor([1.0, 0.0]), pb.tensor([0.0, 2.0]))
    tensor(0.)
    """

    def __init__(self, axis: int = 1, eps: float = 1e-8) -> None:
        self.axis, self.eps = axis, epsilon("CosineSimilarity", eps)

    def forward(self, x1: Any, x2: Any) -> Tensor:
        return cosine_similarity(x1, x2, self.axis, self.eps)


class PairwiseDistance(Module):
    """Returns the p-norm of x1 - x2 + eps along the last axis.

    >>> nn.PairwiseDistance(eps=0.0)(pb.tensor([3.0, 0.0]), pb.tensor([0.0, 4.0]))
    tensor(5.)
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False) -> None:
        self.p, self.eps = p, epsilon("PairwiseDistance", eps)
        self.keepdims = flag("PairwiseDistance", "keepdims", keepdims)

    def forward(self, x1: Any, x2: Any) -> Tensor:
        return pairwise_distance(x1, x2, self.p, self.eps, self.keepdims)
