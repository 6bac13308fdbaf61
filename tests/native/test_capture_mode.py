"""A call of a captured function has one mode of `pb.config.reproducible`, whenever another thread sets it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from pullback import nn
from pullback.backends import modes
from pullback.replays import capture
from pullback.replays.replay import Replay
from pullback.tensors import devices

pytestmark = [
    needs_kernels,
    pytest.mark.skipif(pb.config.why_not() is not None, reason=f'no "everywhere": {pb.config.why_not()}'),
    pytest.mark.skipif(devices.default_device() != "cpu", reason="only the products of a CPU differ between the modes"),
]
X = pb.tensor(np.random.default_rng(0).standard_normal((2, 1, 3000)).astype(np.float32))
W = pb.Parameter(np.random.default_rng(1).standard_normal((3000, 40)).astype(np.float32))


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = modes.mode()
    assert modes.set_mode("machine")
    yield
    assert modes.set_mode(before)


def set_elsewhere(mode: str) -> list[Exception]:
    """Sets the mode in another thread, and returns the errors."""
    errors = list[Exception]()

    def run() -> None:
        try:
            pb.config.reproducible = mode  # type: ignore[assignment]
        except pb.PullbackError as error:
            errors.append(error)

    other = threading.Thread(target=run)
    other.start()
    other.join()
    return errors


def under_tape(f: Any) -> Any:
    with pb.GradientTape() as tape:
        y = f(X[0])
        loss = pb.sum(y)
    return y, tape.gradient(loss, W)


# How the function is called, and how many recordings that makes.
WAYS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "arguments by place": (lambda f: f(X[0]), 1),
    "options": (lambda f: f(x=X[0]), 1),
    "steps": (lambda f: pb.capture(f, steps=2)(X) if f is product else f(X), 1),
    "tape": (under_tape, 2),
}


def product(x: Any) -> Any:
    return x @ W


def bits(y: Any) -> list[str]:
    return [pb.hash(x) for x in (y if isinstance(y, tuple) else [y])]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("before", ["machine", "everywhere"])
def test_a_mode_that_is_set_after_the_choice_of_a_recording(way: str, before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording of the mode before would run in the other one."""
    call, recordings = WAYS[way]
    eager = {}
    for mode in ("machine", "everywhere"):
        pb.config.reproducible = mode  # type: ignore[assignment]
        eager[mode] = bits(call(product))
    assert eager["machine"][0] != eager["everywhere"][0]
    after = "machine" if before == "everywhere" else "everywhere"
    captured = pb.capture(product, steps=2 if way == "steps" else None)
    pb.config.reproducible = before  # type: ignore[assignment]
    for _ in range(2):
        assert bits(call(captured)) == eager[before]
    assert captured.stats().captures == recordings
    original, pending = Replay._results, [after]

    def results(self: Replay, *args: Any) -> Any:
        if pending:
            assert not set_elsewhere(pending.pop())
        return original(self, *args)

    monkeypatch.setattr(Replay, "_results", results)
    assert bits(call(captured)) == eager[after]
    assert not pending
    assert captured.stats().captures == 2 * recordings
    for _ in range(2):
        assert bits(call(captured)) == eager[after]
    pb.config.reproducible = before  # type: ignore[assignment]
    assert bits(call(captured)) == eager[before]
    assert captured.stats().captures == 2 * recordings


def test_a_mode_that_is_set_before_the_recording_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording would be kept for the mode that was there when the signature was made."""
    original, pending, captured = capture.length_of, ["everywhere"], pb.capture(product)

    def length_of(*args: Any) -> Any:
        if pending:
            assert not set_elsewhere(pending.pop())
        return original(*args)

    monkeypatch.setattr(capture, "length_of", length_of)
    found = []
    for mode in ("everywhere", "machine", "everywhere", "machine"):
        found.append(bits(captured(X[0])))
        assert pb.config.reproducible == mode
        pb.config.reproducible = "everywhere" if mode == "machine" else "machine"
    assert found[0] == found[2] != found[1] == found[3]
    assert (captured.stats().captures, captured.stats().replays) == (2, 2)


def test_the_mode_stays_from_the_recording_to_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    original, errors = capture.rest, list[Exception]()

    def rest(*args: Any) -> Any:
        errors.extend(set_elsewhere("everywhere"))
        return original(*args)

    monkeypatch.setattr(capture, "rest", rest)
    y = pb.capture(product, steps=2)(X)
    assert bits(y) == bits(pb.stack([product(x) for x in X]))
    assert ["while another thread runs a captured function" in str(error) for error in errors] == [True]
    assert not set_elsewhere("everywhere")


def test_no_thread_can_begin_a_call_while_the_mode_changes() -> None:
    """A second kernel module that refuses, because a replay runs there, leaves the first one as it was."""
    modes.hold(W)
    assert not modes.set_mode("everywhere")
    assert modes.mode() == "machine"
    modes.release(W)

    class Busy:
        def set_everywhere(self, on: bool) -> bool:
            return False

    modes._of_gpu.append(Busy())
    try:
        assert not modes.set_mode("everywhere")
    finally:
        modes._of_gpu.pop()
    assert modes.mode() == "machine"
    captured = pb.capture(product)
    before = [bits(captured(X[0])) for _ in range(2)]
    assert captured.stats().replays == 1  # refused by a module that is still in the other mode
    assert before[0] == before[1]


def test_random_numbers_that_a_refused_replay_took_are_drawn_by_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    dropout = nn.Dropout(0.5)
    captured = pb.capture(lambda x: dropout(x))
    pb.random.seed(0)
    eager = [bits(dropout(X[0])) for _ in range(4)]
    pb.random.seed(0)
    found = [bits(captured(X[0])) for _ in range(2)]
    original, pending = Replay._results, ["everywhere"]

    def results(self: Replay, *args: Any) -> Any:
        if pending:
            assert not set_elsewhere(pending.pop())
        return original(self, *args)

    monkeypatch.setattr(Replay, "_results", results)
    assert [*found, bits(captured(X[0])), bits(captured(X[0]))] == eager
