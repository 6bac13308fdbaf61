"""Normalization over the last axes as Modules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..ops.rows import layer_norm, rms_norm
from ..tensors.creation import ones, zeros
from ..tensors.operand import as_tensor
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from .module import Module


def _lengths(layer: str, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    given = tuple(normalized_shape) if isinstance(normalized_shape, Iterable) else (normalized_shape,)
    if not given or any([not hasattr(n, "__index__") or index(n) < 1 for n in given]):
        raise ShapeError(f"{layer}: normalized_shape={normalized_shape!r} must be one or more lengths of 1 or more.")
    return tuple([index(n) for n in given])


class LayerNorm(Module):
    """Subtracts the mean over the last axes and divides by the standard deviation, then scales and shifts.

    Args:
        normalized_shape: the lengths of the last axes, an int for one.
        eps: added to the variance.
        elementwise_affine: False for neither weight nor bias. bias: False for no bias.

    Source: Ba, Kiros & Hinton 2016; arguments as torch.nn.LayerNorm.
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True,
        *, dtype: Any = None, device: str | None = None,
    ) -> None:  # fmt: skip
        self.normalized_shape, self.eps = _lengths("LayerNorm", normalized_shape), eps
        shape = self.normalized_shape
        self.weight = Parameter(ones(shape, dtype=dtype, device=device)) if elementwise_affine else None
        self.bias = Parameter(zeros(shape, dtype=dtype, device=device)) if elementwise_affine and bias else None

    def forward(self, x: Any) -> Tensor:
        x = _fits("LayerNorm", x, self.normalized_shape)
        return layer_norm(x, self.weight, self.bias, axis=tuple(range(-len(self.normalized_shape), 0)), eps=self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.weight is not None}"


class RMSNorm(Module):
    """Divides by the root mean square over the last axes, then scales.

    Args:
        normalized_shape: the lengths of the last axes, an int for one.
        eps: added to the mean square; the dtype's machine epsilon where None, as torch.nn.RMSNorm.
        elementwise_affine: False for no weight.

    Source: Zhang & Sennrich 2019.
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True,
        *, dtype: Any = None, device: str | None = None,
    ) -> None:  # fmt: skip
        self.normalized_shape, self.eps = _lengths("RMSNorm", normalized_shape), eps
        shape = self.normalized_shape
        self.weight = Parameter(ones(shape, dtype=dtype, device=device)) if elementwise_affine else None

    def forward(self, x: Any) -> Tensor:
        x = _fits("RMSNorm", x, self.normalized_shape)
        eps = _epsilon(x.dtype) if self.eps is None else self.eps
        return rms_norm(x, self.weight, axis=tuple(range(-len(self.normalized_shape), 0)), eps=eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.weight is not None}"


def _epsilon(dtype: Any) -> float:
    """Half precision is computed in float32, so its epsilon is float32's."""
    return float(np.finfo(dtype if dtype == np.float64 else np.float32).eps)


def _fits(layer: str, x: Any, lengths: tuple[int, ...]) -> Tensor:
    x = as_tensor(x)
    if x.shape[x.ndim - len(lengths) :] != lengths or x.ndim < len(lengths):
        raise ShapeError(f"{layer}: x has shape {x.shape}, but its last axes must be {lengths}, the normalized_shape of the layer.")
    return x
