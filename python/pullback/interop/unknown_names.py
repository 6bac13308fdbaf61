"""Answers names that pullback does not have with the name that it has instead, or with the nearest names."""

from __future__ import annotations

import importlib
import inspect
import sys
from abc import ABCMeta
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from .hints import hints

Kind = TypeVar("Kind", bound=type)

# The public modules, in the order in which they are searched, and what users call them.
SPACES: Final = {
    "pullback": "pb", "pullback.nn": "nn", "pullback.nn.functional": "nn.functional", "pullback.linalg": "pb.linalg",
    "pullback.random": "pb.random", "pullback.optim": "optim", "pullback.optim.schedules": "optim.schedules",
    "pullback.optim.constraints": "optim.constraints", "pullback.nn.init": "nn.init", "pullback.data": "pb.data",
    "pullback.tree": "pb.tree", "pullback.amp": "pb.amp", "pullback.solve": "pb.solve",
    "pullback.debug": "pb.debug", "pullback.profiling": "pb.profiling", "pullback.typing": "pb.typing",
}


# ---- attributes


class Text:
    """The message of an AttributeError. It is composed when somebody reads it, because hasattr and getattr never do."""

    __slots__ = ("_name", "_owner", "_place")

    def __init__(self, owner: str, place: str, name: str) -> None:
        self._owner, self._place, self._name = owner, place, name

    def __str__(self) -> str:
        return f"{self._owner} has no attribute {self._name!r}{_answer(self._place, self._name)}"

    __repr__ = __str__

    def __reduce__(self) -> Any:
        return str, (str(self),)


def missing(module: str, name: str) -> AttributeError:
    """Returns the error for a name that a public module does not have."""
    # Because `obj` is None, Python adds no suggestion of its own to ours.
    return AttributeError(Text(f"module {module!r}", module, name), name=name, obj=None)


def answer(namespace: dict[str, Any]) -> None:
    """Gives a public module with this namespace a `__getattr__` that raises the error of `missing`, if it has none."""
    module = namespace["__name__"]

    def __getattr__(name: str) -> Any:
        raise missing(module, name)

    namespace.setdefault("__getattr__", __getattr__)


class Hinting(type):
    """Metaclass of the classes whose attributes are read most often: `dir` and help leave out the names that are only answered."""

    def __dir__(cls) -> list[str]:
        return _without_hints(super().__dir__(), cls)


class HintingABC(Hinting, ABCMeta):
    """The same for classes that users derive from, which may be abstract base classes too."""


class Elsewhere:
    """A class attribute for a name that the class has in another library: to read it raises AttributeError.

    A class with a `__getattr__` would need no such attributes, but then Python would read every other attribute more slowly.
    """

    __slots__ = ("_name", "_place")

    def __init__(self, place: str, name: str) -> None:
        self._place, self._name = place, name

    def __get__(self, instance: Any, owner: type) -> Any:
        raise self._error(f"{owner.__name__!r} object" if instance is not None else f"type object {owner.__name__!r}")

    def _error(self, owner: str) -> AttributeError:
        return AttributeError(Text(owner, self._place, self._name), name=self._name, obj=None)


class Unsettable(Elsewhere):
    """Like Elsewhere, for a class whose instances have no attributes of their own: to set it raises AttributeError too."""

    __slots__ = ()

    def __set__(self, instance: Any, value: Any) -> None:
        raise self._error(f"{type(instance).__name__!r} object")


def attach_hints(kind: Kind) -> Kind:
    """Makes instances of a class answer the names that the table lists for it, and returns the class."""
    if isinstance(kind, Hinting):
        place, attribute = kind.__name__, Elsewhere if kind.__dictoffset__ else Unsettable
        for name in hints(place):
            if not hasattr(kind, name):
                setattr(kind, name, attribute(place, name))
        kind.__dir__ = _names_of  # type: ignore[method-assign, assignment]
    else:
        kind.__getattr__ = _answers(kind.__name__)  # type: ignore[attr-defined]
    return kind


def _answers(place: str) -> Any:
    """Returns the `__getattr__` of a class, which answers the names that the table lists for `place`."""

    def __getattr__(self: Any, name: str) -> Any:
        if any([name in vars(base) for base in type(self).__mro__]):  # a property, in which something has no such attribute
            return object.__getattribute__(self, name)
        hinted = name in hints(place)
        raise AttributeError(Text(f"{type(self).__name__!r} object", place, name), name=name, obj=None if hinted else self)

    return __getattr__


def _names_of(self: Any) -> list[str]:
    """Implements `__dir__` of instances."""
    return _without_hints(object.__dir__(self), type(self), getattr(self, "__dict__", {}))


def _without_hints(names: Iterable[str], kind: type, own: Mapping[str, Any] = MappingProxyType({})) -> list[str]:
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        found.update(vars(base))
    found.update(own)
    return [name for name in names if not isinstance(found.get(name), Elsewhere)]


def _answer(place: str, name: str) -> str:
    """Returns the rest of the message: a colon and what to use instead, or the nearest names, or nothing."""
    if name[:1] == "_":
        return ""
    ours = [place] if place not in SPACES else [place, *[space for space in SPACES if space != place]]
    for space in ours:
        hint = hints(space).get(name)
        if hint is not None:
            return f": {hint}" if hint.endswith(".") else f": it is {hint} here."
    if place not in SPACES:
        return ""
    return _found_elsewhere(ours, name) or _nearest(place, name)


def _found_elsewhere(spaces: list[str], name: str) -> str:
    """Returns the answer for a name that another public module has. PyTorch's names of writing functions end with "_"."""
    for wanted in dict.fromkeys((name, name.rstrip("_"))):
        for space in spaces:
            if wanted in public(space):
                return f": it is {SPACES[space]}.{wanted} here."
    return ""


def _nearest(place: str, name: str) -> str:
    """Returns a question with the public names, of this module or else of `pb`, that are spelled most like the name."""
    import difflib

    for space in (place, "pullback"):
        known = {found.lower(): f"{SPACES[space]}.{found}" for found in public(space)}
        near = difflib.get_close_matches(name.lower(), known, 3, 0.8)
        if near:
            return f". Did you mean: {' or '.join([repr(known[word]) for word in near])}?"
    return ""


def public(module: str) -> list[str]:
    """Returns the names that users may use of a public module. Modules inside it are left out."""
    space = sys.modules.get(module) or importlib.import_module(module)
    return [name for name in dir(space) if name[0] != "_" and not inspect.ismodule(getattr(space, name))]
