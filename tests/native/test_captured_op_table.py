"""Every op of the table, captured and called under a tape: values and derivatives have the bits of the eager op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import UNREPEATABLE, needs_kernels, same
from conftest import call, example, ops, rng_for
from pullback.autodiff.primitive import ZERO, Op

pytestmark = needs_kernels
ALL = [op for op in ops() if op.names[:1] != ("state",) and op.name not in UNREPEATABLE]
DIFFERENTIABLE = [op for op in ALL if op.pullback is not None and op.pullback is not ZERO]


def arguments(op: Op, k: int) -> tuple[list[Any], tuple[Any, ...]]:
    rng = rng_for(op)
    inputs, params = example(op, "float32", rng)
    first = inputs
    for _ in range(k):
        inputs, params = example(op, "float32", rng)
    found = [np.asarray(x) if np.asarray(x).dtype.kind in "fVb" else np.roll(x, k, -1) for x in inputs]
    if op.name == "dropout":
        found[1] = np.asarray(first[1])
    return [pb.asarray(x) for x in found], params


def first(f: Callable[..., Any], xs: list[Any]) -> list[Any]:
    floats = [x for x in xs if x.dtype.kind == "f"]
    with pb.GradientTape() as tape:
        tape.watch(floats)
        y = f(*xs)
        z = pb.sum(pb.square(y) + pb.sin(y))
    return [y, *tape.gradient(z, floats, unconnected="zero")]


def second(f: Callable[..., Any], xs: list[Any]) -> list[Any]:
    floats = [x for x in xs if x.dtype.kind == "f"]
    with pb.GradientTape() as outer:
        outer.watch(floats)
        total = pb.sum(first(f, xs)[1])
    return outer.gradient(total, floats, unconnected="zero")


def forward(f: Callable[..., Any], xs: list[Any]) -> list[Any]:
    floats = [x for x in xs if x.dtype.kind == "f"]

    def of_floats(*given: Any) -> Any:
        rest = iter(given)
        return f(*[next(rest) if x.dtype.kind == "f" else x for x in xs])

    return list(pb.jvp(of_floats, floats, [pb.cos(x) for x in floats]))


def vectorized(f: Callable[..., Any], xs: list[Any]) -> list[Any]:
    batches = [pb.stack([x, pb.flip(x)]) if x.dtype.kind == "f" else pb.stack([x, x]) for x in xs]
    return [pb.vmap(f)(*batches)]


def agree(op: Op, way: Callable[..., list[Any]]) -> None:
    """Asserts that a recording and two replays give the bits of the eager op."""
    _, params = arguments(op, 0)
    eager = lambda *xs: call(op, xs, params)
    captured = pb.capture(eager)
    for k in range(3):
        xs, _ = arguments(op, k)
        for got, wanted in zip(way(captured, xs), way(eager, xs), strict=True):
            same(got, wanted)


@pytest.mark.filterwarnings("ignore::pullback.errors.ZeroGradientWarning")
@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_a_captured_op_has_the_derivatives_of_the_op(op: Op) -> None:
    agree(op, first)
    agree(op, second)


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_a_captured_op_has_the_tangents_and_the_batches_of_the_op(op: Op) -> None:
    agree(op, forward)
    agree(op, vectorized)
