"""A training that reads a memory-mapped file ahead and is killed at any moment resumes bit for bit from the last whole file."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from pullback import io, nn, optim

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork, so nothing is killed")
STEPS = 12


@pytest.fixture(autouse=True)
def data(tmp_path: Path, on_cpu: None) -> None:
    """Writes the data. Forked processes compute on the CPU, because CUDA does not work in them."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.standard_normal((22, 4, 3)).astype(np.float32))
    np.save(tmp_path / "y.npy", rng.integers(0, 3, 22))


class Net(nn.Module):
    def __init__(self) -> None:
        self.norm, self.gru = nn.BatchNorm1d(4), nn.GRU(3, 5, batch_first=True)
        self.dropout, self.out = nn.Dropout(0.2), nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        return self.out(self.dropout(self.gru(self.norm(x))[0][:, -1]))


def train(folder: Path, steps: int = STEPS, captured: bool = False, saved: str = "run") -> Iterator[tuple[int, str]]:
    """Yields (steps done, the hash of everything) after each step, and saves before that. Goes on from a file if there is one."""
    pb.random.seed(99 if (folder / saved).exists() else 0)  # the first weights and numbers of a resumed run do not count
    net = Net()
    opt = optim.AdamW(net.parameters(), lr=optim.schedules.Cosine(1e-2, steps=STEPS), clip_norm=1.0)
    loader = pb.data.Loader((folder / "x.npy", folder / "y.npy"), 5, seed=3, drop_last=captured)
    step: Any = lambda x, y: opt.minimize(lambda: nn.cross_entropy(net(x), y))
    step = pb.capture(step) if captured else step
    done = pb.load_training(folder / saved, net, opt, loader)["done"] if (folder / saved).exists() else 0
    while done < steps:
        for x, y in loader:
            step(x, y)
            done += 1
            pb.save_training(folder / saved, net, opt, loader, done=done)
            yield done, pb.hash([net.state_dict(), opt.state_dict(), loader.state_dict(), pb.random.state_dict()])
            if done == steps:
                break


def killed(run: Callable[[], Any], after: float | None = None) -> None:
    """Calls run() in a child process, which kills itself or is killed after so many seconds."""
    child = os.fork()
    if not child:
        with suppress(BaseException):
            run()
        os._exit(3)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("captured", [False, pytest.param(True, marks=needs_kernels)])
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_training_that_is_killed_while_it_saves_goes_on(captured: bool, tmp_path: Path) -> None:
    whole = dict(train(tmp_path, captured=captured, saved="whole"))
    assert len(set(whole.values())) == STEPS
    wanted = 0
    for moment in ("write", "fsync", "replace", "folder"):

        def run(moment: str = moment, last: int = wanted + 2) -> None:
            for done, _ in train(tmp_path, captured=captured):
                if done == last:  # the save of the step after this one is the last
                    if moment == "write":
                        io._like_the_old = die  # type: ignore[assignment]
                    elif moment == "folder":  # the file has its name, and the call has not returned
                        io._remove_unfinished = die  # type: ignore[assignment]
                    else:
                        setattr(os, moment, die)

        wanted += 3 if moment == "folder" else 2
        killed(run)
        assert pb.load(tmp_path / "run")["values"]["done"] == wanted
    assert dict(train(tmp_path, captured=captured)) == {done: whole[done] for done in range(10, STEPS + 1)}
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_training_that_is_killed_at_any_time_goes_on(tmp_path: Path) -> None:
    whole = dict(train(tmp_path, saved="whole"))
    for after in (0.01, 0.03):
        killed(lambda: [*train(tmp_path)] and time.sleep(60), after)
    rest = dict(train(tmp_path))
    assert rest == {done: whole[done] for done in rest}
    assert pb.load(tmp_path / "run")["values"]["done"] == STEPS
