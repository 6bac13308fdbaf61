"""Half precision weights that the update rounds up or down at random, so that the expected value is exact."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import optim
from update_rules import RULES

HALF = ("float16", "bfloat16")
DIGITS = {"float16": 11, "bfloat16": 8}  # the digits of a number, the leading one included
LARGEST = {"float16": 65504.0, "bfloat16": (2 - 2.0**-7) * 2.0**127}
SHAPES = ((40, 30), (7,), (), (0,), (3, 5, 11))


def exact(x: Any) -> Any:
    return np.asarray(host(x)).astype(np.float64)


def same(found: Any, wanted: Any) -> None:
    for x, y in zip(found, wanted):
        np.testing.assert_array_equal(exact(x), exact(y))


def made(rule: str, dtype: str, **options: Any) -> Any:
    rng = np.random.default_rng(3)
    kind, hyper = RULES[rule]
    params = [pb.Parameter(rng.standard_normal(shape) * 0.5, dtype=dtype, name=f"p{i}") for i, shape in enumerate(SHAPES)]
    return kind(params, **hyper, stochastic_rounding=True, **options)


def gradients(opt: Any, count: int) -> list[list[pb.Tensor]]:
    rng = np.random.default_rng(4)
    return [[pb.tensor(rng.standard_normal(p.shape), dtype=p.dtype) for p in opt.parameters] for _ in range(count)]


def stepped(values: Any, changes: Any, dtype: str, **options: Any) -> Any:
    """Returns what the weights become by one step that adds these changes, in float64."""
    opt = optim.SGD([pb.Parameter(values, dtype=dtype)], 1.0, stochastic_rounding=True, **options)
    opt.step([pb.tensor(-np.asarray(changes), dtype=dtype)])
    return exact(opt.parameters[0])


def neighbours(x: Any, dtype: str) -> tuple[Any, Any]:
    """Returns the next numbers of the dtype on both sides of x, by the definition of the dtype."""
    least = -24 if dtype == "float16" else -133
    exponent = np.frexp(x)[1] - DIGITS[dtype]
    unit = 2.0 ** np.maximum(exponent, least)
    return np.floor(x / unit) * unit, np.ceil(x / unit) * unit


@pytest.mark.parametrize("dtype", HALF)
def test_only_the_two_neighbours_occur_and_their_mean_is_exact(dtype: str) -> None:
    """The mean of n roundings differs from the number by about its standard error, sqrt(f (1 - f) / n) units."""
    n = 40000
    rng = np.random.default_rng(1)
    for old, change in [
        (1.0, 2.0**-13),
        (-1.5, 2.0**-10),
        (0.75, -(2.0**-12)),
        (-3.0, -(2.0**-9)),
        (2.0**-10, 2.0**-20),
        (1.0, -(2.0**-14)),
    ]:
        found = stepped(np.full(n, old), np.full(n, change), dtype)
        low, high = neighbours(old + change, dtype)
        assert set(np.unique(found)) <= {low, high}
        if low == high:
            continue
        share = (old + change - low) / (high - low)
        error = (found.mean() - (old + change)) / (high - low)
        assert abs(error) < 4 * np.sqrt(share * (1 - share) / n)
    values = (rng.standard_normal(n) * 2.0 ** rng.integers(-8, 8, n)).astype(np.float32)
    olds = exact(pb.tensor(values, dtype=dtype))
    changes = exact(pb.tensor(olds * 2.0 ** -rng.integers(5, 14, n), dtype=dtype))
    sums = (olds + changes).astype(np.float32).astype(np.float64)
    found, (low, high) = stepped(olds, changes, dtype), neighbours(sums, dtype)
    assert np.all((found == low) | (found == high))
    units = np.where(high > low, high - low, 1.0)
    shares = (sums - low) / units
    total = ((found - sums) / units).sum()
    assert abs(total) < 4 * np.sqrt((shares * (1 - shares)).sum())


def test_small_float16_numbers_have_the_right_mean() -> None:
    """Below 2^-14 the neighbours are multiples of 2^-24."""
    n = 40000
    for units in (0.25, 3.5, 100.125, 1023.75):
        old, change = np.floor(units) * 2.0**-24, (units - np.floor(units)) * 2.0**-24
        opt = optim.SGD([pb.Parameter(np.full(n, old), dtype="float16")], 2.0**-10, stochastic_rounding=True)
        opt.step([pb.tensor(np.full(n, -change * 2.0**10), dtype="float16")])
        found = exact(opt.parameters[0]) * 2.0**24
        assert set(np.unique(found)) == {np.floor(units), np.ceil(units)}
        share = units - np.floor(units)
        assert abs(found.mean() - units) < 4 * np.sqrt(share * (1 - share) / n)


@pytest.mark.parametrize("dtype", HALF)
def test_training_advances_where_rounding_to_nearest_stalls(dtype: str) -> None:
    """Each change is an eighth of the distance between neighbours. 400 steps of 1000 weights move by 400 changes on average."""
    n, steps, lr = 1000, 400, 2.0 ** -(DIGITS[dtype] + 3)
    opts = [optim.SGD([pb.Parameter(np.ones(n), dtype=dtype)], lr, stochastic_rounding=at_random) for at_random in (True, False)]
    for _ in range(steps):
        for opt in opts:
            opt.step([pb.tensor(-np.ones(n), dtype=dtype)])
    moved, stalled = [exact(opt.parameters[0]) - 1 for opt in opts]
    assert np.all(stalled == 0)
    unit = 2.0 ** (1 - DIGITS[dtype])  # lr is f = 1/16 of it
    error = unit * np.sqrt(steps * (1 / 16) * (15 / 16) / n)
    assert abs(moved.mean() - steps * lr) < 4 * error


@pytest.mark.parametrize("dtype", HALF)
def test_no_gradient_and_no_change_leave_the_weights_as_they_are(dtype: str) -> None:
    opt = made("sgd", dtype)
    before = [exact(p) for p in opt.parameters]
    for _ in range(3):
        opt.step([pb.zeros(p.shape, dtype=dtype) for p in opt.parameters])
    same(opt.parameters, before)


@pytest.mark.parametrize("dtype", HALF)
def test_sums_that_the_dtype_has_are_exact(dtype: str) -> None:
    olds, changes = np.arange(-64.0, 64.0), np.arange(128.0)[::-1] - 64
    np.testing.assert_array_equal(stepped(olds, changes, dtype), olds + changes)


@pytest.mark.parametrize("dtype", HALF)
def test_large_numbers_overflow_as_with_rounding_to_the_nearest(dtype: str) -> None:
    """The largest number has no upper neighbour but infinity, to which only the sums are rounded that always are."""
    most = LARGEST[dtype]
    half = np.full(64, (most - neighbours(most * (1 - 2.0**-12), dtype)[0]) / 2)
    np.testing.assert_array_equal(stepped(np.full(64, most), half / 2, dtype), most)
    np.testing.assert_array_equal(stepped(np.full(64, -most), -half / 2, dtype), -most)
    np.testing.assert_array_equal(stepped(np.full(64, most), half * 2, dtype), np.inf)
    below = stepped(np.full(64, most), -half, dtype)
    assert set(np.unique(below)) == {most - 2 * half[0], most}


@pytest.mark.parametrize("dtype", HALF)
def test_nan_and_infinity_stay(dtype: str) -> None:
    found = stepped([np.nan, np.inf, -np.inf, 1.0, 1.0, -0.0], [0.0, 1.0, 1.0, np.nan, -np.inf, 0.0], dtype)
    np.testing.assert_array_equal(found, [np.nan, np.inf, -np.inf, np.nan, -np.inf, 0.0])


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("rule", sorted(RULES))
def test_deltas_are_what_was_added_and_previews_tell_them(rule: str, dtype: str) -> None:
    """A delta is the difference rounded to the dtype: before + delta is the new weight within one unit in the last place."""
    opt = made(rule, dtype, clip_norm=3.0)
    for g in gradients(opt, 3):
        before = [exact(p) for p in opt.parameters]
        previewed = opt.preview(g)
        same(opt.parameters, before)
        deltas = opt.step(g, return_delta=True)
        same(previewed, deltas)
        for old, delta, p in zip(before, deltas, opt.parameters):
            new = exact(p)
            same([pb.tensor(new - old, dtype=dtype)], [delta])
            scale = np.maximum(np.maximum(abs(old), abs(new)), abs(new - old))
            assert np.all(abs(old + exact(delta) - new) <= scale * 2.0 ** (1 - DIGITS[dtype]))


@pytest.mark.parametrize("rule", ["sgd", "adamw", "lamb"])
def test_members_are_rounded_as_networks_alone(rule: str) -> None:
    rng, (kind, hyper) = np.random.default_rng(5), RULES[rule]
    weights = [rng.standard_normal((3, *shape)) for shape in SHAPES]
    rates = [0.01, 0.02, 0.03]
    options = {**hyper, "stochastic_rounding": True}
    together = kind([pb.Parameter(w, dtype="bfloat16") for w in weights], **{**options, "lr": rates})
    alone = [kind([pb.Parameter(w[m], dtype="bfloat16") for w in weights], **{**options, "lr": rates[m]}) for m in range(3)]
    for _ in range(3):
        grads = [rng.standard_normal(w.shape) for w in weights]
        together.step([pb.tensor(g, dtype="bfloat16") for g in grads])
        for m, opt in enumerate(alone):
            opt.step([pb.tensor(g[m], dtype="bfloat16") for g in grads])
    for i, p in enumerate(together.parameters):
        np.testing.assert_array_equal(exact(p), np.stack([exact(opt.parameters[i]) for opt in alone]))


def test_parameters_and_steps_have_different_bits() -> None:
    n = 4000
    opt = optim.SGD([pb.Parameter(np.ones(n), dtype="bfloat16") for _ in range(2)], 2.0**-8, stochastic_rounding=True)
    drawn = []
    for _ in range(2):
        deltas = opt.step([pb.tensor(-np.ones(n), dtype="bfloat16")] * 2, return_delta=True)
        drawn += [exact(delta) > 0 for delta in deltas or ()]
        for p in opt.parameters:
            p.assign(np.ones(n))
    for k, x in enumerate(drawn):
        assert abs(x.mean() - 0.5) < 4 * 0.5 / np.sqrt(n)
        for y in drawn[:k]:
            assert abs((x == y).mean() - 0.5) < 4 * 0.5 / np.sqrt(n)


def test_other_random_numbers_do_not_change_it_nor_it_them() -> None:
    first, second = made("adamw", "bfloat16"), made("adamw", "bfloat16")
    for k, g in enumerate(gradients(first, 3)):
        pb.random.seed(k)
        first.step(g)
        drawn = pb.random.uniform(4)
        pb.random.seed(k)
        same([drawn], [pb.random.uniform(4)])
        second.step(g)
    same(first.parameters, second.parameters)


@pytest.mark.parametrize("rule", ["adamw", "sgd-momentum"])
def test_states_and_copies_go_on_bit_for_bit(rule: str) -> None:
    opt = made(rule, "bfloat16", ema=0.9)
    first, *rest = gradients(opt, 4)
    opt.step([None if i == 1 else g for i, g in enumerate(first)])
    twins = [copy.deepcopy(opt), pickle.loads(pickle.dumps(opt)), made(rule, "bfloat16", ema=0.9)]
    for p, q in zip(twins[-1].parameters, opt.parameters):
        p.assign(q)
    twins[-1].load_state_dict(opt.state_dict())
    for g in rest:
        for x in (opt, *twins):
            x.step(g)
    for twin in twins:
        same(twin.parameters, opt.parameters)
        same([twin.averaged(p) for p in twin.parameters], [opt.averaged(p) for p in opt.parameters])


def test_averages_are_of_the_rounded_weights() -> None:
    opt = optim.SGD([pb.Parameter(np.ones(500), dtype="bfloat16")], 2.0**-9, ema=0.75, stochastic_rounding=True)
    (p,) = opt.parameters
    mean = None
    for _ in range(4):
        opt.step([pb.ones(500, dtype="bfloat16")])
        mean = exact(p) if mean is None else 0.75 * mean + 0.25 * exact(p)
    np.testing.assert_allclose(exact(opt.averaged(p)), mean, rtol=1e-6)


def test_bounds_and_masks_hold_after_the_rounding() -> None:
    p = pb.Parameter(np.full((40, 25), 0.3), dtype="bfloat16", constraint=optim.constraints.Box(0.1, 0.3))
    q = pb.Parameter(np.ones((40, 25)), dtype="bfloat16")
    opt = optim.SGD([p, q], 2.0**-8, stochastic_rounding=True)
    optim.Pruning(opt, 0.5, params=[q])
    least, most = exact(pb.tensor([0.1, 0.3], dtype="bfloat16"))
    rng = np.random.default_rng(6)
    for _ in range(20):
        opt.step([pb.tensor(rng.standard_normal(x.shape), dtype="bfloat16") for x in (p, q)])
        assert exact(p).min() >= least
        assert exact(p).max() == most
        assert (exact(q) == 0).sum() == 500


def test_parameters_that_are_updated_in_the_backward_pass_have_the_same_bits() -> None:
    def trained(gate: Any) -> list[Any]:
        opt = made("adamw", "bfloat16")
        for _ in range(3):
            opt.minimize(lambda: sum([(p * p * 0.5 + p).sum() for p in opt.parameters], pb.zeros((), dtype="bfloat16")), gate=gate)
        return [exact(p) for p in opt.parameters]

    same(trained("op"), trained("graph"))


@needs_kernels
@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_captured_step_has_the_same_bits(rule: str) -> None:
    eager, captured = [made(rule, "bfloat16", ema=0.9, clip_norm=2.0) for _ in range(2)]
    step = pb.capture(lambda g: captured.step(g, return_delta=True))
    for g in gradients(eager, 4):
        same(eager.step(g, return_delta=True), step(g))
    same(eager.parameters, captured.parameters)
    same([eager.averaged(p) for p in eager.parameters], [captured.averaged(p) for p in captured.parameters])


@needs_kernels
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("members", [1, 3])
def test_kernels_draw_the_bits_of_the_reference(dtype: str, members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGD without momentum computes one product, which is the same in NumPy. Several threads share the largest parameter."""
    rng = np.random.default_rng(7)
    shapes = [(members, *shape) for shape in ((41, 53), (1000,), (13,), (2, 2, 1024), (100_003,))]
    values = [rng.standard_normal(shape) for shape in shapes]
    lr = [2.0**-6, 2.0**-7, 2.0**-8][:members] if members > 1 else 2.0**-7

    def run() -> list[Any]:
        opt = optim.SGD([pb.Parameter(x, dtype=dtype) for x in values], lr, stochastic_rounding=True)
        drawn = np.random.default_rng(8)
        for k in range(3):
            grads = [pb.tensor(drawn.standard_normal(shape), dtype=dtype) for shape in shapes]
            opt.step([None if k == i else g for i, g in enumerate(grads)])
        return [exact(p) for p in opt.parameters]

    found = run()
    monkeypatch.setattr(optim.SGD, "kernel", "")
    same(found, run())


