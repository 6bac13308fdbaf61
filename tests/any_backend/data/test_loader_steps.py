"""A captured function that is called with a Loader moves it by the completed steps, whatever ends the call."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from interrupted import ended_by_ctrl_c, for_ever, interrupted_after
from pullback import nn, optim
from pullback.data import Loader, prefetch
from pullback.tensors import devices

WIDTH, ROWS = 4, 24
X = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
KINDS = pytest.mark.parametrize("from_file", [False, True])


def loader(array: Any, batch_size: int, folder: Path, from_file: bool, **options: Any) -> Loader[Any]:
    if not from_file:
        return Loader((array,), batch_size, **options)
    np.save(folder / "x.npy", array)
    return Loader((folder / "x.npy",), batch_size, **options)


def place(batches: Loader[Any]) -> int:
    """Returns how many batches the Loader has advanced since its beginning."""
    state = batches.state_dict()
    return state["epoch"] * len(batches) + state["batches"]


def training(steps: int | None, width: int = WIDTH, dropout: float = 0.3) -> tuple[Any, Any, Any]:
    """Returns (a captured training step, its network, its optimizer)."""
    pb.random.seed(3)
    net = nn.Sequential(nn.Linear(width, 8), nn.Dropout(dropout), nn.Linear(8, 1))
    opt = optim.Adam(net.parameters(), lr=1e-2)
    return pb.capture(lambda x: opt.minimize(lambda: pb.mean(net(x) ** 2)), steps=steps), net, opt


def weights(net: Any) -> list[bytes]:
    return [host(p).tobytes() for p in net.parameters()]


# ---- errors


@KINDS
@pytest.mark.parametrize(("steps", "bad"), [(None, 0), (None, 3), (5, 0), (5, 2), (5, 7), (3, 7)])
def test_an_index_out_of_range_leaves_the_loader_at_the_completed_steps(
    steps: int | None, bad: int, from_file: bool, tmp_path: Path, on_cpu: None
) -> None:
    """The step that fails is the recording, a replay in the first call, or one in a later call, which reaches the next epoch."""
    ids = np.zeros(16, np.int64)
    ids[2 * bad] = 99
    table = nn.Embedding(10, 3)
    opt = optim.SGD(table.parameters(), lr=0.1)
    step = pb.capture(lambda x: opt.minimize(lambda: pb.sum(table(x) ** 2)), steps=steps)
    batches = loader(ids, 2, tmp_path, from_file, shuffle=False)
    with pytest.raises(IndexError):
        for_ever(lambda: step(batches))
    assert place(batches) == opt.steps == bad
    assert batches.next_position == (0, bad)
    assert host(batches.next_batches()[0]).tolist() == ids[2 * bad : 2 * bad + 2].tolist()
    assert next(iter(batches))[0].shape == (2,)
    assert place(batches) == bad + 2


@KINDS
@pytest.mark.parametrize("steps", [None, 3])
def test_an_error_of_the_function_leaves_the_loader(steps: int | None, from_file: bool, tmp_path: Path) -> None:
    batches = loader(X, 4, tmp_path, from_file, seed=5)
    with pytest.raises(ZeroDivisionError):
        pb.capture(lambda x: 1 // 0, steps=steps)(batches)
    assert place(batches) == 0
    step, _, opt = training(steps)
    step(batches)
    assert place(batches) == opt.steps == (steps or 1)
    with pytest.raises(TypeError):
        step(batches, 1)
    assert place(batches) == (steps or 1)
    assert place(pickle.loads(pickle.dumps(batches))) == (steps or 1)


@KINDS
def test_an_error_while_rows_are_gathered_loses_no_batch(from_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = prefetch.Feed if devices.default_device() == "cpu" else prefetch.GpuFeed
    batches, (step, net, opt) = loader(X, 4, tmp_path, from_file, seed=5), training(4)
    step(batches)
    owner, name = (feed, "take") if from_file else (Loader, "_rows_at")
    before, calls = getattr(owner, name), []

    def interrupted(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 4:  # in the second epoch
            raise KeyboardInterrupt
        return before(*args)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        step(batches)
    monkeypatch.undo()
    assert place(batches) == opt.steps == 4
    step(batches)
    got = weights(net)
    wanted, (step, net, _) = Loader((X,), 4, seed=5), training(4)
    step(wanted), step(wanted)
    assert got == weights(net)


# ---- Ctrl-C


@needs_kernels
@KINDS
@pytest.mark.parametrize("steps", [None, 2])
def test_a_replay_and_its_loader_agree_at_every_line(steps: int | None, from_file: bool, tmp_path: Path, on_cpu: None) -> None:
    batches, (step, net, opt) = loader(X, 4, tmp_path, from_file, seed=5), training(steps, dropout=0)
    step(batches), step(batches)
    lines = interrupts = 0
    while interrupted_after(lines, lambda: step(batches)):
        assert place(batches) == opt.steps, f"after {lines} lines"
        lines, interrupts = lines + 1, interrupts + 1
    assert interrupts > 40
    got = weights(net)
    _, net, again = training(None, dropout=0)
    wanted = Loader((X,), 4, seed=5)
    while again.steps < opt.steps:
        (x,) = wanted.next_batches()
        again.minimize(lambda x=x: pb.mean(net(x) ** 2))
    assert got == weights(net)


@KINDS
@pytest.mark.parametrize("steps", [None, 4])
def test_an_eager_step_that_is_interrupted_does_not_count(steps: int | None, from_file: bool, tmp_path: Path, on_cpu: None) -> None:
    batches, (step, _, opt) = loader(X, 4, tmp_path, from_file, seed=5), training(steps)
    for lines in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597, 2584, 4181):
        before = opt.steps, place(batches)
        step.clear()
        interrupted_after(lines, lambda: step(batches))
        steps_done, moved = opt.steps - before[0], place(batches) - before[1]
        assert 0 <= steps_done - moved <= 1


@needs_kernels
@KINDS
@pytest.mark.usefixtures("interruptible")
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals are for the main thread")
def test_a_run_that_ctrl_c_ends_can_be_saved_and_continued(from_file: bool, tmp_path: Path, on_cpu: None) -> None:
    steps, width = 300 if from_file else 1500, 64
    x = np.random.default_rng(0).standard_normal((300, width)).astype(np.float32)
    batches, (step, net, opt) = loader(x, 50, tmp_path, from_file), training(steps, width)
    step(batches)
    ended_by_ctrl_c(lambda: step(batches))
    done = opt.steps
    assert place(batches) == done
    pb.save_training(tmp_path / "run", net, opt, batches)
    _, net, opt = training(None, width)
    wanted = Loader((x,), 50)
    assert pb.load_training(tmp_path / "run", net, opt, wanted) == {}
    got = weights(net)
    again, net, opt = training(None, width)
    start = Loader((x,), 50)
    for _ in range(done):
        again(start)
    assert got == weights(net)
    assert start.state_dict() == wanted.state_dict()
