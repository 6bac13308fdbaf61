"""The watch over one run of a captured function: what it reads in Python, and what it leaves behind."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

from ...tensors.parameter import Parameter
from ...tensors.tensor import Tensor
from .behind import COPY, Behind, behind
from .facts import ATTRIBUTE, Facts, Location, Table
from .lookup import value_at
from .reading import Reading


class Watch:
    """The watch over one run.

    Args:
        kernels, device: the kernel module whose launches are recorded, and its device.
        function: the captured function.
        leaves: the arguments that the function receives.
    """

    def __init__(self, kernels: Any, device: str, function: Any, leaves: Sequence[Any]) -> None:
        self._kernels = kernels
        self._table = Table(kernels.facts_changed)
        self._reading = Reading(self._table, function, {id(x) for x in leaves if _compares_itself(x)}, device != "cpu")
        self.in_place: list[Any] = []  # arrays made outside that became tensors, so that replays read them
        self._running = self._lost = False  # lost: another profiler took the place of the watch

    def begin(self) -> None:
        self._running = True
        self._kernels.watch_calls(self._reading.seen)

    def end(self) -> None:
        """Ends the watch over the functions that run. A second call does nothing."""
        if self._running:
            self._running, self._lost = False, not self._kernels.watch_calls(None)
            self._reading.end()

    def read(self, owner: Any, name: str) -> None:
        """Notes that pullback has read an attribute of a Module."""
        self._reading.attribute(owner, name)

    def forget(self, owner: Any, name: str) -> None:
        """Forgets what was noted about an attribute of an object."""
        self._table.forget(Location(ATTRIBUTE, owner, (name,)))

    def left(self, results: Sequence[Any], objects: Sequence[Any], made: Sequence[Any], given: Sequence[Any]) -> Behind:
        """Returns what the run has left behind besides its results.

        objects: those of the results that are no tensors.
        given: the arguments.
        made: the Modules and Parameters among the results that the run has made.
        """
        kept = {id(x) for x in results}
        arguments = [x for x in given if isinstance(x, Tensor) and not isinstance(x, Parameter)]

        def living() -> list[Tensor]:
            return [x for x in self._kernels.plan_tensors() if id(x) not in kept]

        if self._reading.defines:
            gc.collect()  # a class refers to itself
        self._table.drop_temporary(value_at)
        self._reading.arrays.end(self._table, self.in_place)
        self.in_place.clear()
        found = behind(self._table, self._reading, living, lambda x: self._kernels.plan_maker(x.array), objects, arguments)
        if self._lost:
            found.reasons.append(("a profiler that it starts hides the functions that run then", "Start the profiler outside."))
        found.reasons.extend([(f"it returns the {type(x).__name__} that it makes", COPY) for x in made])
        return found

    def facts(self) -> Facts:
        return self._table.finished()


def _compares_itself(x: Any) -> bool:
    """True if the signature compares an argument by its value, so that the next call may bring another object."""
    if isinstance(x, Tensor) or type(x).__eq__ is object.__eq__:
        return False
    try:
        hash(x)
    except TypeError:  # it is compared by identity
        return False
    return True
