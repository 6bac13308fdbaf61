"""Devices: finds the device of an array, moves arrays between devices, and holds the default device of new tensors."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np

from .. import variables
from ..duck import has
from ..errors import DeviceError
from ..interop.unknown_names import attach_hints
from ..launch import capturing, door
from ..launch.refusal import Refused
from . import capsules, gpu, leases


class _Default(threading.local):
    device: str = variables.device()


_default: Final = _Default()


def default_device() -> str:
    """Returns the device of new tensors in this thread: "cpu", unless PULLBACK_DEVICE or `use_device` sets a different one."""
    return _default.device


class use_device:
    """Sets the device of new tensors in this thread while entered: `with pb.use_device("cuda"):`.

    Raises DeviceError, with the reason, if the device cannot be used.
    """

    def __init__(self, device: str) -> None:
        self.device = check_device(device)
        self._before: list[str] = []

    def __enter__(self) -> use_device:
        self._before.append(_default.device)
        _default.device = self.device
        return self

    def __exit__(self, *_: object) -> None:
        _default.device = self._before.pop()


def on_host(array: Any) -> bool:
    """True if this is an array in host memory."""
    return type(array) is np.ndarray


def on_device(obj: Any) -> bool:
    """True if this is a GPU array of the class that tensors hold."""
    found = gpu.load() if gpu.load.cache_info().currsize else None
    return isinstance(found, gpu.Gpu) and isinstance(obj, found.array_type)


def device_of(array: Any) -> str:
    """Returns "cpu" for a NumPy array, and "cuda" (or "cuda:1", …) for a GPU array."""
    if type(array) is np.ndarray:
        return "cpu"
    number = array.device.id
    return f"cuda:{number}" if number else "cuda"


def why_not(device: str) -> str | None:
    """Returns None if the device can be used, otherwise the reason as one sentence."""
    if device == "cpu":
        return None
    if reason := gpu.why_not():
        return reason
    count = gpu.need().count()
    return None if number_of(device) < count else f"this machine has {count} GPU(s), numbered from 0"


def check_device(device: Any) -> str:
    """Returns the device's name in the form that tensors use. Raises DeviceError if the device does not exist."""
    if not isinstance(device, str) or not (device == "cpu" or device.split(":")[0] == "cuda"):
        raise DeviceError(f'device {device!r} is not known. Use "cpu", "cuda" or "cuda:1".')
    if reason := why_not(device):
        raise DeviceError(f'device "{device}" cannot be used: {reason}. Use device="cpu", or fix the cause above.')
    if device == "cpu":
        return device
    return f"cuda:{number_of(device)}" if number_of(device) else "cuda"


def number_of(device: str) -> int:
    """Returns the number in a device's name: 1 for "cuda:1". Raises DeviceError if the name is not valid."""
    _, _, number = device.partition(":")
    if device not in ("cpu", "cuda") and not (number.isascii() and number.isdigit()):
        raise DeviceError(f'device {device!r} is not known. Use "cpu", "cuda" or "cuda:1".')
    return int(number or 0)


def gpu_number(device: str) -> int:
    """Returns the number of a GPU. Raises DeviceError if the device is not a GPU or cannot be used."""
    if check_device(device) == "cpu":
        raise DeviceError('device "cpu" is no GPU, as this call needs one. Use "cuda" or "cuda:1"; `pb.trim()` is for the CPU.')
    return number_of(device)


def array_module(device: str) -> Any:
    """Returns NumPy for "cpu", and the namespace of the GPU's arrays otherwise."""
    return np if device == "cpu" else gpu.need().xp


def working(device: str) -> AbstractContextManager[Any]:
    """Returns a context manager that directs the work of `array_module(device)` to that GPU and to pullback's stream."""
    return nullcontext() if device == "cpu" else gpu.need().working(number_of(device))


def full(device: str, shape: tuple[int, ...], value: Any, dtype: Any, op: str = "full") -> Any:
    """Returns an array on the device filled with one number. op: the name of the function that the user called, for profiles."""
    if capturing.thread.recording is not None:  # it is a constant of every replay, so that no launch has to fill it
        with np.errstate(over="ignore"):
            return move(np.full(shape, value, dtype), device)
    if device != "cpu":
        kernel = gpu.need().kernel("fill", number_of(device))
    else:  # NumPy is faster, so the kernel runs only if a ledger counts launches
        kernel = door.host_kernels and door.host_kernels.fill if door.state.ledger is not None else None
    if kernel is not None:
        try:
            array = kernel(shape, np.dtype(dtype), value)
            if door.profiling:
                door.charge(op)
            return array
        except Refused:  # the library below raises the error
            pass
    if not door.profiling:
        return _filled(device, shape, value, dtype)
    return door.run_counted(op, lambda: _filled(device, shape, value, dtype), door.copy_cost)


def _filled(device: str, shape: tuple[int, ...], value: Any, dtype: Any) -> Any:
    with working(device), np.errstate(over="ignore"):  # numbers that are too large become infinite, as in an op
        array = array_module(device).empty(shape, dtype)
        array.fill(value)
        return array


def copied(array: Any) -> Any:
    """Returns a copy on the same device."""
    with working(device_of(array)):
        return array.copy()


def cast(array: Any, dtype: Any) -> Any:
    """Returns the array in that dtype: the same object if it has the dtype already."""
    if array.dtype == dtype:
        return array
    with working(device_of(array)), np.errstate(over="ignore", invalid="ignore"):  # as the op astype
        return converted(array, np.dtype(dtype))


