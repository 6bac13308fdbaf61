"""Networks of PyTorch and of pullback exchange weights by safetensors files, and give the same outputs and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn

torch = pytest.importorskip("torch", reason="torch is not installed: there is no other library to exchange weights with")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed, which writes torch's files")

TOLERANCE = {"float64": 1e-10, "float32": 1e-4}


def images(n: Any, flatten: Any) -> Any:
    """Returns the same network from torch.nn or from nn: norms and pools of images."""
    return n.Sequential(
        n.BatchNorm2d(4), n.MaxPool2d(3, 2, 1), n.GroupNorm(2, 4), n.ReLU(), n.AvgPool2d(2, ceil_mode=True),
        n.InstanceNorm2d(4, affine=True, track_running_stats=True), n.AdaptiveAvgPool2d((2, 1)), flatten, n.LayerNorm(8),
        n.Linear(8, 6), n.BatchNorm1d(6, momentum=None), n.Linear(6, 3),
    )


def lines(n: Any, flatten: Any) -> Any:
    """Returns the same network of lines."""
    return n.Sequential(
        n.BatchNorm1d(4), n.MaxPool1d(2), n.GroupNorm(4, 4), n.AvgPool1d(2, padding=1), flatten, n.Linear(12, 5), n.RMSNorm(5)
    )


NETS: dict[str, tuple[Any, tuple[int, ...]]] = {"images": (images, (5, 4, 11, 9)), "lines": (lines, (5, 4, 9))}


def pair(name: str, dtype: str) -> tuple[Any, Any, Any]:
    torch.manual_seed(3)
    make, shape = NETS[name]
    theirs = make(torch.nn, torch.nn.Flatten()).to(getattr(torch, dtype))
    ours = make(nn, nn.Flatten()).to(dtype)
    return ours, theirs, np.random.default_rng(0).standard_normal(shape).astype(dtype)


def differ(ours: Any, theirs: Any, x: Any) -> float:
    """Returns the largest difference of outputs, gradients and states after a step of training, relative to the largest numbers."""
    given, other = pb.tensor(x), torch.tensor(x, requires_grad=True)
    with pb.GradientTape() as tape:
        tape.watch(given)
        y = ours(given)
        loss = pb.sum(y**3)
    wanted = theirs(other)
    gradients = torch.autograd.grad((wanted**3).sum(), [other, *theirs.parameters()])
    pairs = [(y, wanted.detach()), *zip(tape.gradient(loss, [given, *ours.parameters()]), gradients)]
    pairs += list(zip(ours.state_dict().values(), theirs.state_dict().values()))
    scale = max(float(b.abs().max()) for _, b in pairs)
    return max(float(np.abs(host(a) - b.numpy()).max()) for a, b in pairs) / max(1.0, scale)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NETS)
def test_weights_of_torch_load_here(tmp_path: Path, name: str, dtype: str, training: bool) -> None:
    ours, theirs, x = pair(name, dtype)
    for _ in range(3):
        theirs(torch.tensor(x) * 2 + 1)  # moves the running values
    safetensors.save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    assert ours.load_state_dict(pb.load(tmp_path / "theirs.safetensors")) == ([], [])
    ours.train(training)
    theirs.train(training)
    for _ in range(2):
        assert differ(ours, theirs, x) < TOLERANCE[dtype]


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NETS)
def test_weights_from_here_load_in_torch(tmp_path: Path, name: str, dtype: str, training: bool) -> None:
    ours, theirs, x = pair(name, dtype)
    for _ in range(3):
        ours(pb.tensor(x) * 2 + 1)
    pb.save(tmp_path / "ours.safetensors", ours.state_dict())
    theirs.load_state_dict(safetensors.load_file(tmp_path / "ours.safetensors"))
    ours.train(training)
    theirs.train(training)
    for _ in range(2):
        assert differ(ours, theirs, x) < TOLERANCE[dtype]


def test_a_bilinear_layer_and_an_embedding_both_ways(tmp_path: Path) -> None:
    ours, theirs = nn.Bilinear(3, 4, 5).to("float64"), torch.nn.Bilinear(3, 4, 5).double()
    safetensors.save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    ours.load_state_dict(pb.load(tmp_path / "theirs.safetensors"))
    a, b = np.random.default_rng(0).standard_normal((2, 6, 3)), np.random.default_rng(1).standard_normal((2, 6, 4))
    wanted = theirs(torch.tensor(a), torch.tensor(b)).detach().numpy()
    np.testing.assert_allclose(host(ours(pb.tensor(a), pb.tensor(b))), wanted, rtol=1e-10, atol=1e-12)
    table, words = nn.Embedding(7, 3, 0), torch.nn.Embedding(7, 3, 0)
    pb.save(tmp_path / "table.safetensors", table.state_dict())
    words.load_state_dict(safetensors.load_file(tmp_path / "table.safetensors"))
    np.testing.assert_array_equal(host(table(np.arange(7))), words(torch.arange(7)).detach().numpy())
