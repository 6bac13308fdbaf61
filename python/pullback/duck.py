"""Attributes of objects of any class, by which they are told apart."""

from __future__ import annotations

from typing import Any


def attribute(x: Any, name: str, default: Any = None) -> Any:
    """Returns an attribute of an object, or the default if it has none.

    The `__getattr__` of a dict looks items up or makes them, so a dict has the attributes of its class. The `__getattr__` of any
    other class may raise more than AttributeError.
    """
    if isinstance(x, dict) and not hasattr(type(x), name):
        return default
    try:
        return getattr(x, name, default)
    except Exception:  # of the user's `__getattr__`
        return default


_MISSING = object()


def has(x: Any, name: str) -> bool:
    """True if an object has an attribute (see `attribute`)."""
    return attribute(x, name, _MISSING) is not _MISSING
