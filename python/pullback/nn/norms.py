"""Modules that normalize over the last axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..ops._shapes import epsilon, flag
from ..ops.operands import as_tensors
from ..ops.rows import layer_norm, rms_norm
from ..tensors.creation import ones, zeros
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, DTypeLike
from .module import Module


def _lengths(layer: str, normalized_shape: Any) -> tuple[int, ...]:
    several = isinstance(normalized_shape, Iterable) and getattr(normalized_shape, "ndim", 1)
    given: Any = tuple(normalized_shape) if several else (normalized_shape,)
    try:
        lengths = tuple([index(n) for n in given])
    except TypeError:
        lengths = ()
    if not lengths or min(lengths) < 1:
        raise ShapeError(f"{layer}: normalized_shape={normalized_shape!r} must be one or more lengths of 1 or more.")
    return lengths


class LayerNorm(Module):
    """Subtracts the mean over the last axes and divides by the standard deviation, then scales and shifts.

    Args:
        normalized_shape: the lengths of the last axes; an int stands for one axis.
        eps: a number that is added to the variance.
        elementwise_affine: False leaves out weight and bias. bias: False leaves out the bias.

    Source: Ba, Kiros & Hinton 2016. The arguments are those of torch.nn.LayerNorm.

    >>> nn.LayerNorm(2)(pb.tensor([[1.0, 3.0], [5.0, 9.0]])).round()
    tensor([[-1.,  1.],
            [-1.,  1.]])
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True,
        *, dtype: DTypeLike | None = None, device: str | None = None,
    ) -> None:
        self.normalized_shape, self.eps = _lengths("LayerNorm", normalized_shape), epsilon("LayerNorm", eps)
        bias = flag("LayerNorm", "bias", bias)
        elementwise_affine = flag("LayerNorm", "elementwise_affine", elementwise_affine)
        shape = self.normalized_shape
        self.weight = Parameter(ones(shape, dtype=dtype, device=device)) if elementwise_affine else None
        self.bias = Parameter(zeros(shape, dtype=dtype, device=device)) if elementwise_affine and bias else None

    def forward(self, x: ArrayLike) -> Tensor:
        x = _fits("LayerNorm", x, self.weight, self.normalized_shape)
        return layer_norm(x, self.weight, self.bias, axis=tuple(range(-len(self.normalized_shape), 0)), eps=self.eps)

    def extra_repr(self) -> str:
        affine = self.weight is not None
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={affine}, bias={self.bias is not None}"


class RMSNorm(Module):
    """Divides by the root mean square over the last axes, then scales.

    Args:
        normalized_shape: the lengths of the last axes; an int stands for one axis.
        eps: a number that is added to the mean square. None means the dtype's machine epsilon, as in torch.nn.RMSNorm.
        elementwise_affine: False leaves out the weight.

    Source: Zhang & Sennrich 2019.

    >>> nn.RMSNorm(8)(pb.ones((5, 8))).shape
    (5, 8)
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True,
        *, dtype: DTypeLike | None = None, device: str | None = None,
    ) -> None:
        self.normalized_shape, self.eps = (
            _lengths("RMSNorm", normalized_shape),
            None if eps is None else epsilon("RMSNorm", eps),
        )
        elementwise_affine = flag("RMSNorm", "elementwise_affine", elementwise_affine)
        shape = self.normalized_shape
        self.weight = Parameter(ones(shape, dtype=dtype, device=device)) if elementwise_affine else None

    def forward(self, x: ArrayLike) -> Tensor:
        x = _fits("RMSNorm", x, self.weight, self.normalized_shape)
        eps = _epsilon(x.dtype) if self.eps is None else self.eps
        return rms_norm(x, self.weight, axis=tuple(range(-len(self.normalized_shape), 0)), eps=eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.weight is not None}"


def _epsilon(dtype: Any) -> float:
    """Returns the machine epsilon of the dtype that the kernel computes in, which is float32 for half precision."""
    return float(np.finfo(dtype if dtype == np.float64 else np.float32).eps)


def _fits(layer: str, x: Any, weight: Any, lengths: tuple[int, ...]) -> Tensor:
    """Returns x as a tensor, whose lists of numbers take the dtype of the weight. Raises ShapeError."""
    x = as_tensors(layer, x, optional=(weight,))[0]
    if x.shape[x.ndim - len(lengths) :] != lengths or x.ndim < len(lengths):
        raise ShapeError(f"{layer}: x has shape {x.shape}, but its last axes must be {lengths}, the normalized_shape of the layer.")
    return x
