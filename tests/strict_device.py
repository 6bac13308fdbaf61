"""Makes the simulated device as strict as CuPy about what pullback's own code does with its arrays.

The simulated device's arrays are NumPy's, which allow more: NumPy takes them without a copy to the host, and their work needs no
stream. On a GPU the first is a TypeError, and work that is not in pullback's stream is a race. What tests do themselves is left
alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.tensors import simulated

__name__ = "pullback.strict_device"  # its frames count as pullback's, so that errors go on naming the user's line
CONVERSIONS = ("array", "asarray", "asanyarray", "ascontiguousarray")


def _caller() -> str:
    """The first module on the stack that is neither this one nor the simulated device, nor one of Python's own."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name not in (__name__, simulated.__name__) and name.split(".")[0] not in ("functools", "contextlib"):
            return name
        frame = frame.f_back
    return ""


def _ours() -> bool:
    return _caller().split(".")[0] == "pullback"


def _is_view() -> bool:
    """True if this is basic indexing, for which a GPU does nothing."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "") == simulated.__name__:
        if frame.f_code.co_name == "__getitem__":
            index = frame.f_locals["index"]
            parts = index if isinstance(index, tuple) else (index,)
            return all([part is None or part is ... or isinstance(part, (int, slice, np.integer)) for part in parts])
        frame = frame.f_back
    return False


def _no_conversion(original: Callable[..., Any]) -> Callable[..., Any]:
    def convert(obj: Any = None, *args: Any, **options: Any) -> Any:
        if isinstance(obj, simulated.DeviceArray) and _ours():
            raise TypeError(f"np.{original.__name__} of an array of the GPU, in {_caller()}: CuPy refuses it. Use devices.to_host.")
        return original(obj, *args, **options)

    return convert


def install() -> None:
    """From now on, for the whole process."""
    for name in CONVERSIONS:
        setattr(np, name, _no_conversion(getattr(np, name)))
    depth = [0]
    enter, leave, finish = simulated.Working.__enter__, simulated.Working.__exit__, simulated.finish

    def entered(self: Any) -> None:
        depth[0] += 1
        enter(self)

    def left(self: Any, *error: object) -> None:
        depth[0] -= 1
        leave(self, *error)

    def finished() -> None:
        if not depth[0] and _ours() and not _is_view():
            raise AssertionError(f"{_caller()} works on the GPU outside of pullback's stream: use devices.working.")
        finish()

    simulated.Working.__enter__, simulated.Working.__exit__ = entered, left  # type: ignore[method-assign]
    simulated.finish = finished
