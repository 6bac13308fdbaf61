"""A second library on the simulated device. Its arrays come from its own memory pool, and its work runs on its own stream, as late
as CUDA allows. Code that does not wait for that work reads memory that is not yet written, or that is already used for other data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.tensors import gpu

LEGACY = 1


class Library:
    """One library with one stream: the legacy default stream, or a private one."""

    def __init__(self, legacy: bool = False) -> None:
        self.sim = gpu.need().kernels.simulator
        self.stream = LEGACY if legacy else self.sim.new_stream(True)
        self.sim.make_late(self.stream, True)

    def close(self) -> None:
        self.sim.synchronize(self.stream)
        self.sim.make_late(self.stream, False)

    def array(self, values: np.ndarray[Any, Any], kind: type[Array]) -> Array:
        """Returns an array that the stream fills with these values later."""
        return self.copy_of(values.ctypes.data, values.shape, values.dtype, kind)

    def copy_of(self, pointer: int, shape: tuple[int, ...], dtype: Any, kind: type[Array] | None = None) -> Array:
        """Returns an array into which the stream copies the memory at `pointer` later."""
        made = (kind or Array)(self, shape, np.dtype(dtype))
        self.sim.copy(self.stream, made.pointer, pointer, made.nbytes)
        return made

    def from_dlpack(self, tensor: Any) -> Array:
        """Returns a copy of a pullback tensor, read through DLPack, that the stream makes later."""
        from pullback.tensors.simulated import Exported  # only simulator builds have it

        capsule = tensor.__dlpack__(stream=self.stream)
        view = np.from_dlpack(Exported(capsule))
        return self.copy_of(view.ctypes.data, view.shape, view.dtype)  # The capsule is released when this returns, before the copy.

    def from_interface(self, tensor: Any) -> Array:
        """Like from_dlpack(), through the CUDA array interface, which waits for pullback's work when it is read."""
        facts = tensor.__cuda_array_interface__
        return self.copy_of(facts["data"][0], facts["shape"], facts["typestr"])


class Array:
    """An array of the library. Its memory returns to the library's pool when the last reference is dropped."""

    def __init__(self, library: Library, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.library, self.shape, self.dtype = library, shape, dtype
        self.nbytes = int(np.prod(shape)) * dtype.itemsize
        self.pointer = library.sim.allocate(self.nbytes)

    def __del__(self) -> None:
        self.library.sim.release(self.pointer, self.library.stream)

    def memory(self) -> np.ndarray[Any, Any]:
        """Returns the memory as it is now, without waiting for work on it."""
        from pullback.tensors.simulated import owned_memory

        return np.ndarray(self.shape, self.dtype, owned_memory(self.pointer, self.nbytes, self))

    def values(self) -> np.ndarray[Any, Any]:
        """Waits for the library's work and returns a copy of the memory."""
        self.library.sim.synchronize(self.library.stream)
        return self.memory().copy()


class ByDLPack(Array):
    """An array that exports itself only by DLPack, and makes the consumer's stream wait."""

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        if stream != -1:
            self.library.sim.order(self.library.stream, stream or LEGACY)
        return self.memory().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


class ByInterface(Array):
    """An array that exports itself by version 3 of the CUDA array interface, which names the stream."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.pointer, False), "version": 3, "strides": None,
            "stream": self.library.stream,
        }


class ByOldInterface(Array):
    """An array that exports itself by version 2, as PyTorch does. It names no stream, which means the default stream."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.pointer, False), "version": 2, "strides": None}


class Both(ByDLPack, ByOldInterface):
    """An array that exports itself by the old interface and by DLPack, as PyTorch's tensors do."""
