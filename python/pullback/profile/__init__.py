"""Profiling: what ran, in which phase, at what cost. `pb.profile()` is this package, called."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from .figures import Figures
from .session import Profile

__all__ = ["Figures", "Profile"]


class _Callable(ModuleType):
    """`pb.profile` is a package and a context manager's constructor: `with pb.profile() as prof:`."""

    def __call__(self, *, strict: bool = False) -> Profile:
        return Profile(strict=strict)

    __doc__ = Profile.__doc__


def __dir__() -> list[str]:
    return __all__


_module: Any = sys.modules[__name__]
_module.__class__ = _Callable
