"""Makes the simulated device as strict as CuPy about what pullback's own code does with its arrays.

The simulated device's arrays are NumPy arrays, which allow more: NumPy accepts them without a copy to the host, and their work
needs no stream. On a GPU the first is a TypeError, and work outside pullback's stream is a race. Code of the tests is not checked.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from pullback.tensors import simulated

__name__ = "pullback.strict_device"  # Its frames then count as pullback's, so that error messages still name the user's line.
CONVERSIONS = ("array", "asarray", "asanyarray", "ascontiguousarray")


def _caller() -> str:
    """Returns the first module on the stack that is not this one, the simulated device, functools or contextlib."""
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
    """True if the simulated device is doing basic indexing, which returns a view and needs no work on a GPU."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "") == simulated.__name__:
        if frame.f_code.co_name == "__getitem__":
            index = frame.f_locals["index"]
            parts = index if isinstance(index, tuple) else (index,)
            return all([part is None or part is ... or isinstance(part, (int, slice, np.integer)) for part in parts])
        frame = frame.f_back
    return False


def _no_conversion(original: Callable[..., Any]) -> Any:
    def convert(obj: Any = None, *args: Any, **options: Any) -> Any:
        if isinstance(obj, simulated.DeviceArray) and _ours():
            raise TypeError(f"np.{original.__name__} of an array of the GPU, in {_caller()}: CuPy refuses it. Use devices.to_host.")
        return original(obj, *args, **options)

    return convert


def _of_pullback(function: FunctionType) -> Any:
    """Returns the function as one of pullback's files, so that recordings of captured functions do not look into it."""
    function.__code__ = function.__code__.replace(co_filename=simulated.__file__)
    return function


def install() -> None:
    """Installs the checks for the rest of the process."""
    for name in CONVERSIONS:
        setattr(np, name, _of_pullback(_no_conversion(getattr(np, name))))
    entered_now = threading.local()
    enter, leave, finish = simulated.Working.__enter__, simulated.Working.__exit__, simulated.finish

    def entered(self: Any) -> None:
        entered_now.depth = getattr(entered_now, "depth", 0) + 1
        enter(self)

    def left(self: Any, *error: object) -> None:
        entered_now.depth -= 1
        leave(self, *error)

    def finished() -> None:
        if not getattr(entered_now, "depth", 0) and _ours() and not _is_view():
            raise AssertionError(f"{_caller()} works on the GPU outside of pullback's stream: use devices.working.")
        finish()

    simulated.Working.__enter__, simulated.Working.__exit__ = _of_pullback(entered), _of_pullback(left)  # type: ignore[method-assign]
    simulated.finish = _of_pullback(finished)
