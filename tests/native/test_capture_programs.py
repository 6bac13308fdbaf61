"""Capture of random programs: with every fusion and memory plan, a replay gives the bits of the eager run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same
from pullback.tree import flatten

pytestmark = needs_kernels
OPS: list[Any] = [
    lambda u, v: u + v,
    lambda u, v: u * v,
    lambda u, v: pb.tanh(u),
    lambda u, v: pb.relu(u) - v,
    lambda u, v: u @ v,
    lambda u, v: u.T * 0.5,
    lambda u, v: u + pb.sum(v, axis=0),
    lambda u, v: u @ v + v[0],
    lambda u, v: pb.where(u > v, u, v * 2.0),
    lambda u, v: pb.concat([u[1:], v[:1]]),
    lambda u, v: pb.softmax(u),
    lambda u, v: pb.relu(u @ v + pb.mean(u, axis=0)),
    lambda u, v: u / (1.0 + v * v),
    lambda u, v: pb.exp(-u * u) + pb.broadcast_to(v[2:3], v.shape),
    lambda u, v: pb.nn.functional.dropout(u, 0.3),
]


def program(steps: list[tuple[int, int, int]], x: Any, params: list[Any]) -> Any:
    """Runs the steps, and returns the sum of the last two values, the sum of its squares, and the gradients of that sum."""
    with pb.GradientTape() as tape:
        tape.watch(x)
        values = [x, *params]
        for op, a, b in steps:
            values.append(pb.tanh(OPS[op](values[a % len(values)], values[b % len(values)])))
        y = values[-1] + values[-2]
        total = pb.sum(y * y)
    return [y, total, *tape.gradient(total, [x, *params], unconnected="zero")]


@pytest.mark.parametrize("seed", range(60))
def test_a_random_program_replays_with_its_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, dtype = (6, 6, 33)[seed % 3], (pb.float32, pb.float64, pb.float16)[seed % 4 % 3]
    steps = [(int(rng.integers(len(OPS))), int(rng.integers(1000)), int(rng.integers(1000))) for _ in range(rng.integers(3, 25))]
    params = [pb.Parameter(rng.standard_normal((size, size)), dtype=dtype) for _ in range(2)]
    captured = pb.capture(lambda x: program(steps, x, params))
    for k in range(3):
        x = pb.tensor(rng.standard_normal((size, size)), dtype=dtype)
        pb.random.seed(k)
        got = captured(x)
        pb.random.seed(k)
        for a, b in zip(got, program(steps, x, params)):
            same(a, b)


OUTPUTS: list[Any] = [
    lambda y: y,
    lambda y: pb.reshape(y, (-1,)),
    lambda y: y[None],
    lambda y: y.mT,
    lambda y: y[1:],
    lambda y: y[:, :0],
    lambda y: pb.sum(y[:0], axis=0),
    lambda y: pb.sum(y * 2, axis=1),
    lambda y: pb.astype(y[:0] > 0, pb.float64),
    lambda y: {"a": y, "b": (y, pb.expand_dims(y, axis=2))},
]


@pytest.mark.parametrize("fusion", ["none", "exact", "fast"])
@pytest.mark.parametrize("seed", range(12))
def test_results_that_share_memory_and_empty_ones_are_those_of_the_eager_run(seed: int, fusion: str) -> None:
    rng = np.random.default_rng(seed)
    chosen = [OUTPUTS[k] for k in rng.permutation(len(OUTPUTS))[: 2 + seed % 7]]
    rows, columns = ((2, 3), (4, 1), (0, 3), (1, 0))[seed % 4]

    def f(x: Any) -> Any:
        y = pb.tanh(x) * 2
        return [output(y) for output in chosen] + [OUTPUTS[seed % 3](x)]

    captured, stepped = pb.capture(f, fusion=fusion), pb.capture(f, fusion=fusion, steps=2)
    for _ in range(3):
        xs = [pb.tensor(rng.standard_normal((rows, columns)).astype(np.float32)) for _ in range(2)]
        wanted = [flatten(f(x))[0] for x in xs]
        for got, value in zip(flatten(captured(xs[0]))[0], wanted[0], strict=True):
            same(got, value)
        for got, one, other in zip(flatten(stepped(pb.stack(xs)))[0], *wanted, strict=True):
            same(got, pb.stack([one, other]))


@pytest.mark.parametrize(
    "values",
    [(0.0, -0.0), (np.float32(0), np.float32(-0.0)), (float("nan"), -float("nan")), (1, True), (1, 1.0)],
    ids=["zeros", "NumPy's zeros", "signs of NaN", "a bool", "a float"],
)
@pytest.mark.parametrize("inside", [lambda s: s, lambda s: {"a": [s]}, lambda s: frozenset([s])], ids=["bare", "nested", "set"])
def test_arguments_that_compare_equal_are_told_apart_by_their_bits(values: tuple[Any, Any], inside: Any) -> None:
    f = pb.capture(lambda x, s: x * 2)
    for value in (*values, *values):
        f(pb.ones(2), inside(value))
    assert f.stats().captures == 2


def test_a_number_of_each_step_is_an_argument() -> None:
    f = pb.capture(lambda x, s: x * s, steps=3)
    x, s = pb.reshape(pb.arange(12.0), (3, 4)), pb.tensor([1.0, 2.0, 3.0])
    for _ in range(2):
        same(f(x, s), x * s[:, None])


@pytest.mark.parametrize("fusion", ["none", "exact", "fast"])
def test_many_launches_of_each_kind_replay_with_their_bits(fusion: str) -> None:
    """The temporaries live at once, one after the other, and nested. The products come with and without sums and activations."""
    w, b = pb.Parameter(np.linspace(-0.3, 0.3, 36).reshape(6, 6)), pb.Parameter(np.linspace(-1, 1, 6))

    def f(x: Any) -> Any:
        wide = [pb.sum(x * float(i), axis=0) for i in range(60)]
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = x
            for i in range(40):
                y = pb.relu(y @ w + b) if i % 3 else pb.tanh(y @ w) * 0.5 + y
            loss = pb.sum(y * y)
        return [loss, pb.concat(wide), sum(wide[1:], wide[0]), *tape.gradient(loss, [x, w, b])]

    captured = pb.capture(f, fusion=fusion)
    for k in range(3):
        x = pb.tensor(np.random.default_rng(k).standard_normal((6, 6)))
        for got, value in zip(captured(x), f(x), strict=True):
            if fusion == "fast":
                np.testing.assert_allclose(got.numpy(), value.numpy(), rtol=1e-9, atol=1e-12)
            else:
                same(got, value)
