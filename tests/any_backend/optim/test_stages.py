"""Stages of other kinds than those of the library: one that changes gradients, one that changes weights, one that keeps arrays."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import amp, optim
from pullback.ops.elementwise import abs, equal, less_equal, maximum, remainder, sign, where
from pullback.ops.reduce import mean
from pullback.optim import constraints, groups, sets as c
from pullback.optim.stages.stage import Setting, Stage, Step
from refused import refusal

SHAPES = ((4, 3), (3,), (2, 3, 2))
STEPS = 7
RATE = 0.1


class Centralization(Stage):
    """Gradients of matrices get the mean 0 along all axes but the first (Yong et al. 2020)."""

    name = "centred_rows"

    def checked(self, rule: str, given: Any) -> Any:
        return given

    def before(self, step: Step) -> None:
        first = 1 + step.memory.lead
        step.grads, step.normed = [g if g is None or g.ndim <= first else _centred(g, first) for g in step.grads], False


def _centred(g: Any, first: int) -> Any:
    return (pb.Tensor(g) - mean(pb.Tensor(g), axis=tuple(range(first, g.ndim)), keepdims=True)).array


class Shrinking(Stage):
    """A decoupled L1 penalty: weights move towards 0 by the learning rate times this."""

    name = "shrinking"

    def checked(self, rule: str, given: Any) -> Any:
        return None if given is None else groups.checked(rule, self.name, given, 1)

    def after(self, i: int, value: Any, end: Any) -> Any:
        return sign(value) * maximum(abs(value) - end.number(i, c.RATE) * self.value, 0.0)


class Lookahead(Stage):
    """Every few steps the weights become the mean of themselves and of slow weights, which follow (Zhang et al. 2019)."""

    name = "looking_ahead"
    slots = ("slow",)

    def checked(self, rule: str, given: Any) -> Any:
        return given

    def after(self, i: int, value: Any, end: Any) -> Any:
        step = end.number(i, c.STEP)
        slow = where(less_equal(step, 1.0), end.before(i), end.slot("slow", i))
        now = equal(remainder(step, float(self.value)), 0.0)
        slow = where(now, slow + 0.5 * (value - slow), slow)
        end.write_slot("slow", i, slow)
        return where(now, slow, value)


KINDS: tuple[Any, ...] = (Centralization, Shrinking, Lookahead)


def with_stages(rule: Any) -> Any:
    """Returns a rule that has the three stages as options."""

    class Rule(rule):
        centred_rows = Setting[Any](Centralization)
        shrinking = Setting[Any](Shrinking)
        looking_ahead = Setting[Any](Lookahead)

        def __init__(self, *args: Any, **options: Any) -> None:
            self._more = {kind.name: options.pop(kind.name, None) for kind in KINDS}
            super().__init__(*args, **options)

        def _new_stages(self, given: Mapping[str, Any]) -> list[Stage]:
            more = [kind(rule.__name__, self._more[kind.name]) for kind in KINDS]
            return [more[0], *super()._new_stages(given), *more[1:]]

    Rule.__name__ = Rule.__qualname__ = rule.__name__
    return Rule


@optim.rule(slots=("m",), lr=RATE, beta=0.9)
def Heavy(p: Any, g: Any, m: Any, h: Any) -> Any:
    m = h.beta * m + g
    return -h.lr * m, m


# Rules with a kernel, by formula, and composed.
RULES: dict[str, Any] = {"sgd": optim.SGD, "adam": optim.Adam, "formula": Heavy, "adafactor": optim.Adafactor}


def weights(k: int = 0, lead: tuple[int, ...] = ()) -> list[Any]:
    rng = np.random.default_rng(k)
    return [rng.standard_normal((*lead, *shape)) for shape in SHAPES]


def trained(rule: Any, steps: int = STEPS, dtype: str = "float64", captured: bool = False, **options: Any) -> tuple[Any, list[Any]]:
    """Returns an optimizer after some steps, and the weights."""
    params = [pb.Parameter(p, dtype=dtype) for p in weights()]
    opt = with_stages(rule)(params, lr=RATE, **options)
    step: Callable[..., Any] = pb.capture(lambda gs: opt.step(gs)) if captured else opt.step
    for k in range(steps):
        step([pb.tensor(g, dtype=dtype) for g in weights(k + 1)])
    return opt, [host(p) for p in params]


def wanted(change: Callable[..., Any]) -> list[Any]:
    """Returns the weights after steps of SGD, where change(w, g, state, k) does one step of a weight."""
    found = weights()
    states: list[dict[str, Any]] = [{} for _ in found]
    for k in range(STEPS):
        found = [change(w, g, state, k) for w, g, state in zip(found, weights(k + 1), states)]
    return found


def centred_step(w: Any, g: Any, state: Any, k: int) -> Any:
    axes = tuple(range(1, g.ndim))
    return w - RATE * (g - g.mean(axes, keepdims=True) if axes else g)


def shrunk_step(w: Any, g: Any, state: Any, k: int) -> Any:
    w = w - RATE * g
    return np.sign(w) * np.maximum(np.abs(w) - RATE * 0.3, 0)


def looking_step(w: Any, g: Any, state: Any, k: int) -> Any:
    slow, w = state.setdefault("slow", w), w - RATE * g
    if (k + 1) % 3 == 0:
        state["slow"] = w = slow + 0.5 * (w - slow)
    return w


ALONE: dict[str, tuple[dict[str, Any], Callable[..., Any]]] = {
    "centred_rows": ({"centred_rows": True}, centred_step),
    "shrinking": ({"shrinking": 0.3}, shrunk_step),
    "looking_ahead": ({"looking_ahead": 3}, looking_step),
}
STAGES: dict[str, Any] = {"centred_rows": True, "shrinking": 0.3, "looking_ahead": 2}
ALL: dict[str, Any] = {**STAGES, "clip_norm": 1.0, "clip_adaptive": 0.5, "ema": 0.9}


@pytest.mark.parametrize("name", ALONE)
def test_a_stage_is_its_formula(name: str) -> None:
    options, change = ALONE[name]
    for found, expected in zip(trained(optim.SGD, **options)[1], wanted(change)):
        np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)


@needs_kernels
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("rule", RULES)
def test_captured_steps_have_the_bits_of_eager_ones(rule: str, dtype: str) -> None:
    eager, captured = [trained(RULES[rule], dtype=dtype, captured=each, **ALL)[1] for each in (False, True)]
    for a, b in zip(eager, captured):
        np.testing.assert_array_equal(a, b)


@needs_kernels
def test_a_captured_step_follows_a_value_that_changes() -> None:
    found = []
    for captured in (False, True):
        opt = with_stages(optim.SGD)([pb.Parameter(p) for p in weights()], lr=RATE, shrinking=0.3)
        step: Callable[..., Any] = pb.capture(lambda gs, opt=opt: opt.step(gs)) if captured else opt.step
        for k in range(STEPS):
            opt.shrinking = 0.3 if k < STEPS // 2 else None
            step([pb.tensor(g) for g in weights(k + 1)])
        found.append([host(p) for p in opt.parameters])
    for a, b in zip(*found):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("rule", RULES)
def test_a_preview_says_what_a_step_adds_and_changes_nothing(rule: str, dtype: str) -> None:
    opt, _ = trained(RULES[rule], 3, dtype, **ALL, master_weights=True)
    grads = [pb.tensor(g, dtype=dtype) for g in weights(9)]
    state, masters = opt.state_dict(), [opt.slots(p).get("master", p) for p in opt.parameters]
    previews = opt.preview(grads)
    for p, kept in zip(opt.parameters, state["slots"].values()):
        for name, slot in opt.slots(p).items():
            np.testing.assert_array_equal(host(slot), host(kept[name]))
    before = [host(pb.Tensor(pb.copy(p).array)) for p in masters]
    deltas = opt.step(grads, return_delta=True)
    for p, start, preview, delta in zip(opt.parameters, before, previews, deltas):
        np.testing.assert_array_equal(host(preview), host(delta))
        np.testing.assert_allclose(start + host(delta), host(opt.slots(p).get("master", p)), rtol=1e-6, atol=1e-7)


def test_states_and_copies_have_what_a_stage_keeps() -> None:
    opt, _ = trained(optim.Adam, 3, **ALL)
    state = opt.state_dict()
    assert {name: state[name] for name in STAGES} == STAGES
    assert "slow" in opt.slots(opt.parameters[0])
    other = with_stages(optim.Adam)([pb.Parameter(p) for p in opt.parameters], lr=0.5, looking_ahead=5, ema=0.5)
    other.load_state_dict(state)
    runs = [opt, other, copy.deepcopy(opt)]
    for k in range(3):
        for run in runs:
            run.step([pb.tensor(g) for g in weights(k + 20)])
    for run in runs[1:]:
        for p, q in zip(opt.parameters, run.parameters):
            np.testing.assert_array_equal(host(p), host(q))
    stage = pickle.loads(pickle.dumps(opt._stages["looking_ahead"]))
    assert (stage.value, stage.acts) == (2, True)


def test_members_are_trained_as_alone() -> None:
    start, rates = weights(0, (2,)), [0.1, 0.02]
    together = with_stages(optim.SGD)([pb.Parameter(p) for p in start], lr=rates, **ALL)
    alone = [with_stages(optim.SGD)([pb.Parameter(p[m]) for p in start], lr=rates[m], **ALL) for m in range(2)]
    for k in range(STEPS):
        grads = weights(k + 1, (2,))
        together.step([pb.tensor(g) for g in grads])
        for m, opt in enumerate(alone):
            opt.step([pb.tensor(g[m]) for g in grads])
    for i, p in enumerate(together.parameters):
        for m, opt in enumerate(alone):
            np.testing.assert_array_equal(host(p)[m], host(opt.parameters[i]))


def test_updates_in_the_backward_pass_do_the_same() -> None:
    options = {name: value for name, value in ALL.items() if name != "clip_norm"}
    found = []
    for gate in ("graph", "op"):
        a, b = pb.Parameter(weights()[0]), pb.Parameter(weights()[1])
        opt = with_stages(optim.Adam)([a, b], lr=RATE, **options)
        for _ in range(STEPS):
            opt.minimize(lambda a=a, b=b: pb.sum(pb.tanh(a * b) ** 2), gate=gate)
        found.append((host(a), host(b)))
    for x, y in zip(*found):
        np.testing.assert_array_equal(x, y)


def test_a_step_that_a_loss_scaler_leaves_out_changes_no_slot_of_a_stage() -> None:
    opt, before = trained(optim.Adam, 3, "float32", **ALL)
    slow = [host(opt.slots(p)["slow"]) for p in opt.parameters]
    scaler = amp.LossScaler(4.0)
    scaler.step(opt, [pb.tensor(np.full(p.shape, np.inf), dtype="float32") for p in before])
    for p, w, s in zip(opt.parameters, before, slow):
        np.testing.assert_array_equal(host(p), w)
        np.testing.assert_array_equal(host(opt.slots(p)["slow"]), s)


def test_bounds_hold_after_a_stage() -> None:
    p = pb.Parameter(np.array([0.2, 1.9]), constraint=constraints.Box(0.1, 2.0))
    opt = with_stages(optim.SGD)([p], lr=1.0, shrinking=5.0)
    opt.step([pb.tensor(np.array([0.0, 0.0]))])
    np.testing.assert_array_equal(host(p), [0.1, 0.1])


def test_a_stage_that_keeps_arrays_is_not_turned_on_or_off_later() -> None:
    plain = with_stages(optim.SGD)([pb.Parameter([1.0])], lr=RATE)
    looking = with_stages(optim.SGD)([pb.Parameter([1.0])], lr=RATE, looking_ahead=2)
    plain.looking_ahead, looking.looking_ahead = None, 3
    words = "looking_ahead={}: an optimizer keeps slow for it from its first step on, so it cannot be turned {} later."
    assert refusal(lambda: setattr(plain, "looking_ahead", 3)).startswith(words.format(3, "on"))
    assert refusal(lambda: setattr(looking, "looking_ahead", None)).startswith(words.format(None, "off"))
    assert (plain.looking_ahead, looking.looking_ahead) == (None, 3)
    assert "looking_ahead=3" in repr(looking)


def test_a_rule_with_two_kinds_of_weights_takes_no_stage_that_changes_them() -> None:
    text = refusal(lambda: with_stages(optim.ScheduleFreeSGD)([pb.Parameter([1.0])], lr=RATE, shrinking=0.1))
    assert text.startswith("ScheduleFreeSGD: shrinking changes the weights")


@pytest.mark.parametrize("options", [{"clip_adaptive": 1e6}, {"centred_rows": True}, {}], ids=["adaptive", "centred", "plain"])
@pytest.mark.parametrize("rule", [*RULES.values(), optim.Muon], ids=[*RULES, "muon"])
def test_the_scale_of_a_loss_is_undone_after_a_stage(rule: Any, options: dict[str, Any]) -> None:
    """A stage that changes gradients makes the joint norm out of date, but not the factor of the gradients."""
    made = [with_stages(rule)([pb.Parameter(p) for p in weights()[:1]], lr=RATE, **options) for _ in range(2)]
    made[0].step([pb.tensor(g) for g in weights(5)[:1]])
    amp.LossScaler(1024.0).step(made[1], [pb.tensor(1024.0 * g) for g in weights(5)[:1]])
    np.testing.assert_allclose(host(made[1].parameters[0]), host(made[0].parameters[0]), rtol=1e-13)


def test_counts_of_steps_are_exact_for_weights_of_half_precision() -> None:
    """bfloat16 holds no odd number above 256."""
    found = []

    class Counting(Shrinking):
        def after(self, i: int, value: Any, end: Any) -> Any:
            found.append(float(end.number(i, c.STEP)))
            return value

    opt = with_stages(optim.SGD)([pb.Parameter([1.0], dtype="bfloat16")], lr=RATE, shrinking=0.1)
    opt._stages["shrinking"].__class__ = Counting
    for _ in range(259):
        opt.step([pb.tensor([0.0], dtype="bfloat16")])
    assert found[-3:] == [257.0, 258.0, 259.0]
