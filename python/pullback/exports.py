"""The names that a public package exports, derived from what it imports; each then says that it comes from there."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any, Final

_PUBLIC: Final[set[str]] = set()  # the names of the packages that have exported something


def exported(namespace: Mapping[str, Any], *modules: ModuleType) -> list[str]:
    """Returns the names for `__all__` of a package with this namespace: what it has imported, and of its modules only these.

    Sets `__module__` of the functions and classes to the package. So tracebacks, pickles and documents name what users import,
    and a definition can move without a change to any of them.
    """
    public = [(name, value) for name, value in namespace.items() if name[0] != "_" and value is not exported]
    for _, value in public:
        adopt(value, namespace["__name__"])
    return sorted([name for name, value in public if value in modules or not isinstance(value, ModuleType)])


def adopt(value: Any, package: str) -> None:
    """Sets `__module__` of a function or class of pullback. If several packages export it, the shortest path stays."""
    _PUBLIC.add(package)
    if isinstance(value, (FunctionType, type)) and value.__module__.startswith("pullback."):
        here = value.__module__
        if here not in _PUBLIC or package.count(".") < here.count("."):
            value.__module__ = package
