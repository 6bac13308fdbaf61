"""memo: one forward and one backward run per input, a miss after each change, and no value of another tape."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import close, watched
from pullback import nn


class Counted:
    """The function W -> sin(W @ W), with counts of its forward and backward runs."""

    def __init__(self) -> None:
        self.forward = self.backward = 0

        @pb.custom_gradient
        def f(w: Any) -> Any:
            self.forward += 1
            a = w @ w

            def pullback(g: Any) -> Any:
                self.backward += 1
                ga = g * pb.cos(a)
                return ga @ w.mT + w.mT @ ga

            return pb.sin(a), pullback

        self.f = f


def square(n: int = 3) -> pb.Parameter:
    return pb.Parameter(np.random.default_rng(0).standard_normal((n, n)), name="w")


XS = np.random.default_rng(1).standard_normal((5, 3, 3))


def loss_of(f: Any, w: Any) -> Any:
    total: Any = 0.0
    for x in XS:
        total = total + pb.sum(f(w) * pb.tensor(x))
    return total


# ---- sharing


def test_a_value_used_many_times_runs_once_forward_and_once_backward() -> None:
    counted, w = Counted(), square()
    f = pb.memo(counted.f)
    with pb.GradientTape() as tape:
        loss = loss_of(f, w)
    gradient = tape.gradient(loss, w)
    assert (counted.forward, counted.backward) == (1, 1)
    assert (f.stats.misses, f.stats.hits) == (1, 4)
    with pb.GradientTape() as tape:
        loss = loss_of(lambda w: pb.sin(w @ w), w)
    close(gradient, tape.gradient(loss, w).numpy(), rtol=1e-12)


@pytest.mark.parametrize("closed_over", [False, True])
def test_after_an_update_there_is_exactly_one_miss(closed_over: bool) -> None:
    layer = nn.Linear(3, 3)
    f = pb.memo((lambda: pb.sin(layer.weight)) if closed_over else pb.sin)
    args = () if closed_over else (layer.weight,)
    tape = pb.GradientTape(persistent=True)
    with tape:
        for update in range(4):
            for _ in range(3):
                close(f(*args), np.sin(layer.weight.numpy()))
            assert f.stats.misses == update + 1
            layer.weight.assign(layer.weight.numpy() + 1)
    assert f.stats.hits == 8


def test_each_step_of_training_is_one_miss_with_the_right_gradient() -> None:
    w = square()
    f = pb.memo(lambda: pb.tanh(w))
    for step in range(3):
        with pb.GradientTape() as tape:
            loss = pb.sum(f() * f())
        gradient = tape.gradient(loss, w)
        t = np.tanh(w.numpy())
        close(gradient, 2 * t * (1 - t * t))
        w.assign(w - 0.1 * gradient)
        assert f.stats.misses == step + 1


def test_structures_are_new_and_their_tensors_shared() -> None:
    f = pb.memo(lambda d, k, *, flag: {"y": d["x"] * k, "rest": [flag]})
    x = pb.ones(2)
    first, second = f({"x": x}, 2, flag="a"), f({"x": x}, 2, flag="a")
    assert first is not second
    assert first["y"] is second["y"]
    for d, k, flag in (({"x": x}, 3, "a"), ({"x": x}, 2, "b"), ({"x": pb.ones(2)}, 2, "a"), ({"x": x}, 2.0, "a")):
        assert f(d, k, flag=flag)["y"] is not first["y"]


# ---- tapes


def test_a_value_is_never_handed_to_a_tape_that_did_not_record_it() -> None:
    w = square()
    f = pb.memo(lambda: pb.sin(w))
    f()
    for _ in range(2):
        with pb.GradientTape() as tape:
            y = pb.sum(f())
        close(tape.gradient(y, w), np.cos(w.numpy()))
    assert f.stats.misses == 3
    with pb.GradientTape() as outer:
        with pb.GradientTape() as inner:
            y = pb.sum(f() * f())
        first = pb.sum(inner.gradient(y, w))
    close(outer.gradient(first, w), 2 * np.cos(2 * w.numpy()))  # the second derivative of sin²
    assert f.stats.misses == 4


def test_what_a_paused_tape_must_not_see_is_computed_apart() -> None:
    w = square()
    f = pb.memo(lambda: pb.sin(w))
    with pb.GradientTape() as tape:
        y = f()
        with tape.stop_recording():
            constant = f()
        loss = pb.sum(y * constant)
    close(tape.gradient(loss, w), np.cos(w.numpy()) * np.sin(w.numpy()))


def test_a_tape_that_was_reset_and_one_that_watches_more_get_their_own() -> None:
    x, z = pb.tensor([1.0, 2.0]), pb.tensor([3.0, 4.0])
    f = pb.memo(lambda a, b: a * b)
    tape = pb.GradientTape(persistent=True)
    with tape:
        tape.watch(x)
        f(x, z)
        tape.watch(z)
        y = pb.sum(f(x, z))
        close(tape.gradient(y, z), [1.0, 2.0])
        tape.reset()
        tape.watch(x)
        y = pb.sum(f(x, z))
    close(tape.gradient(y, x), [3.0, 4.0])


def test_it_nests_with_checkpoints_and_vmap() -> None:
    w = square()
    f = pb.memo(lambda: pb.sin(w))
    with pb.GradientTape() as tape:
        x = watched(XS[0], tape)
        y = pb.sum(f() * pb.checkpoint(lambda x: pb.exp(x * f()) + f())(x)) + pb.sum(pb.vmap(lambda a: a @ (f() + f()))(x))
    ours = tape.gradient(y, [x, w])
    with pb.GradientTape() as tape:
        x, s = watched(XS[0], tape), pb.sin(w)
        y = pb.sum(s * (pb.exp(x * s) + s)) + pb.sum(x @ (s + s))
    for got, wanted in zip(ours, tape.gradient(y, [x, w])):
        close(got, wanted.numpy(), rtol=1e-10)


# ---- memory


def test_what_is_remembered_is_bounded_and_arguments_are_not_kept() -> None:
    f = pb.memo(lambda x: x * 2, size=2)
    xs = [pb.ones(3) for _ in range(5)]
    values = [weakref.ref(f(x)) for x in xs]
    gc.collect()
    assert [value() is not None for value in values] == [False, False, False, True, True]
    f(xs[4])
    assert f.stats.hits == 1
    argument = weakref.ref(xs.pop())
    assert argument() is None
    f.clear()
    assert all([value() is None for value in values])


def test_a_tape_is_not_kept_and_neither_is_a_value_that_only_it_could_use() -> None:
    w = square()
    f = pb.memo(lambda: pb.sin(w))
    with pb.GradientTape() as tape:
        y = weakref.ref(f())
    gone = weakref.ref(tape)
    del tape
    gc.collect()
    assert gone() is None
    f()
    assert y() is None


def test_an_array_is_refused() -> None:
    with pytest.raises(pb.PullbackError, match="given a ndarray, which can change"):
        pb.memo(lambda x: x)(np.ones(2))
    with pytest.raises(pb.PullbackError, match="size=0"):
        pb.memo(lambda x: x, size=0)
