"""Conversion between dtypes: recorded between floats, a stop for gradients on the way to integers."""

from __future__ import annotations

from typing import Any

from ..autodiff.primitive import ZERO, apply
from ..tensors import dtypes
from ..tensors.operand import own
from ..tensors.tensor import Tensor
from ._examples import normal
from .kinds import LINEAR, no_flops, op


def _reference(xp: Any, x: Any, dtype: Any) -> Any:
    return x.astype(dtype)


_cast = op(
    "cast", example=normal((3, 4), params=(dtypes.float64,)),
    kind=LINEAR, reference=_reference, pullback=lambda g, x_dtype: in_dtype(g, x_dtype), cost=no_flops
)
_truncate = op("truncate", example=normal((3, 4), params=(dtypes.int32,)),
               kind=LINEAR, reference=_reference, pullback=ZERO, cost=no_flops)
_truncate.kernel, _truncate.native, _truncate.why_reference = _cast.kernel, _cast.native, _cast.why_reference  # the same copy


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: str | None = None) -> Tensor:
    """The tensor in another dtype. Between floating-point dtypes gradients pass; to integers they are zero.

    A tensor that has the dtype already is returned as it is: tensors are immutable, so nobody can tell it from a copy. A Parameter
    or a view of one is copied also then, because it changes; with copy=False the result is a view.
    With `device`, on that device. Raises DTypeError, DeviceError.
    """
    x = own(x)
    if device is not None and x.device != device:
        from .shape import to_device

        x = to_device(x, device)
    if x.storage is not None and x.dtype == dtypes.as_dtype(dtype):
        from .shape import copy as copied, unchanged

        return copied(x) if copy else unchanged(x)
    return in_dtype(x, dtype)


def in_dtype(x: Any, dtype: Any) -> Tensor:
    """The tensor in that dtype: x itself, also a Parameter, if it has the dtype."""
    x = own(x)
    wanted = dtypes.as_dtype(dtype)
    if x.dtype == wanted:
        return x
    if x.dtype.kind == "V":
        dtypes.bfloat16()
    return apply(_cast if dtypes.is_float(wanted) and dtypes.is_float(x.dtype) else _truncate, (x,), (wanted,))


