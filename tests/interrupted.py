"""Shared by the tests of Ctrl-C: a KeyboardInterrupt at a chosen line, or whenever a signal arrives."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from linecache import getline
from typing import Any

import pytest

Point = tuple[Any, int, str]


def traced(run: Callable[[], Any], told: Callable[[Point], None]) -> Any:
    """Runs `run` and calls told((code, line, event)) for every call and every line of pullback's Python code.

    Lines with `with` are left out: Python looks for signals neither between the entry and the block nor between the block and the
    exit, where an exception would leave a lock locked.
    """

    def trace(frame: Any, event: str, _: Any) -> Any:
        if not frame.f_globals.get("__name__", "").startswith("pullback."):
            return None
        if event == "call" or (
            event == "line" and not getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")
        ):
            told((frame.f_code, frame.f_lineno, event))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return run()
    finally:
        sys.settrace(before)


def interrupted_after(lines: int, run: Callable[[], Any]) -> bool:
    """Runs `run` and raises KeyboardInterrupt after this many lines of pullback's Python code. Returns False if it has fewer."""
    left = lines

    def count(point: Point) -> None:
        nonlocal left
        left -= point[2] == "line"
        if left < 0:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        traced(run, count)
    return left < 0  # also if the interrupt was lost in a finalizer


def for_ever(run: Callable[[], Any]) -> None:
    while True:
        run()


def ended_by_ctrl_c(run: Callable[[], Any]) -> None:
    """Runs `run` again and again until Ctrl-C ends it, which is pressed after 20 ms. The test needs the fixture `interruptible`."""
    timer = threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            for_ever(run)
    finally:
        timer.cancel()
