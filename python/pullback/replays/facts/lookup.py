"""Looks values up where Python code finds them, in dicts, slots, classes and cells. No property and no other method runs."""

from __future__ import annotations

import functools
import gc
import sys
import sysconfig
from collections import ChainMap, UserDict, UserList
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MappingProxyType, MethodType, ModuleType, WrapperDescriptorType
from typing import Any, Final, get_origin

import numpy as np

from ...launch.made import MadeOutside
from ...tensors.attached import attached
from ...tensors.tensor import Tensor
from .facts import ATTRIBUTE, CELL, ENTRY, ITEM, MOST, NAME, NOTHING, SLOT, Contents, Location

CLOSED: Final = (Tensor, np.ndarray, np.generic)  # classes whose attributes are not looked into
_OF_A_DICT: Final = (MappingProxyType, *[type(view({})) for view in (dict.keys, dict.values, dict.items)])
_INSTALLED: Final = tuple(
    {str(Path(__file__).parents[2]), *[sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]}
)
_files: Final[dict[str, bool]] = {}  # by file name: True if pullback, Python or an installed package has its code there


def is_installed(file: str) -> bool:
    """True if a file of code belongs to pullback, to the standard library or to an installed package."""
    found = _files.get(file)
    if found is None:
        found = _files[file] = file.startswith((*_INSTALLED, "<frozen ", "<__array_function__"))
    return found


def value_at(place: Location) -> Any:
    """Returns what stands at a place now."""
    key, *below = place.path
    read = {
        ATTRIBUTE: lambda x: _attribute_now(x, key),
        NAME: lambda x: x.get(key, NOTHING), CELL: lambda x: content((x.__closure__ or ())[key]),
        ITEM: lambda x: x, SLOT: lambda x: slot(key, x), ENTRY: lambda x: looked_up(x, key),
    }
    found = [read[place.read](place.holder)]
    for key in below:
        found += item(found[-1], key) or (NOTHING,)
    return Contents(found[-1].copy()) if place.read == ITEM and not below and type(found[-1]) is np.ndarray else found[-1]


def _attribute_now(value: Any, key: str | None) -> Any:
    attributes = attributes_of(value) or {}
    return list(attributes) if key is None else attributes.get(key, looked_up(type(value), key))


def is_library(name: str, file: str | None) -> bool:
    """True for a module of Python, of pullback or of an installed package, whose names nobody changes."""
    return name.partition(".")[0] in sys.stdlib_module_names or (file is not None and is_installed(file))


@functools.lru_cache(1024)
def _is_library(name: str) -> bool:
    return is_library(name, getattr(sys.modules.get(name), "__file__", None))


def is_of_library(kind: type) -> bool:
    return _is_library(kind.__module__)


def content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return NOTHING


def items(value: Any) -> list[Any]:
    """Returns the values of a container, as far as they are compared one by one."""
    return list(value.values() if isinstance(value, dict) else value)[:MOST]


def item(value: Any, key: Any) -> tuple[Any] | None:
    """Returns an item in a tuple, or None if its place cannot be compared. Items of arrays are compared if they are numbers."""
    if isinstance(value, dict):
        return (dict.get(value, key, NOTHING),)
    try:
        if isinstance(value, (list, tuple)):
            return (value[key],) if type(key) is int else None
        return (value[key],) if type(value) is np.ndarray and isinstance(value[key], np.generic) else None
    except IndexError:
        return (NOTHING,)


def unaliased(value: Any) -> Any:
    """Returns the class of an alias such as C[int], which has the attributes of C, and any other object itself."""
    return get_origin(value) or value if type(value).__module__ in ("types", "typing") else value


def slot(entry: Any, value: Any) -> Any:
    try:
        return entry.__get__(value, type(value))
    except AttributeError:
        return NOTHING


def attributes_of(value: Any) -> dict[str, Any] | None:
    """Returns the dict of an object's attributes. None if it has none, or if its class looks attributes up in its own way."""
    if not isinstance(type(value).__getattribute__, WrapperDescriptorType):  # it is written in Python
        return None
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None


def looked_up(kind: type, name: str) -> Any:
    """Returns what a class, or one that it is derived from, has under a name."""
    for base in kind.__mro__:
        names = base.__dict__
        if name in names:
            return names[name]
    return NOTHING


def methods_with(code: CodeType, kind: type) -> Iterator[tuple[int, str, Any]]:
    """Yields the methods and properties of a class that run this code: the number of the base that has it, its name and itself."""
    for depth, holder in enumerate(kind.__mro__):
        for name in [code.co_name] if is_of_library(holder) else list(vars(holder)):
            entry = vars(holder).get(name)
            function = entry if type(entry) is FunctionType else wrapped_in(entry) or entry
            if getattr(function, "__code__", None) is code:
                yield depth, name, entry


def is_closed(value: Any) -> bool:
    """True for an object whose attributes are read by chains only. pullback's own objects tell of changes themselves."""
    if isinstance(value, (type, *CLOSED)):
        return is_of_library(value if isinstance(value, type) else type(value))
    return _is_ours(value, attached.Module) or isinstance(value, (ModuleType, FunctionType, MadeOutside))


def is_plain(value: Any) -> bool:
    """True for an argument that has no attributes that could change."""
    plain = value is None or isinstance(value, (bool, int, float, complex, str, bytes, Tensor, np.generic))
    return (plain and is_of_library(type(value))) or _is_ours(value, (attached.Module, MadeOutside))


def _is_ours(value: Any, but: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "pullback" and not isinstance(value, but)


def has_variables(function: FunctionType, local: Mapping[str, Any]) -> bool:
    """True if the variables of enclosing functions are those of a frame in which it runs."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    return all([content(cell) is local.get(name, NOTHING) for name, cell in cells])


def containers_behind(value: Any) -> Iterator[tuple[Location, Any]]:
    """Yields the containers whose items an object shows, with their places: those of a UserDict, and the dict of a view."""
    if isinstance(value, (UserDict, UserList, ChainMap)):
        for name, x in vars(value).items():
            yield Location(ATTRIBUTE, value, (name,)), x
    elif isinstance(value, _OF_A_DICT):
        shown = gc.get_referents(value)[0]
        yield Location(ITEM, shown, (None,)), shown


def wrapped_in(value: Any) -> Any:
    """Returns the function that a callable calls, as far as that can be read off; otherwise None."""
    if isinstance(value, functools.partial):
        return value.func
    if isinstance(value, property):
        return value.fget
    if isinstance(value, (MethodType, staticmethod, classmethod)):
        return value.__func__
    return value.__wrapped__ if type(value).__name__ == "_lru_cache_wrapper" else None


def is_frame_of_library(frame: FrameType) -> bool:
    """True if a function's code is a library's, or was made from a string in one of its modules, as that of a dataclass."""
    file = frame.f_code.co_filename
    return is_installed(file if file != "<string>" else frame.f_globals.get("__file__") or "")


def is_frame_of_method(frame: FrameType) -> bool:
    """True if a function is a method of a kind of Module, and not one that all Modules have."""
    code = frame.f_code
    if code.co_varnames[:1] != ("self",) or not isinstance(frame.f_locals["self"], attached.Module):
        return False
    common = looked_up(attached.Module, code.co_name)
    return getattr(common, "__code__", None) is not code
