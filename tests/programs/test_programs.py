"""Small complete programs that need more than one kind of derivative."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import pullback as pb
from conftest import close, host
from pullback import nn, optim
from pullback.tensors.tensor import Tensor


def test_a_net_learns_a_differential_equation(on_cpu: None) -> None:
    """The equation is u'' = -u with u(0) = 0 and u'(0) = 1. Its solution is the sine, and the loss contains u''."""
    pb.random.seed(0)
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)).to("float64")

    def u(x: Tensor) -> Tensor:
        return x + x * x * net(pb.reshape(x, (1,)))[0]  # Any network satisfies the initial values.

    value, second = pb.vmap(u), pb.vmap(pb.grad(pb.grad(u)))
    x = pb.tensor(np.linspace(0, 2, 32))
    opt = optim.Adam(net.parameters(), lr=optim.schedules.Cosine(1e-2, 1500))
    for _ in range(1500):
        opt.minimize(lambda: pb.mean(pb.square(second(x) + value(x))))
    assert np.abs(host(value(x)) - np.sin(host(x))).max() < 1e-4


def test_centres_of_classes_are_learned_and_absent_classes_keep_theirs() -> None:
    """Centre loss (Wen et al. 2016) pulls features to a running mean of their class."""
    rng, classes = np.random.default_rng(0), 4
    points = rng.standard_normal((classes, 6)) * 3
    net = nn.Linear(6, 2)
    centres = pb.tensor(rng.standard_normal((classes, 2)).astype(np.float32))
    opt = optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(200):
        present = rng.permutation(classes)[: classes - 1]  # One class is missing from each batch.
        labels = rng.choice(present, 32)
        x = pb.tensor((points[labels] + rng.standard_normal((32, 6))).astype(np.float32))
        ids = pb.tensor(labels)
        before, shown = host(centres), np.unique(labels)
        features = net(x)
        means = pb.segment_mean(pb.stop_gradient(features), ids, classes)
        centres = centres.at[shown].set(0.5 * centres[shown] + 0.5 * means[shown])
        wanted = before.copy()
        for c in shown:
            wanted[c] = 0.5 * before[c] + 0.5 * host(features)[labels == c].mean(0)
        close(centres, wanted, rtol=1e-4)
        losses.append(opt.minimize(lambda x=x, ids=ids, c=centres: pb.mean(pb.square(net(x) - c[ids]))).item())
    assert np.mean(losses[-20:]) < 0.2 * np.mean(losses[:20])


@dataclass(frozen=True)
class Weights:
    """A user's dataclass that holds parameters."""

    first: Tensor
    rest: dict[str, Tensor]
    activation: Callable[..., Tensor] = pb.tanh
    name: str = "net"


def test_dataclasses_are_structures() -> None:
    rng = np.random.default_rng(0)
    rest = {"b": pb.tensor(rng.standard_normal(2)), "v": pb.tensor(rng.standard_normal((2, 4)))}
    w = Weights(pb.tensor(rng.standard_normal((4, 3))), rest)
    x = rng.standard_normal((5, 3))

    def f(w: Weights, x: Tensor) -> Tensor:
        return pb.sum(w.activation(w.rest["v"] @ w.activation(w.first @ x) + w.rest["b"]))

    rows = pb.per_example_grad(f)(w, pb.tensor(x))
    one = pb.grad(f)(w, pb.tensor(x[2]))
    assert isinstance(rows, Weights)
    assert (rows.name, rows.activation) == ("net", pb.tanh)
    close(rows.first[2], one.first, rtol=1e-10)
    close(rows.rest["v"][2], one.rest["v"], rtol=1e-10)
    out, tangent = pb.jvp(lambda w: dataclasses.replace(w, first=2 * w.first), (w,), (w,))
    close(tangent.first, 2 * host(w.first))
    assert out.name == "net"
