"""Derives the names that a package exports from its imports."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any


def exported(namespace: Mapping[str, Any], *modules: ModuleType) -> list[str]:
    """Returns `__all__` for a package with this namespace: all public names that it imported, but of modules only `modules`."""
    public = [(name, value) for name, value in namespace.items() if name[0] != "_" and value is not exported]
    return sorted([name for name, value in public if value in modules or not isinstance(value, ModuleType)])
