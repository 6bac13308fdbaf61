"""LAMB and the schedule-free rules against their papers, in float64 formulas that are written anew here."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import nn, optim

SHAPES = ((40, 30), (7,), (), (3, 700, 2))
SCHEDULE_FREE: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (optim.ScheduleFreeSGD, {"lr": 0.1, "weight_decay": 0.02}),
    "sgd-warm": (optim.ScheduleFreeSGD, {"lr": 0.1, "momentum": 0.7, "warmup_steps": 20, "r": 1.0, "weight_lr_power": 1.0}),
    "adamw": (optim.ScheduleFreeAdamW, {"lr": 0.01, "betas": (0.9, 0.999), "weight_decay": 0.1}),
    "adamw-warm": (optim.ScheduleFreeAdamW, {"lr": 0.01, "betas": (0.95, 0.99), "eps": 1e-6, "warmup_steps": 30, "r": 0.5}),
}


def start(dtype: str) -> list[Any]:
    rng = np.random.default_rng(1)
    return [rng.uniform(-0.11, 0.11, shape).astype(dtype) for shape in SHAPES]


def gradients(dtype: str, count: int = 100) -> list[list[Any]]:
    rng = np.random.default_rng(2)
    return [[rng.standard_normal(shape).astype(dtype) for shape in SHAPES] for _ in range(count)]


def trained(opt: Any, grads: list[list[Any]], fused: bool = True) -> Any:
    if not fused:
        opt._native = None
    for g in grads:
        opt.step([pb.tensor(x) for x in g])
    return opt


def lamb(p: Any, grads: list[Any], lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> Any:
    m = v = np.zeros_like(p)
    for t, g in enumerate(grads, 1):
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
        direction = m / (1 - betas[0] ** t) / (np.sqrt(v / (1 - betas[1] ** t)) + eps) + weight_decay * p
        norms = np.sqrt((p**2).sum()), np.sqrt((direction**2).sum())
        p = p - lr * (norms[0] / norms[1] if min(norms) > 0 else 1.0) * direction
    return p


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
def test_lamb_is_the_papers_update(dtype: str, tolerance: float, fused: bool) -> None:
    hyper: Any = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1}
    first, grads = start(dtype), gradients(dtype)
    opt = trained(optim.LAMB([pb.Parameter(p) for p in first], **hyper), grads, fused)
    for i, p in enumerate(opt.parameters):
        wanted = lamb(first[i].astype(np.float64), [g[i].astype(np.float64) for g in grads], **hyper)
        np.testing.assert_allclose(host(p), wanted, rtol=0, atol=tolerance)


def test_lamb_of_weights_or_directions_that_are_0_steps_by_the_rate() -> None:
    p, q = pb.Parameter(np.zeros(4)), pb.Parameter(np.ones(4))
    opt = optim.LAMB([p, q], lr=0.1, eps=0.0)
    opt.step([pb.ones(4, dtype="float64"), pb.ones(4, dtype="float64")])
    np.testing.assert_allclose(host(p), -0.1)
    np.testing.assert_allclose(host(q), 0.9)
    opt = optim.LAMB([pb.Parameter(np.ones(4))], lr=0.1)
    opt.step([pb.zeros(4, dtype="float64")])
    np.testing.assert_array_equal(host(opt.parameters[0]), 1.0)


def test_a_preview_of_lamb_changes_no_ratio() -> None:
    one, other = [optim.LAMB([pb.Parameter(p) for p in start("float32")], lr=0.1) for _ in range(2)]
    for g in gradients("float32", 3):
        given = [pb.tensor(x) for x in g]
        previewed = one.preview([2 * x for x in given])
        assert not np.array_equal(host(previewed[0]), host(other.preview(given)[0]))
        one.step(given)
        other.step(given)
    for p, q in zip(one.parameters, other.parameters):
        np.testing.assert_array_equal(host(p), host(q))


def test_lamb_of_half_precision_and_missing_gradients() -> None:
    """A ratio is that of one parameter, so a parameter without a gradient changes none."""
    values = np.random.default_rng(0).standard_normal((2, 50))
    for dtype in ("float16", "bfloat16"):
        p, q = [pb.Parameter(x, dtype=dtype) for x in values]
        wide = optim.LAMB([pb.Parameter(host(p).astype(np.float32))], lr=0.1)
        opt = optim.LAMB([p, q], lr=0.1)
        g = pb.tensor(values[1], dtype=dtype)
        delta = opt.step([g, None], return_delta=True)
        wanted = wide.step([g.astype("float32")], return_delta=True)
        np.testing.assert_array_equal(host(delta[0]), host(wanted[0].astype(dtype)))
        np.testing.assert_array_equal(host(q), host(pb.tensor(values[1], dtype=dtype)))


def schedule_free(
    p: Any, grads: list[Any], lr: float, momentum: float = 0.9, betas: tuple[float, float] | None = None, eps: float = 1e-8,
    weight_decay: float = 0.0, warmup_steps: int = 0, r: float = 0.0, weight_lr_power: float = 2.0,
) -> tuple[Any, Any]:
    """Returns y and x after the steps, in the three sequences of Defazio et al. 2024, Algorithm 1."""
    x = y = z = p
    v, total, most = np.zeros_like(p), 0.0, 0.0
    beta = betas[0] if betas else momentum
    for t, g in enumerate(grads, 1):
        rate = lr * min(1.0, t / warmup_steps if warmup_steps else 1.0)
        if betas:
            v = betas[1] * v + (1 - betas[1]) * g**2
            g, rate = g / (np.sqrt(v) + eps), rate * math.sqrt(1 - betas[1] ** t)
        z = z - rate * (g + weight_decay * y)
        most = max(most, rate)
        weight = t**r * most**weight_lr_power
        total += weight
        x = (1 - weight / total) * x + weight / total * z
        y = (1 - beta) * z + beta * x
    return y, x


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 4e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("rule", SCHEDULE_FREE)
def test_schedule_free_rules_are_the_papers(rule: str, dtype: str, tolerance: float, fused: bool) -> None:
    """The kernels do not keep x: y and z give it, with the rounding error of y times 1 / beta."""
    kind, hyper = SCHEDULE_FREE[rule]
    first, grads = start(dtype), gradients(dtype)
    opt = trained(kind([pb.Parameter(p) for p in first], **hyper), grads, fused)
    wanted = [schedule_free(p.astype(np.float64), [g[i].astype(np.float64) for g in grads], **hyper) for i, p in enumerate(first)]
    for p, (y, _) in zip(opt.parameters, wanted):
        np.testing.assert_allclose(host(p), y, rtol=0, atol=tolerance)
    opt.eval()
    for p, (_, x) in zip(opt.parameters, wanted):
        np.testing.assert_allclose(host(p), x, rtol=0, atol=tolerance)


@pytest.mark.parametrize("rule", SCHEDULE_FREE)
def test_train_restores_the_weights_bit_for_bit(rule: str) -> None:
    kind, hyper = SCHEDULE_FREE[rule]
    opt, twin = [kind([pb.Parameter(p) for p in start("float32")], **hyper) for _ in range(2)]
    for g in gradients("float32", 5):
        opt.eval()
        opt.eval()
        assert opt.evaluating
        opt.train()
        trained(opt, [g])
        trained(twin, [g])
    for p, q in zip(opt.parameters, twin.parameters):
        np.testing.assert_array_equal(host(p), host(q))


def test_modes_follow_the_network_and_steps_wait_for_training() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    opt = optim.ScheduleFreeSGD(net.parameters(), lr=0.1)
    part = optim.ScheduleFreeSGD(net[0].parameters(), lr=0.1)
    x, y = pb.ones((5, 3)), pb.ones((5, 1))
    for _ in range(3):
        opt.minimize(lambda: nn.mse(net(x), y))
    before = [host(p).copy() for p in net.parameters()]
    net[0].eval()
    assert (opt.evaluating, part.evaluating) == (False, True)
    net.eval()
    assert opt.evaluating
    assert not np.array_equal(before[0], host(net.parameters()[0]))
    with pytest.raises(pb.PullbackError, match="the Parameters hold the average of the weights"):
        opt.minimize(lambda: nn.mse(net(x), y))
    with pytest.raises(pb.PullbackError, match=r"Call opt\.train\(\)"):
        opt.preview([pb.zeros_like(p) for p in opt.parameters])
    net.train()
    for p, old in zip(net.parameters(), before):
        np.testing.assert_array_equal(host(p), old)


def test_weights_that_are_loaded_in_evaluation_mode_stay() -> None:
    opt = trained(optim.ScheduleFreeSGD([pb.Parameter(p) for p in start("float64")], lr=0.1), gradients("float64", 5))
    y = [host(p).copy() for p in opt.parameters]
    opt.eval()
    x = [host(p).copy() for p in opt.parameters]
    for p, average in zip(opt.parameters, x):
        p.assign(average)
    opt.train()  # by the formula, because the weights may be others
    for p, old in zip(opt.parameters, y):
        np.testing.assert_allclose(host(p), old, rtol=0, atol=1e-14)


def test_a_state_and_a_copy_know_the_mode() -> None:
    opt = trained(optim.ScheduleFreeAdamW([pb.Parameter(p) for p in start("float64")], lr=0.1), gradients("float64", 5))
    y = [host(p).copy() for p in opt.parameters]
    opt.eval()
    twin = pickle.loads(pickle.dumps(opt))
    other = optim.ScheduleFreeAdamW([pb.Parameter(host(p)) for p in opt.parameters])
    other.load_state_dict(opt.state_dict())
    for restored in (twin, other):
        assert restored.evaluating
        restored.train()
        for p, old in zip(restored.parameters, y):
            np.testing.assert_array_equal(host(p), old)
        trained(restored, gradients("float64", 1))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("weights_last", [False, True])
def test_a_state_that_was_saved_in_evaluation_mode_is_exact(weights_last: bool, dtype: str, tmp_path: Any) -> None:
    """The weights may be loaded before the optimizer or after it. Weights that are others move by the formula."""
    rng = np.random.default_rng(0)
    net, other = nn.Linear(40, 25), nn.Linear(40, 25)
    for each in (net, other):
        each.to(dtype)
    opt, restored = [optim.ScheduleFreeAdamW(each.parameters(), lr=0.01) for each in (net, other)]
    for _ in range(10):
        opt.step([pb.tensor(rng.standard_normal(p.shape), dtype=dtype) for p in net.parameters()])
    y = [host(p).copy() for p in net.parameters()]
    net.eval()
    pb.save(tmp_path / "state", {"net": net.state_dict(), "opt": opt.state_dict()})
    saved = pb.load(tmp_path / "state")
    parts = [(other, saved["net"]), (restored, saved["opt"])]
    for part, state in parts[::-1] if weights_last else parts:
        part.load_state_dict(state)
    again = copy.deepcopy(restored)
    for each in (again, restored, opt):
        each.train()
        for p, old in zip(each.parameters, y):
            np.testing.assert_array_equal(host(p), old)
    restored.load_state_dict(saved["opt"])
    for p in other.parameters():
        p.assign(2 * p)
    restored.train()
    assert not np.array_equal(host(other.weight), y[0])


@pytest.mark.parametrize(("change", "words"), [
    (lambda e: 3, "the evaluation is a int"),
    (lambda e: {**e, "q": e["parameter0"]}, "the evaluation has entries for"),
    (lambda e: {**e, "parameter0": {"y": e["parameter0"]["y"]}}, 'the evaluation of "parameter0" has entries for'),
    (lambda e: {**e, "parameter0": {**e["parameter0"], "y": pb.ones(3)}}, 'the evaluation of "parameter0" has shape'),
])
def test_a_damaged_evaluation_changes_nothing(change: Any, words: str) -> None:
    opt = trained(optim.ScheduleFreeSGD([pb.Parameter(p) for p in start("float64")], lr=0.1), gradients("float64", 2))
    opt.eval()
    state = opt.state_dict()
    opt.train()
    before = pb.hash(opt.state_dict())
    with pytest.raises(pb.PullbackError, match=words):
        opt.load_state_dict({**state, "evaluation": change(state["evaluation"])})
    assert pb.hash(opt.state_dict()) == before


@needs_kernels
def test_a_replay_in_evaluation_mode_is_refused() -> None:
    opt = optim.ScheduleFreeSGD([pb.Parameter(np.ones(2))], lr=0.1)
    step = pb.capture(lambda g: opt.step([g]))
    g = pb.ones(2, dtype="float64")
    for _ in range(3):
        step(g)
    y = host(opt.parameters[0]).copy()
    opt.eval()
    with pytest.raises(pb.PullbackError, match="the Parameters hold the average of the weights"):
        step(g)
    opt.train()
    np.testing.assert_array_equal(host(opt.parameters[0]), y)
    step(g)
    assert opt.steps == 4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", [optim.ScheduleFreeSGD, optim.ScheduleFreeAdamW])
def test_copies_in_evaluation_mode_train_on_from_their_masters(kind: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    opt = kind([pb.Parameter(rng.standard_normal(50), dtype=dtype)], lr=0.1, master_weights=True)
    for _ in range(4):
        opt.step([pb.tensor(rng.standard_normal(50), dtype=dtype)])
    y = host(opt.parameters[0]).copy()
    opt.eval()
    twin = pickle.loads(pickle.dumps(opt))
    other = kind([pb.Parameter(opt.parameters[0])], master_weights=True)
    other.load_state_dict(opt.state_dict())
    for restored in (opt, twin, other):
        restored.train()
        np.testing.assert_array_equal(host(restored.parameters[0]), y)


def test_a_schedule_free_rule_needs_momentum() -> None:
    p = [pb.Parameter(np.ones(2))]
    with pytest.raises(pb.PullbackError, match=r"momentum=0.*the average needs a momentum above 0"):
        optim.ScheduleFreeSGD(p, momentum=0)
    with pytest.raises(pb.PullbackError, match=r"betas=.*the average needs a momentum above 0"):
        optim.ScheduleFreeAdamW(p).betas = (0.0, 0.9)


def test_members_differ_in_mode_shares() -> None:
    rng = np.random.default_rng(5)
    weights, grads = rng.standard_normal((3, 4)), rng.standard_normal((6, 3, 4))
    together = optim.ScheduleFreeSGD([pb.Parameter(weights)], lr=0.1, momentum=[0.9, 0.5, 0.1])
    alone = [optim.ScheduleFreeSGD([pb.Parameter(x)], lr=0.1, momentum=m) for x, m in zip(weights, (0.9, 0.5, 0.1))]
    for g in grads:
        together.step([pb.tensor(g)])
        for opt, part in zip(alone, g):
            opt.step([pb.tensor(part)])
    for opt in (together, *alone):
        opt.eval()
    np.testing.assert_array_equal(host(together.parameters[0]), np.stack([host(opt.parameters[0]) for opt in alone]))


@needs_kernels
@pytest.mark.parametrize("kind", [optim.LAMB, optim.ScheduleFreeSGD, optim.ScheduleFreeAdamW])
def test_a_captured_step_is_the_eager_one(kind: Any) -> None:
    eager, captured = [kind([pb.Parameter(p) for p in start("float32")], lr=0.1, clip_norm=1.0) for _ in range(2)]
    step = pb.capture(lambda *g: captured.step(g))
    for g in gradients("float32", 4):
        eager.step([pb.tensor(x) for x in g])
        step(*[pb.tensor(x) for x in g])
    for p, q in zip(eager.parameters, captured.parameters):
        np.testing.assert_array_equal(host(p), host(q))
