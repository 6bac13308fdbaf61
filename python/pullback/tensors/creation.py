"""Creates tensors: from arrays, lists, numbers and DLPack objects, and filled with numbers."""

from __future__ import annotations

import math
from operator import index
from typing import Any, Final

import numpy as np

from ..autodiff.listeners import listeners
from ..autodiff.returned import mark_return
from ..duck import has
from ..errors import ArgumentError, DeviceError, DTypeError, OutOfMemoryError, ShapeError, check_room, shown
from ..interop.wrong_calls import argument_named, flag
from ..launch import capturing, door
from ..launch.refusal import Refused
from ..typing import ArrayLike, DTypeLike, ShapeLike, SupportsArray, SupportsDLPack
from . import capsules, devices, dtypes, nested
from .attached import attached
from .tensor import Tensor


def tensor(obj: ArrayLike, dtype: DTypeLike | None = None, device: str | None = None) -> Tensor:
    """Returns a tensor with a copy of a number, a nested list, a NumPy or CuPy array, a DLPack object or a tensor.

    An array keeps its dtype; Python floats become float32, ints int64, bools bool.

    Raises DTypeError if the values or the dtype are not supported, ShapeError if nested lists differ in length, and DeviceError
    if the device cannot be used.
    """
    return asarray(obj, dtype=dtype, device=device, copy=True)


