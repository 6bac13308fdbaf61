"""Chooses the backend that runs an op, and gives the reason if the native backend is not available."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import variables
from ..interop.unknown_names import answer
from ..tensors import gpu
from . import native


def kernel_for(name: str) -> tuple[Callable[..., Any] | None, str | None]:
    """Returns (the native kernel of that name, None), or (None, the reason why there is none)."""
    if variables.backend() == "reference":
        return None, "PULLBACK_BACKEND=reference"
    if native.module is None:
        return None, native.reason
    kernel = getattr(native.module, name, None)
    return kernel, None if kernel else f"no kernel {name} in {native.module.__name__.rpartition('.')[2]}"


def kernels_on(device: str) -> Any:
    """Returns the module of native kernels for arrays on the device, or None if there is none."""
    return native.module if device == "cpu" else gpu.need().kernels


def why_not(device: str) -> str | None:
    """Returns None if native kernels run on the device, otherwise the reason why they do not."""
    if device != "cpu":
        return gpu.why_not() or gpu.need().why_no_kernels
    return None if native.module is not None else native.reason


answer(globals())
