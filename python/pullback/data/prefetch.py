"""Reads batches ahead in a background thread, and copies them to a GPU while it computes."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

import numpy as np

from ..errors import OutOfMemoryError, PullbackError
from ..tensors import devices
from ..tensors.transfers import Uploads
from .sources import Source, bytes_of_slot, divided, read_batch

AHEAD: Final = 2  # batches that the thread reads before they are taken
PATIENCE: Final = 1.0  # seconds after which a thread without free slots looks if its Reader is still there
FLYING: Final = 2  # batches that are being copied to a GPU at once, at most


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Channel:
    """What the thread shares with the loop. The thread has no reference to the Reader, so that dropping a Reader ends its thread.

    `queue.SimpleQueue` can be used in finalizers and after Ctrl-C: it never holds a lock that an exception could leave behind.
    """

    def __init__(self) -> None:
        self.free: SimpleQueue[Any] = SimpleQueue()  # slots that the thread may fill; a tuple each, so that None ends the thread
        self.ready: SimpleQueue[Any] = SimpleQueue()  # (slot, what read() returned or a _Failure)
        self.ended: SimpleQueue[None] = SimpleQueue()  # has an entry when the thread has ended
        self.begun = self.stopped = False
        self.reader: Callable[[], Any] = lambda: None  # returns the Reader, or None if it was dropped
        self.process = os.getpid()


class _Thread(threading.Thread):
    """A thread of a Reader."""


def _work(channel: _Channel, read: Callable[[int, Any], Any], start: int, stop: int) -> None:
    channel.begun = True
    try:
        for i in range(start, stop):
            held = _next_slot(channel)
            if held is None:
                return
            try:
                result = read(i, held[0])
            except BaseException as error:  # the loop raises it
                result = _Failure(error)
            channel.ready.put((held[0], result))
            if isinstance(result, _Failure):
                return
            del held, result  # so that waiting for the next slot does not keep this batch in memory
    finally:
        channel.ended.put(None)


def _next_slot(channel: _Channel) -> Any:
    """Returns a tuple with the next slot, or None if the thread has to end."""
    while not channel.stopped and channel.reader() is not None:  # Ctrl-C in a finalizer is lost, and then nothing sets `stopped`
        try:
            held = channel.free.get(timeout=PATIENCE)
        except Empty:
            continue
        return None if channel.stopped else held
    return None


def _end(channel: _Channel) -> None:
    """Ends the thread, and waits until it has read its last batch. Not by Thread.join(), which an exception leaves in disorder."""
    channel.stopped = True
    channel.free.put(None)
    # A finalizer may run in any thread. Two threads of Readers must not wait for each other.
    if channel.begun and channel.process == os.getpid() and not isinstance(threading.current_thread(), _Thread):
        channel.ended.get()


class Reader:
    """Calls read(i, slot) for i = start, …, stop - 1 in a background thread, as long as there are free slots.

    Where no thread can be started (at the end of the interpreter, or in a browser), `take` reads.
    """

    def __init__(self, read: Callable[[int, Any], Any], start: int, stop: int, slots: list[Any]) -> None:
        self._read, self._next, self._stop, self._slots = read, start, stop, slots
        self._failed: list[Any] = []  # what take(wait=False) has found, if that was a failure
        self._begin(slots)

    def _begin(self, slots: list[Any]) -> None:
        self._channel = _Channel()
        for slot in slots:
            self._channel.free.put((slot,))
        arguments = (self._channel, self._read, self._next, self._stop)
        thread = _Thread(target=_work, args=arguments, name="pullback-loader", daemon=True)
        self._channel.reader = weakref.ref(self)
        self._finalizer = weakref.finalize(self, _end, self._channel)  # also at the end of the interpreter
        try:
            thread.start()
        except RuntimeError:
            self._finalizer.detach()
            self._channel.stopped = True

    def take(self, wait: bool = True) -> tuple[Any, Any] | None:
        """Returns (slot, result) of the next i, or None after the last one.

        With wait=False it also returns None if the result is not there yet, or is an error. Raises PullbackError, whose cause is
        the error of read().
        """
        if self._next >= self._stop:
            return None
        if self._channel.process != os.getpid():  # the thread does not exist in a forked child
            self._finalizer.detach()
            self._begin(self._slots)
        try:
            found = self._failed.pop() if self._failed else self._found(wait)
        except Empty:
            return None
        if isinstance(found[1], _Failure) and not wait:
            self._failed.append(found)
            return None
        i, self._next = self._next, self._next + 1
        if isinstance(found[1], _Failure):
            self.close()
            error = found[1].error
            kind = OutOfMemoryError if isinstance(error, MemoryError) else PullbackError
            raise kind(f"Loader: batch {i} of the epoch could not be read ({type(error).__name__}: {error}).") from error
        return found

    def _found(self, wait: bool) -> tuple[Any, Any]:
        if not self._channel.stopped:
            return self._channel.ready.get(block=wait)
        slot = self._channel.free.get(block=False)[0]
        try:
            return slot, self._read(self._next, slot)
        except Exception as error:
            return slot, _Failure(error)

    def give(self, slot: Any) -> None:
        """Lets the thread fill this slot again."""
        self._channel.free.put((slot,))

    def close(self) -> None:
        """Ends the thread, and waits until it has finished the batch that it is reading."""
        self._finalizer()
        self._next = self._stop


class Feed:
    """The batches start, …, stop - 1 of an epoch, as arrays on one device. `rows(i)` returns the rows of batch i, and their number.

    Attributes:
        at: the number of the next batch.
    """

    def __init__(self, sources: list[Source], rows: Callable[[int], tuple[Any, int]], start: int, stop: int) -> None:
        self.at = start
        self._reader = Reader(partial(_read, sources, rows), start, stop, self._slots(sources, rows))

    def _slots(self, sources: list[Source], rows: Callable[[int], tuple[Any, int]]) -> list[Any]:
        return [None] * AHEAD

    def take(self) -> list[Any]:
        """Returns the arrays of the next batch. Raises PullbackError if it could not be read."""
        slot, arrays = self._next()
        self._reader.give(slot)
        self.at += 1
        return arrays

    def _next(self) -> tuple[Any, list[Any]]:
        found = self._reader.take()
        assert found is not None  # the Loader takes no batch after the last one
        return found

    def close(self) -> None:
        """Ends the thread."""
        self._reader.close()


def _read(sources: list[Source], rows: Callable[[int], tuple[Any, int]], i: int, slot: Any) -> list[Any]:
    return read_batch(sources, *rows(i), slot)


class GpuFeed(Feed):
    """A Feed whose thread reads into pinned memory. While the GPU computes with a batch, the next one is copied.

    Only the calling thread calls CUDA: work of other threads would disturb the capture of a graph.
    """

    def __init__(
        self, device: str, sources: list[Source], rows: Callable[[int], tuple[Any, int]], start: int, stop: int, most: int
    ) -> None:
        self._uploads, self._most = Uploads(devices.number_of(device)), most
        self._flying: deque[tuple[Any, Any]] = deque()  # (the moment at which the copy is done, its slot)
        self._landed: deque[list[Any]] = deque()  # arrays whose copies have begun
        self._spare: list[Any] = []  # slots that are neither the thread's nor being copied
        self._owed = 0  # batches that were taken from the thread and not yet replaced by a free slot
        self._unsent: list[tuple[Any, Any]] = []  # the next batch, if the GPU had no room for it yet
        self._process = os.getpid()
        super().__init__(sources, rows, start, stop)

    def _slots(self, sources: list[Source], rows: Callable[[int], tuple[Any, int]]) -> list[Any]:
        nbytes = bytes_of_slot(sources, self._most)
        slots = [divided(self._uploads.pinned(nbytes), sources, self._most) for _ in range(AHEAD + FLYING)]
        self._all = slots  # keeps the pinned memory until `close` has waited for the copies
        self._spare = slots[AHEAD:]
        return slots[:AHEAD]

    def take(self) -> list[Any]:
        """Returns the arrays of the next batch, for use on pullback's stream, and begins to copy the one after it."""
        self._recycle()
        if not self._landed:
            self._send(*(self._unsent.pop() if self._unsent else self._next()))
        self._uploads.join()
        arrays = self._landed.popleft()
        self.at += 1
        following = self._reader.take(wait=False) if not self._unsent else None
        if following is not None:
            self._owed += 1
            try:
                self._send(*following)
            except OutOfMemoryError:  # there may be room when the next batch is taken
                self._unsent.append(following)
        self._recycle()
        return arrays

    def _next(self) -> tuple[Any, list[Any]]:
        found = super()._next()
        self._owed += 1
        return found

    def _send(self, slot: Any, batch: list[np.ndarray[Any, Any]]) -> None:
        self._recycle(FLYING)
        self._flying.append((0, slot))
        try:
            self._landed.append([self._uploads.upload(x) for x in batch])
            self._flying[-1] = (self._uploads.moment(), slot)
        except OutOfMemoryError:
            self._uploads.wait()
            self._flying.pop()
            raise

    def _recycle(self, most: int | None = None) -> None:
        """Gives the thread a slot for each batch that was taken, and waits for copies if `most` or more are under way."""
        while self._flying:
            moment, slot = self._flying.popleft()  # first, because `passed` frees a moment that has passed, and Ctrl-C may follow
            if self._uploads.passed(moment):
                self._spare.append(slot)
                continue
            self._flying.appendleft((moment, slot))
            if most is None or len(self._flying) < most:
                break
            self._uploads.wait()
        while self._owed and self._spare:
            self._owed -= 1
            self._reader.give(self._spare.pop())

    def close(self) -> None:
        """Ends the thread, and waits for the copies that have begun, because others may use their pinned memory afterwards."""
        super().close()
        if self._all and self._process == os.getpid():
            self._uploads.wait()
            self._recycle()
            self._all = []

    def __del__(self) -> None:
        if hasattr(self, "_reader"):
            self.close()
