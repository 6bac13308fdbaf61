"""Stream, the position of a random generator, which threads share and forked processes begin anew."""

from __future__ import annotations

import os
import threading
from operator import index
from typing import Final

from ..errors import DTypeError, PullbackError, shown

_lock: Final = threading.RLock()  # held while a position changes; reentrant, because a signal handler may draw


class Stream:
    """The position of a generator in its numbers. Threads may use one stream together, and each serial is taken once.

    Attributes:
        seed, serial: what the numbers of the next draw follow from.
        children: the number of processes that were forked since the stream began.
    """

    __slots__ = ("_thread", "_turns", "children", "seed", "serial")

    def __init__(self, seed: int, serial: int = 0, children: int = 0) -> None:
        self._thread = self._turns = 0  # the thread that drew last, and how often another one did than before
        self.seed, self.serial, self.children = seed, serial, children

    def now(self) -> tuple[int, int, int]:
        with _lock:
            return self.seed, self.serial, self.children

    def jump(self, seed: int, serial: int = 0, children: int = 0) -> None:
        with _lock:
            self.seed, self.serial, self.children = seed, serial, children

    def take(self, count: int) -> tuple[int, int]:
        """Consumes serials. Returns the seed and the first serial."""
        with _lock:
            self.turn()
            serial = self.serial
            self.serial = serial + count
            return self.seed, serial

    def turn(self) -> int:
        """Makes it this thread's turn. Returns the number of the turn, which stays until another thread draws."""
        with _lock:
            if self._thread != (now := threading.get_ident()):
                self._thread, self._turns = now, self._turns + 1
            return self._turns

    def give_back(self, seed: int, end: int, serial: int) -> None:
        """Continues from `serial` if nobody has taken a serial since those before `end` were taken."""
        with _lock:
            if (self.seed, self.serial) == (seed, end):
                self.serial = serial

    def __getstate__(self) -> tuple[int, int, int]:
        return self.now()

    def __setstate__(self, state: tuple[int, int, int]) -> None:
        Stream.__init__(self, *state)


def checked_seed(seed: int) -> int:
    """Returns the seed as an integer. Raises DTypeError, and PullbackError for one outside [0, 2^64)."""
    try:
        seed = index(seed)
    except TypeError:
        raise DTypeError(f"seed {shown(seed)} is not an integer: use one from 0 to 2**64 - 1.") from None
    if not 0 <= seed < 2**64:
        raise PullbackError(f"seed {seed} is out of range: use an integer from 0 to 2**64 - 1.")
    return seed


def child_seed(seed: int, number: int) -> int:
    """Returns the seed of a forked process: an output of SplitMix64 that starts at `seed` (Steele, Lea & Flood 2014).

    number: the index of the output, which is the number of processes that were forked from the parent before.
    """
    z = (seed + (number + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def follow_forks(stream: Stream) -> None:
    """Makes each forked process begin the stream anew, so that it does not draw what its parent and the other children draw."""

    def in_child() -> None:
        stream.seed, stream.serial, stream.children = child_seed(stream.seed, stream.children), 0, 0

    def in_parent() -> None:
        stream.children += 1

    if hasattr(os, "register_at_fork"):
        # Functions that run after a fork run in the order of their registration, so the lock is released last, and by C code, in
        # which no Ctrl-C arrives.
        os.register_at_fork(after_in_parent=in_parent, after_in_child=in_child)
        os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
