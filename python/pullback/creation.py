"""New tensors: from what the user has, and filled with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from . import devices, door, dtypes
from .errors import DeviceError, DTypeError, OutOfMemoryError, ShapeError
from .tensor import Tensor


def tensor(obj: Any, dtype: Any = None, device: str | None = None) -> Tensor:
    """A copy of any nested list, NumPy or CuPy array, DLPack object or tensor.

    An array keeps its dtype; Python floats become float32, ints int64, bools bool. Raises DTypeError, DeviceError.
    """
    return asarray(obj, dtype=dtype, device=device, copy=True)


def asarray(obj: Any, /, *, dtype: Any = None, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor of the same memory where it can be, otherwise a copy. copy=True always copies, False never (ValueError)."""
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(obj, Tensor):
        as_it_is = not copy and (wanted is None or obj.dtype == wanted) and (device is None or obj.device == device)
        return obj if as_it_is else _from_tensor(obj, wanted, device, copy)
    array = _to_array(obj, wanted)
    if not dtypes.is_supported(array.dtype):
        dtypes.as_dtype(array.dtype)  # raises in words
    if array.dtype.kind == "V":
        dtypes.bfloat16()  # the kernels are told of it
    place = devices.check_device(device) if device else None
    if place is None:
        place = devices.default_device() if devices.on_host(array) else devices.device_of(array)
    moved = devices.move(array, place)
    if wanted is not None:
        moved = devices.cast(moved, wanted)
    if copy is False and moved is not obj and not _shares(moved, array, obj):
        raise ValueError("asarray: this needs a copy (another dtype, device or type), but copy=False was asked for.")
    return Tensor(devices.copied(moved) if copy and moved is array else moved)


def _shares(moved: Any, array: Any, obj: Any) -> bool:
    """True if `moved` has the memory of the user's `obj`, which was taken in as `array`."""
    if not devices.on_host(moved):
        return moved is array  # taken over without a copy
    return (isinstance(obj, np.ndarray) or hasattr(obj, "__dlpack__")) and np.may_share_memory(moved, np.asarray(obj))


def _from_tensor(x: Tensor, dtype: Any, device: str | None, copy: bool | None) -> Tensor:
    from .ops.cast import astype
    from .ops.shape import copy as copied, to_device

    y = x if dtype is None else astype(x, dtype)
    if device is not None:
        y = to_device(y, device)
    if copy is False and y is not x:
        raise ValueError("asarray: another dtype or device needs a copy, but copy=False was asked for.")
    return copied(y) if copy and y is x else y


def _to_array(obj: Any, dtype: Any) -> Any:
    """obj as a NumPy or CuPy array, Python numbers in pullback's default dtypes."""
    if type(obj) is np.ndarray or (isinstance(obj, np.ndarray) and not devices.on_device(obj)):
        if obj.dtype.hasobject:
            raise DTypeError("a tensor cannot hold Python objects; give it numbers of one kind, in lists of equal lengths.")
        return obj if type(obj) is np.ndarray else np.asarray(obj)
    if isinstance(obj, np.generic):
        return np.asarray(obj)
    if hasattr(obj, "__dlpack__"):
        return _from_dlpack(obj)
    if hasattr(obj, "__cuda_array_interface__"):
        return devices.taken_over(obj)
    if hasattr(obj, "__array__"):
        return np.asarray(obj)
    return _from_nested(obj, dtype)


def _from_nested(obj: Any, dtype: Any) -> Any:
    """Nested lists of numbers, arrays and tensors."""
    plain = _without_tensors(obj)
    try:
        array = np.array(plain)
    except (ValueError, TypeError) as error:
        raise ShapeError(f"tensor: the nested lists do not have equal lengths ({error}).") from error
    if array.dtype.hasobject or array.dtype.kind not in "fiub":
        raise DTypeError(
            f"a {type(obj).__name__} is not made of numbers: give a tensor, an array, a real number, or nested lists of these."
        )
    if dtype is not None:
        return _fitting(array, dtype)
    if array.dtype != dtypes.float64:
        return array
    return array.astype(dtypes.result_type(*_leaves(plain)) if _has_arrays(plain) else dtypes.DEFAULT)


def _fitting(array: Any, dtype: Any) -> Any:
    """The user's numbers in the dtype. Raises DTypeError for an integer that would wrap."""
    for extreme in (array.min(), array.max()) if array.size else ():
        if not dtypes.fits(extreme, dtype):
            raise dtypes.out_of_range(str(extreme), dtype, "Use a wider dtype.")
    return array.astype(dtype)


def _without_tensors(obj: Any) -> Any:
    if isinstance(obj, Tensor):
        return obj.numpy()
    if isinstance(obj, (list, tuple)):
        return [_without_tensors(x) for x in obj]
    return obj


def _leaves(obj: Any) -> list[Any]:
    """Python numbers, and the dtypes of arrays."""
    if isinstance(obj, list):
        return [leaf for x in obj for leaf in _leaves(x)]
    return [obj.dtype if isinstance(obj, (np.ndarray, np.generic)) else obj]


def _has_arrays(obj: Any) -> bool:
    return isinstance(obj, (np.ndarray, np.generic)) or (isinstance(obj, list) and any([_has_arrays(x) for x in obj]))


