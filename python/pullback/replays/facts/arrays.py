"""Arrays of the host whose elements a function may read in Python: in a loop, as numbers, or in NumPy's own arithmetic."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from .facts import ITEM, LOAD, Contents, Location, Table

SMALL: Final = 4096  # the bytes of an array up to which its elements are compared, and a run's writes to it are noticed
_HELD_HERE: Final = 2  # references to an array that nothing but its _Array holds: that one, and the argument of getrefcount


class _Array:
    """An array with a copy of its elements when it was met.

    Attributes:
        named: True if a chain tells where it stands, so that the run has not made it.
        computes: True if the function calls a method of the array that computes numbers.
    """

    __slots__ = ("array", "before", "computes", "label", "named")

    def __init__(self, array: Any, label: str) -> None:
        self.array, self.before, self.label = array, array.copy(), label
        self.named = self.computes = False

    def is_written(self) -> bool:
        return self.array.tobytes() != self.before.tobytes()


class Arrays:
    """The small arrays that a recording meets.

    Args:
        copies: arrays are copied when they are read, and not read in place by each replay.
    """

    def __init__(self, copies: bool) -> None:
        self._copies, self._met = copies, dict[int, _Array]()

    def meet(self, value: Any, label: str, *, named: bool = False, computes: bool = False) -> None:
        """Notes a value if it is a small array."""
        if type(value) is np.ndarray and value.nbytes <= SMALL:
            met = self._met.get(id(value))
            if met is None:
                met = self._met[id(value)] = _Array(value, label)
            met.named, met.computes = met.named or named, met.computes or computes

    def end(self, table: Table, in_place: Sequence[Any]) -> None:
        """Adds to the facts the elements that replays do not read themselves. Forgets the arrays that the run has made.

        in_place: the arrays that replays read in place. Of an array that shares memory with one of them, the elements are compared
        only if the function calls a method that computes numbers of them.
        """
        if any([met.is_written() for met in self._met.values()]):
            gc.collect()  # cycles do not hold an array
        for key, met in list(self._met.items()):
            read = not self._copies and any([np.may_share_memory(met.array, x) for x in in_place])
            if sys.getrefcount(met.array) <= _HELD_HERE or (read and not met.named):  # the plan holds what it reads
                del self._met[key]
            elif (met.computes or not read) and not met.is_written():
                table.note(Location(ITEM, met.array, (None,)), Contents(met.before), met.label, LOAD)

    def written(self) -> list[str]:
        """Returns the labels of the arrays that the run has written to."""
        return [met.label for met in self._met.values() if met.is_written()]
