"""Copies of functions that refer to other values: the pullback of a user's function refers to values of the run that made it."""

from __future__ import annotations

import copy
import dataclasses
import gc
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final
from weakref import CallableProxyType, ProxyType

from ..autodiff.batching import Batch, Batched
from ..function_wrapper import FunctionWrapper
from ..launch import capturing
from ..tensors.parameter import Parameter

LIMIT: Final = 100_000  # objects that a search visits before it gives up
_LIBRARIES: Final = {*sys.stdlib_module_names, __name__.partition(".")[0]}
_CLOSED: Final = (
    bool, int, float, complex, str, bytes, range, type(None), type(Ellipsis), CodeType, ModuleType, BuiltinFunctionType,
    ProxyType, CallableProxyType, Batch, Parameter,
)


class Hidden(Exception):
    """A function refers to a value that is to be replaced in a way that a copy of the function cannot change."""


class _Names(list[Any]):
    """The values of the names that a function looks up in modules. Its copy looks up the same ones."""


class Copies:
    """Makes copies of functions that refer to other values, in closures, default arguments, containers and partial functions.

    An object that several functions refer to is copied once. Objects without such values are shared, not copied.

    Args:
        replaced: returns what takes the place of an object, or the object itself if it stays.
        searches: raise Hidden if a value that is to be replaced is found inside an object that cannot be copied. If it is False,
            such objects are not searched.
    """

    def __init__(self, replaced: Callable[[Any], Any], searches: bool) -> None:
        self._replaced, self._searches = replaced, searches
        self._copies: dict[int, Any] = {}  # by the id of the original
        self._shared: set[int] = set()  # the ids of objects that refer to no value that is replaced
        self._known: list[Any] = []  # keeps all these objects alive, so that their ids stay unique
        self._rest: list[Callable[[], None]] = []  # what remains to be done, because objects may refer to each other in circles

    def of(self, value: Any) -> Any:
        """Returns the copy of a function or a container. What refers to no value that is replaced is not copied. Raises Hidden."""
        affected = self._affected(value)
        found = self._copy(value, affected)
        while self._rest:
            self._rest.pop()()
        return found

    def _affected(self, root: Any) -> set[int]:
        """Returns the ids of the objects that are, or refer to, a value that is replaced."""
        objects, users, pending, affected = {id(root): root}, {id(root): [0]}, [root], {0}
        reached: list[int] = []
        while pending:
            value = pending.pop()
            if self._replaced(value) is not value:
                reached.append(id(value))
                continue
            for part in self._parts(value):
                if issubclass(type(part), _CLOSED) or id(part) in self._shared:
                    continue
                if id(part) not in objects:
                    objects[id(part)], users[id(part)] = part, []
                    pending.append(part)
                users[id(part)].append(id(value))
            if len(objects) > LIMIT:
                raise Hidden
        while reached:
            key = reached.pop()
            if key not in affected:
                affected.add(key)
                reached += users[key]
        self._known += objects.values()
        self._shared |= objects.keys() - affected
        changed = [objects[key] for key in affected if key]
        if any([_kind(value) is object and self._replaced(value) is value for value in changed]):
            raise Hidden
        return affected

    def _parts(self, value: Any) -> Iterable[Any]:
        """Returns the objects that an object refers to."""
        kind = _kind(value)
        if kind is None:
            return ()
        if kind is not object:
            return _PARTS[kind](value)
        return value if value.__class__ is _Names else gc.get_referents(value) if self._searches else ()

    def _copy(self, value: Any, affected: set[int]) -> Any:
        if id(value) not in affected:
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        found = self._replaced(value)
        if found is value:
            found = self._made(value, _kind(value), lambda part: self._copy(part, affected))
        self._copies[id(value)] = found
        return found

    def _made(self, value: Any, kind: Any, of: Callable[[Any], Any]) -> Any:
        """Returns a copy of an object of this kind, with copies of its parts. Those that may contain the object come later."""
        if kind is tuple:
            parts = [of(part) for part in value]
            return type(value)._make(parts) if hasattr(value, "_make") else tuple(parts)
        if kind is partial:
            return partial(of(value.func), *[of(x) for x in value.args], **{name: of(x) for name, x in value.keywords.items()})
        if kind is MethodType:
            return MethodType(of(value.__func__), of(value.__self__))
        if kind is FunctionWrapper:
            return type(value)(of(value._function), *[of(x) for x in value._settings])
        if kind is Batched:
            found: Any = Batched.__new__(Batched)
            found.array, found.serial, found.storage, found.batch = value.array, value.serial, None, value.batch
            found.value = of(value.value)
            return found
        if kind is FunctionType:
            cells = value.__closure__ and tuple([of(cell) for cell in value.__closure__])
            found = capturing.made(FunctionType(value.__code__, value.__globals__, value.__name__, None, cells))
            found.__qualname__, found.__module__, found.__doc__ = value.__qualname__, value.__module__, value.__doc__
        else:
            found = CellType() if kind is CellType else copy.copy(value)
        self._rest.append(lambda: _fill(found, value, kind, of))
        return found


