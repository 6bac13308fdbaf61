"""Context managers that restore what they changed, wherever Ctrl-C interrupts them.

KeyboardInterrupt is raised between two Python instructions, possibly at the first one of `__exit__`, before `__exit__` has done
anything. In every case, though, the statement releases the `__exit__` that it looked up before it called `__enter__`. So each
lookup returns a new object, and deleting that object does what its call has not done.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from ..interop.unknown_names import Hinting
from ..interop.wrong_calls import explain_not_callable
from .listeners import listeners


class _Exit(partial[None]):
    """The function that a `with` statement calls at its end."""


class _HeldExit(_Exit):
    """An `_Exit` held by a statement that has called `__enter__`; deleting it ends the statement, if it has not ended."""

    def __del__(self) -> None:
        self.func(KeyboardInterrupt)


class _ExitOf:
    """A descriptor that makes a new `_Exit` on each lookup, by a `with` statement or by any other code."""

    def __get__(self, kept: Any, kind: Any = None) -> Callable[..., None]:
        if kept is None:
            return kind._leave
        found = _Exit(kept._leave)
        kept._exit = weakref.ref(found)
        return found


class KeptClass(Hinting):
    """Metaclass of Kept. It answers a `with` statement that was given the class."""

    def __enter__(cls) -> NoReturn:
        raise TypeError(f"{cls.__name__} is a class, and `with` takes an object: write {cls.__name__}().")

    def __exit__(cls, *error: object) -> None:
        pass


class Kept(metaclass=KeptClass):
    """A context manager for thread state: `_begin` changes the state, `_end` restores it, and runs again if it was interrupted.

    After KeyboardInterrupt the listeners are those from before the statement: an inner statement may have been interrupted too.
    """

    _exit: Callable[[], Any] = staticmethod(lambda: None)  # the `_Exit` of the last lookup
    _held: Callable[[], Any] = staticmethod(lambda: None)  # the `_Exit` that the statement holds
    _stack: tuple[Any, ...] | None = None  # the listeners at `__enter__`; None while not entered

    def __enter__(self) -> Any:
        self._stack = listeners.stack
        self._held = self._exit
        if self._held() is not None:  # not in a variable, because a traceback would keep it alive
            self._held().__class__ = _HeldExit
        self._begin()
        return self

    __exit__ = _ExitOf()

    def _leave(self, kind: Any = None, error: Any = None, *_: object) -> None:
        """Ends the statement. kind: the class of the exception that ended it, or None. Does nothing if it has ended already."""
        stack = self._stack
        if stack is None:
            return
        self._end()
        if kind is TypeError:
            explain_not_callable(error)
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            listeners.stack = stack
        self._stack = None
        if self._held() is not None:
            self._held().__class__ = _Exit

    def _begin(self) -> None:
        """Changes the state."""

    def _end(self) -> None:
        """Undoes `_begin`, even one that was interrupted halfway."""


class Listening(Kept):
    """A listener that receives this thread's ops while entered."""

    left: Any = None  # a Returned, if values that the listener watches have left pullback, to notice if they come back

    def _begin(self) -> None:
        listeners.enter(self)

    def _end(self) -> None:
        listeners.leave(self)


class Without(Kept):
    """While entered, one listener receives no ops."""

    def __init__(self, listener: Any) -> None:
        self._listener = listener
        self._before = listeners.stack

    def _begin(self) -> None:
        self._before = listeners.stack
        listeners.leave(self._listener)

    def _end(self) -> None:
        listeners.stack = self._before


class Heard(Kept):
    """While entered, the given listeners replace the thread's listeners."""

    def __init__(self, stack: tuple[Any, ...]) -> None:
        self._those = stack
        self._before = listeners.stack

    def _begin(self) -> None:
        self._before = listeners.stack
        listeners.stack = self._those

    def _end(self) -> None:
        listeners.stack = self._before
