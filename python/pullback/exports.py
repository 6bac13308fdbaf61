"""The names that a package exports, derived from what it imports."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any


def exported(namespace: Mapping[str, Any], *modules: ModuleType) -> list[str]:
    """Returns the names for `__all__` of a package with this namespace: what it has imported, and of its modules only these."""
    public = [(name, value) for name, value in namespace.items() if name[0] != "_" and value is not exported]
    return sorted([name for name, value in public if value in modules or not isinstance(value, ModuleType)])