COMPOSED = {
    "muon": lambda params, **options: optim.Muon(params, lr=2.0**-9, **options),
    "adafactor": lambda params, **options: optim.Adafactor(params, lr=2.0**-9, **options),
    "formula": lambda params, **options: optim.rule(lr=2.0**-9)(lambda p, g, h: -h.lr * g)(params, **options),
}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("rule", sorted(COMPOSED))
def test_rules_of_several_launches_round_at_random(rule: str, dtype: str) -> None:
    """Each weight is a neighbour of the sum that the same rule computes for float32 weights, and their mean is that of the sums."""
    rng = np.random.default_rng(9)
    shapes = [(60, 50), (2000,), (30, 70)]
    starts = [exact(pb.tensor(rng.standard_normal(shape), dtype=dtype)) for shape in shapes]
    grads = [exact(pb.tensor(rng.standard_normal(shape), dtype=dtype)) for shape in shapes]
    opt = COMPOSED[rule]([pb.Parameter(x, dtype=dtype) for x in starts], stochastic_rounding=True)
    wide = COMPOSED[rule]([pb.Parameter(x, dtype="float32") for x in starts])
    previewed = opt.preview([pb.tensor(g, dtype=dtype) for g in grads])
    deltas = opt.step([pb.tensor(g, dtype=dtype) for g in grads], return_delta=True)
    same(previewed, deltas)
    wide.step([pb.tensor(g, dtype="float32") for g in grads])
    for p, q in zip(opt.parameters, wide.parameters):
        (low, high), found = neighbours(exact(q), dtype), exact(p)
        away = np.maximum(low - found, found - high) / np.abs(found)
        assert away.max() <= 2.0**-22, "a sum next to a neighbour may be rounded differently in float32"
        units = np.where(high > low, high - low, 1.0)
        shares = (exact(q) - low) / units
        assert abs(((found - exact(q)) / units).sum()) < 4 * np.sqrt((shares * (1 - shares)).sum()) + 0.1


