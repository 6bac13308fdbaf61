"""Transforms of functions: batches of examples, gradients of each example, checkpoints, memory of results, second derivatives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pullback as pb
from pullback import nn
from pullback.nn import functional as F

from .values import Case, floats, given, integers, with_gradients


def vectorized(n: int) -> Iterator[Case]:
    """Runs layers under vmap, for a batch of weights and for a batch of arguments."""
    count = 5

    def convolved(x: Any, w: Any) -> Any:
        return F.conv2d(x, w, padding=1)

    def attended(q: Any, k: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, k, is_causal=True)

    yield (
        "linear",
        lambda: with_gradients(pb.vmap(F.linear), floats(count, 30, 7), floats(count, 4, 7, seed=1), floats(count, 4, seed=2)),
    )
    yield "a convolution", lambda: with_gradients(pb.vmap(convolved), floats(count, 2, 3, 6, 6), floats(count, 4, 3, 3, 3, seed=1))
    yield "attention", lambda: with_gradients(pb.vmap(attended), floats(count, 2, 2, 9, 8), floats(count, 2, 2, 9, 8, seed=1))
    yield (
        "norms",
        lambda: with_gradients(
            pb.vmap(lambda x, w: F.layer_norm(pb.softmax(x, axis=-1), w)), floats(count, 30, 7), floats(count, 7, seed=1)
        ),
    )
    yield "a gradient", lambda: pb.vmap(pb.grad(lambda x: pb.sum(pb.tanh(x) ** 3)))(floats(n // 8, 8))
    yield "a recurrent layer", partial(_recurrent_of_each, count)
    yield "a stack of networks", partial(_stacked, count)
    yield (
        "sorts and sums at indices",
        lambda: [
            pb.vmap(pb.sort)(floats(count, n // 5)),
            pb.vmap(lambda x, rows: pb.segment_sum(x, rows, 9))(floats(count, 40), integers(9, count, 40)),
        ],
    )


def _recurrent_of_each(count: int) -> Any:
    model = given(nn.GRU(5, 9), 0.3)
    return with_gradients(pb.vmap(lambda x: model(x)[0]), floats(count, 6, 3, 5))


def _stacked(count: int) -> list[Any]:
    nets = [given(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)), 0.1 * (i + 1)) for i in range(count)]
    stacks = nn.stack(nets)
    x, labels = floats(20, 8), integers(3, 20)

    def losses(values: Any) -> Any:
        return pb.vmap(lambda p: nn.cross_entropy(nn.functional_call(nets[0], p, x), labels))(values)

    with pb.GradientTape() as tape:
        found = losses(stacks)
        total = pb.sum(found)
    return [found, *tape.gradient(total, list(stacks.values()))]


def per_example(n: int) -> Iterator[Case]:
    """Computes the gradient of each example, its norm, and weighted sums of these gradients."""
    net = partial(nn.Sequential, nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    image_net = partial(nn.Sequential, nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 16, 3))

    def run(make: Any, *shape: int) -> list[Any]:
        model = given(make(), 0.3)
        x, labels = floats(*shape), integers(3, shape[0])

        def one(parameters: Any, x: Any, label: Any) -> Any:
            return nn.cross_entropy(model(x[None]), label[None])

        to = list(model.parameters()), x, labels
        weights = lambda norms: pb.minimum(1.0, pb.rsqrt(norms))
        return [
            *pb.per_example_grad(one)(*to), pb.per_example_norm(one)(*to), *pb.weighted_grad(one, weights)(*to),
        ]

    yield "a network of two layers", partial(run, net, min(n, 50), 8)
    yield "images", partial(run, image_net, 5, 1, 6, 6)


def recomputed(n: int) -> Iterator[Case]:
    """Runs checkpoints, which compute again in the backward pass, kept results, loops and second derivatives."""

    def block(x: Any, w: Any) -> Any:
        return pb.tanh(x @ w) * x[:, :1]

    def memo() -> list[Any]:
        kept = pb.memo(lambda x: pb.exp(x) * 2)
        x = floats(n)
        return [kept(x), kept(x)]

    def loop() -> list[Any]:
        def body(h: Any, x: Any) -> Any:
            h = pb.tanh(h * 0.9 + x)
            return h, h * 2

        return with_gradients(lambda xs: pb.scan(body, pb.zeros(7), xs, checkpoint=True)[1], floats(12, 7))

    operands = floats(n // 9, 9), floats(9, 9, seed=1)
    yield "a checkpoint", lambda: with_gradients(pb.checkpoint(block), *operands)
    yield "a kept result", memo
    yield "gradients that add up in place", lambda: with_gradients(lambda x: x * 2 + pb.exp(x) + pb.tanh(x) + x * x, floats(n))
    yield "a loop with checkpoints", loop
    yield "a Hessian", lambda: pb.hessian(lambda v: pb.sum(pb.tanh(v * v)))(floats(6))
    yield "a Jacobian", lambda: pb.jacobian(lambda v: pb.tanh(v * v))(floats(6))
    yield (
        "a Hessian times a vector",
        lambda: pb.hvp(lambda w: nn.cross_entropy(floats(20, 6) @ w, integers(3, 20)), floats(6, 3, seed=1), floats(6, 3, seed=2)),
    )
    attended = partial(F.scaled_dot_product_attention, floats(1, 1, 6, 4), floats(1, 1, 6, 4, seed=1))
    yield (
        "a second derivative of attention",
        lambda: pb.hvp(lambda v: pb.sum(attended(v) ** 2), floats(1, 1, 6, 4), floats(1, 1, 6, 4)),
    )
