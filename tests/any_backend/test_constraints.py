"""Constraints: their values against formulas in float64, and a step that applies them, eager, captured and for members."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import same
from conftest import host
from pullback import backends, optim
from pullback.launch import door
from pullback.optim import constraints as c
from pullback.tensors import devices
from update_rules import RULES

UNTYPED: Any = c  # for wrong arguments
SHAPE = (6, 5)
ALL = {
    "nonnegative": c.NonNegative(),
    "box": c.Box(-0.2, 0.3),
    "max norm": c.MaxNorm(0.7, axis=1),
    "max norm of all": c.MaxNorm(0.7, axis=None),
    "unit norm": c.UnitNorm(axis=0),
    "unit norm of all": c.UnitNorm(axis=(0, 1)),
    "simplex": c.Simplex(axis=-1),
    "simplex of all": c.Simplex(axis=None),
    "function": lambda w: pb.tanh(w),
}
EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def simplex(v: Any) -> Any:
    """Returns the nearest distribution to a vector by bisection: the number that is subtracted from all weights is unknown."""
    low, high = v.max() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)


def nearest(constraint: Any, x: Any) -> Any:
    """Returns what a constraint makes of an array, in float64."""
    x = np.asarray(x, np.float64)
    if hasattr(constraint, "bounds"):
        return np.clip(x, *constraint.bounds)
    axis: Any = getattr(constraint, "axis", None)
    axis = tuple(range(x.ndim)) if axis is None else axis
    if isinstance(constraint, c.Simplex):
        return simplex(x.ravel()).reshape(x.shape) if isinstance(axis, tuple) else np.apply_along_axis(simplex, axis, x)
    norm = np.sqrt((x**2).sum(axis=axis, keepdims=True))
    if isinstance(constraint, c.MaxNorm):
        return x * np.minimum(1, constraint.c / norm)
    return x / norm if isinstance(constraint, c.UnitNorm) else np.tanh(x)


def numbers(seed: int, shape: Any = SHAPE, dtype: Any = "float32") -> Any:
    return pb.tensor(np.random.default_rng(seed).standard_normal(shape), dtype=dtype)


# ---- the constraints as functions


@pytest.mark.parametrize("dtype", list(EPS))
@pytest.mark.parametrize("name", [name for name in ALL if name != "function"])
def test_a_constraint_returns_the_nearest_value_that_satisfies_it(name: str, dtype: str) -> None:
    for seed in range(5):
        x = numbers(seed, dtype=dtype) * (1 + 3 * seed)
        y = ALL[name](x)
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
        np.testing.assert_allclose(host(y).astype(float), nearest(ALL[name], host(x)), rtol=8 * EPS[dtype], atol=4 * EPS[dtype])


@pytest.mark.parametrize("dtype", list(EPS))
@pytest.mark.parametrize("length", [1, 2, 7, 300, 20_000])
def test_no_rounding_makes_a_norm_larger_than_the_bound(dtype: str, length: int) -> None:
    x = numbers(length, (4, length), dtype) * 3
    for bound in (0.7, 1.0, 1 / 3):
        y = c.MaxNorm(bound, axis=1)(x)
        assert (np.linalg.norm(host(y).astype(float), axis=1) <= bound).all()
        same(c.MaxNorm(bound, axis=1)(y), y)  # It has a norm that is small enough now.
    simple = host(c.Simplex(axis=1)(x)).astype(float)
    assert (simple >= 0).all()
    np.testing.assert_allclose(simple.sum(axis=1), 1, rtol=4 * EPS[dtype] * (1 if dtype in ("float32", "float64") else length))


def test_a_vector_within_the_bound_keeps_its_bits() -> None:
    x = numbers(0) * 0.1
    same(c.MaxNorm(1.0, axis=0)(x), x)


def test_norms_of_large_and_small_weights_are_right() -> None:
    x = pb.tensor([[3e38, 1e38], [3e-38, 4e-38], [3e30, 4e-30]], dtype="float32")
    wanted = np.array([[3, 1] / np.sqrt(10), [0.6, 0.8], [1.0, 0.0]])
    np.testing.assert_allclose(host(c.UnitNorm(axis=1)(x)), wanted, rtol=1e-6)
    scaled = host(c.MaxNorm(1.0, axis=1)(x))
    np.testing.assert_allclose(scaled[[0, 2]], wanted[[0, 2]], rtol=1e-6)
    same(pb.tensor(scaled[1]), x[1])


def test_zeros_and_numbers_that_are_not_finite() -> None:
    nan, inf = math.nan, math.inf
    x = pb.tensor([[0.0, 0.0], [nan, 1.0], [inf, 1.0], [0.3, -0.4]], dtype="float32")
    bad = [[nan, nan], [nan, nan]]
    np.testing.assert_array_equal(host(c.MaxNorm(1, axis=1)(x)), np.array([[0, 0], *bad, [0.3, -0.4]], np.float32))
    np.testing.assert_allclose(host(c.UnitNorm(axis=1)(x)), np.array([[0, 0], *bad, [0.6, -0.8]]), rtol=1e-6)
    np.testing.assert_allclose(host(c.Simplex(axis=1)(x)), np.array([[0.5, 0.5], *bad, [0.85, 0.15]]), rtol=1e-6)
    np.testing.assert_array_equal(host(c.NonNegative()(x)), np.array([[0, 0], [nan, 1], [inf, 1], [0.3, 0]], np.float32))
    np.testing.assert_array_equal(host(c.Box(-0.1, inf)(x)), np.array([[0, 0], [nan, 1], [inf, 1], [0.3, -0.1]], np.float32))
    assert c.UnitNorm(None)(pb.tensor(-3.0)).item() == -1.0
    for constraint in (c.MaxNorm(1, 0), c.UnitNorm(0), c.Simplex(0), c.Simplex(None), c.NonNegative()):
        assert constraint(pb.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: UNTYPED.Box(1, 0), r"Box: no number is between lo=1.0 and hi=0.0"),
        (lambda: UNTYPED.Box(math.nan, 0), r"Box: lo=nan; it must be a number"),
        (
            lambda: UNTYPED.Box(0, [1.0, 2.0]),
            r"Box: hi=\[1.0, 2.0\]; it must be a number. For bounds of each weight give a function",
        ),
        (lambda: UNTYPED.Box(np.zeros(3), 1), r"Box: lo=array.*pb\.clip\(w, lo, hi\)"),
        (lambda: UNTYPED.Box("0", 1), r"Box: lo='0'; it must be a number\."),
        (lambda: UNTYPED.Box(math.inf, math.inf), r"Box: no number is between"),
        (lambda: UNTYPED.MaxNorm(0, axis=0), r"MaxNorm: c=0.0; the largest norm must be a positive finite number"),
        (lambda: UNTYPED.MaxNorm(-1, axis=0), r"MaxNorm: c=-1.0"),
        (lambda: UNTYPED.MaxNorm(math.inf, axis=0), r"MaxNorm: c=inf"),
        (lambda: UNTYPED.MaxNorm(True, axis=0), r"MaxNorm: c=True; it must be a number"),
        (lambda: UNTYPED.UnitNorm(axis=0.5), r"UnitNorm: axis=0.5; give a number, a tuple of numbers, or None"),
        (lambda: UNTYPED.UnitNorm(axis=()), r"UnitNorm: axis=\(\); give a number"),
        (lambda: UNTYPED.Simplex(axis=(0, 1)), r"Simplex: axis=\(0, 1\); give one axis, or None"),
        (lambda: pb.Parameter([1.0], constraint=c.UnitNorm(axis=1)), r"UnitNorm\(axis=1\): a value of shape \(1,\) has no axis 1"),
        (lambda: pb.Parameter(pb.ones(SHAPE), constraint=c.MaxNorm(1, (0, -2))), r"an axis of shape \(6, 5\) is given twice"),
        (
            lambda: pb.Parameter([1.0], constraint=UNTYPED.NonNegative),
            r"is not a function of the value.*constraint=NonNegative\(\)",
        ),
        (
            lambda: pb.Parameter([1.0], name="w", constraint=UNTYPED.__name__),
            r'constraint of Parameter "w": \'.*\' is not a function',
        ),
    ],
)
def test_wrong_constraints_are_refused_in_words(make: Any, words: str) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        make()


def test_a_constraint_is_a_value() -> None:
    for name, one in ALL.items():
        if name != "function":
            assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
            assert hash(copy.copy(one)) == hash(one)
    assert c.Box(0, 1) == UNTYPED.Box(np.float32(0), pb.tensor(1.0)) != c.Box(0, 2)
    assert c.UnitNorm([0, 1]) == c.UnitNorm((0, 1)) != c.UnitNorm(0)
    assert repr(c.MaxNorm(2, axis=0)) == "MaxNorm(c=2.0, axis=0)"
    assert repr(c.NonNegative()) == "NonNegative()"
    p = pb.Parameter(pb.ones(SHAPE), constraint=c.Box(0, 1))
    assert copy.deepcopy(p).constraint == pickle.loads(pickle.dumps(p)).constraint == p.constraint


# ---- in a step


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("name", list(ALL))
def test_a_constraint_holds_after_every_step_of_every_rule(rule: str, name: str) -> None:
    make, options = RULES[rule]
    p, q = [pb.Parameter(numbers(0, dtype="float64"), constraint=k) for k in (ALL[name], None)]
    opt, plain = make([p], **options), make([q], **options)
    for seed in range(3):
        g = [numbers(seed + 1, dtype="float64")]
        plain.step(g)
        opt.step(g)
        np.testing.assert_allclose(host(p), nearest(ALL[name], host(q)), rtol=1e-13, atol=1e-14)
        for slot, of_plain in zip(opt.slots(p).values(), plain.slots(q).values()):
            same(slot, of_plain)  # A constraint changes weights only.
        q.assign(host(p))
    assert p.version == 3


@pytest.mark.parametrize("dtype", list(EPS))
@pytest.mark.parametrize("name", list(ALL))
def test_the_delta_is_what_was_added_after_the_constraint(name: str, dtype: str) -> None:
    p = pb.Parameter(numbers(0, dtype=dtype), constraint=ALL[name])
    opt = optim.Adam([p], lr=0.3, clip_norm=1.0)
    for seed in range(4):
        before, g = host(p).copy(), [numbers(seed + 1, dtype=dtype)]
        preview = opt.preview(g)
        np.testing.assert_array_equal(host(p), before)
        (delta,) = opt.step(g, return_delta=True)
        same(preview[0], delta)
        again, after = host(before + host(delta)).astype(float), host(p).astype(float)
        if name == "nonnegative":
            np.testing.assert_array_equal(again, after)
        largest = np.maximum(np.abs(before.astype(float)), np.abs(after))
        assert (np.abs(again - after) <= EPS[dtype] * np.maximum(largest, np.abs(host(delta).astype(float)))).all()


@pytest.mark.parametrize("name", list(ALL))
def test_a_captured_step_with_a_constraint_is_the_eager_one(name: str) -> None:
    def rig() -> Any:
        p, q = pb.Parameter(numbers(0), constraint=ALL[name]), pb.Parameter(numbers(1))
        opt = optim.AdamW([p, q], lr=0.1, clip_norm=1.0)
        return (p, q), lambda g: [opt.preview([g, g])[0], *opt.step([g, None], return_delta=True)]

    (eager_params, eager), (params, step) = rig(), rig()
    captured = pb.capture(step)
    for seed in range(4):
        for x, y in zip(eager(numbers(seed + 2)), captured(numbers(seed + 2))):
            same(x, y)
        for p, q in zip(eager_params, params):
            same(p, q)
            assert p.version == q.version


def test_a_constraint_that_is_set_later_holds_from_the_next_step_on() -> None:
    p = pb.Parameter(numbers(0))
    opt = optim.SGD([p], lr=0.1)
    steps = [lambda g: opt.step([g]), pb.capture(lambda g: opt.step([g]))]
    for k in range(3):
        for step in steps:
            p.constraint = None
            p.assign(numbers(k) - 1)
            step(numbers(0) * 0)
            assert (host(p) < 0).any()
            for constraint in (c.NonNegative(), c.Simplex(axis=1), lambda w: pb.abs(w)):
                p.assign(numbers(k) - 1)
                p.constraint = constraint
                step(numbers(0) * 0)
                assert (host(p) >= 0).all()


def test_a_captured_function_cannot_set_a_constraint() -> None:
    p = pb.Parameter(numbers(0))
    if backends.why_not(devices.default_device()) is not None:
        pytest.skip("a function runs eagerly where there are no kernels")

    def set_it(x: Any) -> Any:
        p.constraint = c.NonNegative()
        return x

    with pytest.raises(pb.CaptureError, match=r"setting constraint of .* inside a captured function"):
        pb.capture(set_it)(pb.ones(2))
    assert p.constraint is None


@pytest.mark.parametrize("name", list(ALL))
def test_members_are_constrained_one_by_one(name: str) -> None:
    values, rates = [numbers(k) for k in range(4)], [0.1, 0.2, 0.3, 0.4]
    stacked = pb.Parameter(pb.stack(values), constraint=ALL[name])
    opt = optim.Adam([stacked], lr=rates)
    alone = [pb.Parameter(x, constraint=ALL[name]) for x in values]
    each = [optim.Adam([p], lr=rate) for p, rate in zip(alone, rates)]
    for step in range(3):
        grads = [numbers(10 * step + k + 4) for k in range(4)]
        (delta,) = opt.step([pb.stack(grads)], return_delta=True)
        for k, (p, one, g) in enumerate(zip(alone, each, grads)):
            (wanted,) = one.step([g], return_delta=True)
            same(stacked[k], p)
            same(delta[k], wanted)


def test_an_axis_that_members_lack_is_refused_and_nothing_changes() -> None:
    p = pb.Parameter(pb.ones((3, 4)), constraint=c.UnitNorm(axis=1))
    opt = optim.SGD([p], lr=[0.1, 0.2, 0.3])
    with pytest.raises(pb.ShapeError, match=r"UnitNorm\(axis=1\): a value of shape \(4,\) has no axis 1"):
        opt.step([pb.ones((3, 4))])
    assert (opt.steps, p.version, host(p).max()) == (0, 0, 1.0)


def test_a_function_that_raises_leaves_the_other_constraints_applied() -> None:
    def refuse(value: pb.Tensor) -> pb.Tensor:
        raise RuntimeError("no")

    params = [pb.Parameter([1.0], constraint=k) for k in (c.UnitNorm(0), refuse, lambda w: w * 0, c.Box(0.9, 1))]
    with pytest.raises(RuntimeError, match="no"):
        optim.SGD(params, lr=0.5).step([pb.ones(1)] * 4)
    assert [p.tolist() for p in params] == [[1.0], [0.5], [0.0], [pytest.approx(0.9)]]
    assert [p.version for p in params] == [1] * 4


def test_all_constraints_are_evaluated_before_one_is_written() -> None:
    p, q = [pb.Parameter([x]) for x in (1.0, 2.0)]
    p.constraint, q.constraint = lambda w: q + 0, lambda w: p + 0
    optim.SGD([p, q], lr=0.0).step([pb.ones(1)] * 2)
    assert (p.item(), q.item()) == (2.0, 1.0)


def test_a_function_may_return_views_of_its_argument_but_not_keep_it() -> None:
    kept: list[Any] = []

    def turned(w: pb.Tensor) -> pb.Tensor:
        kept.append(w)
        return w[::-1]

    p = pb.Parameter([1.0, 2.0, 3.0], constraint=turned)
    optim.SGD([p], lr=0.0).step([pb.ones(3)])
    assert p.tolist() == [3.0, 2.0, 1.0]
    with pytest.raises(pb.StaleValueError):
        kept[0].numpy()


@pytest.mark.parametrize("name", list(ALL))
def test_the_average_of_the_weights_is_that_of_the_constrained_ones(name: str) -> None:
    params = [pb.Parameter(numbers(k), constraint=ALL[name]) for k in range(2)]
    opt = optim.SGD(params, lr=0.1, ema=0.75, groups={"parameter1": {"ema": 0.5}})
    wanted: list[Any] = [None, None]
    for step in range(4):
        opt.step([numbers(step + 5), numbers(step + 6)])
        for k, (p, keep) in enumerate(zip(params, (0.75, 0.5))):
            value = host(p).astype(float)
            wanted[k] = keep * wanted[k] + (1 - keep) * value if step else value
            np.testing.assert_allclose(host(opt.averaged(p)), wanted[k], rtol=1e-6, atol=1e-7)
            if step == 0:
                same(opt.averaged(p), p)


def test_each_member_averages_its_constrained_weights() -> None:
    stacked = pb.Parameter(pb.stack([numbers(k) for k in range(3)]), constraint=c.UnitNorm(axis=0))
    alone = [pb.Parameter(numbers(k), constraint=c.UnitNorm(axis=0)) for k in range(3)]
    opt = optim.SGD([stacked], lr=0.1, ema=[0.9, 0.5, 0.1])
    each = [optim.SGD([p], lr=0.1, ema=ema) for p, ema in zip(alone, (0.9, 0.5, 0.1))]
    for step in range(3):
        grads = [numbers(3 * step + k + 4) for k in range(3)]
        opt.step([pb.stack(grads)])
        for k, (one, g) in enumerate(zip(each, grads)):
            one.step([g])
            same(opt.averaged(stacked)[k], one.averaged(alone[k]))


def test_bounds_need_no_launch_of_their_own() -> None:
    params = [pb.Parameter(numbers(0), constraint=k) for k in (c.NonNegative(), c.Box(-1, 1))]
    opt = optim.Adam(params)
    with pb.profile() as prof:
        opt.step([numbers(2), numbers(3)])
    assert [x.kernel for x in prof.launches if x.phase == door.OPTIMIZER] == ["adam_step"]


def test_constraints_count_as_part_of_the_update() -> None:
    p = pb.Parameter(numbers(0), constraint=c.Simplex(axis=0))
    opt = optim.SGD([p])
    with pb.profile() as prof:
        opt.step([numbers(1)], return_delta=True)
    assert {x.phase for x in prof.launches} == {door.OPTIMIZER}


def test_a_parameter_without_a_gradient_is_not_constrained() -> None:
    params = [pb.Parameter([-1.0], constraint=c.NonNegative()) for _ in range(2)]
    deltas = optim.SGD(params).step([pb.ones(1), None], return_delta=True)
    assert [p.item() for p in params] == [0.0, -1.0]
    assert [x.item() for x in deltas or ()] == [1.0, 0.0]


@pytest.mark.parametrize("capture", [False, True])
def test_many_steps_hold_no_more_memory_than_a_few(capture: bool) -> None:
    params = [pb.Parameter(numbers(0), constraint=k) for k in ALL.values()]
    opt = optim.Adam(params, lr=0.01)
    g = numbers(1)

    def train(g: Any) -> None:
        opt.step([g] * len(params), return_delta=True)

    step = pb.capture(train) if capture else train
    kernels = backends.kernels_on(devices.default_device())

    def held(count: int) -> tuple[int, int]:
        for _ in range(count):
            step(g)
        gc.collect()
        return kernels.live_bytes() if kernels else 0, tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        held(50)
        before = held(50)
        after = held(300)
    finally:
        tracemalloc.stop()
    assert after[0] == before[0]
    assert after[1] - before[1] < 20_000  # bytes of Python objects
