"""The networks of MLPerf Tiny have the published parameters and multiply-adds, and the outputs and gradients of torch's layers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn
from pullback.examples.mlperf_tiny import ds_cnn, resnet8

IMAGES = 2


class Convolution(NamedTuple):
    """The channels of x that each channel of the result sees, the channels of the result, the taps and the positions."""

    inputs: int
    outputs: int
    taps: int
    positions: int
    normalized: bool = True  # a batch norm follows

    @property
    def multiply_adds(self) -> int:
        return self.inputs * self.outputs * self.taps * self.positions


class Facts(NamedTuple):
    """The published numbers of a network, and its layers.

    `parameters` is the total of Keras' summary, which includes running means and variances; `trained` excludes them.
    `multiply_adds` is the number that others count in the released models: of convolutions and the linear layer, for one example,
    taps in padding included, without biases.
    """

    make: Any
    shape: tuple[int, ...]
    parameters: int
    trained: int
    multiply_adds: int
    convolutions: list[Convolution]
    classes: int
    pooled: int  # elements of the last pool's window
    sums: int  # elements of all sums of a branch and a shortcut


NETWORKS = {
    "ResNet-8": Facts(
        resnet8, (3, 32, 32), 78_666, 78_186, 12_501_632,
        [
            Convolution(3, 16, 9, 1024), Convolution(16, 16, 9, 1024), Convolution(16, 16, 9, 1024),
            Convolution(16, 32, 9, 256), Convolution(32, 32, 9, 256), Convolution(16, 32, 1, 256, False),
            Convolution(32, 64, 9, 64), Convolution(64, 64, 9, 64), Convolution(32, 64, 1, 64, False),
        ],
        10, 64, 16 * 1024 + 32 * 256 + 64 * 64,
    ),
    "DS-CNN": Facts(
        ds_cnn, (1, 49, 10), 24_908, 23_756, 2_656_768,
        [Convolution(1, 64, 40, 125), *4 * [Convolution(1, 64, 9, 125), Convolution(64, 64, 1, 125)]],
        12, 120, 0,
    ),
}
each_network = pytest.mark.parametrize("name", NETWORKS)


@each_network
def test_parameters_are_the_published_ones(name: str) -> None:
    facts = NETWORKS[name]
    net = facts.make()
    running = [value for key, value in net.state_dict().items() if key.endswith(("running_mean", "running_var"))]
    trained = sum([p.size for p in net.parameters()])
    assert trained == facts.trained
    assert trained + sum([b.size for b in running]) == facts.parameters
    channels = sum([c.outputs for c in facts.convolutions if c.normalized])
    weights = sum([c.outputs * (c.inputs * c.taps + 1) for c in facts.convolutions]) + facts.classes * 65
    assert (weights + 2 * channels, 2 * channels) == (facts.trained, facts.parameters - facts.trained)
    assert net(pb.zeros((IMAGES, *facts.shape))).shape == (IMAGES, facts.classes)


def profile(facts: Facts) -> Any:
    """Profiles the forward and the backward pass of a batch in evaluation mode."""
    net = facts.make().eval()
    x = pb.tensor(np.random.default_rng(0).standard_normal((IMAGES, *facts.shape)), dtype="float32")
    with pb.profile(strict=True) as prof, pb.GradientTape() as tape:
        y = net(x)
        tape.gradient(y, net.parameters(), output_gradients=pb.ones_like(y))
    return prof


@each_network
def test_multiply_adds_are_the_published_ones(name: str) -> None:
    """Backward, each product costs twice as much, but nobody asks for the gradient of the images."""
    facts = NETWORKS[name]
    products = [c.multiply_adds for c in facts.convolutions]
    assert sum(products) + 64 * facts.classes == facts.multiply_adds
    prof = profile(facts)
    assert prof.forward.matmul_flops == 2 * IMAGES * facts.multiply_adds
    assert prof.backward.matmul_flops == 2 * IMAGES * (2 * facts.multiply_adds - products[0])


@each_network
def test_flops_of_each_op(name: str, native: None) -> None:
    """In evaluation mode a batch norm is a subtraction, a multiplication and an addition for each element, and for each channel the
    addition of eps, a reciprocal square root and a multiplication."""
    facts = NETWORKS[name]
    prof = profile(facts)
    found = {(group.name, phase): figures.flops for group in prof.by("op") for phase, figures in group.phases.items()}
    results = IMAGES * sum([c.outputs * c.positions for c in facts.convolutions])
    channels = sum([c.outputs for c in facts.convolutions])
    normalized = IMAGES * sum([c.outputs * c.positions for c in facts.convolutions if c.normalized])
    scales = sum([c.outputs for c in facts.convolutions if c.normalized])
    linear = 2 * IMAGES * 64 * facts.classes
    of_convolutions = 2 * IMAGES * facts.multiply_adds - linear
    assert found["convolution", "forward"] == of_convolutions + results  # one addition of a bias for each element
    assert found["subtract", "forward"] == normalized
    assert found["multiply", "forward"] == normalized + scales
    assert found["add", "forward"] == normalized + scales + IMAGES * facts.sums
    assert found["avg_pool", "forward"] == IMAGES * 64 * (facts.pooled - 1)
    assert found["linear", "forward"] == linear + IMAGES * facts.classes
    assert found["relu", "forward"] == found.get(("dropout", "forward"), 0) == found.get(("pad", "forward"), 0) == 0
    listed = ("convolution", "subtract", "multiply", "add", "avg_pool", "linear")
    assert sum([found[op, "forward"] for op in listed]) == prof.forward.flops
    # Backward, the gradient of a bias is a sum, and where the input of a Residual is used twice, two cotangents are added.
    twice = IMAGES * (16 * 1024 + 16 * 1024 + 32 * 256) if facts.sums else 0
    first = 2 * IMAGES * facts.convolutions[0].multiply_adds
    wanted = 2 * of_convolutions - first + results - channels + twice
    assert found["convolution", "backward"] + found.get(("pad", "backward"), 0) == wanted
    assert found["avg_pool", "backward"] == IMAGES * 64 * facts.pooled
    assert found["relu", "backward"] == 0


# ---- torch's layers with the same weights


def torch_layers(torch: Any) -> tuple[Any, Any]:
    """Returns functions that make the two networks of torch's layers. Their paddings are written as numbers."""
    n = torch.nn

    def norm(channels: int) -> Any:
        return n.BatchNorm2d(channels, eps=1e-3, momentum=0.01)

    class Residual(n.Module):
        def __init__(self, a: int, b: int, strided: bool) -> None:
            super().__init__()
            first = [n.ZeroPad2d((0, 1, 0, 1)), n.Conv2d(a, b, 3, 2)] if strided else [n.Conv2d(a, b, 3, padding=1)]
            self.branch = n.Sequential(*first, norm(b), n.ReLU(), n.Conv2d(b, b, 3, padding=1), norm(b))
            self.shortcut = n.Conv2d(a, b, 1, 2) if strided else n.Identity()

        def forward(self, x: Any) -> Any:
            return torch.relu(self.branch(x) + self.shortcut(x))

    def resnet() -> Any:
        blocks = [Residual(16, 16, False), Residual(16, 32, True), Residual(32, 64, True)]
        stem = [n.Conv2d(3, 16, 3, padding=1), norm(16), n.ReLU()]
        return n.Sequential(*stem, *blocks, n.AvgPool2d(8), n.Flatten(), n.Linear(64, 10))

    def keywords() -> Any:
        layers = [n.ZeroPad2d((1, 1, 4, 5)), n.Conv2d(1, 64, (10, 4), 2), norm(64), n.ReLU(), n.Dropout(0.2)]
        for _ in range(4):
            layers += [n.Conv2d(64, 64, 3, padding=1, groups=64), norm(64), n.ReLU(), n.Conv2d(64, 64, 1), norm(64), n.ReLU()]
        return n.Sequential(*layers, n.Dropout(0.4), n.AvgPool2d((24, 5)), n.Flatten(), n.Linear(64, 12))

    return resnet, keywords