def converted(array: Any, dtype: np.dtype[Any]) -> Any:
    """Returns a copy in that dtype, with the numbers that the kernels give.

    A float outside the range of an integer dtype has no right result, and NumPy's depends on the machine and the dtype. Through
    int64, as in the kernels, what does not fit wraps around.
    """
    if dtype.kind in "iu" and dtype.itemsize < 8 and array.dtype.kind in "fV":
        array = array.astype(np.int64)
    return array.astype(dtype)


def write(target: Any, value: Any) -> None:
    """Writes `value`, converted to the target's dtype, to all elements of `target`, which is on the same device."""
    with working(device_of(target)), np.errstate(over="ignore", invalid="ignore"):  # as the op astype
        target[...] = converted(value, target.dtype)


def move(array: Any, device: str) -> Any:
    """Returns the array on `device`: the same object if it is there already. A copy to the host waits for earlier work."""
    here = device_of(array)
    if here == device:
        return array
    if device == "cpu":
        return to_host(array)
    with door.host_time("copies"):
        if on_host(array):
            return gpu.need().uploaded(array, number_of(device))
        with gpu.need().working(number_of(device)):  # from one GPU to another
            return gpu.need().xp.asarray(array)


def to_host(array: Any) -> np.ndarray[Any, Any]:
    """Waits for earlier work, and returns a host copy of a GPU array. Raises an error that a kernel has reported."""
    number = array.device.id
    with door.host_time("waiting"), gpu.need().working(number):  # this time includes the copy
        copy = array.get()
        gpu.need().synchronize(number)
    return copy


def taken_over(obj: Any) -> Any:
    """Returns an array over GPU memory of another library, without copying.

    pullback's later work waits for the work that the other library has launched. For a DLPack object the exporter makes our
    stream wait. For the CUDA array interface our stream waits for the stream that the interface names, or for the default stream
    if it names none (version 2, which PyTorch uses). For a CuPy array it waits for CuPy's current stream. The array keeps the
    other library's memory alive until our stream has passed the last use.
    """
    check_device("cuda")
    found = gpu.need()
    kind, number = obj.__dlpack_device__() if has(obj, "__dlpack__") else (None, 0)
    if isinstance(obj, found.array_type):
        found.wait_for_caller(int(obj.device.id))
        array = obj
    elif kind == KDL_CUDA:
        place = number_of(check_device(f"cuda:{int(number)}"))
        array = capsules.taken(obj, lambda shown: found.from_dlpack(shown, place))
    else:
        facts = obj.__cuda_array_interface__
        array = found.from_interface(_Unsynchronized(obj, facts))
        if (stream := facts.get("stream", leases.LEGACY)) is not None:  # None: there is nothing to wait for
            found.order.wait_for(int(array.device.id), stream or leases.LEGACY)
    return leases.leased(array, leases.OURS)


KDL_CPU: Final = 1  # DLPack's numbers of device types
KDL_CUDA: Final = 2


def lent(array: Any, stream: int | None) -> Any:
    """Returns the array for another library's use on `stream` (in DLPack's numbering).

    The pool does not reuse the array's memory before that use is over.
    """
    return leases.leased(array, leases.LEGACY if stream in (None, leases.LEGACY) else leases.UNKNOWN)


class _Unsynchronized:
    """A wrapper of another library's array whose interface names no stream, so that CuPy does not block the host."""

    def __init__(self, obj: Any, facts: dict[str, Any]) -> None:
        self._owner, self.__cuda_array_interface__ = obj, {**facts, "stream": None}


@attach_hints
class Cuda:
    """Queries and controls of pullback's GPUs: `pb.cuda`."""

    def is_available(self) -> bool:
        """Returns True if device "cuda" can be used."""
        return why_not("cuda") is None

    def why_not(self) -> str | None:
        """Returns the reason why device "cuda" cannot be used, or None if it can."""
        return why_not("cuda")

    @property
    def stream(self) -> Any:
        """Returns the stream that all of pullback's work on device "cuda" runs on, as a CuPy stream object.

        `with pb.cuda.stream:` runs CuPy's own work on the same stream. Raises DeviceError if there is no GPU.
        """
        check_device("cuda")
        return gpu.need().working(0) if gpu.need().simulated else gpu.need().stream(0)

    def synchronize(self, device: str = "cuda") -> None:
        """Waits until the work of the device is done. Raises DeviceError, or an error that a kernel has reported."""
        number = gpu_number(device)
        with door.host_time("waiting"):
            gpu.need().synchronize(number)

    def memory(self, device: str = "cuda", *, reset_peak: bool = False) -> dict[str, Any]:
        """Returns the memory use of the device, in bytes. Raises DeviceError if the device is not a usable GPU.

        Args:
            reset_peak: restarts the peak from the current use.

        Returns: a dict of
            `live`: bytes in use by pullback and by CuPy. `cached`: free bytes that their pools keep for later. `peak`: the most
            bytes that pullback had in use at once. `free`, `total`: the device's free and total bytes, reported by the driver.
            `by`: live bytes by their holder: `tensors`; `recordings` (temporaries of captured functions); `graphs` (working memory
            of CUDA graphs); `scratch` (working memory of single launches and libraries); `CuPy` (arrays from CuPy's pool);
            `others` (the driver, other libraries and other programs).
        """
        number = gpu_number(device)
        leases.settle()
        use = gpu.need().memory(number)
        if reset_peak and gpu.need().kernels is not None:
            gpu.need().kernels.reset_peak(number)
        return use

    def trim(self, device: str = "cuda") -> int:
        """Returns cached memory, including that of CuPy's pool, to the driver, and returns the number of bytes.

        Waits for the streams of other libraries that use pullback's memory. Raises DeviceError if the device is not a usable GPU.
        """
        number = gpu_number(device)
        leases.settle(wait=True)
        return gpu.need().trim(number)


cuda: Final = Cuda()
