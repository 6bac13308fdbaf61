"""Functions with a `checkpoint` or a `custom_gradient` inside, which tests capture."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pullback as pb
from captured_step import normal
from pullback import nn
from pullback.nn import functional as F

Function = Callable[[Any], Any]

# ---- functions with a Parameter w and a watched argument x, each of shape (3, 3)


@dataclasses.dataclass
class Pair:
    a: Any
    b: Any


class Net(nn.Module):
    def __init__(self) -> None:
        self.first, self.norm, self.drop, self.last = nn.Linear(3, 5), nn.LayerNorm(5), nn.Dropout(0.4), nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        return self.last(self.drop(pb.tanh(self.norm(self.first(x)))))


@pb.custom_gradient
def doubled(x: Any) -> Any:
    y = pb.tanh(x)
    return y, lambda g: g * (1 - y * y) * 2


def clipped(g: Any, limit: Any, scale: float) -> Any:
    return pb.minimum(g, limit) * scale


@pb.custom_gradient
def by_partial(x: Any) -> Any:
    return pb.sin(x), partial(clipped, limit=pb.cos(x), scale=0.5)


@pb.custom_gradient
def by_default(x: Any) -> Any:
    e = pb.exp(x)

    def pull(g: Any, e: Any = e, *, half: Any = e / 2) -> Any:
        return g * e + half

    return e, pull


@pb.custom_gradient
def by_containers(x: Any) -> Any:
    kept = {"both": (pb.sin(x), [pb.cos(x)]), "pair": Pair(x, pb.exp(x)), "number": 3.0}

    def inner(g: Any) -> Any:
        def innermost() -> Any:
            return g * kept["both"][0] + kept["both"][1][0] * kept["number"]

        return innermost() * kept["pair"].a + kept["pair"].b

    return pb.sum(x * x), lambda g: inner(g)


@pb.custom_gradient
def recursive(x: Any) -> Any:
    y = pb.sin(x)

    def power(g: Any, n: int) -> Any:
        return g if n == 0 else power(g, n - 1) * y

    return y, lambda g: power(g, 3)


@pb.custom_gradient
def of_trees(d: Any, w: Any, n: int, scale: float = 1.0) -> Any:
    s = pb.sigmoid(d["a"] @ w)

    def pull(g: Any) -> Any:
        first, (index, rest) = g["y"], g["more"]
        assert index is None
        return {"a": (first * s) @ w.mT, "b": [rest * n, None]}, d["a"].mT @ first * scale, None

    return {"y": s, "more": (pb.argmax(s), d["b"][0] * scale)}, pull


@pb.custom_gradient
def drawing(x: Any) -> Any:
    """Draws a mask once, and numbers anew in each backward pass."""
    mask = pb.random.uniform((3, 3)) > 0.5
    return pb.where(mask, x, 0), lambda g: pb.where(mask, g, 0) * pb.random.uniform((3, 3))


@pb.custom_gradient
def with_a_checkpoint(x: Any) -> Any:
    y = pb.checkpoint(lambda x: pb.tanh(x) * x)(x)
    return y, lambda g: pb.vjp(pb.checkpoint(pb.sin), y)[1](g)


def trees(w: Any) -> Function:
    def f(x: Any) -> Any:
        value = of_trees({"a": x, "b": [pb.sin(x), pb.ones(2)]}, w, 2, scale=3.0)
        return value["y"] * value["more"][1] + value["more"][0]

    return f


def tree_checkpoint(w: Any) -> Function:
    @pb.checkpoint
    def part(d: Any, k: int, *, pair: Any) -> Any:
        return {"y": d["x"] @ w * k, "same": d["x"], "rest": [k, pb.argmax(d["x"]), (pb.exp(pair.a) * pair.b,)]}

    def f(x: Any) -> Any:
        h = pb.sin(x)
        out = part({"x": h}, 2, pair=Pair(x, 3.0))
        return out["y"] * out["same"] + out["rest"][2][0] + out["rest"][1]

    return f


def closing_over_values(w: Any) -> Function:
    def f(x: Any) -> Any:
        h, c = pb.tanh(x @ w), pb.sign(x) + 2
        inner = pb.checkpoint(lambda u: pb.sin(u) * h + pb.checkpoint(lambda v: v * c * w)(u) * u)
        return inner(x * 2) + inner(h) * h

    return f


def several(w: Any) -> Function:
    """Each output depends on its own inputs, and one input of the checkpoint is also a result of the function."""

    def f(x: Any) -> Any:
        h = pb.sin(x * w)
        a, b = pb.checkpoint(lambda u, v: (pb.exp(u), v * v))(h, w)
        return h, a, b, doubled(h)

    return f


FUNCTIONS: dict[str, Callable[[Any], Function]] = {
    "closure": lambda w: lambda x: doubled(x @ w),
    "partial": lambda w: lambda x: by_partial(x @ w),
    "defaults": lambda w: lambda x: by_default(x @ w),
    "containers": lambda w: lambda x: by_containers(x @ w),
    "recursive": lambda w: lambda x: recursive(x * w),
    "trees": trees,
    "draws": lambda w: lambda x: drawing(x * w) * pb.random.normal((3, 3)),
    "of an argument and a parameter": lambda w: lambda x: pb.custom_gradient(
        lambda x, p: (x @ p, lambda g: (g @ p.mT, x.mT @ g))
    )(x, w),
    "checkpoint": lambda w: lambda x: pb.checkpoint(lambda u: pb.tanh(u @ w) * u)(pb.sin(x)),
    "checkpoint of arguments": lambda w: pb.checkpoint(lambda u: pb.tanh(u @ w) * u),
    "checkpoint of trees": tree_checkpoint,
    "checkpoint of closures": closing_over_values,
    "checkpoint with draws": lambda w: lambda x: pb.checkpoint(
        lambda u: F.dropout(u @ w, 0.5) * pb.random.uniform((3, 3))
    )(x) * pb.random.normal((3, 3)),
    "nested checkpoints with draws": lambda w: pb.checkpoint(
        lambda u: pb.checkpoint(lambda v: F.dropout(v * w, 0.5))(F.dropout(u, 0.3)) * pb.random.uniform((3, 3))
    ),
    "checkpoint in a scan": lambda w: lambda x: pb.scan(
        lambda c, u: (pb.tanh(c @ w + u) * F.dropout(u, 0.3), pb.sum(c)), x[0], x, length=3, checkpoint=2
    )[0],
    "custom gradient in a checkpoint": lambda w: lambda x: pb.checkpoint(lambda u: doubled(u @ w) * by_partial(u))(x),
    "checkpoint in a custom gradient": lambda w: lambda x: with_a_checkpoint(x @ w),
    "several results": several,
    "view of a parameter": lambda w: lambda x: (
        pb.checkpoint(lambda u, v: u @ v)(x, w.mT) + pb.checkpoint(lambda u: u @ w[:, ::-1])(x)
    ),
    "inside a vmap": lambda w: lambda x: pb.vmap(lambda row: doubled(pb.checkpoint(lambda u: pb.sin(u @ w) * row)(row)))(x),
    "inside a grad": lambda w: pb.grad(lambda x: pb.sum(doubled(x) * pb.checkpoint(lambda u: pb.tanh(u @ w))(x))),
}


def parameter(seed: int = 3) -> Any:
    return pb.Parameter(normal(seed, 3, 3, dtype=pb.float32))


def total(y: Any) -> Any:
    return sum([pb.sum(pb.sin(part) * part) for part in y], pb.zeros(())) if isinstance(y, tuple) else pb.sum(pb.sin(y) * y)
