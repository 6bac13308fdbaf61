"""A recording sees which functions run, beside Python's profilers and tracers."""

from __future__ import annotations

import cProfile
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pullback as pb
from captured_step import needs_kernels, same
from footguns import Settings, X, follows, told

ON_HOST = pytest.mark.skipif(pb.zeros(1).device != "cpu", reason="the programs mix tensors of the host with NumPy's functions")
pytestmark = [needs_kernels, ON_HOST]
SETTINGS = Settings(2.0)


def helper(x: Any) -> Any:
    return x * SETTINGS.p


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    profiler, tracer, SETTINGS.p = sys.getprofile(), sys.gettrace(), 2.0
    yield
    sys.setprofile(profiler)
    sys.settrace(tracer)


@contextmanager
def _set(setter: Callable[[Any], None], called: list[str]) -> Iterator[None]:
    def tell(frame: Any, event: str, argument: Any) -> Any:
        if event == "call":
            called.append(frame.f_code.co_name)
        return tell

    setter(tell)
    yield
    setter(None)


@contextmanager
def _cprofile(called: list[str]) -> Iterator[None]:
    with cProfile.Profile() as profile:
        yield
    called += [getattr(entry.code, "co_name", "") for entry in profile.getstats() for _ in range(entry.callcount)]


@contextmanager
def _monitoring(called: list[str]) -> Iterator[None]:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    tool, events = monitoring.COVERAGE_ID, monitoring.events
    monitoring.use_tool_id(tool, "test")
    monitoring.register_callback(tool, events.PY_START, lambda code, offset: called.append(code.co_name))
    monitoring.register_callback(tool, events.LINE, lambda code, line: monitoring.DISABLE)
    monitoring.set_events(tool, events.PY_START | events.LINE)
    yield
    monitoring.set_events(tool, 0)
    monitoring.free_tool_id(tool)


AROUND: dict[str, Callable[[list[str]], Any]] = {
    "cProfile": _cprofile,
    "sys.setprofile": lambda called: _set(sys.setprofile, called),
    "sys.settrace": lambda called: _set(sys.settrace, called),
}
if sys.version_info >= (3, 12):
    AROUND["sys.monitoring"] = _monitoring


@pytest.mark.parametrize("name", AROUND)
def test_a_profiler_around_the_call_and_the_recording_both_see_the_functions(name: str) -> None:
    called: list[str] = []
    captured = pb.capture(lambda x: helper(x))
    with AROUND[name](called):
        for _ in range(3):
            same(captured(X), X * 2.0)
    assert called.count("helper") == 1
    SETTINGS.p = 3.0
    same(captured(X), X * 3.0)


def test_a_profiler_goes_on_after_a_recording_and_after_an_error_in_one() -> None:
    def profile(frame: Any, event: str, argument: Any) -> None: ...

    @pb.capture
    def f(x: Any) -> Any:
        if SETTINGS.p is None:
            raise ValueError("asked for")
        return helper(x)

    sys.setprofile(profile)
    f(X)
    assert sys.getprofile() is profile
    SETTINGS.p = None
    with pytest.raises(ValueError, match="asked for"):
        f(X)
    assert sys.getprofile() is profile


def _swap() -> None:
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: None)
    sys.setprofile(before)


SWITCHES: dict[str, Callable[[], Any]] = {
    "started": lambda: sys.setprofile(lambda frame, event, argument: None),
    "stopped": lambda: sys.setprofile(None),
    "replaced for a time": _swap,
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_profiler_that_the_function_switches(name: str) -> None:
    def f(x: Any) -> Any:
        SWITCHES[name]()
        return helper(x)

    assert "profiler" in told(f, lambda k: X * 2.0)


def test_a_profiler_that_is_switched_once_delays_the_recording() -> None:
    switches = [_swap]

    def f(x: Any) -> Any:
        for switch in switches:
            switch()
        return helper(x)

    captured = pb.capture(f)
    same(captured(X), X * 2.0)
    switches.clear()
    for SETTINGS.p in (2.0, 3.0):
        for _ in range(2):
            same(captured(X), X * SETTINGS.p)
    assert captured.stats().recordings == 2


def test_cprofile_inside_the_function() -> None:
    """From CPython 3.12 on cProfile takes nobody's place."""

    def f(x: Any) -> Any:
        with cProfile.Profile():
            return helper(x)

    if sys.version_info >= (3, 12):
        follows(f, lambda: setattr(SETTINGS, "p", 3.0))
    else:
        assert "profiler" in told(f, lambda k: X * 2.0)


def test_a_tracer_that_the_function_starts() -> None:
    def f(x: Any) -> Any:
        sys.settrace(lambda frame, event, argument: None)
        try:
            return helper(x)
        finally:
            sys.settrace(None)

    follows(f, lambda: setattr(SETTINGS, "p", 3.0))


def test_a_profiler_of_another_thread() -> None:
    ready, done = threading.Event(), threading.Event()

    def other() -> None:
        sys.setprofile(lambda frame, event, argument: None)
        ready.set()
        while not done.is_set():
            helper(1.0)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        ready.wait()
        for SETTINGS.p in (2.0, 3.0, 4.0):
            assert follows(helper).stats().recordings == 1
    finally:
        done.set()
        thread.join()


def test_a_library_that_is_imported_while_recording_is_not_looked_into() -> None:
    """Libraries make code from strings, for example the methods of dataclasses."""
    library = ModuleType("library")
    library.__file__ = str(Path(sysconfig.get_path("purelib")) / "library.py")

    def f(x: Any) -> Any:
        exec("a = 1\nb = a + 1", vars(library))
        return helper(x)

    assert follows(f, lambda: setattr(SETTINGS, "p", 3.0)).stats().replays == 2
