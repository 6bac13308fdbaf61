"""Steps of optimizers with constraints: what holds after each of them, eager, captured, and for members."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest
from test_constraints import ALL, EPS, nearest, numbers

import pullback as pb
from captured_step import same
from conftest import host
from pullback import backends, optim
from pullback.launch import door
from pullback.optim import constraints as c
from pullback.tensors import devices
from update_rules import RULES


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


@pytest.mark.parametrize(
    "limit", [c.MaxNorm(1.0, 0), c.UnitNorm(None), c.Simplex(1), lambda w: w], ids=["max", "unit", "simplex", "function"]
)
def test_a_parameter_without_weights_may_have_a_constraint_and_an_average(limit: Any) -> None:
    p = pb.Parameter(np.zeros((3, 0)), constraint=limit)
    opt = optim.SGD([p], lr=0.1, ema=0.9)
    for _ in range(2):
        opt.step([pb.zeros((3, 0), dtype="float64")])
    assert opt.averaged(p).shape == (3, 0)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", list(EPS))
def test_the_ends_of_a_box_are_rounded_before_they_are_averaged(dtype: str, fused: bool) -> None:
    p = pb.Parameter(np.zeros(3), dtype=dtype, constraint=c.Box(-0.3, 0.3))
    opt = optim.SGD([p], lr=1.0, ema=0.0)
    if not fused:
        opt._native = None
    opt.step([pb.tensor([-1.0, 1.0, 0.0], dtype=dtype)])
    np.testing.assert_array_equal(host(opt.averaged(p)).astype(np.float64), host(p).astype(np.float64))


@pytest.mark.parametrize("name", list(ALL))
def test_one_member_is_constrained_like_a_network_alone(name: str) -> None:
    p, q = pb.Parameter(host(numbers(0))[None], constraint=ALL[name]), pb.Parameter(numbers(0), constraint=ALL[name])
    one, alone = optim.Adam([p], lr=[0.1]), optim.Adam([q], lr=0.1)
    for seed in range(3):
        g = numbers(seed + 1)
        one.step([pb.tensor(host(g)[None])])
        alone.step([g])
        np.testing.assert_array_equal(host(p)[0], host(q))


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


@pytest.mark.parametrize("name", list(ALL))
def test_the_average_of_a_schedule_free_rule_is_constrained_for_each_member(name: str) -> None:
    stacked = pb.Parameter(pb.stack([numbers(k) for k in range(3)]), constraint=ALL[name])
    alone = [pb.Parameter(numbers(k), constraint=ALL[name]) for k in range(3)]
    opt, each = optim.ScheduleFreeSGD([stacked], lr=[0.1, 0.2, 0.3]), [optim.ScheduleFreeSGD([p], lr=0.1) for p in alone]
    for one, lr in zip(each, (0.1, 0.2, 0.3)):
        one.lr = lr
    for step in range(3):
        grads = [numbers(3 * step + k + 4) for k in range(3)]
        opt.step([pb.stack(grads)])
        for one, g in zip(each, grads):
            one.step([g])
    for x in (opt, *each):
        x.eval()
    for k, p in enumerate(alone):
        same(stacked[k], p)


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
