"""Answers names that pullback does not have with the name that it has instead, or with the nearest names."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable, Mapping
from inspect import CO_VARKEYWORDS
from typing import Any, Final, TypeVar

from ..autodiff.site import current_frame
from .names_elsewhere import methods, results

METHODS: Final = {**methods.NAMES, **results.NAMES}
Kind = TypeVar("Kind", bound=type)

# The public modules, in the order in which they are searched, and what users call them.
SPACES: Final = {
    "pullback": "pb", "pullback.nn": "nn", "pullback.nn.functional": "nn.functional", "pullback.linalg": "pb.linalg",
    "pullback.random": "pb.random", "pullback.optim": "optim", "pullback.optim.schedules": "optim.schedules",
    "pullback.optim.constraints": "optim.constraints", "pullback.nn.init": "nn.init", "pullback.data": "pb.data",
    "pullback.tree": "pb.tree", "pullback.amp": "pb.amp", "pullback.solve": "pb.solve",
    "pullback.debug": "pb.debug", "pullback.profiling": "pb.profiling", "pullback.typing": "pb.typing",
}  # fmt: skip


# ---- keyword arguments


def unexpected(unknown: Mapping[str, Any], depth: int = 1) -> TypeError:
    """Returns the error for keyword arguments that the calling function, or the one `depth` frames above, does not have."""
    frame = current_frame(depth)
    code = frame.f_code
    known = [name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name != "self"]
    title = type(frame.f_locals["self"]).__name__ if code.co_name == "__init__" else code.co_name
    return TypeError(keyword_text(title, next(iter(unknown)), known))


def keyword_text(title: str, name: str, known: Iterable[str]) -> str:
    """Returns the message for a call of the function `title`, whose parameters are `known`, with an unknown keyword."""
    import difflib  # late, because few programs need it

    from .names_elsewhere.tables import KEYWORDS, KEYWORDS_OF

    known = [*known]
    words, _, sentence = KEYWORDS.get(name, "").partition("| ")
    if name in (own := KEYWORDS_OF.get(title, {})):
        words, sentence = "", own[name]
    ours = [word for word in words.split() if word in known]
    if ours:
        rest = f": it is {ours[0]}= here."
    elif sentence:
        rest = f": {sentence}"
    elif near := difflib.get_close_matches(name, known, 1):
        rest = f". Did you mean: {near[0]!r}?"
    else:
        rest = f". It takes {', '.join(known) or 'no arguments'}."
    return f"{title}() got an unexpected keyword argument {name!r}{rest}"


def explain_arguments(kind: Kind) -> Kind:
    """Makes a class and its subclasses answer keywords that `__init__` does not have, and returns the class."""

    make: Any = kind.__new__

    def __new__(cls: Any, *args: Any, **options: Any) -> Any:
        code = getattr(cls.__init__, "__code__", None)
        known = () if code is None else code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        takes_none = cls.__init__ is object.__init__
        if takes_none or (code is not None and not code.co_flags & CO_VARKEYWORDS):
            for name in options:
                if name not in known:
                    raise TypeError(keyword_text(cls.__name__, name, known))
        if args or options:  # Pickle passes nothing here.
            for name, meaning in getattr(cls, "_needs", {}).items():
                if name in known[len(args) :] and name not in options and _is_required(cls, name):
                    raise TypeError(f"{cls.__name__} needs {name}=, {meaning}.")
        if takes_none and args:  # object.__init__ raises this error only in classes without a __new__
            raise TypeError(
                f"{cls.__name__}() takes no arguments: nothing is computed in place, and the tensor goes to {cls.__name__}()(x)."
            )
        return make(cls)

    kind.__new__ = staticmethod(__new__)  # type: ignore[assignment]
    return kind


def _is_required(kind: Any, name: str) -> bool:
    return inspect.signature(kind.__init__).parameters[name].default is inspect.Parameter.empty


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
    place, attribute = kind.__name__, Elsewhere if kind.__dictoffset__ else Unsettable
    for name in METHODS[place]:
        if not hasattr(kind, name):
            setattr(kind, name, attribute(place, name))
    kind.__dir__ = _names_of  # type: ignore[method-assign, assignment]
    return kind


def _names_of(self: Any) -> list[str]:
    """Implements `__dir__`: leaves out the names that are only answered."""
    found: dict[str, Any] = {}
    for base in reversed(type(self).__mro__):
        found.update(vars(base))
    found.update(getattr(self, "__dict__", {}))
    return [name for name in object.__dir__(self) if not isinstance(found.get(name), Elsewhere)]


def _answer(place: str, name: str) -> str:
    """Returns the rest of the message: a colon and what to use instead, or the nearest names, or nothing."""
    if name[:1] == "_":
        return ""
    from .names_elsewhere.tables import NAMES  # late, as in `keyword_text`

    ours = [place] if place not in SPACES else [place, *[space for space in SPACES if space != place]]
    for space in ours:
        hint = NAMES.get(space, {}).get(name)
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
