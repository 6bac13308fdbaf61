"""What all functions have in common that run a captured function for a listener."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from ..autodiff.listeners import listeners
from ..launch import capturing
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..tree import flatten, unflatten
from .trace import ConstantLeaf


class Unserved(BaseException):
    """A recording cannot serve the listeners, and the function has to run eagerly under them.

    It is no Exception, because an `except Exception` of the user's function must not end it.
    """


class _Thread(threading.local):
    unserved: bool = False  # True if a call was served in a way that later calls cannot be


thread: Final = _Thread()


class Now(threading.local):
    """What a thread serves now, under the names that `Served.serve` gives it."""


class Served:
    """A function that runs for calls under one kind of listener.

    Args:
        function: the captured function, uncaptured.
        alike: for each argument leaf, the position of the first leaf that is the same object.
    """

    __slots__ = ("__name__", "_alike", "function", "now")

    def __init__(self, function: Callable[..., Any], alike: Sequence[int]) -> None:
        self.function, self._alike = function, alike
        self.now = Now()  # the listener that is being served, as `listener`
        self.__name__ = getattr(function, "__name__", "f")

    def serve(self, listener: Any, leaves: Sequence[Any], f: Callable[[], Any], **more: Any) -> Any:
        """Returns f(), which calls this function with these leaves for a listener, under the other listeners."""
        now, before = self.now.__dict__, dict(self.now.__dict__)
        now.update(more, listener=listener, serials=[x.serial if isinstance(x, Tensor) else 0 for x in leaves])
        stack = listeners.truncate(len(listeners.stack) - 1)
        try:
            return f()
        finally:
            listeners.restore(stack)
            now.clear()
            now.update(before)

    def _leaves(self, args: Any, options: Any) -> tuple[list[Any], Any]:
        leaves, spec = flatten((args, options))
        for x, serial in zip(leaves, self.now.serials):
            if serial:
                x.serial = serial  # what listeners from outside know of the argument, those inside know of its stand-in
        return [leaves[i] for i in self._alike], spec


def alike_of(leaves: Sequence[Any]) -> tuple[int, ...]:
    first: dict[int, int] = {}
    return tuple([first.setdefault(id(x), i) if isinstance(x, Tensor) else i for i, x in enumerate(leaves)])


def guard(served: Served, watched: Sequence[Any], unwatched: Sequence[Any]) -> Any:
    """Makes the recording valid only for listeners that know the first tensors, and not the second ones (weak references).

    Returns the key of this condition.
    """
    now = served.now
    recording: Any = capturing.thread.recording

    def holds() -> bool:
        knows = now.listener.knows
        return all([knows(x) for x in watched]) and not any([(x := found()) is not None and knows(x) for found in unwatched])

    recording.guard(holds, holds)
    return holds


class Told:
    """The value of a function that runs for a batch or for forward mode: its leaves are results, arguments or constants.

    Attributes:
        leaves, form: as in a Trace.
        marks: for each result, what the listener has to know about it.
        more: more for the listener.
    """

    def __init__(self, value: Any, given: Sequence[Any]) -> None:
        outputs, self.form = flatten(value)
        places: dict[int, int] = {}
        for i, x in enumerate(given):
            if isinstance(x, Tensor) and not isinstance(x, Parameter):
                places.setdefault(id(x), ~i)
        self.results: list[Any] = []
        self.leaves: list[Any] = []
        for y in outputs:
            if not isinstance(y, Tensor) or isinstance(y, Parameter):
                self.leaves.append(ConstantLeaf(y))
                continue
            if id(y) not in places:
                places[id(y)] = len(self.results)
                self.results.append(y)
            self.leaves.append(places[id(y)])
        self.marks: list[Any] = []
        self.more: Any = None

    def value(self, given: Sequence[Any], results: Sequence[Any]) -> Any:
        leaves = [
            leaf.value if leaf.__class__ is ConstantLeaf else results[leaf] if leaf >= 0 else given[~leaf] for leaf in self.leaves
        ]
        return unflatten(self.form, leaves)

    def returned(self, *more: Any) -> list[Any]:
        """Returns the results, more tensors, and this object, which the recording keeps without the results."""
        found = [*self.results, *more, self]
        self.results = []
        return found
