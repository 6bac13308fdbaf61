"""Devices: where an array lives, moving it, and the default for new tensors."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np

from .. import config
from ..errors import DeviceError
from ..launch import capturing, door
from ..launch.refusal import Refused
from . import capsules, gpu, leases


class _Default(threading.local):
    device: str = config.device()


_default: Final = _Default()


def default_device() -> str:
    """The device of new tensors in this thread: "cpu" unless PULLBACK_DEVICE or `use_device` says otherwise."""
    return _default.device


class use_device:
    """`with pb.use_device("cuda"):` makes new tensors on that device, in this thread, while entered.

    Raises DeviceError, with the reason, where the device cannot be had.
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
    """Whether this is an array in the host's memory."""
    return type(array) is np.ndarray


def on_device(obj: Any) -> bool:
    """True if this is an array of a GPU, of the class that tensors hold."""
    found = gpu.load() if gpu.load.cache_info().currsize else None
    return isinstance(found, gpu.Gpu) and isinstance(obj, found.array_type)


def device_of(array: Any) -> str:
    """ "cpu" for a NumPy array, "cuda" (or "cuda:1", …) for one of a GPU."""
    if type(array) is np.ndarray:
        return "cpu"
    number = array.device.id
    return f"cuda:{number}" if number else "cuda"


def why_not(device: str) -> str | None:
    """None where the device can be used, otherwise the reason in a sentence."""
    if device == "cpu":
        return None
    if reason := gpu.why_not():
        return reason
    count = gpu.need().count()
    return None if number_of(device) < count else f"this machine has {count} GPU(s), numbered from 0"


def check_device(device: Any) -> str:
    """The device's name in the one form that tensors use. Raises DeviceError where there is no such device."""
    if not isinstance(device, str) or not (device == "cpu" or device.split(":")[0] == "cuda"):
        raise DeviceError(f'device {device!r} is not known. Use "cpu", "cuda" or "cuda:1".')
    if reason := why_not(device):
        raise DeviceError(f'device "{device}" cannot be used: {reason}. Use device="cpu", or mend the above.')
    if device == "cpu":
        return device
    return f"cuda:{number_of(device)}" if number_of(device) else "cuda"


def number_of(device: str) -> int:
    """1 for "cuda:1". Raises DeviceError."""
    _, _, number = device.partition(":")
    if device not in ("cpu", "cuda") and not (number.isascii() and number.isdigit()):
        raise DeviceError(f'device {device!r} is not known. Use "cpu", "cuda" or "cuda:1".')
    return int(number or 0)


def gpu_number(device: str) -> int:
    """The number of a device that must be a GPU. Raises DeviceError."""
    if check_device(device) == "cpu":
        raise DeviceError('device "cpu" is no GPU, as this call needs one. Use "cuda" or "cuda:1"; `pb.trim()` is for the CPU.')
    return number_of(device)


def array_module(device: str) -> Any:
    """NumPy for "cpu", otherwise the namespace of the GPU's arrays."""
    return np if device == "cpu" else gpu.need().xp


def working(device: str) -> AbstractContextManager[Any]:
    """`with working("cuda"):` what array_module("cuda") does goes to that GPU and to pullback's stream."""
    return nullcontext() if device == "cpu" else gpu.need().working(number_of(device))


def full(device: str, shape: tuple[int, ...], value: Any, dtype: Any, op: str = "full") -> Any:
    """An array of one number on the device. op: what the user called, which profiles show."""
    if capturing.thread.recording is not None:  # a constant of every replay, which no launch has to make
        with np.errstate(over="ignore"):
            return move(np.full(shape, value, dtype), device)
    if device != "cpu":
        kernel = gpu.need().kernel("fill", number_of(device))
    else:  # NumPy is quicker, where nobody counts
        kernel = door.host_kernels and door.host_kernels.fill if door.state.ledger is not None else None
    if kernel is not None:
        try:
            array = kernel(shape, np.dtype(dtype), value)
            if door.profiling:
                door.charge(op)
            return array
        except Refused:  # CuPy says why
            pass
    if not door.profiling:
        return _filled(device, shape, value, dtype)
    return door.run_counted(op, lambda: _filled(device, shape, value, dtype), door.copy_cost)


def _filled(device: str, shape: tuple[int, ...], value: Any, dtype: Any) -> Any:
    with working(device), np.errstate(over="ignore"):  # what is too large becomes infinite, as in an op
        array = array_module(device).empty(shape, dtype)
        array.fill(value)
        return array


