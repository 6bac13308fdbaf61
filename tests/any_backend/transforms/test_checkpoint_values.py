"""A function under a checkpoint must compute the same values again, which is checked on a CPU."""

from __future__ import annotations

import random

import numpy as np
import pytest

import pullback as pb


def test_other_values_in_the_second_computation_are_refused() -> None:
    x = pb.ones((20, 30))
    draw = np.random.default_rng(0).random
    for f in (
        lambda x: x * draw((20, 30)), lambda x: pb.sum(x * (draw((20, 30)) < 0.5)), lambda x: x * random.random(),
        lambda x: x[: random.randint(1, 10**9) % 20 + 1],
    ):
        loss = lambda x, f=f: pb.sum(pb.checkpoint(f)(x))
        with pytest.raises(pb.TapeError, match=r"returned other values when .* draw random numbers from pb.random"):
            [pb.grad(loss)(x) for _ in range(3)]  # two slices may have the same length
    with pytest.raises(pb.TapeError, match="returned other values"):
        pb.vmap(pb.grad(lambda x: pb.sum(pb.checkpoint(lambda x: x * random.random())(x))))(x)
    scale = np.ones(30)
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = pb.sum(pb.checkpoint(lambda x: x * scale)(x))
    scale *= 2.0
    with pytest.raises(pb.TapeError, match="change no array"):
        tape.gradient(y, x)


def test_values_that_are_not_finite_are_computed_again() -> None:
    for f in (lambda x: x / 0.0, lambda x: 0.0 * (x / 0.0), lambda x: x[:0], lambda x: pb.log(x - 1.0)):
        pb.grad(lambda x, f=f: pb.sum(pb.checkpoint(f)(x)))(pb.tensor([1.0, 2.0]))
