"""Each layer in an ensemble, with the tape outside of `vmap` and inside, has the gradients of the layer alone, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from pullback import nn

pytestmark = needs_kernels
MEMBERS = 3


class Attending(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        self.attention = attention

    def forward(self, x: Any) -> Any:
        return self.attention(x, 2 * x, pb.sin(x))


class Twice(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Bilinear(5, 5, 4)

    def forward(self, x: Any) -> Any:
        return self.layer(x, x)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 4), (70, 5)),
    "linear of a vector": (lambda: nn.Linear(5, 4), (5,)),
    "linear of three axes": (lambda: nn.Linear(5, 1), (3, 100, 5)),
    "two layers": (lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3), nn.Tanh()), (64, 5)),
    "rnn": (lambda: nn.RNN(5, 4), (30, 7, 5)),
    "gru": (lambda: nn.GRU(5, 4, 2, bidirectional=True), (6, 7, 5)),
    "lstm": (lambda: nn.LSTM(5, 4), (30, 7, 5)),
    "gru cell": (lambda: nn.GRUCell(5, 4), (30, 5)),
    "attention": (lambda: Attending(nn.MultiheadAttention(8, 2)), (9, 6, 8)),
    "bilinear": (Twice, (70, 5)),
    "conv2d": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=2), (5, 4, 8, 9)),
    "layer norm": (lambda: nn.LayerNorm((6, 5)), (31, 6, 5)),
    "rms norm": (lambda: nn.RMSNorm(5), (70, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (6, 4, 8, 7)),
    "prelu": (lambda: nn.PReLU(5), (70, 5)),
}


@pytest.fixture(autouse=True)
def everywhere() -> Iterator[None]:
    before = pb.config.reproducible
    pb.config.reproducible = "everywhere"
    yield
    pb.config.reproducible = before


def same(stacked: dict[str, Any], alone: list[dict[str, Any]]) -> None:
    for name, gradient in stacked.items():
        np.testing.assert_array_equal(gradient.numpy(), np.stack([one[name].numpy() for one in alone]), err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_member_has_the_gradients_of_the_layer_alone(name: str, dtype: str) -> None:
    make, shape = LAYERS[name]
    pb.random.seed(0)
    nets = [make().to(dtype) for _ in range(MEMBERS)]
    for p in [p for net in nets for p in net.parameters()]:
        p.assign(p + (0.3 * pb.random.normal(p.shape)).astype(p.dtype))
    xs = pb.random.normal((MEMBERS, *shape)).astype(dtype)
    weights = [pb.random.normal(y.shape).astype(dtype) for y in pb.tree.leaves(nets[0](xs[0]))]

    def loss(parameters: dict[str, Any], x: Any) -> Any:
        ys = pb.tree.leaves(nn.functional_call(nets[0], parameters, x))
        return sum([pb.sum(pb.sin(y) * w) for y, w in zip(ys, weights)], start=pb.zeros((), dtype=dtype))

    def total(parameters: dict[str, Any], xs: Any) -> Any:
        return pb.sum(pb.vmap(loss)(parameters, xs))

    own = [{name: pb.stop_gradient(p) for name, p in net.named_parameters()} for net in nets]
    stacks = pb.tree.map(lambda *ps: pb.stack(ps), *own)
    alone = [pb.grad(loss)(own[k], xs[k]) for k in range(MEMBERS)]
    same(pb.grad(total)(stacks, xs), alone)
    same(pb.vmap(pb.grad(loss))(stacks, xs), alone)
    captured = pb.capture(pb.grad(total))
    for _ in range(2):
        same(captured(stacks, xs), alone)
