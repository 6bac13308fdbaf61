"""What runs a GPU: CuPy and pullback's CUDA kernels, loaded when device "cuda" is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Final

from . import config

_waiting: Final[list[Callable[[Any], None]]] = []


def when_loaded(tell: Callable[[Any], None]) -> None:
    """Calls tell(kernels) once pullback's CUDA kernels are loaded: now if they are, never if there are none."""
    _waiting.append(tell)
    if (kernels := loaded_kernels()) is not None:
        tell(kernels)


def loaded_kernels() -> Any:
    """pullback's CUDA kernels, if they are loaded already."""
    return need().kernels if load.cache_info().currsize and not isinstance(load(), str) else None


class Gpu:
    """A machine's GPUs.

    Attributes:
        xp: the namespace of their arrays: CuPy, or NumPy marked as the device's in a simulated build.
        array_type: the class of their arrays.
        kernels: pullback's CUDA kernels, None where there are none; `why_no_kernels` then tells why.
        simulated: the kernels run on the CPU, for tests.
    """

    def __init__(self, xp: Any, array_type: type, kernels: Any, why_no_kernels: str | None) -> None:
        self.xp, self.array_type, self.kernels, self.why_no_kernels = xp, array_type, kernels, why_no_kernels
        self.simulated = xp.__name__ != "cupy"
        self._streams: dict[int, Any] = {}

    def count(self) -> int:
        """How many GPUs there are."""
        return 1 if self.simulated else int(self.xp.cuda.runtime.getDeviceCount())

    def stream(self, number: int) -> Any:
        """CuPy's view of the one stream of that GPU, on which everything of pullback runs."""
        if number not in self._streams:
            with self.xp.cuda.Device(number):
                if self.kernels is None:
                    self._streams[number] = self.xp.cuda.Stream(non_blocking=True)
                else:
                    self._streams[number] = self.xp.cuda.ExternalStream(self.kernels.stream(number), number)
        return self._streams[number]

    def kernel(self, name: str, number: int) -> Any:
        """The kernel of that name, for a call on that GPU that no array leads there; None where there is none."""
        kernel = getattr(self.kernels, name, None)
        if kernel is not None:
            self.kernels.use_device(number)
        return kernel

    def working(self, number: int) -> AbstractContextManager[Any]:
        """`with gpu.working(0):` CuPy's work and memory go to that GPU and to pullback's stream."""
        return _Simulated() if self.simulated else _Working(self, number)

    def wait_for_caller(self, number: int) -> None:
        """What is launched from now on comes after what the caller has put into CuPy's current stream."""
        if not self.simulated:
            with self.xp.cuda.Device(number):
                self.stream(number).wait_event(self.xp.cuda.get_current_stream().record())

    def memory(self, number: int) -> dict[str, int]:
        """Bytes used, cached, free and in total."""
        if self.kernels is not None:
            self.kernels.use_device(number)
            return dict(zip(("used", "cached", "free", "total"), self.kernels.memory()))
        with self.working(number):
            pool = self.xp.get_default_memory_pool()
            free, total = self.xp.cuda.runtime.memGetInfo()
            return {"used": pool.used_bytes(), "cached": pool.free_bytes(), "free": free, "total": total}

    def synchronize(self, number: int) -> None:
        """Waits until the work of that GPU is done. Raises what a kernel found wrong."""
        if self.kernels is not None:
            self.kernels.synchronize(number)
        elif not self.simulated:
            self.stream(number).synchronize()


class _Simulated:
    def __enter__(self) -> None:
        """Nothing is to be chosen."""

    def __exit__(self, *_: object) -> None:
        """Nothing was chosen."""


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
    """The GPUs of this machine, or in a sentence why they cannot be used."""
    kernels, why_no_kernels = _kernels()
    if kernels is not None and (reason := kernels.why_not()):
        return reason
    if kernels is not None and kernels.simulated:
        from . import simulated

        if config.backend() == "native":
            simulated.finish = lambda: kernels.synchronize(0)
            kernels.register_arrays(kernels, simulated.DeviceArray)
            simulated.new_array = kernels.new_array
        found = Gpu(simulated.namespace, simulated.DeviceArray, kernels, why_no_kernels)
    else:
        try:
            cupy = importlib.import_module("cupy")
        except ImportError as error:
            return f"CuPy cannot be imported ({error}); install it with: pip install 'pullback[cuda13]'"
        try:
            if not cupy.cuda.runtime.getDeviceCount():
                return "this machine has no NVIDIA GPU"
        except Exception as error:  # CuPy raises its own classes, and they change between versions
            return f"CuPy finds no usable GPU: {error}"
        if kernels is not None:
            kernels.register_arrays(kernels, cupy.ndarray)
        found = Gpu(cupy, cupy.ndarray, kernels, why_no_kernels)
    if config.backend() == "reference":
        found.kernels, found.why_no_kernels = None, "PULLBACK_BACKEND=reference"
    if found.kernels is not None:
        for tell in _waiting:
            tell(found.kernels)
    return found


def _kernels() -> tuple[Any, str | None]:
    try:
        return importlib.import_module("pullback._cuda"), None
    except ImportError as error:  # built without nvcc, or damaged: CuPy does the work
        return None, f"_cuda: {error}"


def why_not() -> str | None:
    """None where a GPU can be used, otherwise the reason in a sentence."""
    found = load()
    return found if isinstance(found, str) else None


def need() -> Gpu:
    """The GPUs. Raises RuntimeError where there are none: ask `why_not` first."""
    found = load()
    if isinstance(found, str):
        raise RuntimeError(found)
    return found