def without_dropout(net: Any, training: bool) -> Any:
    """Sets the mode of all layers except dropout, whose random numbers differ between libraries."""
    net.train(training)
    for module in net.modules():
        if type(module).__name__ == "Dropout":
            module.eval()
    return net


@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@each_network
def test_outputs_gradients_and_running_values_are_those_of_torch(name: str, training: bool) -> None:
    torch = pytest.importorskip("torch")
    facts, rng = NETWORKS[name], np.random.default_rng(3)
    torch.manual_seed(3)
    theirs = torch_layers(torch)[list(NETWORKS).index(name)]().double()
    for key, value in theirs.state_dict().items():
        if "running" in key:
            value.copy_(torch.tensor(rng.uniform(0.5, 2, value.shape)))
    ours = facts.make().to("float64")
    ours.load_state_dict({key: t.numpy() for key, t in zip(ours.state_dict(), theirs.state_dict().values(), strict=True)})
    without_dropout(ours, training)
    without_dropout(theirs, training)
    images, labels = rng.standard_normal((IMAGES, *facts.shape)), np.arange(IMAGES)
    x, other = pb.tensor(images), torch.tensor(images, requires_grad=True)
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = ours(x)
        loss = nn.cross_entropy(y, pb.tensor(labels))
    wanted = theirs(other)
    torch.nn.functional.cross_entropy(wanted, torch.tensor(labels)).backward()
    close([y], [wanted.detach()])
    close(tape.gradient(loss, [x, *ours.parameters()]), [other.grad, *[p.grad for p in theirs.parameters()]])
    close(list(ours.state_dict().values()), list(theirs.state_dict().values()))


def close(ours: list[Any], theirs: list[Any]) -> None:
    """Asserts that no element differs by more than 1e-10 of the largest element of all arrays."""
    scale = max([float(b.abs().max()) for b in theirs])
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(host(a), b.numpy(), rtol=0, atol=1e-10 * scale)