def asarray(obj: ArrayLike, dtype: DTypeLike | None = None, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """Returns a tensor that shares the memory of `obj` if possible, and otherwise holds a copy of it.

    copy=True always copies; copy=False raises ValueError if a copy is needed. Memory that is not aligned to its dtype needs one.

    Later writes to `obj` show in a tensor that shares its memory, and in gradients that a tape computes from the tensor. So do
    not write to `obj` while the tensor is in use, or call `pb.tensor`, which always copies. Arrays passed directly to a function
    or a Module need no such care: pullback copies them if a result or a tape would keep them. Do not call
    `obj.resize(…, refcheck=False)` either: it frees memory that the tensor still reads, as it does under any NumPy view.

    For a Parameter the result is a view, which the next update makes stale.
    """
    if copy is not None:
        copy = flag("asarray", "copy", copy)
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(obj, Tensor):
        return attached.converted(obj, wanted, device, copy)
    if nested.has_tensor(obj):
        if copy is False:
            raise ArgumentError(_NEEDS_A_COPY)
        return attached.assembled(obj, wanted, device)
    array, moved = _placed(obj, wanted, device)
    if copy is False and moved is not obj and not _shares(moved, array, obj):
        raise ArgumentError(_NEEDS_A_COPY)
    recording = capturing.thread.recording
    t = _by_ops(obj, wanted, array, moved, copy) if recording is not None and recording.rereads else None
    return marked(obj, Tensor(devices.copied(moved) if copy and moved is array else moved) if t is None else t)


def marked(operand: Any, t: Tensor) -> Tensor:
    """Returns t, which was made of the user's operand. Tapes mark it if the operand is a value that left them before."""
    if listeners.stack:
        mark_return(operand, t)
    return t


def _by_ops(obj: Any, wanted: Any, array: Any, moved: Any, copy: bool | None) -> Tensor | None:
    """Returns `moved` as the result of ops on the arrays in `obj`, which each replay reads anew.

    Returns None where no op does what NumPy has done: if nothing in `obj` can change, if an array is moved to a GPU, and if lists
    become integers of a dtype that their numbers need not fit.
    """
    if devices.device_of(array) != devices.device_of(moved):
        return None
    if not nested.has_tensor(obj, kinds=np.ndarray):
        return _as_on_the_host(Tensor(array), moved.dtype, copy) if can_change(obj, array) else None
    if wanted is not None and not dtypes.is_float(wanted):
        return None
    return _as_on_the_host(attached.assembled(obj, np.array(obj).dtype, None), moved.dtype, None)


def _as_on_the_host(x: Tensor, dtype: Any, copy: bool | None) -> Tensor:
    """Returns the tensor in that dtype, with the bits of NumPy, which rounds a number for bfloat16 to float32 before."""
    if dtype.name == "bfloat16" and x.dtype != dtype:
        x = attached.converted(x, np.dtype(np.float32), None, None)
    return attached.converted(x, dtype, None, copy)


_NEEDS_A_COPY: Final = (
    "asarray: this needs a copy (another dtype, device or type, or unaligned memory), but copy=False was asked for."
)


def kept(obj: Any, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Like `asarray`, but copies if other code could write to the memory: for an array that a result or a tape keeps."""
    if isinstance(obj, Tensor):
        return asarray(obj, dtype=dtype, device=device)
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    if nested.has_tensor(obj):
        return attached.assembled(obj, wanted, device)
    array, moved = _placed(obj, wanted, device)
    return marked(obj, Tensor(snapshot(moved) if moved is array and can_change(obj, array) else moved))


def can_change(obj: Any, array: Any) -> bool:
    """True if other code can write to `array`, which was made from the user's `obj`.

    Lists and numbers become new arrays. Other objects may share their memory with `array`. That memory cannot change only if
    no array in the chain of bases is writeable, and the chain ends with an array that owns its memory or with bytes.
    """
    if array is obj and obj.__class__ is np.ndarray and obj.flags.writeable:  # a short cut for nearly every array
        return True
    if isinstance(obj, (Tensor, np.generic)):
        return False
    if not devices.on_host(array):
        return not devices.on_host(obj)  # a host array was copied to the device
    if not any([has(obj, protocol) for protocol in _PROTOCOLS]):
        return False
    owner = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return True
        owner = owner.base
    return not (owner is None or isinstance(owner, bytes))


_PROTOCOLS = ("__array__", "__dlpack__", "__cuda_array_interface__")  # the protocols of objects that can share memory


def snapshot(array: Any) -> Any:
    """Returns a copy with the same memory layout, because matrix products round differently for a different layout.

    The copy is attributed to the phase `data`.
    """
    if door.host_kernels is None or not devices.on_host(array) or not array.flags.c_contiguous:
        return array.copy(order="K") if devices.on_host(array) else devices.copied(array)
    before = door.enter(door.DATA) if door.profiling else None
    try:
        return door.host_kernels.copy(array)
    except Refused:  # the kernel does not support this number of axes or this dtype
        return array.copy()
    finally:
        if before is not None:
            door.enter(before)


def _placed(obj: Any, wanted: Any, device: str | None) -> tuple[Any, Any]:
    """Returns obj as an array, and this array in dtype `wanted` on `device`: the same array if it has them already."""
    try:
        array = _to_array(obj, wanted)
        if array.dtype.kind == "V" or not dtypes.is_supported(array.dtype):
            dtypes.as_dtype(array.dtype)  # registers bfloat16 with the kernels, and raises DTypeError for other dtypes
    except (ArgumentError, DTypeError, ShapeError) as error:
        raise type(error)(f"{argument_named(obj)}{error}") from error.__cause__
    dtype = array.dtype
    if dtype.kind in "fiu" and not dtype.isnative:
        dtype = dtype.newbyteorder("=")
        array = array.astype(dtype)
    if devices.on_host(array) and not array.flags.aligned:  # a field of a packed record, or memory at an odd address
        array = array.copy(order="K")
    if dtype.kind == "b" and devices.on_host(array):
        array = _zeros_and_ones(array)
    place = devices.check_device(device) if device else None
    if place is None:
        place = devices.default_device() if devices.on_host(array) else devices.device_of(array)
    moved = devices.move(array, place)
    if wanted is not None:
        moved = devices.cast(moved, wanted)
    return array, moved


def _zeros_and_ones(array: Any) -> Any:
    """Returns the bool array, or a copy if some bytes are neither 0 nor 1, because kernels add up the bytes.

    `a.view(bool)` can make such an array.
    """
    held = array.view(np.uint8)
    return np.asarray(held != 0) if held.size and held.max() > 1 else array


def _shares(moved: Any, array: Any, obj: Any) -> bool:
    """True if `moved` shares the memory of the user's `obj`. `array` is the array that was made from `obj`."""
    if not devices.on_host(moved):
        return moved is array  # `obj` became `array` without a copy
    if isinstance(obj, np.ndarray):
        return np.may_share_memory(moved, obj)
    return has(obj, "__dlpack__") and np.may_share_memory(moved, array)


def _to_array(obj: Any, dtype: Any) -> Any:
    """Returns obj as a NumPy or CuPy array. Python numbers get pullback's default dtypes."""
    if type(obj) is np.ndarray or (isinstance(obj, np.ndarray) and not devices.on_device(obj)):
        if obj.dtype.hasobject:
            raise DTypeError("a tensor cannot hold Python objects; give it numbers of one kind, in lists of equal lengths.")
        return obj if type(obj) is np.ndarray else np.asarray(nested.unmasked(obj))
    if isinstance(obj, np.generic):
        return np.asarray(obj)
    if has(obj, "__dlpack__"):
        return _from_dlpack(obj)
    if has(obj, "__cuda_array_interface__"):
        return devices.taken_over(obj)
    if has(obj, "__array__"):
        return np.asarray(obj)
    return nested.as_array(obj, dtype)


def _from_dlpack(x: Any) -> Any:
    kind = capsules.device_type(x)
    if kind == devices.KDL_CPU:
        return capsules.taken(x, np.from_dlpack)
    if kind == devices.KDL_CUDA or hasattr(x, "__cuda_array_interface__"):  # for example managed memory
        return devices.taken_over(x)
    raise DeviceError(f"from_dlpack: DLPack device type {kind} is not the CPU (1) or CUDA (2). Move the data there first.")


def from_dlpack(x: SupportsDLPack, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """Returns a tensor over the memory of any DLPack object, without copying it unless `device` or `copy` require a copy.

    Raises DeviceError if the memory is neither on the CPU nor on a CUDA device, or if `device` cannot be used; DTypeError if x
    is not a DLPack object or its dtype is not supported; ValueError if a copy is needed and copy=False, or if its library refuses.
    """
    if not hasattr(x, "__dlpack_device__"):
        raise DTypeError(f"from_dlpack: a {type(x).__name__} does not export its memory by DLPack. Use pb.asarray.")
    return asarray(x, device=device, copy=copy)


# ---- tensors filled with numbers


def as_shape(shape: ShapeLike) -> tuple[int, ...]:
    """Returns the lengths of a shape's axes. Raises ShapeError."""
    try:
        given: Any = shape if shape.__class__ is tuple or np.iterable(shape) else (shape,)
        lengths = tuple([index(n) for n in given])
    except TypeError:
        raise ShapeError(f"shape {shape!r} is not an integer or a sequence of integers.") from None
    if any([n < 0 for n in lengths]):
        raise ShapeError(f"shape {lengths} has a negative length.")
    return lengths


def full(
    shape: ShapeLike, fill_value: float | SupportsArray, dtype: DTypeLike | None = None, *, device: str | None = None
) -> Tensor:
    """Returns a tensor filled with one number. The dtype is by default that of the number (float32, int64, bool).

    The number may be a tensor of one element, to which gradients pass. Raises DTypeError if `fill_value` is not a number or does
    not fit the dtype, ShapeError, DeviceError, OutOfMemoryError.
    """
    if isinstance(fill_value, Tensor) and math.prod(fill_value.shape) == 1:
        return attached.filled(fill_value, as_shape(shape), fill_value.dtype if dtype is None else dtypes.as_dtype(dtype), device)
    number = _number("full", fill_value)
    dtype = dtypes.default_of(number) if dtype is None else dtype
    with np.errstate(over="ignore"):  # numbers that are too large become infinite, as in an op
        return marked(fill_value, _new("full", shape, number, dtype, device))


def _number(op: str, value: Any) -> Any:
    """Returns the Python number that fills a tensor. Raises DTypeError if `value` is not one number."""
    if isinstance(value, (np.ndarray, np.generic)) and math.prod(value.shape) == 1:
        value = nested.unmasked(value).item()
    if isinstance(value, (bool, int, float)):
        return value
    raise DTypeError(f"{op}: fill_value={value!r} is not a number. Give a number, or use pb.broadcast_to for an array.")


def _new(op: str, shape: ShapeLike, value: Any, dtype: Any, device: str | None) -> Tensor:
    return _filled(op, devices.check_device(device or devices.default_device()), as_shape(shape), value, dtypes.as_dtype(dtype))


def _filled(op: str, device: str, shape: tuple[int, ...], value: Any, dtype: Any) -> Tensor:
    try:
        try:
            return Tensor(devices.full(device, shape, value, dtype, op))
        except MemoryError:
            if device != "cpu" or door.host_kernels is None:
                raise
            door.host_kernels.trim_cache()  # frees the memory that the kernels' allocator caches, which NumPy cannot use
            return Tensor(devices.full(device, shape, value, dtype, op))
    except (OverflowError, ValueError):
        check_room(f"a tensor of dtype {dtype}", shape, dtype.itemsize)
        remedy = "Use a wider dtype." if dtypes.fits(value, dtypes.float64) else nested.NO_DTYPE
        raise dtypes.out_of_range(shown(value), dtype, remedy) from None
    except MemoryError as error:
        raise no_room(f"a tensor of shape {shape} and dtype {dtype}", error) from error


def no_room(what: str, error: MemoryError) -> OutOfMemoryError:
    return OutOfMemoryError(f"{what} does not fit in memory ({error}). Ask for fewer elements.")


def zeros(shape: ShapeLike, dtype: DTypeLike | None = None, *, device: str | None = None) -> Tensor:
    """Returns a tensor of zeros, float32 by default. Raises ShapeError, DTypeError, DeviceError, OutOfMemoryError."""
    return _new("zeros", shape, 0, dtype or dtypes.DEFAULT, device)


def ones(shape: ShapeLike, dtype: DTypeLike | None = None, *, device: str | None = None) -> Tensor:
    """Returns a tensor of ones, float32 by default. Raises ShapeError, DTypeError, DeviceError, OutOfMemoryError."""
    return _new("ones", shape, 1, dtype or dtypes.DEFAULT, device)


def empty(shape: ShapeLike, dtype: DTypeLike | None = None, *, device: str | None = None) -> Tensor:
    """Returns zeros, like `zeros`, because an immutable tensor of arbitrary numbers would be useless."""
    return _new("zeros", shape, 0, dtype or dtypes.DEFAULT, device)


def full_like(
    x: ArrayLike, fill_value: float | SupportsArray, dtype: DTypeLike | None = None, *, device: str | None = None
) -> Tensor:
    """Returns a tensor filled with one number, with the shape of x and by default its dtype and device. Raises as `full` does."""
    if isinstance(fill_value, Tensor):
        x = x if isinstance(x, Tensor) else asarray(x)
        return full(x.shape, fill_value, dtype or x.dtype, device=device or x.device)
    with np.errstate(over="ignore"):
        return marked(fill_value, _like("full_like", x, _number("full_like", fill_value), dtype, device))


def _like(op: str, x: Any, value: Any, dtype: Any, device: str | None) -> Tensor:
    x = x if isinstance(x, Tensor) else asarray(x)
    if dtype is None and device is None:
        return _filled(op, x.device, x.array.shape, value, x.array.dtype)
    return _new(op, x.shape, value, dtype or x.dtype, device or x.device)


def zeros_like(x: ArrayLike, dtype: DTypeLike | None = None, *, device: str | None = None) -> Tensor:
    """Returns zeros with the shape of x and by default its dtype and device. Raises DTypeError, DeviceError, OutOfMemoryError."""
    return _like("zeros_like", x, 0, dtype, device)


def ones_like(x: ArrayLike, dtype: DTypeLike | None = None, *, device: str | None = None) -> Tensor:
    """Returns ones with the shape of x and by default its dtype and device. Raises DTypeError, DeviceError, OutOfMemoryError."""
    return _like("ones_like", x, 1, dtype, device)


def empty_like(x: ArrayLike, dtype: DTypeLike | None = None, *, device: str | None = None) -> Tensor:
    """Returns zeros, as `empty` does, with the shape of x and by default its dtype and device. Raises as `zeros_like` does."""
    return _like("empty_like", x, 0, dtype, device)
