"""Access to the GPUs through CuPy and pullback's CUDA kernels, both loaded on the first use of device "cuda"."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, cached_property
from typing import Any, Final

import numpy as np

from .. import variables
from ..launch.refusal import Refused

HOLDERS: Final = ("tensors", "recordings", "graphs", "scratch")  # holders of memory, as in csrc/launch/memory.h
MEMCPY_DEFAULT: Final = 4  # cudaMemcpyDefault: the addresses determine the direction of a copy

_waiting: Final[list[Callable[[Any], None]]] = []


def when_loaded(tell: Callable[[Any], None]) -> None:
    """Calls tell(kernels) once pullback's CUDA kernels are loaded: at once if they are loaded already, never if there are none."""
    _waiting.append(tell)
    if (kernels := loaded_kernels()) is not None:
        tell(kernels)


def loaded_kernels() -> Any:
    """Returns the module of pullback's CUDA kernels, or None if they are not loaded."""
    return need().kernels if load.cache_info().currsize and not isinstance(load(), str) else None


class Gpu:
    """The GPUs of this machine.

    Attributes:
        xp: the namespace of their arrays: CuPy, or in a simulated build NumPy with arrays marked as the device's.
        array_type: the class of their arrays.
        kernels: pullback's CUDA kernels, or None if there are none; `why_no_kernels` then holds the reason.
        simulated: True if the kernels run on the CPU, for tests (`simulated.SimulatedGpu`).
    """

    simulated = False

    def __init__(self, xp: Any, array_type: type, kernels: Any, why_no_kernels: str | None) -> None:
        self.xp, self.array_type, self.kernels, self.why_no_kernels = xp, array_type, kernels, why_no_kernels
        self._streams: dict[int, Any] = {}
        self._copy_streams: dict[int, Any] = {}
        self._count: int | None = None

    @cached_property
    def order(self) -> Any:
        """The functions that order work of pullback's streams with work of other streams."""
        return self.kernels or _CupyOrder(self)

    def count(self) -> int:
        """Returns the number of GPUs."""
        if self._count is None:
            self._count = int(self.xp.cuda.runtime.getDeviceCount())
        return self._count

    def stream(self, number: int) -> Any:
        """Returns a CuPy object for the stream of that GPU that all of pullback's work runs on.

        Raises DeviceError in a forked child.
        """
        address = self.kernels.stream(number) if self.kernels is not None else None  # first: CuPy's error does not name the fork
        if number not in self._streams:
            with self.xp.cuda.Device(number):
                ours = self.external(address, number) if address is not None else self.xp.cuda.Stream(non_blocking=True)
            self._streams[number] = ours
        return self._streams[number]

    def external(self, address: int, number: int) -> Any:
        """Returns a CuPy object for a stream that CuPy has not created."""
        with warnings.catch_warnings():  # CuPy 14 deprecates this class, but its replacement does not keep the device
            warnings.simplefilter("ignore", DeprecationWarning)
            return self.xp.cuda.ExternalStream(address, number)

    def kernel(self, name: str, number: int) -> Any:
        """Returns the kernel of that name for the GPU `number`, or None if it does not exist.

        It selects the GPU explicitly, for a call without an array argument that would select it.
        """
        kernel = getattr(self.kernels, name, None)
        if kernel is not None:
            self.kernels.use_device(number)
        return kernel

    def working(self, number: int) -> AbstractContextManager[Any]:
        """Returns a context manager under which CuPy allocates on that GPU and runs its work on pullback's stream."""
        return _Working(self, number)

    def wait_for_caller(self, number: int) -> None:
        """Makes later work of pullback wait for the work that the caller has put into CuPy's current stream."""
        with self.xp.cuda.Device(number):
            self.order.wait_for(number, self.xp.cuda.get_current_stream().ptr or 1)  # CuPy's 0 is DLPack's 1

    # ---- copies that the host does not wait for (transfers.py)

    def stream_address(self, number: int) -> int:
        """Returns the address of the stream that all of pullback's work on that GPU runs on."""
        return int(self.stream(number).ptr)

    def copy_stream(self, number: int) -> int:
        """Returns the address of the stream on which batches are copied to that GPU."""
        self.stream(number)  # raises in a forked child
        if number not in self._copy_streams:
            with self.xp.cuda.Device(number):
                self._copy_streams[number] = self.xp.cuda.Stream(non_blocking=True)
        return int(self._copy_streams[number].ptr)

    def finish_copies(self, number: int) -> None:
        """Waits for the stream on which batches are copied."""
        self._copy_streams[number].synchronize()

    def pinned(self, nbytes: int, number: int) -> np.ndarray[Any, Any]:
        """Returns bytes of pinned host memory, from CuPy's pool."""
        with self.xp.cuda.Device(number):
            return np.ndarray(nbytes, np.uint8, self.xp.cuda.alloc_pinned_memory(max(nbytes, 1)))

    def landing(self, shape: tuple[int, ...], dtype: Any, number: int) -> Any:
        """Returns a new array whose memory is reused in the order of the stream of copies. Raises MemoryError."""
        self.copy_stream(number)
        with self.xp.cuda.Device(number), self._copy_streams[number]:
            return self.xp.empty(shape, dtype)

    def address_of(self, array: Any) -> int:
        """Returns the address of the array's first element."""
        return int(array.data.ptr)

    def copy_async(self, to: int, source: int, nbytes: int, stream: int, number: int) -> None:
        """Copies bytes between a GPU and pinned host memory in the order of the stream."""
        with self.xp.cuda.Device(number):
            self.xp.cuda.runtime.memcpyAsync(to, source, nbytes, MEMCPY_DEFAULT, stream)

    # ---- arrays and their memory

    def uploaded(self, array: np.ndarray[Any, Any], number: int) -> Any:
        """Returns a copy of a host array on the GPU, in memory of pullback's pool if there are kernels."""
        if self.kernels is not None:
            across = array.flags.f_contiguous and not array.flags.c_contiguous
            try:
                copy = self.kernels.upload(array.T if across else np.ascontiguousarray(array).reshape(array.shape), number)
                return copy.T if across else copy
            except Refused:  # the kernels do not support the dtype; CuPy copies the array or raises
                pass
        with self.working(number):
            return self.xp.asarray(array)

    def from_dlpack(self, obj: Any, number: int) -> Any:
        """Returns an array over the memory of a DLPack object, whose exporter makes pullback's stream wait for its own."""
        with self.working(number):
            return self.xp.from_dlpack(obj)

    def from_interface(self, obj: Any) -> Any:
        """Returns an array over the memory that `__cuda_array_interface__` describes."""
        return self.xp.asarray(obj)

    def owner_of(self, array: Any) -> Any:
        """Returns the object that keeps the array's memory allocated, or None if the memory is from CuPy's pool."""
        return getattr(array.data.mem, "_owner", None)

    def is_own(self, owner: Any) -> bool:
        """True if `owner` owns memory from pullback's pool."""
        return self.kernels is not None and type(owner) is self.kernels.Buffer

    def over_same_memory(self, array: Any, owner: Any) -> Any:
        """Returns an array like this one, over the same memory, that keeps `owner` alive."""
        cuda = self.xp.cuda
        memory = cuda.UnownedMemory(array.data.ptr, array.nbytes, owner, array.device.id)
        return self.xp.ndarray(array.shape, array.dtype, cuda.MemoryPointer(memory, 0), array.strides)

    def part_of(self, owner: Any, shape: tuple[int, ...], dtype: Any, offset: int, strides: tuple[int, ...]) -> Any:
        """Returns an array over memory of the owner, from this offset in bytes on."""
        return self.xp.ndarray(shape, dtype, owner.data + offset, strides)

    def memory(self, number: int) -> dict[str, Any]:
        """Returns the dictionary of `pb.cuda.memory`."""
        pool_used, pool_cached = self.pool_use(number)
        live = cached = peak = 0
        by_holder: Any = [0] * len(HOLDERS)
        if self.kernels is not None:
            live, cached, peak, free, total, by_holder = self.kernels.memory(number)
        else:
            free, total = self.driver_memory(number)
        others = max(0, total - free - live - cached - pool_used - pool_cached)
        return {
            "live": live + pool_used, "cached": cached + pool_cached, "peak": peak, "free": free, "total": total,
            "by": {**dict(zip(HOLDERS, by_holder)), "CuPy": pool_used, "others": others},
        }

    def pool_use(self, number: int) -> tuple[int, int]:
        """Returns the bytes of CuPy's pool on that GPU: in use, and kept for later."""
        with self.working(number):
            pool = self.xp.get_default_memory_pool()
            return pool.used_bytes(), pool.free_bytes()

    def driver_memory(self, number: int) -> tuple[int, int]:
        """Returns the free and the total bytes of that GPU, reported by the driver."""
        with self.working(number):
            return self.xp.cuda.runtime.memGetInfo()

    def release_pool(self) -> int:
        """Returns the free memory of CuPy's pool on the current GPU to the driver, and returns the number of bytes."""
        pool = self.xp.get_default_memory_pool()
        before = pool.free_bytes()
        pool.free_all_blocks()
        return before - pool.free_bytes()

    def trim(self, number: int) -> int:
        """Returns cached memory to the driver, and returns the number of bytes."""
        given_back = self.kernels.trim(number) if self.kernels is not None else 0
        with self.working(number):
            return given_back + self.release_pool()

    def synchronize(self, number: int) -> None:
        """Waits until the work of that GPU is done. Raises an error that a kernel has reported."""
        self.order.synchronize(number)


