"""The listeners of each thread: tapes and other objects that receive the ops that run."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

new_serial: Final = itertools.count(1).__next__  # returns the serial of the next value that listeners identify


class Listeners(threading.local):
    """The stack of this thread's listeners (tapes and others), the innermost last.

    `record(op, y, inputs, params)` passes an op to all listeners. It is None if there are none, so that one test of it is all
    that an unrecorded op pays. A batch has a position on the stack but receives nothing: its `add` is None. `batches` is True
    if the stack holds a batch, `differentiates` if any listener receives ops. `around(record, told)`, if there is one, returns the
    function that takes the place of `record`, which passes ops to the listeners `told`: see launch/door.py.
    """

    record: Callable[..., None] | None = None
    differentiates: bool = False
    batches: bool = False
    around: Callable[[Callable[..., None] | None, Sequence[Any]], Callable[..., None] | None] | None = None
    _stack: tuple[Any, ...] = ()

    @property
    def stack(self) -> tuple[Any, ...]:
        return self._stack

    @stack.setter
    def stack(self, stack: tuple[Any, ...]) -> None:
        self._stack = stack
        if not stack:
            self.record, self.differentiates, self.batches = self.around and self.around(None, ()), False, False
            return
        if len(stack) == 1 and self.around is None:  # one tape: the general code below takes twice as long
            add = stack[0].add
            self.record, self.differentiates, self.batches = add, add is not None, add is None
            return
        told = [listener for listener in stack if listener.add is not None]
        record = None if not told else told[0].add if len(told) == 1 else _tell_all
        self.record = record if self.around is None else self.around(record, told)
        self.differentiates, self.batches = bool(told), len(told) < len(stack)

    def enter(self, listener: Any) -> None:
        """Adds a listener as the innermost one."""
        self.stack = (*self._stack, listener)

    def leave(self, listener: Any) -> None:
        """Removes a listener, wherever it is on the stack."""
        self.stack = tuple([other for other in self._stack if other is not listener])

    def truncate(self, place: int) -> tuple[Any, ...]:
        """Keeps only the listeners below position `place` of the stack. Returns the former state, for `restore`."""
        before = self._stack, self.record, self.differentiates, self.batches
        self.stack = self._stack[:place]
        return before

    def restore(self, before: tuple[Any, ...]) -> None:
        """Undoes `truncate`."""
        self._stack, self.record, self.differentiates, self.batches = before


listeners: Final = Listeners()


def _tell_all(op: Any, y: Any, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> None:
    for listener in listeners.stack:
        if listener.add is not None:
            listener.add(op, y, inputs, params)
