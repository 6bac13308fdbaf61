"""float32 masters of half precision weights, which the update changes and rounds to the weights."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import optim
from update_rules import RULES as UPDATE_RULES

SHAPES = ((40, 30), (7,), (), (0,))
HALF = ("float16", "bfloat16")


def decayed(p: Any, g: Any, m: Any, h: Any) -> Any:
    m = h.beta * m + g
    return -h.lr * (m + 0.1 * p), m


COMPOSED: dict[str, Any] = {
    "adafactor": (optim.Adafactor, {"weight_decay": 0.01}),
    "muon": (optim.Muon, {"lr": 0.02}),
    "muon in bfloat16": (optim.Muon, {"lr": 0.02, "dtype": "bfloat16"}),
    "formula": (optim.rule(slots=("m",), lr=0.01, beta=0.9)(decayed), {}),
}
RULES = {**UPDATE_RULES, **COMPOSED}


def made(rule: str, dtype: str, **options: Any) -> Any:
    rng = np.random.default_rng(3)
    kind, hyper = RULES[rule]
    params = [pb.Parameter(rng.standard_normal(shape), dtype="float16").numpy() for shape in SHAPES]
    return kind([pb.Parameter(x.astype(np.float32) * 0.5, dtype=dtype) for x in params], **hyper, **options)


def gradients(opt: Any, count: int, dtype: str) -> list[list[pb.Tensor]]:
    rng = np.random.default_rng(4)
    return [[pb.tensor(rng.standard_normal(p.shape), dtype=dtype) for p in opt.parameters] for _ in range(count)]


def same(found: Any, wanted: Any) -> None:
    for x, y in zip(found, wanted):
        np.testing.assert_array_equal(np.asarray(host(x)).astype(np.float64), np.asarray(host(y)).astype(np.float64))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("rule", sorted(RULES))
def test_masters_are_trained_like_float32_weights(rule: str, dtype: str) -> None:
    """The gradients are those of half precision in both runs, and so are the first weights."""
    opt, wide = made(rule, dtype, master_weights=True, clip_norm=3.0), made(rule, dtype)
    kind, hyper = RULES[rule]
    wide = kind([pb.Parameter(p.astype("float32")) for p in wide.parameters], **hyper, clip_norm=3.0)
    for g in gradients(opt, 5, dtype):
        deltas = opt.step(g, return_delta=True)
        same(deltas, wide.step([x.astype("float32") for x in g], return_delta=True))
        same([opt.slots(p)["master"] for p in opt.parameters], wide.parameters)
        same(opt.parameters, [p.astype(dtype) for p in wide.parameters])


@pytest.mark.parametrize("dtype", HALF)
def test_small_changes_add_up(dtype: str) -> None:
    kept, lost = [optim.SGD([pb.Parameter(np.ones(3), dtype=dtype)], lr=2.0**-14, master_weights=m) for m in (True, False)]
    for opt in (kept, lost):
        for _ in range(2**10):
            opt.step([pb.ones(3, dtype=dtype)])
    same(kept.parameters, [np.full(3, 1 - 2.0**-4)])
    same(lost.parameters, [np.ones(3)])


@pytest.mark.parametrize("rule", ["adamw", "lamb", "formula", "adafactor"])
@pytest.mark.parametrize("dtype", HALF)
def test_a_weight_that_is_assigned_replaces_its_master(rule: str, dtype: str) -> None:
    opt = made(rule, dtype, master_weights=True)
    first, second, third = gradients(opt, 3, dtype)
    opt.step(first)
    p = opt.parameters[0]
    value = p.numpy().copy()
    value[3:5] = 0.25
    p.assign(value)
    previewed = opt.preview(second)
    deltas = opt.step(second, return_delta=True)
    same(previewed, deltas)
    master = host(opt.slots(p)["master"])
    np.testing.assert_allclose(master[3:5], 0.25 + host(deltas[0])[3:5], rtol=1e-6)
    opt.step(third)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("limit", [optim.constraints.MaxNorm(0.9, None), lambda w: pb.clip(w, -0.3, 0.3)], ids=["norm", "function"])
def test_a_constraint_replaces_masters_of_the_weights_that_it_changes(limit: Any, dtype: str) -> None:
    """A preview and the change are those of the masters, and the average is one of the masters."""
    p = pb.Parameter(np.linspace(-0.4, 0.4, 9), dtype=dtype)
    opt = optim.SGD([p], lr=1e-3, master_weights=True, ema=0.0)
    opt.step([pb.ones(9, dtype=dtype)])
    p.constraint = limit
    for _ in range(3):
        before, g = host(opt.slots(p)["master"]), [pb.ones(9, dtype=dtype)]
        shown = opt.preview(g)
        deltas = opt.step(g, return_delta=True)
        same(shown, deltas)
        master = host(opt.slots(p)["master"])
        np.testing.assert_array_equal(master.astype(host(p).dtype), host(p))
        np.testing.assert_allclose(before + host(deltas[0]), master, rtol=0, atol=1e-7)
        same([opt.averaged(p)], [master])
    unchanged = np.abs(before) < 0.2
    if not isinstance(limit, optim.constraints.Constraint):
        np.testing.assert_allclose(master[unchanged], (before - np.float32(1e-3))[unchanged], rtol=0, atol=1e-7)


def test_masters_are_a_part_of_states_and_copies_and_only_for_half_precision() -> None:
    p, q = pb.Parameter(np.ones(3), dtype="bfloat16", name="p"), pb.Parameter(np.ones(3), name="q")
    opt = optim.SGD([p, q], lr=1e-3, master_weights=True)
    assert ["master" in opt.slots(x) for x in (p, q)] == [True, False]
    g = [pb.ones(3, dtype="bfloat16"), pb.ones(3, dtype=q.dtype)]
    opt.step(g)
    twin = copy.deepcopy(opt)
    other = optim.SGD([pb.Parameter(p, name="p"), pb.Parameter(q, name="q")], master_weights=True)
    other.load_state_dict(opt.state_dict())
    for x in (opt, twin, other):
        for _ in range(9):
            x.step(g)
    for x in (twin, other):
        same(x.parameters, opt.parameters)
        same([x.slots(x.parameters[0])["master"]], [opt.slots(p)["master"]])
    with pytest.raises(pb.PullbackError, match="master"):
        optim.SGD([p, q]).load_state_dict(opt.state_dict())
    with pytest.raises(pb.DTypeError, match="master_weights"):
        optim.SGD([p], master_weights=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", ["adamw", *COMPOSED])
def test_copies_and_states_of_all_rules_have_masters(rule: str) -> None:
    opt, other = [made(rule, "bfloat16", master_weights=True) for _ in range(2)]
    first, *rest = gradients(opt, 4, "bfloat16")
    opt.step(first)
    for p, q in zip(opt.parameters, other.parameters):
        q.assign(p)
    other.load_state_dict(opt.state_dict())
    copied = copy.deepcopy(opt)
    for g in rest:
        for x in (opt, other, copied):
            x.step(g)
    for x in (other, copied):
        same(x.parameters, opt.parameters)
        same([x.slots(p)["master"] for p in x.parameters], [opt.slots(p)["master"] for p in opt.parameters])


@needs_kernels
@pytest.mark.parametrize("rule", ["adamw", *COMPOSED])
def test_a_captured_step_keeps_masters(rule: str) -> None:
    eager, captured = [made(rule, "bfloat16", master_weights=True, ema=0.9) for _ in range(2)]
    step = pb.capture(lambda g: captured.step(g, return_delta=True))
    for g in gradients(eager, 4, "bfloat16"):
        same(eager.step(g, return_delta=True), step(g))
    same(eager.parameters, captured.parameters)
    same([eager.averaged(p) for p in eager.parameters], [captured.averaged(p) for p in captured.parameters])


CONSTRAINTS: dict[str, Any] = {
    "MaxNorm": optim.constraints.MaxNorm(1.5, axis=1),
    "UnitNorm": optim.constraints.UnitNorm(None),
    "Simplex": optim.constraints.Simplex(0),
    "Box": optim.constraints.Box(-0.5, 0.25),
    "function": lambda w: pb.clip(w, -0.4, 0.3) * 0.999,
}


@pytest.mark.parametrize("rule", ["sgd", "adamw"])
@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("dtype", HALF)
def test_a_constraint_applies_to_the_master(dtype: str, constraint: str, rule: str) -> None:
    """The masters are float32 weights with the constraint, and the weights are the rounded masters."""
    kind, hyper = RULES[rule]
    rng = np.random.default_rng(5)
    first = pb.Parameter(rng.standard_normal((6, 5)), dtype=dtype)
    low = pb.Parameter(first, constraint=CONSTRAINTS[constraint])
    wide = pb.Parameter(first.astype("float32"), constraint=CONSTRAINTS[constraint])
    opt, other = kind([low], **hyper, master_weights=True, ema=0.5), kind([wide], **hyper, ema=0.5)
    for step in range(6):
        g = pb.tensor(rng.standard_normal(low.shape), dtype=dtype)
        if step == 3:
            low.assign(rng.standard_normal(low.shape))
            wide.assign(low.astype("float32"))
        same(opt.preview([g]), other.preview([g.astype("float32")]))
        same(opt.step([g], return_delta=True), other.step([g.astype("float32")], return_delta=True))
        same([opt.slots(low)["master"], opt.averaged(low)], [wide, other.averaged(wide)])
        same([low], [wide.astype(dtype)])


def test_small_changes_add_up_under_a_constraint() -> None:
    """Without a projected master the weights would stay at 0.5, because each change is below half a unit in the last place."""
    constraint = optim.constraints.UnitNorm(None)
    w = pb.Parameter(np.full(4, 0.5), dtype="bfloat16", constraint=constraint)
    wide = pb.Parameter(np.full(4, 0.5, np.float32), constraint=constraint)
    opt, other = optim.SGD([w], lr=1e-4, master_weights=True), optim.SGD([wide], lr=1e-4)
    g = np.array([-1, 1, 0, 0], np.float32)
    for _ in range(2000):
        opt.step([pb.tensor(g, dtype="bfloat16")])
        other.step([g])
    same([opt.slots(w)["master"], w], [wide, wide.astype("bfloat16")])
    np.testing.assert_allclose(np.linalg.norm(host(opt.slots(w)["master"])), 1, rtol=1e-6)
    assert host(wide)[0] > 0.6
