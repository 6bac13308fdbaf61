"""Progress bars: what they show, that they never wait for the device, and that they leave loops as they were."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import nn, optim
from pullback.data import Loader, progress
from pullback.launch import door
from pullback.tensors import devices, transfers

bars = sys.modules["pullback.data.progress"]
X, Y = np.random.default_rng(0).standard_normal((24, 8)).astype(np.float32), np.arange(24) % 3


def shown(text: io.StringIO) -> list[str]:
    """Returns the displays, one after the other."""
    return [display.strip() for display in text.getvalue().split("\r") if display.strip()]


def made(**options: Any) -> tuple[Any, io.StringIO]:
    text = io.StringIO()
    return progress(file=text, mininterval=0, **options), text


def test_a_bar_counts_epochs_and_batches_and_shows_what_it_is_given() -> None:
    bar, text = made(batches=Loader((X, Y), 5), epochs=2, desc="digits")
    seen = []
    for x, y in bar:
        bar.update(loss=pb.sum(x) * 0 + len(seen) + 0.25, seen=len(seen))
        seen.append((host(x).tobytes(), host(y).tobytes()))
    again = Loader((X, Y), 5)
    assert seen == [(host(x).tobytes(), host(y).tobytes()) for x, y in [*again, *again]]
    last = shown(text)[-1]
    assert re.search(r"digits, epoch 2/2: 100%.* 10/10 .*batch/s", last)
    assert re.search(r"loss=9\.25, seen=9, .*samples/s", last)
    assert any("epoch 1/2" in display and "seen=2" in display for display in shown(text))


def test_a_resumed_loader_has_the_rest_of_its_epoch() -> None:
    loader = Loader(X, 5)
    loader.load_state_dict({"epoch": 3, "batches": 2, "seed": 0})
    bar, text = made(batches=loader, epochs=2)
    assert len([*bar]) == 3 + 5
    assert "epoch 5/5" in shown(text)[-1]
    assert "8/8" in shown(text)[-1]
    assert loader.epoch == 5


def test_any_iterable_has_a_bar() -> None:
    for batches, total, end in (
        ([1, 2, 3], None, "3/3"),
        (iter(range(4)), None, "4batch"),
        (iter("ab"), 2, "2/2"),
        ([], None, "0batch"),
    ):
        bar, text = made(batches=batches, total=total)
        list(bar)
        assert end in shown(text)[-1]
        assert "samples/s" not in shown(text)[-1]
    bar, text = made(batches=[{"x": X, "y": Y}, {"x": X[:3], "y": Y[:3]}])
    list(bar)
    assert "samples/s" in shown(text)[-1]


def figure(text: str, unit: str) -> float:
    found = re.findall(rf"([\d.]+) (k|M|G|)({unit})", text)
    return float(found[-1][0]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[found[-1][1]]


@pytest.mark.parametrize("captured", [False, pytest.param(True, marks=needs_kernels)])
def test_flops_are_those_of_a_profile(captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    opt = optim.SGD(net.parameters(), lr=0.01)
    step: Any = lambda x, y: opt.minimize(lambda: nn.cross_entropy(net(x), y))
    step = pb.capture(step) if captured else step
    ticks = iter(range(10**6))
    monkeypatch.setattr(bars.time, "perf_counter", lambda: float(next(ticks)))
    bar, text = made(batches=Loader((X, Y), 4), epochs=3)
    with pb.profile() as prof:
        for x, y in bar:
            bar.update(loss=step(x, y))
    seconds = next(ticks) - 1  # the last call of the clock was that of the last display
    total = prof.total.flops - prof.data.flops
    assert figure(shown(text)[-1], "FLOP/s") == pytest.approx(total / seconds, rel=0.01)
    assert figure(shown(text)[-1], "samples/s") == pytest.approx(72 / seconds, rel=0.01)
    assert prof.total.launches
    assert not door.state.running


def test_only_few_steps_are_counted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    begin = door.begin
    monkeypatch.setattr(door, "begin", lambda *args: begun.append(args) or begin(*args))
    text = io.StringIO()
    bar = progress(Loader(X, 2), epochs=20, file=text, mininterval=1e6)
    for x in bar:
        pb.sum(x)
    assert begun == [("count",), ("count",)]  # the first step, and the one after its display
    assert "FLOP/s" in shown(text)[-1]


def test_flops_are_the_mean_of_the_counted_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is counted here, and the last one, a validation, does far more than the others."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(bars.time, "perf_counter", lambda: float(next(ticks)))
    small, large = pb.ones((4, 4)), pb.ones((40, 40))
    bar, text = made(batches=Loader(X, 4, shuffle=False))
    for i, _ in enumerate(bar):
        _ = (large if i == 5 else small) @ (large if i == 5 else small)
    seconds = next(ticks) - 1
    total = 2 * (5 * 4**3 + 40**3)
    assert figure(shown(text)[-1], "FLOP/s") == pytest.approx(total / seconds, rel=0.01)


def test_a_loop_that_ends_early_ends_its_bar_and_its_count() -> None:
    bar, text = made(batches=Loader(X, 5), epochs=2)
    for _ in bar:
        assert door.state.running
        break
    assert not door.state.running
    assert "0/10" in shown(text)[-1]
    with pytest.raises(ZeroDivisionError):
        [1 // 0 for _ in bar]
    assert not door.state.running
    assert len([*bar]) == 10
    first, second = iter(bar), iter(bar)
    assert [next(first).shape, next(second).shape] == [(5, 8), (5, 8)]
    del first, second
    assert not door.state.running


def test_a_bar_that_shows_nothing_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "begin", lambda *_: 1 // 0)
    for disable in (True, None):  # a StringIO is no terminal
        bar, text = made(batches=Loader(X, 5), disable=disable)
        for x in bar:
            bar.update(loss=pb.sum(x))
        assert text.getvalue() == ""


def test_a_bar_never_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the loss arrives by an event. Until then the bar shows an older one, and no copy is begun."""
    begun: list[Any] = []

    class Later(transfers.Download):
        arrived = False

        def __init__(self, array: Any) -> None:
            begun.append(self)
            self.array, self.number = array, len(begun)

        def done(self) -> bool:
            return self.arrived

        def value(self) -> Any:
            return np.float32(self.number)

    monkeypatch.setattr(bars, "Download", Later)
    monkeypatch.setattr(devices, "on_host", lambda array: False)
    bar, text = made(batches=range(6))
    loss = pb.tensor([5.0, 7.0])
    for i in bar:
        bar.update(loss=loss)
        if i == 3:
            begun[0].arrived = True
    displays = [re.findall(r"loss=(\w+)", display) for display in shown(text)]
    assert [found for found in displays if found] == [["1"]] * 4  # after the steps 3, 4 and 5, and at the end
    assert len(begun) == 2
    assert begun[0].array.shape == (1,)


