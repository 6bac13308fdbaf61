"""Ops that keep the values of a tensor: copies, conversions to another dtype or device, and stopped gradients."""

from __future__ import annotations

from typing import Any

from ..autodiff.primitive import ZERO, apply, same, tell
from ..autodiff.scalars import common_dtype
from ..errors import ArgumentError
from ..interop.wrong_calls import flag
from ..tensors import devices, dtypes
from ..tensors.operand import as_tensor, own
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, DTypeLike
from .by_name import in_dtype, view
from .declare import no_flops, normal, op
from .kinds import LINEAR, VIEW


def _in_dtype(xp: Any, x: Any, dtype: Any) -> Any:
    return devices.converted(x, dtype)


COPY = op("copy", example=normal((3, 4)),
          kind=LINEAR, reference=lambda xp, x: xp.array(x, order="C"), pullback=same, cost=no_flops)
_cast = op("cast", example=normal((3, 4), params=(dtypes.float64,)),
           kind=LINEAR, reference=_in_dtype, pullback=lambda g, x_dtype: in_dtype(g, x_dtype), cost=no_flops)
_truncate = op("truncate", example=normal((3, 4), params=(dtypes.int32,)), kernel="cast",
               kind=LINEAR, reference=_in_dtype, pullback=ZERO, cost=no_flops)
_to_device = op("to_device", example=normal((3, 4), params=("cpu",)),
                kind=LINEAR, reference=lambda xp, x, device: devices.move(x, device), cost=no_flops, same_bits=True,
                pullback=lambda g, x_device: to_device(g, x_device))
_stop = op("stop_gradient", example=normal((3, 4)), kind=VIEW, reference=lambda xp, x: x, pullback=None, cost=no_flops)
_alias = op("alias", example=normal((3, 4)), kind=VIEW, reference=lambda xp, x: x, pullback=same, cost=no_flops)


def copy(x: ArrayLike, /) -> Tensor:
    """Returns a contiguous copy in row-major order."""
    return apply(COPY, (as_tensor(x),))


def astype(x: ArrayLike, dtype: DTypeLike, /, *, copy: bool = True, device: str | None = None) -> Tensor:
    """Returns the tensor in another dtype. Between floating-point dtypes gradients pass; to integers they are zero.

    A tensor that already has the dtype is returned as it is: it is immutable and cannot be distinguished from a copy. A Parameter
    or a view of one is copied even then, because updates change it; with copy=False the result is a view.
    A float outside the range of an integer dtype, infinity and NaN included, has no right result there: the array API leaves it
    open. It is converted to int64, and from there wraps around.
    If `device` is given, the result is on that device. Raises DTypeError, DeviceError.
    """
    x, copy = own(x), copy if copy.__class__ is bool else flag("astype", "copy", copy)
    if device is not None and x.device != device:
        x = to_device(x, device)
    if x.storage is not None and x.dtype == dtypes.as_dtype(dtype):
        return apply(COPY, (x,)) if copy else unchanged(x)
    return in_dtype(x, dtype)


def to(x: Tensor, target: Any) -> Tensor:
    """Implements `x.to(target)`: returns the tensor on a device or in a dtype. Raises DTypeError, DeviceError."""
    if isinstance(target, str) and target.split(":")[0] in ("cpu", "cuda"):
        return to_device(x, target)
    return unchanged(x) if x.dtype == dtypes.as_dtype(target) else astype(x, target)


def converted(x: Tensor, dtype: Any, device: str | None, copy: bool | None) -> Tensor:
    """Implements `asarray` of a tensor; None keeps its dtype or device. Raises ValueError if copy=False but a copy is needed."""
    same = not copy and (dtype is None or x.dtype == dtype) and (device is None or x.device == device)
    if same and not isinstance(x, Parameter):
        return x
    y = x if dtype is None else in_dtype(x, dtype)
    if device is not None:
        y = to_device(y, device)
    if copy is False and y.array is not x.array:
        raise ArgumentError("asarray: another dtype or device needs a copy, but copy=False was asked for.")
    return apply(COPY, (y,)) if copy and y.array is x.array else unchanged(y)


def same_dtype(tensors: list[Tensor]) -> list[Tensor]:
    """Returns the tensors converted to the dtype that they promote to."""
    first = tensors[0].array.dtype
    if all([t.array.dtype == first for t in tensors]):
        return tensors
    dtype = common_dtype(tensors)
    return [in_dtype(t, dtype) for t in tensors]


def to_device(x: Tensor, device: str) -> Tensor:
    """Returns the tensor on the device; its gradient is moved back to the device of x. Raises DeviceError."""
    device = devices.check_device(device)
    if x.device == device:
        return unchanged(x)
    return tell(_to_device, Tensor(_to_device.reference(None, x.array, device)), (x,), (device,))


def stop_gradient(x: ArrayLike, /) -> Tensor:
    """Returns x as a constant, through which no gradient flows on any tape. A Parameter, or a view of one, is copied."""
    return settled(constant(own(x)))


def constant(x: Tensor) -> Tensor:
    """Returns x with gradients stopped, without copying: the result becomes stale when x is updated."""
    return view(_stop, x)


def alias(x: Tensor) -> Tensor:
    """Returns a new tensor with the value of x. A tape that watches the new tensor does not watch x."""
    return view(_alias, x)


def unchanged(x: Tensor) -> Tensor:
    """Returns x as the result of a view op that has nothing to do. A Parameter becomes an alias, which is not updated in place."""
    return alias(x) if isinstance(x, Parameter) else x


def settled(x: Tensor) -> Tensor:
    """Returns x as the result of a function that is not a view but had nothing to do. A Parameter, or a view of one, is copied.

    The copy survives updates, as every other result of the function does, whatever its arguments are.
    """
    return x if x.storage is None else copy(x)
