"""The listeners of each thread: tapes and other objects that receive the ops that run."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, Final

new_serial: Final = itertools.count(1).__next__  # returns the serial of the next value that listeners identify


class Listeners(threading.local):
    """The stack of this thread's listeners (tapes and others), the innermost last.

    `record(op, y, inputs, params)` passes an op to all listeners. It is None if there are none, so that one test of it is all
    that an unrecorded op pays. A batch has a position on the stack but receives nothing: its `add` is None. `batches` is True
    if the stack holds a batch. The observer receives an op before the listeners do, unless the only listener `observes` on its
    own. `differentiates` is True if any listener receives ops; the observer does not count.
    """

    record: Callable[..., None] | None = None
    differentiates: bool = False
    batches: bool = False
    _observer: Callable[..., None] | None = None
    _around: Callable[[Callable[..., None]], Callable[..., None]] | None = None
    _stack: tuple[Any, ...] = ()

    @property
    def stack(self) -> tuple[Any, ...]:
        return self._stack

    @stack.setter
    def stack(self, stack: tuple[Any, ...]) -> None:
        self._stack = stack
        if not stack:
            self.record, self.differentiates, self.batches = self._observer, False, False
            return
        if len(stack) == 1 and self._observer is None:  # one tape: the general code below takes twice as long
            add = stack[0].add
            self.record, self.differentiates, self.batches = add, add is not None, add is None
            return
        told = [listener for listener in stack if listener.add is not None]
        alone = len(told) == 1 and (self._observer is None or getattr(told[0], "observes", False))
        self.record = self._observer if not told else told[0].add if alone else _tell_all
        self.differentiates, self.batches = bool(told), len(told) < len(stack)
        if told and self._around is not None and self.record is not None:
            self.record = self._around(self.record)

    def know(self, x: Any) -> bool:
        """True if a tape or a forward pass of this thread watches the tensor."""
        return any([listener.knows(x) for listener in self._stack if hasattr(listener, "knows")])

    def observe(self, observer: Callable[..., None] | None, around: Callable[..., Any] | None = None) -> None:
        """Installs `observer`, which receives every op; None removes it.

        `around(record)` returns the function to call instead of the listeners' `record`.
        """
        self._observer, self._around = observer, around
        self.stack = self._stack

    def observers(self) -> tuple[Any, Any]:
        """Returns the present arguments of `observe`, to restore them."""
        return self._observer, self._around

    def tell_observer(self, op: Any) -> None:
        if self._observer is not None:
            self._observer(op)

    def enter(self, listener: Any) -> None:
        """Adds a listener as the innermost one."""
        self.stack = (*self._stack, listener)

    def leave(self, listener: Any) -> None:
        """Removes a listener, wherever it is on the stack."""
        self.stack = tuple([other for other in self._stack if other is not listener])

    def truncate(self, place: int) -> tuple[Any, ...]:
        """Keeps only the listeners below position `place` of the stack. Returns the former state, for `restore`."""
        before = self._stack, self.record, self.differentiates, self.batches
        if place:
            self.stack = self._stack[:place]
        else:
            self._stack, self.record, self.differentiates, self.batches = (), self._observer, False, False
        return before

    def restore(self, before: tuple[Any, ...]) -> None:
        """Undoes `truncate`."""
        self._stack, self.record, self.differentiates, self.batches = before


listeners: Final = Listeners()


def _tell_all(op: Any, y: Any, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> None:
    listeners.tell_observer(op)
    for listener in listeners.stack:
        if listener.add is not None:
            listener.add(op, y, inputs, params)
