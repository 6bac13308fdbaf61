"""What transforms return: a function that calls another one, and is copied and pickled with it. Also how they run the other one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any, Generic

from .errors import PullbackError
from .typing import P, R


class FunctionWrapper(Generic[P, R]):
    """A function that a transform made from another one. It has that function's name, signature, documentation and attributes.

    It is an object and no closure, so that copies and pickles take the function inside along, and a Module finds a layer in it.
    Subclasses define `__call__`.

    Args:
        function: the function inside.
        *settings: the other arguments of the subclass's constructor. Copies are made with the same ones.
    """

    __wrapped__: Callable[..., Any]
    _title: str  # the name of the transform, for repr

    def __init__(self, function: Callable[..., Any], *settings: Any) -> None:
        self.__name__ = type(function).__name__  # of an object that has no name itself, such as a layer
        update_wrapper(self, function)  # first, because the function may have attributes of the names below
        self._function: Callable[..., Any] = function
        self._settings = settings

    def __call__(self, *args: P.args, **options: P.kwargs) -> R:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{self._title}({getattr(self._function, '__qualname__', self._function)})"

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    def __reduce__(self) -> Any:
        """Lets pickles and copies make the function anew from its parts, or take its name if it is found by that in its module."""
        path = getattr(self, "__qualname__", "")
        if path and _found(sys.modules.get(self.__module__), path) is self:
            return path
        function, owner = self._function, None
        if isinstance(function, MethodType):  # pickle would look for its name in the owner, where this object may be found instead
            function, owner = function.__func__, function.__self__
        return _made, (type(self), function, owner, self._settings)


def _found(place: Any, path: str) -> Any:
    for name in path.split("."):
        place = getattr(place, name, None)
    return place


def _made(kind: Callable[..., Any], function: Any, owner: Any, settings: tuple[Any, ...]) -> Any:
    return kind(function if owner is None else MethodType(function, owner), *settings)


def innermost(function: Any) -> Any:
    """Returns the function that transforms were applied to, one after another; any other object is returned as it is."""
    while isinstance(function, FunctionWrapper):
        function = function.__wrapped__
    return function


class Unhidden:
    """Raises an error of pullback that NumPy hides behind a ValueError: "setting an array element with a sequence"."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError) and isinstance(error.__cause__, PullbackError):
            raise error.__cause__ from None
