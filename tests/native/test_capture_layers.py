"""Capture of layers, losses and indexing: a replay with different numbers, labels and indices gives the bits of the eager run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same
from pullback import nn
from pullback.nn import functional as F

pytestmark = needs_kernels
N, C = 9, 5


def rng(k: int) -> Any:
    return np.random.default_rng(k)


def floats(*shape: int) -> Callable[[int], Any]:
    return lambda k: pb.tensor(rng(k).standard_normal(shape), dtype=pb.float32)


def shares(*shape: int) -> Callable[[int], Any]:
    return lambda k: pb.tensor(rng(k).random(shape), dtype=pb.float32)


def ints(low: int, high: int, *shape: int) -> Callable[[int], Any]:
    return lambda k: pb.tensor(rng(k).integers(low, high, shape))


def labels(k: int) -> Any:
    """Returns labels of which the first k are ignored."""
    y = rng(k).integers(0, C, N)
    y[:k] = -100
    return pb.tensor(y)


WEIGHTS = pb.tensor(np.linspace(0.5, 2, C, dtype=np.float32))
X = floats(N, C)
CASES: dict[str, tuple[Callable[..., Any], tuple[Callable[[int], Any], ...]]] = {
    "cross_entropy": (F.cross_entropy, (X, labels)),
    "cross_entropy, weights": (lambda x, y: F.cross_entropy(x, y, weight=WEIGHTS), (X, labels)),
    "cross_entropy, smoothed": (lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), (X, labels)),
    "cross_entropy, none": (lambda x, y: F.cross_entropy(x, y, reduction="none"), (X, labels)),
    "cross_entropy, shares": (F.cross_entropy, (X, shares(N, C))),
    "cross_entropy, image": (F.cross_entropy, (floats(N, C, 2, 3), ints(0, C, N, 2, 3))),
    "nll": (lambda x, y: F.nll(F.log_softmax(x), y), (X, labels)),
    "nll, weights": (lambda x, y: F.nll(F.log_softmax(x), y, weight=WEIGHTS), (X, labels)),
    "mse": (F.mse, (X, floats(N, C))),
    "l1": (F.l1, (X, floats(N, C))),
    "huber": (F.huber, (X, floats(N, C))),
    "bce": (lambda x, z: F.bce_with_logits(x, z, pos_weight=WEIGHTS), (X, shares(N, C))),
    "kl_div": (lambda x, z: F.kl_div(F.log_softmax(x), z, reduction="batchmean"), (X, shares(N, C))),
    "take": (lambda x, i: pb.take(x, i, axis=1), (X, ints(-C, C, 4))),
    "take_along_axis": (lambda x, i: pb.take_along_axis(x, i, axis=1), (X, ints(-C, C, N, 2))),
    "index": (lambda x, i: x[i], (X, ints(-N, N, 6))),
    "index, two": (lambda x, i, j: x[i, j], (X, ints(-N, N, 6), ints(-C, C, 6))),
    "index, one and a number": (lambda x, i: x[i, 2], (X, ints(-N, N, 6))),
    "index, 0-d": (lambda x, i: x[i], (X, ints(0, N))),
    "index, constants": (lambda x: x[[0, -1, 2], [1, 1, -2]] + x[1:4, None, ::2][:, 0, 0], (X,)),
    "slices": (lambda x: x[1:, ::-2] * 2 + pb.flip(x)[1:, :3], (X,)),
    "transposed": (lambda x: pb.reshape(x.T, (-1,)) * 2, (X,)),
    "at set": (lambda x, i, v: x.at[i].set(v), (X, ints(-N, N, 3), floats(3, C))),
    "at add": (lambda x, i, v: x.at[i].add(v), (X, ints(-N, N, 3), floats(3, C))),
    "segment_sum": (lambda x, i: pb.segment_sum(x, i, 4), (X, ints(0, 4, N))),
    "segment_mean": (lambda x, i: pb.segment_mean(x, i, 4), (X, ints(0, 4, N))),
    "segment_max": (lambda x, i: pb.segment_max(x, i, 4), (X, ints(0, 4, N))),
    "segment_softmax": (lambda x, i: pb.segment_softmax(x, i, 4), (X, ints(0, 4, N))),
    "one_hot": (lambda x, i: x * pb.one_hot(i, C), (X, ints(0, C, N))),
    "sort": (lambda x: pb.sort(x, axis=1) * pb.argsort(x, axis=1), (X,)),
    "topk": (lambda x: pb.topk(x, 2)[0], (X,)),
    "where": (lambda x: pb.where(x > 0, x, x * 0.1), (X,)),
    "einsum": (lambda x, y: pb.einsum("ij,kj->ik", x, y), (X, floats(4, C))),
    "norms": (lambda x: F.layer_norm(x, WEIGHTS) + F.rms_norm(x) + pb.var(x, axis=1, keepdims=True), (X,)),
    "softmaxes": (lambda x: F.softmax(x, axis=0) + F.log_softmax(x) + pb.logsumexp(x, axis=1, keepdims=True), (X,)),
    "casts": (lambda x: x.astype(pb.float64) * 2 + x.astype(pb.float16).astype(pb.float64), (X,)),
    "pad": (lambda x: pb.pad(x, ((1, 2), (0, 1))) + 1, (X,)),
    "shapes": (lambda x: pb.concat([x, pb.tile(x, (1, 1)), pb.roll(x, 2, axis=0)]) @ pb.stack([x[0], x[1]]).T, (X,)),
    "cumulative": (lambda x: pb.cumulative_sum(x, axis=1) + pb.cumulative_prod(x, axis=1), (X,)),
    "repeat": (lambda x: pb.repeat(x, 2, axis=0), (X,)),
    "tril": (lambda x: pb.tril(x) + pb.triu(x, k=1), (X,)),
}


def with_gradient(f: Callable[..., Any], *xs: Any) -> Any:
    with pb.GradientTape() as tape:
        tape.watch(xs[0])
        y = f(*xs)
        total = pb.sum(y * y)
    return y, tape.gradient(total, xs[0])


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_eager_run(name: str) -> None:
    f, makers = CASES[name]
    captured = pb.capture(lambda *xs: with_gradient(f, *xs))
    for k in range(4):
        xs = [make(k) for make in makers]
        for got, wanted in zip(captured(*xs), with_gradient(f, *xs)):
            same(got, wanted)
    assert captured.stats().captures == 1


LAYERS: dict[str, tuple[Callable[[], Any], Callable[[int], Any]]] = {
    "Linear": (lambda: nn.Linear(C, 3), X),
    "MLP": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 3), nn.Tanh()), floats(N, 3, 4)),
    "Embedding": (lambda: nn.Embedding(7, 4), ints(0, 7, N)),
    "LayerNorm": (lambda: nn.LayerNorm(C), X),
    "Dropout": (lambda: nn.Dropout(0.4), X),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_their_gradients(name: str) -> None:
    make, inputs = LAYERS[name]
    pb.random.seed(0)
    layer = make()

    def run(x: Any) -> Any:
        with pb.GradientTape() as tape:
            y = layer(x)
            total = pb.sum(y * y)
        return [y, *(tape.gradient(total, layer.parameters()) if layer.parameters() else [])]

    captured = pb.capture(run)
    for k in range(3):
        x = inputs(k)
        pb.random.seed(k)
        got = captured(x)
        pb.random.seed(k)
        for a, b in zip(got, run(x)):
            same(a, b)
    assert captured.stats().captures == 1
