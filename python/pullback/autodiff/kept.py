"""`with` statements that put back what they changed, wherever Ctrl-C ends them.

KeyboardInterrupt is raised between two instructions of Python, which may be the first one of `__exit__`, before it has done
anything. But whatever happens, the statement lets go of the `__exit__` that it looked up before it called `__enter__`. So that
is an object of its own each time, whose end does what its call has not done.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from .listeners import listeners


class _Exit(partial[None]):
    """What is called at the end of a `with` statement."""


class _HeldExit(_Exit):
    """The same while a statement that has called `__enter__` holds on to it."""

    def __del__(self) -> None:
        self.func(KeyboardInterrupt)


class _ExitOf:
    """Makes a new `_Exit` each time that it is looked up: by the statement, or by who only looks."""

    def __get__(self, kept: Any, kind: Any = None) -> Callable[..., None]:
        if kept is None:
            return kind._leave
        found = _Exit(kept._leave)
        kept._exit = weakref.ref(found)
        return found


class Kept:
    """A context manager for thread state: `_begin` changes it, `_end` undoes that, again if it was interrupted.

    After KeyboardInterrupt, those listen that did before: whatever ran inside may have been cut short as well.
    """

    _exit: Callable[[], Any] = staticmethod(lambda: None)  # the last that was looked up
    _held: Callable[[], Any] = staticmethod(lambda: None)  # that of the statement
    _stack: tuple[Any, ...] | None = None  # of listeners, while entered

    def __enter__(self) -> Any:
        self._stack = listeners.stack
        self._held = self._exit
        if self._held() is not None:  # no variable: a traceback would hold on to it
            self._held().__class__ = _HeldExit
        self._begin()
        return self

    __exit__ = _ExitOf()

    def _leave(self, kind: Any = None, *_: object) -> None:
        """The end of the statement, by an exception of this class or by none; nothing if it was left already."""
        stack = self._stack
        if stack is None:
            return
        self._end()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            listeners.stack = stack
        self._stack = None
        if self._held() is not None:
            self._held().__class__ = _Exit

    def _begin(self) -> None:
        """Changes the state."""

    def _end(self) -> None:
        """Undoes what `_begin` did, or the part of it that was done."""


class Listening(Kept):
    """A listener that is told of this thread's ops while entered."""

    def _begin(self) -> None:
        listeners.enter(self)

    def _end(self) -> None:
        listeners.leave(self)


class Heard(Kept):
    """While entered, these listen and nobody else."""

    def __init__(self, stack: tuple[Any, ...]) -> None:
        self._those = stack
        self._before = listeners.stack

    def _begin(self) -> None:
        self._before = listeners.stack
        listeners.stack = self._those

    def _end(self) -> None:
        listeners.stack = self._before
