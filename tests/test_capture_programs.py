"""Capture of random programs: whatever is fused, moved and laid out anew, a replay gives the bits of the eager run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same

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
    lambda u, v: pb.random.dropout(u, 0.3),
]


def program(steps: list[tuple[int, int, int]], x: Any, params: list[Any]) -> Any:
    """A value that most of what is computed goes into, its square summed, and the gradients of that."""
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