class _CupyOrder:
    """Orders the work of streams by CuPy if pullback has no kernels. The methods have the names of the kernels' functions."""

    def __init__(self, found: Gpu) -> None:
        self._gpu, self._cuda = found, found.xp.cuda

    def _stream(self, number: int, stream: int) -> Any:
        if stream == 0:
            return self._gpu.stream(number)
        return self._cuda.Stream.null if stream == 1 else self._gpu.external(stream, number)

    def moment(self, number: int, stream: int) -> Any:
        """Returns an event in the stream after all work that the stream has received so far."""
        with self._cuda.Device(number):
            event = self._cuda.Event(disable_timing=True)
            event.record(self._stream(number, stream))
            return event

    def passed(self, moment: Any) -> bool:
        """True once the stream has done the work before the event."""
        return bool(moment.done)

    def wait_for(self, number: int, stream: int) -> None:
        """Makes later work of pullback wait for all work that `stream` has received so far."""
        self._gpu.stream(number).wait_event(self.moment(number, stream))

    def wait_for_all(self, number: int) -> None:
        """Waits for all streams of the device."""
        self._cuda.Device(number).synchronize()

    def synchronize(self, number: int) -> None:
        """Waits for pullback's stream."""
        self._gpu.stream(number).synchronize()


class _Working:
    def __init__(self, gpu: Gpu, number: int) -> None:
        self._contexts = (gpu.xp.cuda.Device(number), gpu.stream(number))

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)


