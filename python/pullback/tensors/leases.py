"""Memory of a GPU that pullback shares with other libraries, each of which works on a stream of its choice.

A pool hands memory out again as soon as its owner is dropped: the work of one stream is done in order, so nothing can go wrong
there. Another stream knows nothing of that order. So memory that came from another library, or went to one, has a `Lease` as its
owner: when the last array over it is dropped, the lease keeps the memory until each stream that may use it has passed.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final

from ..errors import DeviceError
from . import gpu

OURS: Final = 0  # pullback's stream
LEGACY: Final = 1  # CUDA's default stream, as DLPack numbers it
UNKNOWN: Final = -1  # a stream that is not known, or may be gone: all streams of the device are waited for

BUDGET: Final = 256 << 20  # bytes that may wait for unknown streams before the host waits for the whole device

_pending: deque[_Pending] = deque()  # any thread appends to it, and so does the garbage collector
_settling: Final = threading.RLock()  # again by the same thread, if what is let go of runs code that shares memory


class _Pending:
    """Memory whose arrays are gone, and the moments that must pass before it may be used again."""

    __slots__ = ("array", "moments", "number", "unknown")

    def __init__(self, array: Any, number: int, moments: list[Any], unknown: bool) -> None:
        self.array, self.number, self.moments, self.unknown = array, number, moments, unknown

    def over(self, order: Any) -> bool:
        """True once no stream can be using the memory."""
        self.moments = [moment for moment in self.moments if not order.passed(moment)]
        return not self.moments and not self.unknown


class Lease:
    """The owner of shared memory: keeps `array` until the streams have passed.

    Attributes:
        streams: numbers of the streams that may use the memory.
    """

    __slots__ = ("__weakref__", "_array", "_gpu", "_number", "streams")

    def __init__(self, found: Any, array: Any, stream: int) -> None:
        self._gpu, self._array, self._number = found, array, int(array.device.id)
        self.streams = {stream}

    def __del__(self) -> None:
        moments: list[Any] = []
        try:
            order = self._gpu.order
            moments = [order.moment(self._number, stream) for stream in self.streams if stream != UNKNOWN]
            unknown = UNKNOWN in self.streams or not all(moments)  # a moment is 0 where the driver refused it
        except Exception:  # raised by nothing that is known, but here it would cost the memory
            unknown = True
        _pending.append(_Pending(self._array, self._number, [moment for moment in moments if moment], unknown))


def leased(array: Any, stream: int) -> Any:
    """An array over the same memory, which stays allocated until `stream` has done what it was given while the array existed."""
    found = gpu.need()
    settle()
    if not array.size:
        return array
    owner = found.owner_of(array)
    if isinstance(owner, Lease):
        owner.streams.add(stream)
        return array
    if stream == OURS and found.is_own(owner):  # its pool works in the order of our stream
        return array
    return found.over_same_memory(array, Lease(found, array, stream))


def settle(wait: bool = False) -> None:
    """Lets go of memory whose streams have passed. With wait, or when much waits for unknown streams, the host waits for them."""
    if not _pending or not _settling.acquire(blocking=wait):
        return
    try:
        order = gpu.need().order
        while _pending:
            found = list(_pending)
            unknown = [pending for pending in found if pending.unknown]
            if wait or sum([int(pending.array.nbytes) for pending in unknown]) > BUDGET:
                for number in {pending.number for pending in (found if wait else unknown)}:
                    _wait_for_all(order, number, unknown)
            dropped = 0
            for _ in range(len(found)):  # only here is the left end touched
                if _pending and _pending[0].over(order):
                    _pending.popleft()
                    dropped += 1
                else:
                    _pending.rotate(-1)
            found.clear()  # the memory goes now, and so does what it kept: that takes another round
            unknown.clear()
            if not wait or not dropped:
                return
    finally:
        _settling.release()


def _wait_for_all(order: Any, number: int, unknown: list[_Pending]) -> None:
    try:
        order.wait_for_all(number)
    except DeviceError:  # a graph is being captured on some stream: the next time, then
        return
    for pending in unknown:
        pending.unknown = pending.unknown and pending.number != number


def waiting_bytes(number: int) -> int:
    """Bytes of that GPU that wait for streams of other libraries."""
    return sum([int(pending.array.nbytes) for pending in list(_pending) if pending.number == number])


def make_room() -> None:
    """Gives back memory that waits for other libraries' streams, and what CuPy's pool keeps. Called when a GPU is full."""
    settle(wait=True)
    gpu.need().release_pool()


gpu.when_loaded(lambda kernels: kernels.free_memory_by(make_room))