def _from_dlpack(x: Any) -> Any:
    kind = int(x.__dlpack_device__()[0])
    if kind == 1:  # kDLCPU
        return np.from_dlpack(x)
    if kind == devices.KDL_CUDA or hasattr(x, "__cuda_array_interface__"):  # managed memory, say
        return devices.taken_over(x)
    raise DeviceError(f"from_dlpack: DLPack device type {kind} is not the CPU (1) or CUDA (2). Move the data there first.")


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor over the memory of any DLPack object, without copying. Raises DeviceError, DTypeError."""
    return asarray(x if isinstance(x, Tensor) else _from_dlpack(x), device=device, copy=copy)


# ---- filled


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    try:
        lengths = tuple([index(n) for n in (shape if np.iterable(shape) else (shape,))])
    except TypeError:
        raise ShapeError(f"shape {shape!r} is not an integer or a sequence of integers.") from None
    if any([n < 0 for n in lengths]):
        raise ShapeError(f"shape {lengths} has a negative length.")
    return lengths


def full(shape: int | Sequence[int], fill_value: float, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """A tensor of one number; its dtype is that of the number (float32, int64, bool) where none is given."""
    place = devices.check_device(device or devices.default_device())
    if isinstance(fill_value, Tensor):
        fill_value, dtype = fill_value.item(), dtype or fill_value.dtype
    wanted = dtypes.default_of(fill_value) if dtype is None else dtypes.as_dtype(dtype)
    return _filled(place, _shape(shape), fill_value, wanted)


def _filled(device: str, shape: tuple[int, ...], value: Any, dtype: Any) -> Tensor:
    try:
        try:
            return Tensor(devices.full(device, shape, value, dtype))
        except MemoryError:
            if device != "cpu" or door.host_kernels is None:
                raise
            door.host_kernels.trim_cache()  # NumPy does not ask for what the kernels keep
            return Tensor(devices.full(device, shape, value, dtype))
    except OverflowError:
        raise dtypes.out_of_range(str(value), dtype, "Use a wider dtype.") from None
    except MemoryError as error:
        raise OutOfMemoryError(f"a tensor of shape {shape} and dtype {dtype} does not fit in memory ({error}).") from error


def zeros(shape: int | Sequence[int], *, dtype: Any = None, device: str | None = None) -> Tensor:
    """A tensor of zeros, float32 where no dtype is given."""
    return full(shape, 0, dtype=dtype or dtypes.DEFAULT, device=device)


def ones(shape: int | Sequence[int], *, dtype: Any = None, device: str | None = None) -> Tensor:
    """A tensor of ones, float32 where no dtype is given."""
    return full(shape, 1, dtype=dtype or dtypes.DEFAULT, device=device)


def empty(shape: int | Sequence[int], *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Zeros: an immutable tensor of unknown numbers would serve nobody."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: Tensor, /, fill_value: float, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """`full` with the shape, and where not given the dtype and device, of x."""
    if dtype is None and device is None and not isinstance(fill_value, Tensor):
        return _filled(x.device, x.array.shape, fill_value, x.array.dtype)
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.device)


def zeros_like(x: Tensor, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Tensor, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
    return full_like(x, 0, dtype=dtype, device=device)


def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: Any = None, device: str | None = None
) -> Tensor:
    """start, start + step, … before stop. Of ints int64, otherwise float32, where no dtype is given."""
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ShapeError("arange: step=0 never arrives. Use a positive or a negative step.")
    wanted = dtypes.result_type(start, stop, step) if dtype is None else dtypes.as_dtype(dtype)
    return asarray(np.arange(start, stop, step).astype(wanted), device=device)


def linspace(
    start: float, stop: float, /, num: int, *, dtype: Any = None, device: str | None = None, endpoint: bool = True
) -> Tensor:
    """num evenly spaced numbers from start to stop; float32 where neither a dtype nor a tensor says otherwise."""
    wanted = dtypes.result_type(start, stop, 1.0) if dtype is None else dtypes.as_dtype(dtype)
    return asarray(np.linspace(float(start), float(stop), index(num), endpoint=endpoint).astype(wanted), device=device)


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: str | None = None) -> Tensor:
    """Ones on the k-th diagonal, zeros elsewhere."""
    wanted = dtypes.DEFAULT if dtype is None else dtypes.as_dtype(dtype)
    rows, columns = _shape((n_rows, n_rows if n_cols is None else n_cols))
    return asarray(np.eye(rows, columns, k=k, dtype=wanted), device=device)


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Tensor]:
    """Coordinate tensors from coordinate vectors, as NumPy's; views, differentiable."""
    from .operand import as_tensor
    from .ops.shape import broadcast_to, reshape, swapaxes

    vectors = [as_tensor(a) for a in arrays]
    shape = tuple([v.size for v in vectors])
    grids = [
        broadcast_to(reshape(v, tuple([n if j == i else 1 for j, n in enumerate(shape)])), shape) for i, v in enumerate(vectors)
    ]
    return [swapaxes(g, 0, 1) for g in grids] if indexing == "xy" and len(grids) > 1 else grids
