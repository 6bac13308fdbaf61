"""Public modules: what they export says that it comes from there, wherever it is defined."""

from __future__ import annotations

from types import FunctionType
from typing import Any, Final

_PUBLIC: Final[set[str]] = set()  # the names of the modules that have exported something


def export(module: dict[str, Any]) -> None:
    """Sets `__module__` of what a public module exports: the names in its `__all__`, otherwise all without an underscore.

    So tracebacks, pickles and documents name what users import, and a definition can move without a change to any of them.
    """
    names = module.get("__all__") or [name for name in module if name[0] != "_"]
    for name in names:
        adopt(module[name], module["__name__"])


def adopt(value: Any, module: str) -> None:
    """Sets `__module__` of a function or class of pullback. If several public modules export it, the shortest path stays."""
    _PUBLIC.add(module)
    if isinstance(value, (FunctionType, type)) and value.__module__.startswith("pullback."):
        here = value.__module__
        if here not in _PUBLIC or module.count(".") < here.count("."):
            value.__module__ = module
