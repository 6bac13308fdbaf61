"""Arrays of the host whose elements a function may read in Python: in a loop, as numbers, or in NumPy's own arithmetic."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from .facts import ITEM, LOAD, SLOT, Contents, Location, Table
from .lookup import slot

SMALL: Final = 4096  # the bytes of an array up to which its elements are compared, and a run's writes to it are noticed
_FORM: Final = {name: vars(np.ndarray)[name] for name in ("shape", "dtype")}  # what assignments change besides the elements
_HELD_HERE: Final = 2  # references to an array that nothing but its _Array holds: that one, and the argument of getrefcount


class _Array:
    """An array with its shape, its dtype and a copy of its elements when it was met.

    Attributes:
        plain: the array itself, or a view of its memory if its class is derived from NumPy's.
        before: the copy; None if the array is not small.
        named: True if a chain tells where it stands, so that the run has not made it.
        computes: True if the function calls a method of the array that computes numbers.
    """

    __slots__ = ("array", "before", "computes", "form", "label", "named", "plain")

    def __init__(self, array: Any, label: str) -> None:
        self.array, self.label = array, label
        self.plain = array if type(array) is np.ndarray else np.ndarray.view(array, np.ndarray)
        self.before = self.plain.copy() if array.nbytes <= SMALL else None
        self.form = [slot(entry, array) for entry in _FORM.values()]
        self.named = self.computes = False

    def is_written(self) -> bool:
        return self.before is not None and self.plain.tobytes() != self.before.tobytes()


class Arrays:
    """The arrays that a recording meets.

    Args:
        copies: arrays are copied when they are read, and not read in place by each replay.
    """

    def __init__(self, copies: bool) -> None:
        self._copies, self._met = copies, dict[int, _Array]()

    def meet(self, value: Any, label: str, *, named: bool = False, computes: bool = False) -> None:
        """Notes a value if it is an array."""
        if isinstance(value, np.ndarray):
            met = self._met.get(id(value))
            if met is None:
                met = self._met[id(value)] = _Array(value, label)
            met.named, met.computes = met.named or named, met.computes or computes

    def end(self, table: Table, in_place: Sequence[Any]) -> None:
        """Adds to the facts the shapes and dtypes, and of small arrays the elements that replays do not read themselves.

        Forgets the arrays that the run has made.

        in_place: the arrays that replays read in place. Of an array that shares memory with one of them, the elements are compared
        only if the function calls a method that computes numbers of them.
        """
        if any([met.is_written() for met in self._met.values()]):
            gc.collect()  # cycles do not hold an array
        for key, met in list(self._met.items()):
            read = not self._copies and any([np.may_share_memory(met.array, x) for x in in_place])
            held_here = _HELD_HERE + (met.plain is met.array or met.plain.base is met.array)
            if sys.getrefcount(met.array) <= held_here or (read and not met.named):  # the plan holds what it reads
                del self._met[key]
                continue
            for (name, entry), value in zip(_FORM.items(), met.form):
                table.note(Location(SLOT, met.array, (entry,)), value, f"{name} of {met.label}", LOAD)
            if met.before is not None and (met.computes or not read) and not met.is_written():
                table.note(Location(ITEM, met.plain, (None,)), Contents(met.before), met.label, LOAD)

    def written(self) -> list[str]:
        """Returns the labels of the arrays that the run has written to."""
        return [met.label for met in self._met.values() if met.is_written()]