@cache
def load() -> Gpu | str:
    """Returns the GPUs of this machine, or one sentence that says why they cannot be used."""
    kernels, why_no_kernels = _kernels()
    if kernels is not None and (reason := kernels.why_not()):
        return reason
    if kernels is not None and kernels.simulated:
        try:
            from .simulated import SimulatedGpu
        except ImportError:
            return "the kernels are the simulator's, but the wheel left the simulated device out; build it with -C wheel.exclude="
        found: Gpu = SimulatedGpu(kernels)
    else:
        try:
            cupy = importlib.import_module("cupy")
        except ImportError as error:
            return f"CuPy cannot be imported ({error}); install it with: pip install 'pullback[cuda13]'"
        try:
            if not cupy.cuda.runtime.getDeviceCount():
                return "this machine has no NVIDIA GPU"
        except Exception as error:  # CuPy's exception classes change between versions
            return f"CuPy finds no usable GPU: {error}"
        if kernels is not None:
            kernels.register_arrays(kernels, cupy.ndarray)
        found = Gpu(cupy, cupy.ndarray, kernels, why_no_kernels)
    if variables.backend() == "reference":
        found.kernels, found.why_no_kernels = None, "PULLBACK_BACKEND=reference"
    if found.kernels is not None:
        for tell in _waiting:
            tell(found.kernels)
    return found


def _kernels() -> tuple[Any, str | None]:
    try:
        return importlib.import_module("pullback._cuda"), None
    except ImportError as error:  # the build had no nvcc, or the module is damaged: CuPy does the work
        return None, f"_cuda: {error}"


def why_not() -> str | None:
    """Returns None if a GPU can be used, otherwise the reason as one sentence."""
    found = load()
    return found if isinstance(found, str) else None


def need() -> Gpu:
    """Returns the GPUs. Raises RuntimeError if they cannot be used, so call `why_not` first."""
    found = load()
    if isinstance(found, str):
        raise RuntimeError(found)
    return found
