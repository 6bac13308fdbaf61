"""Forward mode: equal to reverse mode for every op, and nested with itself, with tapes and with vmap."""

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
    """Returns the positions of the inputs with respect to which the op has a derivative."""
    rules = op.rules * len(inputs) if op.joint else op.rules
    return [i for i, (x, rule) in enumerate(zip(inputs, rules)) if rule and dtypes.is_float(np.asarray(x).dtype)]


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_forward_and_reverse_mode_agree(op: Op) -> None:
    """jvp and vjp yield the same <w, J t>, for each input alone and for all inputs together."""
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

    close(slope(lambda x: x * slope(lambda y: x + y)(2.0))(1.0), 1.0)  # It would be 2 if perturbations were confused.
    close(slope(slope(slope(lambda x: x**4)))(pb.tensor(2.0, dtype="float64")), 48.0)


def test_forward_over_reverse_over_forward() -> None:
    x = pb.tensor(0.7, dtype="float64")
    f = lambda x: pb.jvp(pb.grad(lambda y: pb.jvp(pb.sin, (y,), (y * y,))[1]), (x,), (1.0,))[1]
    v = 0.7  # f computes the second derivative of x² cos x.
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
    pb.random.seed(0)
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


@pytest.mark.parametrize(
    "tangents", [(None, 2.0), ({"a": None, "b": [2.0, None]}, None), (None, None), ({"a": 2.0, "b": None}, 2.0)]
)
def test_a_tangent_of_none_is_zero_for_all_leaves_of_its_argument(tangents: Any) -> None:
    """jvp, linearize and hvp agree with tangents of zeros that are written out."""
    p, x = {"a": pb.tensor([1.0, -2.0]), "b": [pb.tensor([0.5, 3.0]), pb.tensor(2.0)], "none": None}, pb.tensor([0.3, 0.7])

    def f(p: Any, x: Any) -> Any:
        return pb.sum(p["a"] * pb.sin(p["b"][0] * x) * p["b"][1]) ** 2

    def filled(t: Any, like: Any) -> Any:
        if isinstance(like, dict):
            return {key: filled(None if t is None else t.get(key), value) for key, value in like.items()}
        if isinstance(like, list):
            return [filled(None if t is None else t[i], value) for i, value in enumerate(like)]
        return None if like is None else pb.full(like.shape, 0.0 if t is None else t)

    def shaped(t: Any, like: Any) -> Any:  # the tangents of the test, with None as it is, and numbers in the shapes of the leaves
        if isinstance(like, dict):
            return t and {key: shaped(t.get(key), value) for key, value in like.items()}
        return t and [shaped(v, w) for v, w in zip(t, like)] if isinstance(like, list) else t and pb.full(like.shape, t)

    given, whole = [tuple([g(t, like) for t, like in zip(tangents, (p, x))]) for g in (shaped, filled)]
    y, wanted = pb.jvp(f, (p, x), whole)
    for value, moved in (pb.jvp(f, (p, x), given), (f(p, x), pb.linearize(f, p, x)[1](*given))):
        close(value, y, rtol=1e-5)
        close(moved, wanted, rtol=1e-5)
    for h, w in zip(*[pb.tree.leaves(pb.hvp(f, (p, x), t)) for t in (given, whole)]):
        close(h, w)


def test_none_stands_for_a_part_of_the_structure_and_never_for_a_neighbour() -> None:
    v, w = pb.ones(2), pb.tensor([3.0, 4.0])
    primals: Any = ((), v, [v, v])
    _, moved = pb.jvp(lambda e, a, b: a + 10 * b[0] + 100 * b[1], primals, (None, w, None))
    assert host(moved).tolist() == [3.0, 4.0]
    assert host(pb.linearize(lambda a, b: a + 10 * b, 1.0, 2.0)[1](None, 1.0)) == 10.0
    for tangents in ((v, w), (None, v), ([v], None)):
        with pytest.raises(pb.ShapeError, match="Give one for each, in the same structure; None stands for zero"):
            pb.jvp(lambda a, b, c: a[0] * b, ([v, v], v, v), tangents)
    a, (b, c) = (
        pb.vjp(lambda t: (2 * t, [3 * t, 5 * t]), v)[1]((w, None))[0],
        pb.vjp(lambda s, t: (2 * s, 3 * t), 1.0, 1.0)[1]((None, 1.0)),
    )
    assert (host(a).tolist(), host(b), host(c)) == ([6.0, 8.0], 0.0, 3.0)
