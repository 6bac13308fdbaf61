"""Copies between the host and a GPU that the host does not wait for: of batches to the GPU, and of single numbers from it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..errors import OutOfMemoryError
from . import gpu, leases


class Uploads:
    """Copies arrays from pinned host memory to one GPU, on a stream beside pullback's, so that they overlap with its kernels."""

    def __init__(self, number: int) -> None:
        self._gpu, self._number = gpu.need(), number
        self._stream: int = self._gpu.copy_stream(number)

    def pinned(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Returns bytes of pinned host memory. Raises OutOfMemoryError."""
        try:
            return self._gpu.pinned(nbytes, self._number)
        except MemoryError as error:
            raise OutOfMemoryError(f"{nbytes} bytes of pinned host memory cannot be had ({error}). Use smaller batches.") from error

    def upload(self, source: np.ndarray[Any, Any]) -> Any:
        """Returns a device array to which the contiguous `source`, in pinned memory, is being copied.

        Call `join` before pullback uses the array, and do not write to `source` before `moment` has passed.
        """
        to = self._landing(source.shape, source.dtype)
        self._gpu.copy_async(self._gpu.address_of(to), source.ctypes.data, source.nbytes, self._stream, self._number)
        return leases.leased(to, leases.OURS)  # its memory is reused by later copies only after pullback's last use

    def _landing(self, shape: tuple[int, ...], dtype: Any) -> Any:
        try:
            return self._gpu.landing(shape, dtype, self._number)
        except MemoryError:
            leases.settle(wait=True)
            self._gpu.trim(self._number)
        try:
            return self._gpu.landing(shape, dtype, self._number)
        except MemoryError as error:
            raise OutOfMemoryError(f"a batch of shape {shape} does not fit on the GPU ({error}). Use smaller batches.") from error

    def join(self) -> None:
        """Makes later work of pullback wait, on the GPU, for the copies so far."""
        self._gpu.order.wait_for(self._number, self._stream)

    def moment(self) -> Any:
        """Returns the moment at which the copies so far are done. Call `passed` until it returns True, which frees the moment."""
        moment = self._gpu.order.moment(self._number, self._stream)
        if not moment:  # the driver could not record it
            self.wait()
        return moment

    def passed(self, moment: Any) -> bool:
        """True once the copies before the moment are done. Never waits."""
        return not moment or self._gpu.order.passed(moment)

    def wait(self) -> None:
        """Waits for the copies so far, but not for kernels."""
        self._gpu.finish_copies(self._number)


class Download:
    """The copy of a small GPU array to the host, which begins when the GPU has computed the array."""

    def __init__(self, array: Any) -> None:
        found, number = gpu.need(), int(array.device.id)
        held = found.pinned(array.nbytes, number)
        found.copy_async(held.ctypes.data, found.address_of(array), array.nbytes, found.stream_address(number), number)
        self._order, self._held = found.order, held[: array.nbytes].view(array.dtype).reshape(array.shape)
        # None once the copy is done; 0 if the driver could not record it, so that it cannot be known when the copy is done.
        self._moment: Any = self._order.moment(number, leases.OURS)
        _unfinished[:] = [*[other for other in _unfinished if not other.done()], self]

    def done(self) -> bool:
        """True once the array has been copied. Never waits."""
        moment, self._moment = self._moment, 0  # first, because `passed` frees a moment that has passed, and Ctrl-C may follow
        if moment is None or (moment and self._order.passed(moment)):
            self._moment = None
            return True
        self._moment = moment
        return False

    def value(self) -> np.ndarray[Any, Any] | None:
        """Returns the array on the host, or None if it is not complete yet. Never waits."""
        return self._held if self.done() else None


_unfinished: Final[list[Download]] = []  # keeps pinned memory that the GPU may still write to
