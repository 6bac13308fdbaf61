"""`assert_type` at run time, for right.py: raises AssertionError if a value is not of the type that a type checker found."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, get_args, get_origin


def assert_type(value: Any, kind: Any) -> Any:
    """Returns the value."""
    assert matches(value, kind), f"{value!r} is not of type {kind}"
    return value


def matches(value: Any, kind: Any) -> bool:
    """True if the value is of this type, a class or a generic type of Python. The arguments of a Callable are not compared."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is None:
        return kind is Any or (value is None if kind is None else isinstance(value, kind))
    if origin is types.UnionType:
        return any([matches(value, one) for one in args])
    if origin is Callable:
        return callable(value)
    if origin is dict:
        return isinstance(value, dict) and all([matches(k, args[0]) and matches(v, args[1]) for k, v in value.items()])
    if origin is tuple and args[-1] is not Ellipsis:
        return isinstance(value, tuple) and len(value) == len(args) and all([matches(x, one) for x, one in zip(value, args)])
    return isinstance(value, origin) and all([matches(x, args[0]) for x in value])