def test_numbers_of_every_dtype_are_shown() -> None:
    values = {
        "half": pb.tensor(0.5, dtype="float16"), "brain": pb.tensor(2.0, dtype="bfloat16"), "wide": np.float64(1 / 3), "n": 7,
        "many": pb.tensor([1.0, 2.0]), "one": pb.tensor([[4.0]]), "nan": float("nan"), "yes": True, "whole": pb.tensor(2**40),
        "array": np.array([3, 4]),
    }
    bar, text = made(batches=range(4))
    for _ in bar:
        bar.update(**values)
    wanted = "half=0.5, brain=2, wide=0.3333, n=7, many=2, one=4, nan=nan, yes=True, whole=1099511627776, array=4"
    assert wanted in shown(text)[-1]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: progress(3), "a int was given"),
        (lambda: progress(X, epochs=0), "epochs=0"),
        (lambda: progress(X, epochs=True), "epochs=True"),
        (lambda: progress(X, epochs=1.5), "epochs=1.5"),
        (lambda: progress(iter([1]), epochs=2), "yields its batches once"),
        (lambda: progress([1]).update(1), r"bar\.update\(loss=loss\)"),
        (lambda: progress([1]).update(loss=[1]), "loss is a list.*one number for each step, of which the last one is shown"),
        (lambda: progress([1]).update(note="warm"), r"note is a str.*desc=text"),
        (lambda: progress([1]).update(note=np.str_("warm")), "note is a str_"),
        (lambda: progress([1]).update(note=np.array(["warm"])), "note has dtype <U4"),
        (lambda: progress([1]).update(loss=1j), "loss is a complex"),
        (lambda: progress([1]).update(loss=None), "loss is a NoneType"),
        (lambda: progress([1]).update(loss=pb.ones((2, 3))), r"loss has shape \(2, 3\).*bar\.update\(loss=pb\.mean\(loss\)\)"),
        (lambda: progress([1]).update(loss=pb.ones(0)), r"loss has shape \(0,\)"),
    ],
)
def test_wrong_calls_are_told_what_to_write(call: Any, words: str) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        call()
    with pytest.raises(TypeError, match="epoch"):
        progress(X, epoch=3)  # type: ignore[call-arg]


@needs_kernels
def test_a_captured_function_cannot_move_a_bar() -> None:
    bar = progress([1])
    with pytest.raises(pb.CaptureError, match="a progress bar"):
        pb.capture(lambda x: bar.update(loss=x) or x)(pb.ones(()))
