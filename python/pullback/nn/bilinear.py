"""A form that is linear in each of two inputs."""

from __future__ import annotations

import math
from typing import Any

from ..errors import ShapeError
from ..ops._shapes import flag
from ..ops.linear import linear
from ..ops.operands import as_tensors
from ..ops.shape import expand_dims, reshape
from ..tensors.creation import empty
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, DTypeLike
from . import init
from .layers import positive_lengths
from .module import Module


def bilinear(x1: ArrayLike, x2: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> Tensor:
    """Returns y with y[…, o] = sum of x1[…, i] weight[o, i, j] x2[…, j] over i and j, plus bias[o].

    Args:
        x1: (…, n1). x2: (…, n2), with the leading axes of x1.
        weight: (out, n1, n2). bias: (out,) or None.

    The products x1[i] x2[j] are multiplied by the weight in one product of matrices. Raises ShapeError.
    """
    x1, x2, weight, bias = as_tensors("bilinear", x1, x2, weight, optional=(bias,))
    if weight.ndim != 3 or not x1.ndim or not x2.ndim or (x1.shape[-1], x2.shape[-1]) != weight.shape[1:]:
        raise ShapeError(
            f"bilinear: x1 {x1.shape}, x2 {x2.shape} and weight {weight.shape} must be (..., n1), (..., n2), (out, n1, n2)."
        )
    if x1.shape[:-1] != x2.shape[:-1]:
        raise ShapeError(f"bilinear: x1 {x1.shape} and x2 {x2.shape} must have the same leading axes.")
    terms = math.prod(weight.shape[1:])
    pairs: Any = expand_dims(x1, axis=-1) * expand_dims(x2, axis=-2)
    return linear(reshape(pairs, (*x1.shape[:-1], terms)), reshape(weight, (weight.shape[0], terms)), bias)


class Bilinear(Module):
    """Applies nn.functional.bilinear to two inputs.

    Args:
        in1_features, in2_features, out_features: the lengths of the last axes of x1, of x2 and of the result.
        bias: False leaves out the bias.

    The weight has shape (out_features, in1_features, in2_features), the bias (out_features,). Both are drawn from
    U(±1/sqrt(in1_features)), as in torch.nn.Bilinear.

    >>> nn.Bilinear(2, 3, 4)(pb.ones((5, 2)), pb.ones((5, 3))).shape
    (5, 4)
    """

    bias: Parameter | None

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, *, dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        self.in1_features, self.in2_features, self.out_features = positive_lengths(
            "Bilinear", in1_features=in1_features, in2_features=in2_features, out_features=out_features
        )
        shape = (self.out_features, self.in1_features, self.in2_features)
        self.weight = Parameter(empty(shape, dtype=dtype, device=device))
        self.bias = Parameter(empty(shape[0], dtype=dtype, device=device)) if flag("Bilinear", "bias", bias) else None
        bound = 1 / math.sqrt(self.in1_features)
        for p in (self.weight, self.bias):
            if p is not None:
                init.uniform(p, -bound, bound)

    def forward(self, x1: ArrayLike, x2: ArrayLike) -> Tensor:
        return bilinear(x1, x2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )
