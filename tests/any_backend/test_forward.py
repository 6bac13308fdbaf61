"""Forward mode: for every op the same derivative as reverse mode; nested with itself, with tapes and with vmap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import call, close, example, host, ops, rng_for
from pullback import nn
from pullback.autodiff.primitive import ZERO, Op
from pullback.tensors import dtypes
from pullback.tensors.tensor import Tensor

DIFFERENTIABLE = [op for op in ops() if op.pullback is not None and op.pullback is not ZERO and op.name != "to_device"]


def varying(op: Op, inputs: tuple[Any, ...]) -> list[int]:
    """Which inputs the op has a derivative by."""
    rules = op.rules * len(inputs) if op.joint else op.rules
    return [i for i, (x, rule) in enumerate(zip(inputs, rules)) if rule and dtypes.is_float(np.asarray(x).dtype)]


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_forward_and_reverse_mode_agree(op: Op) -> None:
    """<w, J t> is the same by jvp and by vjp, for each input alone and for all together."""
    inputs, params = example(op, np.float64)
    rng, free = rng_for(op), varying(op, inputs)
    for which in [free, *[[i] for i in free]]:

        def f(*xs: Tensor, which: list[int] = which) -> Tensor:
            given = dict(zip(which, xs))
            return call(op, [given.get(i, pb.tensor(x)) for i, x in enumerate(inputs)], params)

        primals = [pb.tensor(inputs[i]) for i in which]
        tangents = [rng.standard_normal(x.shape) for x in primals]
        y, t = pb.jvp(f, primals, tangents)
        assert t.shape == y.shape
        weights = rng.standard_normal(y.shape)
        _, pullback = pb.vjp(f, *primals)
        wanted = sum(float(np.sum(host(g) * v)) for g, v in zip(pullback(pb.tensor(weights)), tangents))
        close(pb.sum(t * weights), wanted, rtol=1e-9)


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_forward_over_reverse_is_reverse_over_reverse(op: Op) -> None:
    inputs, params = example(op, np.float64)
    rng, free = rng_for(op), varying(op, inputs)
    primals = [pb.tensor(inputs[i]) for i in free]
    weights = rng.standard_normal(call(op, [pb.tensor(x) for x in inputs], params).shape)

    def f(*xs: Tensor) -> Tensor:
        given = dict(zip(free, xs))
        return pb.sum(pb.sin(call(op, [given.get(i, pb.tensor(x)) for i, x in enumerate(inputs)], params)) * weights)

    tangents = [pb.tensor(rng.standard_normal(x.shape)) for x in primals]
    everything = tuple(range(len(primals)))
    forward = pb.hvp(f, primals, tangents)
    reverse = pb.grad(lambda *xs: sum(pb.sum(g * t) for g, t in zip(pb.grad(f, everything)(*xs), tangents)), everything)(*primals)
    for a, b in zip(forward, reverse):
        close(a, b, rtol=1e-8)


def test_nested_forward_passes_keep_their_tangents_apart() -> None:
    def slope(f: Any) -> Any:
        return lambda x: pb.jvp(f, (x,), (1.0,))[1]

    close(slope(lambda x: x * slope(lambda y: x + y)(2.0))(1.0), 1.0)  # not 2: perturbations are told apart
    close(slope(slope(slope(lambda x: x**4)))(pb.tensor(2.0, dtype="float64")), 48.0)


def test_forward_over_reverse_over_forward() -> None:
    x = pb.tensor(0.7, dtype="float64")
    f = lambda x: pb.jvp(pb.grad(lambda y: pb.jvp(pb.sin, (y,), (y * y,))[1]), (x,), (1.0,))[1]
    v = 0.7  # of x² cos x the second derivative
    close(f(x), 2 * np.cos(v) - 4 * v * np.sin(v) - v * v * np.cos(v), rtol=1e-12)


def test_tangents_inside_vmap_and_vmap_inside_tangents() -> None:
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((2, 4, 3))
    f = lambda v: pb.softmax(v) * pb.sum(v)
    rows = np.stack([host(pb.jvp(f, (a,), (b,))[1]) for a, b in zip(x, t)])
    close(pb.vmap(lambda a, b: pb.jvp(f, (a,), (b,))[1])(pb.tensor(x), pb.tensor(t)), rows, rtol=1e-12)
    close(pb.jvp(pb.vmap(f), (x,), (t,))[1], rows, rtol=1e-12)


def test_a_tape_around_differentiates_the_tangent() -> None:
    x = pb.tensor(np.array([0.3, 1.1]))
    with pb.GradientTape() as tape:
        tape.watch(x)
        _, t = pb.jvp(lambda v: pb.sum(pb.exp(v)), (x,), (np.ones(2),))
    close(tape.gradient(t, x), np.exp(host(x)))


def test_a_long_chain_keeps_only_the_last_tangents() -> None:
    from pullback.transforms.jvp import Forward

    x = pb.tensor(np.ones(4))
    with Forward() as forward:
        forward.give(x, pb.ones(4, dtype="float64"))
        for _ in range(100):
            x = pb.tanh(x)
        assert len(forward._tangents) <= 2


def test_linearize_evaluates_once_and_agrees() -> None:
    calls: list[int] = []
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))

    def f(x: Tensor) -> Tensor:
        calls.append(1)
        return model(x)

    rng = np.random.default_rng(0)
    x = pb.tensor(rng.standard_normal((4, 3)).astype(np.float32))
    y, derivative = pb.linearize(f, x)
    for _ in range(3):
        t = pb.tensor(rng.standard_normal((4, 3)).astype(np.float32))
        close(derivative(t), pb.jvp(model, (x,), (t,))[1], rtol=1e-5)
    assert len(calls) == 1
    close(y, model(x))


def test_structures_and_errors() -> None:
    out, t = pb.jvp(lambda d: {"y": d["a"] * d["b"][0], "k": pb.tensor(1.0)}, [{"a": 2.0, "b": [3.0]}], [{"a": 1.0, "b": [10.0]}])
    assert (out["y"].item(), t["y"].item(), t["k"].item()) == (6.0, 23.0, 0.0)
    with pytest.raises(pb.ShapeError, match=r"tangent has shape \(2,\), its primal \(3,\)"):
        pb.jvp(pb.sin, (np.ones(3),), (np.ones(2),))
    with pytest.raises(pb.ShapeError, match="2 tangents for 1 primals"):
        pb.jvp(pb.sin, (1.0,), (1.0, 2.0))
    with pytest.raises(pb.TapeError, match="dtype int64"):
        pb.jvp(pb.sin, (1,), (1.0,))
