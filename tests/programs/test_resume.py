"""save_training and load_training: a run that stops and goes on in another process has the bits of one that never stopped."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import ROOT, environment
from pullback import nn, optim

START = """
import pathlib, sys
import pullback as pb
from pullback import nn, optim
digits = pb.data.digits()
pb.random.seed(int(sys.argv[3]))
"""
CAPTURED = """
def train(file, steps):
    own = nn.Dropout(0.1, generator=pb.random.Generator(5))
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 10), own)
    adam = optim.AdamW(net.parameters(), lr=optim.schedules.Cosine(1e-2, steps=40), clip_norm=1.0)
    loader = pb.data.Loader((digits.x_train, digits.y_train), batch_size=64, seed=1, drop_last=True)
    done = pb.load_training(file, net, adam, loader)["done"] if file.exists() else 0

    @pb.capture
    def step(images, labels):
        return adam.minimize(lambda: nn.cross_entropy(net(images), labels))

    while done < steps:
        for batch in loader:
            step(*batch)
            done += 1
            if done == steps:
                break
    pb.save_training(file, net, adam, loader, done=done)
    return pb.hash({"net": net, "adam": adam})
"""
END = """
print(train(pathlib.Path(sys.argv[1]), int(sys.argv[2])))
"""


def in_a_new_process(train: str, file: Path, steps: int, seed: int) -> str:
    command = [sys.executable, "-c", START + train + END, str(file), str(steps), str(seed)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout.strip()


def of_the_readme() -> str:
    """Returns the definition of train() that README.md shows."""
    found = re.search(r"```python\n(def train\(.*?\n)\n\n", (ROOT / "README.md").read_text(), flags=re.S)
    assert found
    return found[1]


@pytest.mark.parametrize(
    "train", [pytest.param(of_the_readme, id="README"), pytest.param(lambda: CAPTURED, id="captured", marks=needs_kernels)]
)
def test_a_run_goes_on_in_another_process_bit_for_bit(tmp_path: Path, train: Any) -> None:
    whole = in_a_new_process(train(), tmp_path / "whole", 40, seed=0)
    first = in_a_new_process(train(), tmp_path / "half", 17, seed=0)
    assert in_a_new_process(train(), tmp_path / "half", 40, seed=99) == whole  # the seed of the file counts
    assert len({whole, first, in_a_new_process(train(), tmp_path / "other", 40, seed=1)}) == 3


def made(width: int = 3, **options: Any) -> tuple[Any, Any, Any]:
    net = nn.Sequential(nn.Linear(2, width), nn.Dropout(**options))
    opt = optim.Adam(net.parameters())
    loader = pb.data.Loader((pb.ones((6, 2)), pb.zeros((6, width))), batch_size=2)
    for x, y in loader:
        opt.minimize(lambda x, y: nn.mse(net(x), y), x, y)
        break
    return net, opt, loader


def test_values_come_back_and_generators_of_modules_too(tmp_path: Path) -> None:
    generator = pb.random.Generator(2**64 - 1)
    parts = made(generator=generator)
    pb.save_training(tmp_path / "run", *parts, step=3, best={"loss": 0.5, "at": (1, None)}, note="warm")
    state = generator.state_dict()
    assert state == {"seed": 2**64 - 1, "serial": 1}
    again = pb.random.Generator(4)
    values = pb.load_training(tmp_path / "run", *made(generator=again))
    assert values == {"step": 3, "best": {"loss": 0.5, "at": (1, None)}, "note": "warm"}
    assert again.state_dict() == state


def test_numbers_drawn_after_loading_are_those_drawn_after_saving(tmp_path: Path) -> None:
    net, opt, _ = made()
    pb.save_training(tmp_path / "run", net, opt)
    wanted = pb.random.uniform((4,)).tolist()
    pb.random.seed(12345)
    assert pb.load_training(tmp_path / "run", net, opt) == {}
    assert pb.random.uniform((4,)).tolist() == wanted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda net, opt, loader: made(5), "shape"),
        (lambda net, opt, loader: (net, opt), "loader, which is only in the file"),
        (lambda net, opt, loader: made(generator=pb.random.Generator(1)), "generator 1.generator, which is only given here"),
        (lambda net, opt, loader: (net, optim.SGD(net.parameters()), loader), "rule Adam"),
        (lambda net, opt, loader: (net, opt, pb.data.Loader(pb.ones((1, 2)), 1)), "a Loader with rows=6, and here it is 1"),
        (lambda net, opt, loader: (net.state_dict(), opt, loader), "the model is a dict. Give an nn.Module"),
        (lambda net, opt, loader: (net, 3, loader), "the optimizer is a int, which has no state_dict"),
    ],
    ids=["another width", "no loader", "a generator", "another rule", "another loader", "no Module", "no optimizer"],
)
def test_what_does_not_fit_is_told_and_nothing_has_changed(tmp_path: Path, change: Any, message: str) -> None:
    parts = made()
    pb.save_training(tmp_path / "run", *parts)
    given = change(*made())
    before = [pb.hash(part) for part in given if hasattr(part, "state_dict")], pb.random.state_dict()
    with pytest.raises(pb.PullbackError, match=message):
        pb.load_training(tmp_path / "run", *given)
    assert ([pb.hash(part) for part in given if hasattr(part, "state_dict")], pb.random.state_dict()) == before


def test_other_files_are_refused(tmp_path: Path) -> None:
    net, opt, _ = made()
    pb.save(tmp_path / "weights", net.state_dict())
    with pytest.raises(pb.PullbackError, match="was not written by this version"):
        pb.load_training(tmp_path / "weights", net, opt)
    pb.save(tmp_path / "number", 3)
    with pytest.raises(pb.PullbackError, match="was not written by"):
        pb.load_training(tmp_path / "number", net, opt)
    with pytest.raises(FileNotFoundError):
        pb.load_training(tmp_path / "nothing", net, opt)


@needs_kernels
def test_nothing_is_saved_or_loaded_while_a_function_is_recorded(tmp_path: Path) -> None:
    net, opt, _ = made()
    for call in (pb.save_training, pb.load_training):
        with pytest.raises(pb.CaptureError, match="_training"):
            pb.capture(lambda x, call=call: call(tmp_path / "run", net, opt) or x)(pb.ones(2))


def test_a_parameter_that_the_file_would_lack_is_refused(tmp_path: Path) -> None:
    net, scale = nn.Linear(2, 1), pb.Parameter(1.0, name="scale")
    opt = optim.SGD([*net.parameters(), scale])
    with pytest.raises(pb.PullbackError, match=r'updates Parameter "scale", which is not in the model.*model\.extra = p'):
        pb.save_training(tmp_path / "run", net, opt)
    assert not (tmp_path / "run").exists()
    with pytest.raises(pb.PullbackError, match=r"the model is a list.*net = nn\.Module\(\); net\.w = w"):
        pb.save_training(tmp_path / "run", [scale], opt)  # type: ignore[arg-type]
    net.extra = scale  # type: ignore[attr-defined]
    pb.save_training(tmp_path / "run", net, opt)
    scale.assign(5.0)
    pb.load_training(tmp_path / "run", net, opt)
    assert scale.item() == 1.0


def test_loose_parameters_resume_in_a_module_that_holds_them(tmp_path: Path) -> None:
    def made() -> tuple[nn.Module, optim.Adam]:
        net: Any = nn.Module()
        net.w, net.b = pb.Parameter([1.0, 2.0]), pb.Parameter(0.5)
        return net, optim.Adam([net.w, net.b], lr=0.1)

    net, opt = made()
    opt.minimize(lambda: pb.sum(net.w * net.b))  # type: ignore[attr-defined]
    pb.save_training(tmp_path / "run", net, opt)
    again = made()
    pb.load_training(tmp_path / "run", *again)
    assert pb.hash({"net": again[0], "opt": again[1]}) == pb.hash({"net": net, "opt": opt})
