"""GPU memory that pullback shares with other libraries, which may work on different streams.

A pool reuses memory as soon as its owner is dropped. This is safe within one stream, whose work runs in order, but not across
streams. So memory that came from another library, or went to one, has a `Lease` as its owner. When the last array over the memory
is dropped, the lease keeps the memory until every stream that may use it has done the work it had received by then.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from ..errors import DeviceError
from . import gpu

OURS: Final = 0  # pullback's stream
LEGACY: Final = 1  # CUDA's default stream, as DLPack numbers it
UNKNOWN: Final = -1  # an unknown stream, or one that may not exist any more: the host waits for the whole device

BUDGET: Final = 256 << 20  # the most bytes that may wait for unknown streams; above it the host waits for the whole device
MOST: Final = 64  # the most pieces of memory that may wait for unknown streams

# Any thread adds to these, also from the garbage collector. Memory that is in both waits for the whole device.
_pending: set[_Pending] = set()  # memory that waits for events in known streams
_unknown: set[_Pending] = set()  # memory that waits for the whole device
_settling: Final = threading.RLock()  # reentrant, because releasing memory can run code that shares memory


class _Pending:
    """The memory of an array, and the events that must pass before it may be used again."""

    __slots__ = ("array", "moments", "nbytes", "number")

    def __init__(self, array: Any) -> None:
        self.array, self.number, self.nbytes = array, int(array.device.id), int(array.nbytes)
        self.moments: list[Any] = []

    def over(self, order: Any) -> bool:
        """True once the events have passed."""
        waiting: list[Any] = []
        while self.moments:
            moment = self.moments.pop()  # first, because `passed` frees a moment that has passed
            if not order.passed(moment):
                waiting.append(moment)
        self.moments = waiting
        return not waiting


class Lease:
    """The owner of shared memory. It keeps the memory until the streams have done their work on it.

    Attributes:
        streams: numbers of the streams that may use the memory.
    """

    __slots__ = ("__weakref__", "_memory", "_order", "streams")

    def __init__(self, found: Any, array: Any, stream: int) -> None:
        self.streams, self._order, self._memory = {stream}, found.order, _Pending(array)

    def __del__(self) -> None:
        if not hasattr(self, "_memory"):  # Ctrl-C has interrupted __init__
            return
        memory = self._memory
        _unknown.add(memory)  # first, because an exception, such as that of Ctrl-C, would free the memory too early
        if UNKNOWN in self.streams:
            return
        memory.moments = [self._order.moment(memory.number, stream) for stream in self.streams]
        if all(memory.moments):  # a moment is 0 if the driver could not record it
            _pending.add(memory)
            _unknown.discard(memory)


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
    if not (_pending or _unknown) or not _settling.acquire(blocking=wait):
        return
    try:
        order = gpu.need().order
        while _release_what_waited_for_all(order, wait) + _release_what_has_passed(order) and wait:
            pass  # the memory that was released may have owned other leases
    finally:
        _settling.release()


def _release_what_waited_for_all(order: Any, wait: bool) -> int:
    """Waits for the devices if `wait`, or if much memory waits for unknown streams. Returns the number of pieces released."""
    unknown, released = list(_unknown), 0
    if not wait and len(unknown) <= MOST and sum([pending.nbytes for pending in unknown]) <= BUDGET:
        return 0
    for number in {pending.number for pending in ([*unknown, *_pending] if wait else unknown)}:
        try:
            order.wait_for_all(number)
        except DeviceError:  # a graph is being captured on some stream: a later call waits
            continue
        waited = [pending for pending in unknown if pending.number == number]
        _unknown.difference_update(waited)
        released += len(waited)
    return released


def _release_what_has_passed(order: Any) -> int:
    """Releases the memory whose events have passed. Returns the number of pieces released."""
    released = 0
    for pending in list(_pending):
        if pending not in _pending:  # releasing memory has called `settle` again
            continue
        _unknown.add(pending)  # if Ctrl-C interrupts this, the streams are unknown
        _pending.discard(pending)
        if pending.over(order):
            released += 1
        else:
            _pending.add(pending)
        _unknown.discard(pending)
    return released


def waiting_bytes(number: int) -> int:
    """Returns the bytes of that GPU that wait for streams of other libraries."""
    return sum([pending.nbytes for pending in {*_pending, *_unknown} if pending.number == number])


def make_room() -> None:
    """Frees the memory that waits for other libraries' streams, and the free memory of CuPy's pool. Called when a GPU is full."""
    settle(wait=True)
    gpu.need().release_pool()


gpu.when_loaded(lambda kernels: kernels.free_memory_by(make_room))