def _kind(value: Any) -> Any:
    """Returns the key of _PARTS for an object that can be copied, None for one without parts, `object` for any other."""
    kind = type(value)
    if kind in _PARTS:
        return kind
    if issubclass(kind, _CLOSED) or (issubclass(kind, type) and _is_of_library(value.__module__)):
        return None
    if issubclass(kind, tuple):
        return tuple if hasattr(kind, "_make") else object
    if issubclass(kind, FunctionWrapper):
        return FunctionWrapper
    return dataclasses if dataclasses.is_dataclass(kind) and not hasattr(kind, "parameters") else object


def _parts_of_function(f: Any) -> Sequence[Any]:
    """Returns the cells, defaults and attributes of a function, and the values that its names have in modules."""
    cells = f.__closure__ or ()
    found = [*cells, f.__defaults__, f.__kwdefaults__, f.__dict__]
    if not _is_of_library(f.__module__):
        names = {name for code in _codes(f.__code__) for name in code.co_names}  # names of globals, modules and attributes
        values = _Names([f.__globals__[name] for name in names if name in f.__globals__])
        values += [sys.modules[name] for name in names if name in sys.modules]
        modules = [x for x in (*values, *[x for cell in cells for x in _content(cell)]) if isinstance(x, ModuleType)]
        for module in modules:  # it grows by the modules inside
            inside = [] if _is_of_library(module.__name__) else [vars(module)[name] for name in names if name in vars(module)]
            modules += [x for x in inside if isinstance(x, ModuleType) and not any([x is known for known in modules])]
            values += inside
        found.append(values)
    return found


@cache
def _is_of_library(module: Any) -> bool:
    """True for the name of a module of Python, of pullback or of an installed package. Their names and classes are not searched."""
    name = str(module).partition(".")[0]
    path = getattr(sys.modules.get(name), "__file__", None) or ""
    return name in _LIBRARIES or "site-packages" in path or "dist-packages" in path


def _codes(code: CodeType) -> list[CodeType]:
    """Returns the code of a function and of the functions inside it."""
    return [code, *[inner for part in code.co_consts if isinstance(part, CodeType) for inner in _codes(part)]]


def _content(cell: CellType) -> Sequence[Any]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # the variable has no value yet
        return ()


def _fields(value: Any) -> Sequence[str]:
    return [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]


# The parts of each kind of object that can be copied.
_PARTS: Final[dict[Any, Callable[[Any], Iterable[Any]]]] = {
    tuple: lambda value: value if type(value) is tuple else (type(value), *value),
    list: lambda value: value,
    dict: lambda value: [*value, *value.values()],
    CellType: _content,
    FunctionType: _parts_of_function,
    partial: lambda value: (value.func, value.args, value.keywords),
    MethodType: lambda value: (value.__func__, value.__self__),
    FunctionWrapper: lambda value: (value._function, value._settings),
    Batched: lambda value: (value.value,),
    dataclasses: lambda value: [type(value), *[getattr(value, name) for name in _fields(value)]],
}


def _fill(found: Any, value: Any, kind: Any, of: Callable[[Any], Any]) -> None:
    """Puts the copies of its parts into a copy."""
    if kind is FunctionType:
        found.__defaults__, found.__kwdefaults__ = of(value.__defaults__), of(value.__kwdefaults__)
        found.__dict__.update(of(value.__dict__))
    elif kind is CellType:
        found.cell_contents = of(value.cell_contents)
    elif kind is list:
        found[:] = [of(part) for part in value]
    elif kind is dict:
        found.clear()
        found.update({of(key): of(part) for key, part in value.items()})
    else:
        for name in _fields(value):
            object.__setattr__(found, name, of(getattr(value, name)))
