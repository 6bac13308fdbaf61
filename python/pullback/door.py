"""The phase that launches are charged to, and the ledger of a thread. The native kernels' door is told of both.

A launch is one native kernel, one library call or one reference op. Phases are set where they begin (the tape's backward
sweep, an optimizer's step, a loader); nothing else needs to know of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from . import capturing

PHASES: Final = ("forward", "backward", "recompute", "optimizer", "data", "other")
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, DATA, OTHER = range(6)


@dataclass
class Launch:
    """What one launch cost. Times are in nanoseconds of the monotonic clock."""

    kernel: str
    phase: int
    scope: int
    flops: int
    matmul_flops: int
    executed_flops: int
    special_ops: int
    bytes_read: int
    bytes_written: int
    begin_ns: int
    end_ns: int
    known: bool = True  # False where no formula tells the cost


class _Door(threading.local):
    phase: int = FORWARD
    scope: int = 0
    ledger: list[Launch] | None = None
    charged: int = 0  # > 0 inside a launch that has charged the whole composition already


state: Final = _Door()
profiling = 0  # ledgers running in all threads: whether scopes are worth remembering
_natives: Final[list[Any]] = []  # the modules of kernels


def connect(native: Any) -> None:
    """Tells this module of kernels of phases and ledgers from now on."""
    native.set_phase(state.phase)
    native.set_scope(state.scope)
    if state.ledger is not None:
        native.ledger_begin()
    _natives.append(native)


@contextmanager
def attended() -> Generator[None]:
    """A recording runs in this thread: it is told of phases and scopes, as a ledger is."""
    global profiling
    profiling += 1
    for native in _natives:
        native.set_phase(state.phase)
    try:
        yield
    finally:
        profiling -= 1


def enter(phase: int) -> int:
    """Charges this thread's launches to `phase`; returns the phase before, for `enter` again afterwards."""
    before = state.phase
    state.phase = phase
    if profiling:
        for native in _natives:
            native.set_phase(phase)
    return before


@contextmanager
def charged_to(phase: int) -> Generator[None]:
    """What runs inside is charged to `phase`: `enter` and back, where a microsecond does not matter."""
    before = enter(phase)
    try:
        yield
    finally:
        enter(before)


scopes: Final[list[str]] = [""]  # the names of scopes, by their numbers
_scope_numbers: Final[dict[str, int]] = {"": 0}


def enter_scope(name: str) -> int:
    """Charges this thread's launches to a scope (a module's path); returns the one before, for `leave_scope`."""
    before = state.scope
    if name not in _scope_numbers:
        scopes.append(name)
        _scope_numbers[name] = len(scopes) - 1
    leave_scope(_scope_numbers[name])
    return before


def leave_scope(before: int) -> None:
    """Charges this thread's launches to the scope `before` again."""
    state.scope = before
    for native in _natives:
        native.set_scope(before)


def begin() -> None:
    """Starts this thread's ledger. Raises RuntimeError where one is running."""
    if state.ledger is not None:
        raise RuntimeError("a profile is already running in this thread; end it first.")
    global profiling
    profiling += 1
    state.ledger = []
    for native in _natives:
        native.set_phase(state.phase)
        native.ledger_begin()


def end() -> list[Launch]:
    """Stops this thread's ledger and returns its launches, in order."""
    global profiling
    profiling -= state.ledger is not None
    launches = state.ledger or []
    state.ledger = None
    for native in _natives:
        native.ledger_end()
        launches += [Launch(*row) for row in native.ledger_take()]
    return sorted(launches, key=lambda launch: launch.begin_ns)


def moved(*arrays: Any, of: Any = None) -> dict[str, int]:
    """The cost of a launch that computes nothing: `of` is read, the arrays are written."""
    return {"bytes_read": 0 if of is None else of.nbytes, "bytes_written": sum([a.nbytes for a in arrays])}


def through(name: str, run: Callable[[], Any], cost: Callable[[Any], dict[str, int] | None]) -> Any:
    """Runs a launch that is not a native kernel. `cost(result)` gives its figures, None where nothing is known.

    Launches inside it are part of it and are not charged again.
    """
    capturing.refuse(f"{name}, which is not a native kernel,", "Do it outside, or with other ops.")
    ledger = state.ledger
    if ledger is None:
        return run()
    charged_already = state.charged > 0
    state.charged += 1
    begin_ns = time.monotonic_ns()
    try:
        result = run()
    finally:
        state.charged -= 1
    end_ns = time.monotonic_ns()
    if not charged_already:
        figures = cost(result)
        zero = {"flops": 0, "matmul_flops": 0, "special_ops": 0, "bytes_read": 0, "bytes_written": 0}
        zero.update(figures or {})
        executed = zero.pop("executed_flops", zero["flops"])
        ledger.append(
            Launch(
                name, state.phase, state.scope, executed_flops=executed, begin_ns=begin_ns,
                end_ns=end_ns, known=figures is not None, **zero,
            )
        )
    return result
