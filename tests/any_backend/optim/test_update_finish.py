"""What an update does after its rule: bounds, masks, averages of the weights, and the delta that was really added."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import optim
from update_rules import RULES

SHAPES = ((40, 30), (7,), (), (3, 5, 2), (0,))
FLOATS = ("float16", "bfloat16", "float32", "float64")


class Bounds:
    """A constraint that is nothing but bounds."""

    def __init__(self, least: float, most: float) -> None:
        self.bounds = (least, most)

    def __call__(self, p: pb.Tensor) -> pb.Tensor:
        return pb.clip(p, *self.bounds)


def made(rule: str, dtype: str = "float32", constraint: Any = None, seed: int = 3, **options: Any) -> Any:
    rng = np.random.default_rng(seed)
    params = [pb.Parameter(rng.standard_normal(shape), constraint=constraint, dtype=dtype) for shape in SHAPES]
    kind, hyper = RULES[rule]
    return kind(params, **hyper, **options)


def random_gradients(opt: Any, count: int, seed: int = 4) -> list[list[pb.Tensor]]:
    rng = np.random.default_rng(seed)
    return [[pb.tensor(rng.standard_normal(p.shape), dtype=p.dtype) for p in opt.parameters] for _ in range(count)]


def bits(tensors: Any) -> list[bytes]:
    return [np.asarray(host(x)).tobytes() for x in tensors]


def wide(x: Any) -> Any:
    return np.asarray(host(x)).astype(np.float64)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rule", ["sgd", "adamw", "rmsprop-momentum-centered"])
def test_bounds_hold_after_every_step_and_the_delta_is_what_was_added(rule: str, dtype: str) -> None:
    opt = made(rule, dtype, Bounds(-0.25, math.inf))
    for g in random_gradients(opt, 4):
        before = [wide(p) for p in opt.parameters]
        previewed = opt.preview(g)
        deltas = opt.step(g, return_delta=True)
        assert bits(previewed) == bits(deltas)
        for p, old, delta in zip(opt.parameters, before, deltas):
            after, found = wide(p), old + wide(delta)
            assert (after >= -0.25).all()
            exact = after != -0.25  # elsewhere the delta is -0.25 - old, rounded
            one_ulp = np.abs(np.nextafter(wide(pb.abs(p)), math.inf)) * float(pb.finfo(dtype).eps)
            rounded = pb.tensor(found, dtype="float64").astype(dtype) if dtype != "float64" else found
            np.testing.assert_array_equal(wide(rounded)[exact], after[exact])
            assert (np.abs(found - after) <= one_ulp + 0).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_bound_of_0_is_reached_exactly(dtype: str) -> None:
    opt = made("sgd", dtype, Bounds(0.0, math.inf))
    g = [pb.full(p.shape, 100.0, dtype=dtype) for p in opt.parameters]
    before = [wide(p) for p in opt.parameters]
    for old, delta, p in zip(before, opt.step(g, return_delta=True), opt.parameters):
        np.testing.assert_array_equal(wide(p), np.zeros(p.shape))
        np.testing.assert_array_equal(wide(delta), -old)


def test_a_bound_keeps_nan() -> None:
    p = pb.Parameter([1.0, math.nan, 3.0], constraint=Bounds(0.0, 2.0))
    delta = optim.SGD([p], 1.0).step([pb.zeros(3)], return_delta=True)
    np.testing.assert_array_equal(host(p), [1.0, math.nan, 2.0])
    np.testing.assert_array_equal(host(delta[0]), [0.0, math.nan, -1.0])


def test_a_constraint_that_is_set_later_takes_effect_in_the_next_step() -> None:
    p = pb.Parameter([1.0, 2.0])
    opt = optim.SGD([p], 1.0)
    opt.step([pb.zeros(2)])
    p.constraint = Bounds(0.0, 1.5)
    opt.step([pb.zeros(2)])
    np.testing.assert_array_equal(host(p), [1.0, 1.5])
    p.constraint = None
    opt.step([-pb.ones(2)])
    np.testing.assert_array_equal(host(p), [2.0, 2.5])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_masked_weight_and_its_slots_are_0_after_every_step(rule: str, dtype: str) -> None:
    opt, free = made(rule, dtype, ema=0.5), made(rule, dtype, ema=0.5)
    rng = np.random.default_rng(8)
    kept = [rng.random(p.shape) < 0.5 for p in opt.parameters]
    opt._memory.masks = [None if i == 1 else pb.tensor(k.astype(np.uint8)).array for i, k in enumerate(kept)]
    kept[1] = np.ones(7, bool)
    for g in random_gradients(opt, 3):
        before = [wide(p) for p in opt.parameters]
        previewed = opt.preview(g)
        deltas = opt.step(g, return_delta=True)
        assert bits(previewed) == bits(deltas)
        free.step(g)
        for p, q, k, old, delta in zip(opt.parameters, free.parameters, kept, before, deltas):
            assert (wide(p)[~k] == 0).all()
            np.testing.assert_array_equal(wide(delta)[~k], -old[~k])
            assert all((wide(slot)[~k] == 0).all() for slot in opt.slots(p).values())
            if rule != "lamb":  # whose ratio depends on all weights
                np.testing.assert_array_equal(host(p), np.where(k, host(q), 0))
                for name, slot in opt.slots(p).items():
                    np.testing.assert_array_equal(host(slot), np.where(k, host(free.slots(q)[name]), 0))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rule", ["sgd", "adam", "lion"])
def test_the_average_of_the_weights_is_its_formula(rule: str, dtype: str) -> None:
    """The first step sets the average to the weights, as torch.optim.swa_utils.AveragedModel does."""
    opt, plain = made(rule, dtype, ema=0.9), made(rule, dtype)
    wanted = [wide(p) for p in opt.parameters]
    for step, g in enumerate(random_gradients(opt, 10)):
        for p, average in zip(opt.parameters, wanted):
            np.testing.assert_allclose(wide(opt.averaged(p)), average, rtol=0, atol=1e-12 if dtype == "float64" else 2e-6)
        opt.step(g)
        plain.step(g)
        keep = 0.9 if step else 0.0
        wanted = [keep * average + (1 - keep) * wide(p) for average, p in zip(wanted, opt.parameters)]
    assert bits(opt.parameters) == bits(plain.parameters)


def test_the_average_can_be_turned_off_and_differ_between_groups() -> None:
    p, q = pb.Parameter([1.0], name="p"), pb.Parameter([1.0], name="q")
    opt = optim.SGD([p, q], 1.0, groups={"q": {"ema": 0.5}})
    for _ in range(2):
        opt.step([pb.ones(1), pb.ones(1)])
    assert [float(opt.averaged(x).numpy()[0]) for x in (p, q)] == [-1.0, -0.5]
    opt.ema = 0.75
    opt.step([pb.ones(1), pb.ones(1)])
    assert [float(opt.averaged(x).numpy()[0]) for x in (p, q)] == [-1.25, -1.25]
    with pytest.raises(pb.PullbackError, match=r"ema=1\.0; each number must be in"):
        opt.ema = 1.0
    without = optim.SGD([p], 1.0)
    with pytest.raises(pb.PullbackError, match=r"ema=0\.9, but this optimizer was made without an average"):
        without.ema = 0.9
    with pytest.raises(pb.PullbackError, match="keeps no average of the weights; make it with ema="):
        without.averaged(p)


def test_a_state_and_a_copy_have_the_average() -> None:
    opt, other = made("adamw", ema=0.9), made("adamw", ema=0.5, seed=5)
    first, second = random_gradients(opt, 2)
    opt.step(first)
    state = opt.state_dict()
    twin = pickle.loads(pickle.dumps(opt))
    for mine, p in zip(other.parameters, opt.parameters):
        mine.assign(p)
    other.load_state_dict(state)
    assert other.ema == 0.9
    for x in (opt, other, twin):
        x.step(second)
    averages = [bits([x.averaged(p) for p in x.parameters]) for x in (opt, other, twin)]
    assert averages[0] == averages[1] == averages[2]
    with pytest.raises(pb.PullbackError, match="average"):
        made("adamw").load_state_dict(state)


def test_each_member_has_its_own_average() -> None:
    rng = np.random.default_rng(1)
    start, grads = rng.standard_normal((3, 4)), rng.standard_normal((5, 3, 4))
    together = optim.Adam([pb.Parameter(start)], lr=[0.1, 0.2, 0.3], ema=[0.9, 0.5, 0.1])
    alone = [optim.Adam([pb.Parameter(x)], lr=lr, ema=ema) for x, lr, ema in zip(start, (0.1, 0.2, 0.3), (0.9, 0.5, 0.1))]
    for g in grads:
        together.step([pb.tensor(g)])
        for opt, part in zip(alone, g):
            opt.step([pb.tensor(part)])
    found = host(together.averaged(together.parameters[0]))
    assert bits(found) == bits([opt.averaged(opt.parameters[0]) for opt in alone])


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("rule", ["sgd-momentum", "adamw"])
def test_scaled_gradients_train_like_unscaled_ones(rule: str, clip_norm: float | None) -> None:
    """The scale is a power of two, so that it changes no bit."""
    plain, scaled = [made(rule, clip_norm=clip_norm, clip_value=0.3) for _ in range(2)]
    scaled.gradient_scale = 2.0**-10
    for g in random_gradients(plain, 3):
        plain.step(g)
        scaled.step([1024 * x for x in g])
        if clip_norm:
            assert scaled.gradient_norm == plain.gradient_norm
    assert bits(plain.parameters) == bits(scaled.parameters)
    for bad in (0.0, -1.0, math.nan, math.inf, True, None):
        with pytest.raises(pb.PullbackError, match="gradient_scale"):
            scaled.gradient_scale = bad


@needs_kernels
@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_a_captured_step_averages_and_bounds_as_an_eager_one(rule: str) -> None:
    eager, captured = [made(rule, constraint=Bounds(-0.5, 0.5), ema=0.9) for _ in range(2)]
    step = pb.capture(lambda g: captured.step(g, return_delta=True))
    for g in random_gradients(eager, 4):
        assert bits(eager.step(g, return_delta=True)) == bits(step(g))
    assert bits(eager.parameters) == bits(captured.parameters)
    assert bits([eager.averaged(p) for p in eager.parameters]) == bits([captured.averaged(p) for p in captured.parameters])
