"""Shared by the tests of Ctrl-C: a KeyboardInterrupt after a given number of lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def interrupted_after(lines: int, run: Callable[[], Any]) -> bool:
    """Runs `run` and raises KeyboardInterrupt after this many lines of pullback's Python code. Returns False if it has fewer."""
    left = lines

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_globals.get("__name__", "").startswith("pullback."):
            return None
        left -= event == "line"
        if left < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
