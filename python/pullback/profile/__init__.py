"""Profiling: what ran, in which phase, at what cost. `pb.profile()` is this package, called."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from .figures import Figures, Group, Row
from .session import Host, Memory, Profile, Span

__all__ = ["Figures", "Group", "Host", "Memory", "Profile", "Row", "Span"]


class _Callable(ModuleType):
    """`pb.profile` is a package and a context manager's constructor: `with pb.profile() as prof:`."""

    def __call__(self, *, strict: bool = False, detail: str = "phase") -> Profile:
        return Profile(strict=strict, detail=detail)

    __doc__ = Profile.__doc__


def __dir__() -> list[str]:
    return __all__


_module: Any = sys.modules[__name__]
_module.__class__ = _Callable
