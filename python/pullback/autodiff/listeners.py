"""Who is told of the ops that run: the tapes (and other listeners) of each thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final


class Listeners(threading.local):
    """Who listens to this thread's ops: a stack of tapes (and other listeners), the innermost last.

    `record(op, y, inputs, params)` tells all of them; it is None where nobody listens, the one question of every op. A batch
    has its place on the stack and is told nothing: its `add` is None. `batches` says whether there is one. An observer is told
    before them (but for a listener that `observes` by itself), and changes nothing: `differentiates` says whether anybody else is
    told.
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
        if len(stack) == 1 and self._observer is None:  # one tape: the rest of this takes twice as long
            add = stack[0].add
            self.record, self.differentiates, self.batches = add, add is not None, add is None
            return
        told = [listener for listener in stack if listener.add is not None]
        alone = len(told) == 1 and (self._observer is None or getattr(told[0], "observes", False))
        self.record = self._observer if not told else told[0].add if alone else _tell_all
        self.differentiates, self.batches = bool(told), len(told) < len(stack)
        if told and self._around is not None and self.record is not None:
            self.record = self._around(self.record)

    def observe(self, observer: Callable[..., None] | None, around: Callable[..., Any] | None = None) -> None:
        """Tells this function of ops, too. around(record): what is called in the place of others' record."""
        self._observer, self._around = observer, around
        self.stack = self._stack

    def tell_observer(self, op: Any) -> None:
        if self._observer is not None:
            self._observer(op)

    def enter(self, listener: Any) -> None:
        """Tells this listener, too, as the innermost."""
        self.stack = (*self._stack, listener)

    def leave(self, listener: Any) -> None:
        """Tells it no more, wherever on the stack it is."""
        self.stack = tuple([other for other in self._stack if other is not listener])

    def truncate(self, place: int) -> tuple[Any, ...]:
        """Leaves only the listeners below this place of the stack. Returns what `restore` takes."""
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
