"""Who is told of the ops that run: the tapes (and other listeners) of each thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final


class Listeners(threading.local):
    """Who listens to this thread's ops: a stack of tapes (and other listeners), the innermost last.

    `record(op, y, inputs, params)` tells all of them; it is None where nobody listens, the one question of every op.
    """

    record: Callable[..., None] | None = None
    _stack: tuple[Any, ...] = ()

    @property
    def stack(self) -> tuple[Any, ...]:
        return self._stack

    @stack.setter
    def stack(self, stack: tuple[Any, ...]) -> None:
        self._stack = stack
        self.record = None if not stack else stack[0].add if len(stack) == 1 else _tell_all


listeners: Final = Listeners()


def _tell_all(op: Any, y: Any, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> None:
    for listener in listeners.stack:
        listener.add(op, y, inputs, params)
