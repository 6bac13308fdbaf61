"""A captured function under tapes and transforms is the function, also where nothing can be recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host

WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda f, x: pb.grad(lambda u: pb.sum(f(u)))(x),
    "vmap": lambda f, x: pb.vmap(f)(pb.stack([x, -x])),
    "jvp": lambda f, x: pb.jvp(f, (x,), (x * 2,))[1],
    "hessian": lambda f, x: pb.hessian(lambda u: pb.sum(f(u)))(x),
    "jacobian": lambda f, x: pb.jacobian(f)(x),
    "checkpoint": lambda f, x: pb.grad(lambda u: pb.sum(pb.checkpoint(f)(u)))(x),
    "captured gradient": lambda f, x: pb.capture(pb.grad(lambda u: pb.sum(f(u))))(x),
}


@pytest.mark.parametrize("way", WAYS)
def test_derivatives_and_batches(way: str) -> None:
    f = lambda x: pb.tanh(x) * x
    captured = pb.capture(f)
    for k in range(3):
        x = pb.tensor(np.linspace(-1, 2, 4) + k)
        np.testing.assert_array_equal(host(WAYS[way](captured, x)), host(WAYS[way](f, x)))


def test_steps_under_a_tape() -> None:
    p, x = pb.Parameter([2.0]), pb.tensor([[1.0], [2.0], [3.0]])
    captured = pb.capture(lambda x: x * p, steps=3)
    for _ in range(2):
        with pb.GradientTape() as tape:
            y = pb.sum(captured(x))
        np.testing.assert_array_equal(host(tape.gradient(y, p)), [6.0])
