"""Shared by the tests of the traps of compiled functions: how a captured function is compared with the plain one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pullback as pb
from captured_step import same

X = pb.tensor([[0.5, -1.25, 2.0], [1.5, 0.25, -0.75]])


class Settings:
    def __init__(self, p: Any) -> None:
        self.p = p


def follows(f: Callable[[Any], Any], *changes: Callable[[], Any]) -> Any:
    """Asserts that the captured f gives the bits of f, twice at first and twice after each change. Returns the captured function.

    f must leave nothing behind, because the plain function runs between the calls.
    """
    captured = pb.capture(f)
    for change in (lambda: None, *changes):
        change()
        for x in (X, X + 1):
            same(captured(x), f(x))
    return captured


def told(f: Callable[[Any], Any], wanted: Callable[[int], Any]) -> str:
    """Asserts that one of four calls of the captured f raises a CaptureError, and that the calls before are right."""
    captured = pb.capture(f)

    def run() -> None:
        for k in range(4):
            same(captured(X), wanted(k))

    with pytest.raises(pb.CaptureError) as error:
        run()
    return str(error.value)


def unseen(f: Callable[[Any], Any], change: Callable[[], Any] = lambda: None) -> None:
    """Asserts that the captured f goes on with what it has recorded, where f itself would not."""
    captured = pb.capture(f)
    before = captured(X)
    same(captured(X), before)
    change()
    same(captured(X), before)
    captured.clear()
    assert not pb.all(captured(X) == before)
