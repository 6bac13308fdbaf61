"""Tensors as tensors of another dtype or device: `Tensor.to`, and `asarray` of a tensor. Both are recorded."""

from __future__ import annotations

from typing import Any

from ..tensors import dtypes
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from .cast import astype, in_dtype
from .shape import copy as copied, to_device, unchanged


def to(x: Tensor, target: Any) -> Tensor:
    """Returns what `x.to(target)` does: the tensor on a device or of a dtype."""
    if isinstance(target, str) and target.split(":")[0] in ("cpu", "cuda"):
        return to_device(x, target)
    return unchanged(x) if x.dtype == dtypes.as_dtype(target) else astype(x, target)


def converted(x: Tensor, dtype: Any, device: str | None, copy: bool | None) -> Tensor:
    """Returns what `asarray` of a tensor does; None stands for the tensor's own dtype or device."""
    same = not copy and (dtype is None or x.dtype == dtype) and (device is None or x.device == device)
    if same and not isinstance(x, Parameter):
        return x
    y = x if dtype is None else in_dtype(x, dtype)
    if device is not None:
        y = to_device(y, device)
    if copy is False and y.array is not x.array:
        raise ValueError("asarray: another dtype or device needs a copy, but copy=False was asked for.")
    return copied(y) if copy and y.array is x.array else unchanged(y)
