"""Another library on the simulated device: its arrays live in memory of its own pool, and its work is done on its own stream, as
late as CUDA allows. What does not wait for it finds memory that was never written, or that belongs to somebody else already.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.tensors import gpu, simulated

LEGACY = 1


class Library:
    """One library with one stream: the legacy default stream, or one that only it knows."""

    def __init__(self, legacy: bool = False) -> None:
        self.sim = gpu.need().kernels.simulator
        self.stream = LEGACY if legacy else self.sim.new_stream(True)
        self.sim.make_late(self.stream, True)

    def close(self) -> None:
        self.sim.synchronize(self.stream)
        self.sim.make_late(self.stream, False)

    def array(self, values: np.ndarray[Any, Any], kind: type[Array]) -> Array:
        """An array that the stream is still to fill with these values."""
        return self.copy_of(values.ctypes.data, values.shape, values.dtype, kind)

    def copy_of(self, pointer: int, shape: tuple[int, ...], dtype: Any, kind: type[Array] | None = None) -> Array:
        """An array that the stream is still to copy from there."""
        made = (kind or Array)(self, shape, np.dtype(dtype))
        self.sim.copy(self.stream, made.pointer, pointer, made.nbytes)
        return made

    def from_dlpack(self, tensor: Any) -> Array:
        """A copy of a tensor of pullback's, read through DLPack, that the stream is still to make."""
        capsule = tensor.__dlpack__(stream=self.stream)
        view = np.from_dlpack(simulated.Exported(capsule))
        return self.copy_of(view.ctypes.data, view.shape, view.dtype)  # and the capsule is dropped at once

    def from_interface(self, tensor: Any) -> Array:
        """The same by the CUDA array interface: the stream waits for the one that it names."""
        facts = tensor.__cuda_array_interface__
        return self.copy_of(facts["data"][0], facts["shape"], facts["typestr"])


class Array:
    """An array of the library. Its memory goes back to the library's pool with the last reference."""

    def __init__(self, library: Library, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.library, self.shape, self.dtype = library, shape, dtype
        self.nbytes = int(np.prod(shape)) * dtype.itemsize
        self.pointer = library.sim.allocate(self.nbytes)

    def __del__(self) -> None:
        self.library.sim.release(self.pointer, self.library.stream)

    def memory(self) -> np.ndarray[Any, Any]:
        """The memory as it is now, whoever works on it."""
        return np.ndarray(self.shape, self.dtype, simulated.owned_memory(self.pointer, self.nbytes, self))

    def values(self) -> np.ndarray[Any, Any]:
        """A copy of what is there once the library's work is done."""
        self.library.sim.synchronize(self.library.stream)
        return self.memory().copy()


class ByDLPack(Array):
    """Exports itself by DLPack alone, and makes the consumer's stream wait."""

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        if stream != -1:
            self.library.sim.order(self.library.stream, stream or LEGACY)
        return self.memory().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


class ByInterface(Array):
    """Version 3 of the CUDA array interface, which names the stream."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.pointer, False), "version": 3, "strides": None,
            "stream": self.library.stream,
        }  # fmt: skip


class ByOldInterface(Array):
    """Version 2, which names no stream, as PyTorch's: the default stream is meant."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.pointer, False), "version": 2, "strides": None}


class Both(ByDLPack, ByOldInterface):
    """As PyTorch's tensors: the old interface, and DLPack."""
