"""GPU memory that pullback shares with other libraries, which may work on different streams.

A pool reuses memory as soon as its owner is dropped. This is safe within one stream, whose work runs in order, but not across
streams. So memory that came from another library, or went to one, has a `Lease` as its owner. When the last array over the memory
is dropped, the lease keeps the memory until every stream that may use it has done the work it had received by then.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final

from ..errors import DeviceError
from . import gpu

OURS: Final = 0  # pullback's stream
LEGACY: Final = 1  # CUDA's default stream, as DLPack numbers it
UNKNOWN: Final = -1  # an unknown stream, or one that may not exist any more: the host waits for the whole device

BUDGET: Final = 256 << 20  # the most bytes that may wait for unknown streams; above it the host waits for the whole device
MOST: Final = 64  # the most pieces of memory that may wait for unknown streams, because each call of `settle` looks at all of them

_pending: deque[_Pending] = deque()  # any thread appends to it, also from the garbage collector
_settling: Final = threading.RLock()  # reentrant, because releasing memory can run code that shares memory


class _Pending:
    """Memory whose arrays are gone, and the events that must pass before the memory may be used again."""

    __slots__ = ("array", "moments", "number", "unknown")

    def __init__(self, array: Any, number: int, moments: list[Any], unknown: bool) -> None:
        self.array, self.number, self.moments, self.unknown = array, number, moments, unknown

    def over(self, order: Any) -> bool:
        """True once no stream can be using the memory."""
        unknown, self.unknown, waiting = self.unknown, True, []  # if Ctrl-C interrupts this, the streams are unknown
        while self.moments:
            moment = self.moments.pop()  # first, because `passed` frees a moment that has passed
            if not order.passed(moment):
                waiting.append(moment)
        self.moments, self.unknown = waiting, unknown
        return not waiting and not unknown


class Lease:
    """The owner of shared memory. It keeps `array`, and thereby the memory, until the streams have done their work on it.

    Attributes:
        streams: numbers of the streams that may use the memory.
    """

    __slots__ = ("__weakref__", "_array", "_gpu", "_number", "streams")

    def __init__(self, found: Any, array: Any, stream: int) -> None:
        self.streams, self._gpu, self._array, self._number = {stream}, found, array, int(array.device.id)

    def __del__(self) -> None:
        if not hasattr(self, "_number"):  # Ctrl-C has interrupted __init__
            return
        pending = _Pending(self._array, self._number, [], True)
        _pending.append(pending)  # first, because an exception, such as that of Ctrl-C, would free the memory too early
        order = self._gpu.order
        moments = [order.moment(self._number, stream) for stream in self.streams if stream != UNKNOWN]
        pending.moments = [moment for moment in moments if moment]
        pending.unknown = UNKNOWN in self.streams or not all(moments)  # a moment is 0 if the driver could not record it


def leased(array: Any, stream: int) -> Any:
    """Returns an array over the same memory.

    The memory stays allocated until `stream` has done the work that it received while the array existed.
    """
    found = gpu.need()
    settle()
    if not array.size:
        return array
    owner = found.owner_of(array)
    if isinstance(owner, Lease):
        owner.streams.add(stream)
        return array
    if stream == OURS and found.is_own(owner):  # pullback's pool reuses memory in the order of pullback's stream
        return array
    return found.over_same_memory(array, Lease(found, array, stream))


def settle(wait: bool = False) -> None:
    """Releases the memory whose streams have done their work.

    With `wait`, or if more than BUDGET bytes or MOST pieces wait for unknown streams, the host waits for the devices.
    """
    if not _pending or not _settling.acquire(blocking=wait):
        return
    try:
        order = gpu.need().order
        while _pending:
            found = list(_pending)
            unknown = [pending for pending in found if pending.unknown]
            if wait or len(unknown) > MOST or sum([int(pending.array.nbytes) for pending in unknown]) > BUDGET:
                for number in {pending.number for pending in (found if wait else unknown)}:
                    _wait_for_all(order, number, unknown)
            dropped = 0
            for _ in range(len(found)):  # other threads append on the right; only this loop pops on the left
                if _pending and _pending[0].over(order):
                    _pending.popleft()
                    dropped += 1
                else:
                    _pending.rotate(-1)
            found.clear()  # frees the memory; if that drops other leases, the next round handles them
            unknown.clear()
            if not wait or not dropped:
                return
    finally:
        _settling.release()


def _wait_for_all(order: Any, number: int, unknown: list[_Pending]) -> None:
    try:
        order.wait_for_all(number)
    except DeviceError:  # a graph is being captured on some stream: a later call waits
        return
    for pending in unknown:
        pending.unknown = pending.unknown and pending.number != number


def waiting_bytes(number: int) -> int:
    """Returns the bytes of that GPU that wait for streams of other libraries."""
    return sum([int(pending.array.nbytes) for pending in list(_pending) if pending.number == number])


def make_room() -> None:
    """Frees the memory that waits for other libraries' streams, and the free memory of CuPy's pool. Called when a GPU is full."""
    settle(wait=True)
    gpu.need().release_pool()


gpu.when_loaded(lambda kernels: kernels.free_memory_by(make_room))