def copied(array: Any) -> Any:
    """A copy on the same device."""
    with working(device_of(array)):
        return array.copy()


def cast(array: Any, dtype: Any) -> Any:
    """The array in that dtype, the same object if it has it already."""
    if array.dtype == dtype:
        return array
    with working(device_of(array)), np.errstate(over="ignore", invalid="ignore"):  # as the op astype
        return array.astype(dtype)


def write(target: Any, value: Any) -> None:
    """target[...] = value, of the same device, converted to its dtype."""
    with working(device_of(target)), np.errstate(over="ignore", invalid="ignore"):  # as the op astype
        target[...] = value.astype(target.dtype)


def move(array: Any, device: str) -> Any:
    """The array on `device`, the same object where it is there already. To the host it waits for the work before it."""
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
    """A copy of a GPU's array on the host, once the work before it is done. Raises what a kernel found wrong."""
    number = array.device.id
    with door.host_time("waiting"), gpu.need().working(number):  # and copies
        copy = array.get()
        gpu.need().synchronize(number)
    return copy


def taken_over(obj: Any) -> Any:
    """The GPU's memory of another library as an array, without copying.

    Our work waits for what the other library has launched: by DLPack, whose exporter lets our stream wait; by the stream that the
    CUDA array interface names, or the default stream where it names none (version 2, as PyTorch's); of a CuPy array by CuPy's
    current stream. The memory stays the other's until our stream has passed the last use.
    """
    check_device("cuda")
    found = gpu.need()
    kind, number = obj.__dlpack_device__() if hasattr(obj, "__dlpack__") else (None, 0)
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
    """The array as another library gets it, for use on that stream (DLPack's numbers): its memory is not used again before."""
    return leases.leased(array, leases.LEGACY if stream in (None, leases.LEGACY) else leases.UNKNOWN)


class _Unsynchronized:
    """Another library's array, with nothing in its interface that CuPy would wait for on the host."""

    def __init__(self, obj: Any, facts: dict[str, Any]) -> None:
        self._owner, self.__cuda_array_interface__ = obj, {**facts, "stream": None}


class Cuda:
    """What pullback knows of GPUs: `pb.cuda`."""

    def is_available(self) -> bool:
        """True where device "cuda" can be used."""
        return why_not("cuda") is None

    def why_not(self) -> str | None:
        """The reason why device "cuda" cannot be used, None where it can."""
        return why_not("cuda")

    @property
    def stream(self) -> Any:
        """The stream that all of pullback's work on device "cuda" runs on, as CuPy's stream object.

        `with pb.cuda.stream:` puts CuPy's own work in the same order. Raises DeviceError where there is no GPU.
        """
        check_device("cuda")
        return gpu.need().working(0) if gpu.need().simulated else gpu.need().stream(0)

    def synchronize(self, device: str = "cuda") -> None:
        """Waits until the work of the device is done. Raises DeviceError, or what a kernel found wrong."""
        number = gpu_number(device)
        with door.host_time("waiting"):
            gpu.need().synchronize(number)

    def memory(self, device: str = "cuda", *, reset_peak: bool = False) -> dict[str, Any]:
        """Returns how the memory of the device is used, in bytes. Raises DeviceError.

        Args:
            reset_peak: start counting the peak again from now on.

        Returns: a dict of
            `live`: in use by pullback and by CuPy. `cached`: kept by their pools for later. `peak`: the most that pullback had in
            use at once. `free`, `total`: of the device, as the driver says.
            `by`: live bytes by their holder: `tensors`; `recordings` (temporaries of captured functions), `graphs` (working memory
            of CUDA graphs), `scratch` (of single launches and libraries), `CuPy` (arrays from CuPy's pool), `others` (the driver,
            other libraries and other programs).
        """
        number = gpu_number(device)
        leases.settle()
        use = gpu.need().memory(number)
        if reset_peak and gpu.need().kernels is not None:
            gpu.need().kernels.reset_peak(number)
        return use

    def trim(self, device: str = "cuda") -> int:
        """Gives the memory that is kept for later tensors back to the driver, CuPy's too. Returns how many bytes.

        It waits for the streams of other libraries that were lent memory. Raises DeviceError.
        """
        number = gpu_number(device)
        leases.settle(wait=True)
        return gpu.need().trim(number)


cuda: Final = Cuda()