@needs_kernels
@pytest.mark.parametrize("rule", sorted(COMPOSED))
def test_captures_states_and_members_of_rules_of_several_launches(rule: str) -> None:
    rng = np.random.default_rng(10)
    starts = [rng.standard_normal((2, *shape)) for shape in ((6, 5), (7,), (4, 3))]
    grads = [[rng.standard_normal(x.shape) for x in starts] for _ in range(3)]
    rates = [2.0**-8, 2.0**-7]

    def opt_of(m: int | None = None) -> Any:
        part = slice(None) if m is None else m
        params = [pb.Parameter(x[part], dtype="bfloat16", name=f"p{i}") for i, x in enumerate(starts)]
        return COMPOSED[rule](params, stochastic_rounding=True, groups={"*": {"lr": rates if m is None else rates[m]}})

    def given(k: int, m: int | None = None) -> list[pb.Tensor]:
        return [pb.tensor(x if m is None else x[m], dtype="bfloat16") for x in grads[k]]

    eager, captured, resumed, alone = opt_of(), opt_of(), opt_of(), [opt_of(m) for m in range(2)]
    step = pb.capture(lambda g: captured.step(g))
    for k in range(3):
        eager.step(given(k))
        step(given(k))
        for m, opt in enumerate(alone):
            opt.step(given(k, m))
        if k < 2:
            for p, q in zip(resumed.parameters, eager.parameters):
                p.assign(q)
            resumed.load_state_dict(eager.state_dict())
    resumed.step(given(2))
    same(eager.parameters, captured.parameters)
    same(eager.parameters, resumed.parameters)
    same(eager.parameters, [np.stack([exact(opt.parameters[i]) for opt in alone]) for i in range(3)])


def test_masters_and_random_rounding_exclude_each_other_and_float32_weights_need_neither() -> None:
    p = pb.Parameter(np.ones(3), dtype="bfloat16")
    with pytest.raises(pb.PullbackError, match="master_weights and stochastic_rounding are two ways"):
        optim.AdamW([p], master_weights=True, stochastic_rounding=True)
    with pytest.raises(pb.DTypeError, match="stochastic_rounding"):
        optim.AdamW([p], stochastic_rounding=1)  # type: ignore[arg-type]
    with pytest.raises(pb.PullbackError, match="stochastic_rounding"):
        optim.Muon([pb.Parameter(np.ones((3, 3)))], auxiliary_options={"stochastic_rounding": True})
    opts = [optim.AdamW([pb.Parameter(np.ones(5), dtype=dtype) for dtype in ("float32", "float64")], **options)
            for options in ({}, {"stochastic_rounding": True})]
    for opt in opts:
        opt.step([pb.full(5, 0.3, dtype=dtype) for dtype in ("float32", "float64")])
    same(opts[0].parameters, opts[1].parameters)
