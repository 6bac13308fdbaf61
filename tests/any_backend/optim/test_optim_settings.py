"""Hyper-parameters: groups of parameters, changes between steps, members of a stack of networks, and counts of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_optim import gradients, parameters

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import nn, optim
from pullback.launch import door
from pullback.optim import schedules
from update_rules import RULES

torch = pytest.importorskip("torch")


def twins(params: list[pb.Parameter]) -> list[Any]:
    """Returns torch's parameters with the same values."""
    return [torch.nn.Parameter(torch.from_numpy(host(p).copy())) for p in params]


def step_both(opt: Any, theirs: Any, params: Any, copies: Any, grads: list[Any]) -> None:
    """Does a step with both libraries. A missing gradient is None."""
    opt.step(grads)
    for copy, g in zip(copies, grads):
        copy.grad = None if g is None else torch.from_numpy(host(g).copy())
    theirs.step()
    for p, copy in zip(params, copies):
        np.testing.assert_allclose(host(p), copy.detach().numpy(), rtol=1e-12, atol=1e-14)


# ---- groups


def test_groups_are_those_of_torch() -> None:
    params = parameters(dtype="float64")
    copies = twins(params)
    ours = [{"params": params[:1], "weight_decay": 0.1, "betas": (0.5, 0.9)}, {"params": params[1:], "lr": 0.3, "eps": 1e-3}]
    of_torch = [{**ours[0], "params": copies[:1]}, {**ours[1], "params": copies[1:]}]
    opt, theirs = optim.AdamW(ours, lr=0.1), torch.optim.AdamW(of_torch, lr=0.1)
    for step in range(5):
        step_both(opt, theirs, params, copies, gradients(params, step))
    assert [group.name for group in opt.groups] == ["0", "1"]
    assert [group.lr for group in opt.groups] == [0.1, 0.3]
    assert opt.groups[0].betas == (0.5, 0.9)


def test_groups_by_patterns_of_names_are_separate_optimizers() -> None:
    nets = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    groups = {"*.bias": {"weight_decay": 0.0}, "2.*": {"lr_scale": 0.5}}
    opt = optim.AdamW(nets[0].parameters(), lr=schedules.Cosine(0.1, 9), weight_decay=0.1, groups=groups)
    assert [(group.name, len(group.parameters)) for group in opt.groups] == [
        ("rest", 1),
        ("*.bias", 1),
        ("*.bias and 2.*", 1),
        ("2.*", 1),
    ]
    named = dict(nets[1].named_parameters())
    apart = [
        optim.AdamW([named["0.weight"]], lr=schedules.Cosine(0.1, 9), weight_decay=0.1),
        optim.AdamW([named["0.bias"]], lr=schedules.Cosine(0.1, 9), weight_decay=0.0),
        optim.AdamW([named["2.bias"]], lr=schedules.Cosine(0.05, 9), weight_decay=0.0),
        optim.AdamW([named["2.weight"]], lr=schedules.Cosine(0.05, 9), weight_decay=0.1),
    ]
    for step in range(4):
        opt.step(gradients(nets[0].parameters(), step))
        values = dict(zip(named, gradients(nets[0].parameters(), step)))
        for other, keys in zip(apart, (["0.weight"], ["0.bias"], ["2.bias"], ["2.weight"])):
            other.step([values[key] for key in keys])
    for p, q in zip(nets[0].parameters(), nets[1].parameters()):
        np.testing.assert_array_equal(host(p), host(q))


def test_a_step_with_groups_clipping_and_a_schedule_is_two_launches() -> None:
    params = parameters()
    groups = {"p0": {"lr": 0.5}, "p1": {"weight_decay": 0.3, "clip_value": 0.1}}
    opt = optim.Adam(params, lr=schedules.Cosine(0.1, 9), clip_norm=1.0, groups=groups)
    with pb.profile() as prof:
        opt.step(gradients(params, 0))
    assert [x.kernel for x in prof.launches if x.phase == door.OPTIMIZER] == ["clip_norm", "adam_step"]


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"q*": {"lr": 1.0}}, r'groups\["q\*"\] names no parameter.*p0, p1, p2'),
        ([("p*", {})], r"give a dict of patterns of names"),
        ({3: {}}, r"give a dict of patterns of names"),
        ({"p1": {"momentum": 0.5}}, r'group "p1" has a value for momentum; a group can have lr, lr_scale, clip_value, ema, betas'),
        ({"p1": {"lr": 1.0, "lr_scale": 2.0}}, "absolute.*lr_scale, which multiplies"),
        ({"p1": {"eps": float("nan")}}, r"eps=nan; it must be a finite number of 0 or more"),
        ({"p1": {"betas": 0.9}}, r"betas=0.9; it must be a pair of numbers"),
        ({"p1": 0.1}, r'groups\["p1"\] is a float; give a dict'),
    ],
)
def test_a_wrong_group_is_refused_in_words(groups: Any, words: str) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        optim.Adam(parameters(), groups=groups)


# ---- values that change


def test_every_value_can_change_between_steps_as_in_torch() -> None:
    params = parameters(dtype="float64")
    copies = twins(params)
    opt, theirs = optim.AdamW(params, lr=0.1), torch.optim.AdamW(copies, lr=0.1)
    for step, (name, value) in enumerate([("betas", (0.5, 0.9)), ("eps", 1e-2), ("weight_decay", 0.3), ("lr", 0.7)]):
        step_both(opt, theirs, params, copies, gradients(params, step))
        setattr(opt, name, value)
        theirs.param_groups[0][name] = value
    step_both(opt, theirs, params, copies, gradients(params, 9))


def test_a_value_of_a_group_does_not_follow_the_optimizers() -> None:
    opt = optim.SGD(parameters(), lr=0.1, momentum=0.9, groups={"p1": {"momentum": 0.5}})
    opt.momentum = 0.8
    opt.groups[0].weight_decay = 0.25
    assert [group.momentum for group in opt.groups] == [0.8, 0.5]
    assert (opt.groups[0].weight_decay, opt.groups[1].weight_decay, opt.weight_decay) == (0.25, 0.0, 0.0)
    with pytest.raises(pb.PullbackError, match="nesterov of a group cannot be set"):
        opt.groups[0].nesterov = True


def test_a_value_that_does_not_fit_changes_nothing() -> None:
    p = pb.Parameter([1.0])
    plain, nesterov = optim.SGD([p], lr=0.5), optim.SGD([p], momentum=0.5, nesterov=True)
    for opt, name, value, words in [
        (plain, "momentum", 0.9, "made with momentum=0 and has no momentum buffer"),
        (plain, "weight_decay", -1, "finite number of 0 or more"),
        (plain, "clip_value", 0, "clip_value=0; it must be one positive"),
        (plain, "clip_norm", float("nan"), "clip_norm=nan; it must be one positive"),
        (nesterov, "dampening", 0.5, "nesterov=True needs"),
        (optim.Adam([p]), "betas", (0.9, 1.0), r"each number must be in \[0, 1\)"),
        (plain, "weight_decay", [0.1, 0.2], "weight_decay has 2 values, and this optimizer was made for 1 member"),
    ]:
        before = repr(opt)
        with pytest.raises(pb.PullbackError, match=words):
            setattr(opt, name, value)
        assert repr(opt) == before
    plain.step([pb.tensor([2.0])])
    assert p.tolist() == [0.0]


@needs_kernels
def test_a_captured_step_reads_new_values_without_a_new_recording() -> None:
    eager, captured = parameters(), parameters()
    opts = [optim.AdamW(params, lr=0.1, clip_norm=1.0, groups={"p1": {"lr_scale": 0.5}}) for params in (eager, captured)]
    replay = pb.capture(lambda *grads: opts[1].step(list(grads)))
    for step, change in enumerate(
        [{}, {"betas": (0.5, 0.9)}, {"weight_decay": 0.4, "lr": 0.3}, {"clip_value": 0.1}, {"clip_norm": 0.2}]
    ):
        for opt in opts:
            for name, value in change.items():
                setattr(opt, name, value)
            opt.groups[1].eps = 10.0**-step
        grads = gradients(eager, step)
        opts[0].step(grads)
        replay(*grads)
        for p, q in zip(eager, captured):
            np.testing.assert_array_equal(host(p), host(q))
    assert replay.stats().recordings == 1
    with pytest.raises(pb.CaptureError, match="setting betas"):
        pb.capture(lambda: setattr(opts[1], "betas", (0.1, 0.2)))()


# ---- counts of steps


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_a_parameter_that_missed_gradients_counts_as_in_torch(name: str) -> None:
    params = parameters(dtype="float64")
    copies = twins(params)
    options = {"momentum": 0.9, "dampening": 0.5} if name == "SGD" else {}
    opt, theirs = getattr(optim, name)(params, lr=0.1, **options), getattr(torch.optim, name)(copies, lr=0.1, **options)
    for step in range(6):
        grads: list[Any] = gradients(params, step)
        for i in range(len(params)):
            if step in ((), (0, 1), (2, 4))[i]:
                grads[i] = None
        step_both(opt, theirs, params, copies, grads)
    assert opt.steps == 6


def test_schedules_count_the_steps_of_the_optimizer() -> None:
    """The second parameter has a gradient in the first and in the last step only."""
    p, q = pb.Parameter(np.ones(1)), pb.Parameter(np.ones(1))
    opt = optim.SGD([p, q], lr=schedules.Linear(1.0, steps=10, end=0.0))
    for step in range(5):
        opt.step([np.ones(1), np.ones(1) if step in (0, 4) else None])
    np.testing.assert_allclose([host(p)[0], host(q)[0]], [1 - 4.0, 1 - 1.0 - 0.6], rtol=1e-12)


# ---- what was found to go wrong


def test_a_value_shows_what_the_step_uses() -> None:
    opt = optim.SGD([pb.Parameter(np.ones((2, 1)))], lr=[0.1, 0.2], momentum=[0.9, 0.5])
    momentum: Any = opt.momentum
    with pytest.raises(ValueError, match="read-only"):
        momentum[1] = 0.1
    with pytest.raises(pb.PullbackError, match="lists, one number per member in each"):
        optim.Adam([pb.Parameter(np.ones((2, 1)))], betas=[(0.9, 0.99), (0.8, 0.999)])  # type: ignore[arg-type]


def test_a_member_without_momentum_has_no_dampening() -> None:
    p, q = pb.Parameter(np.ones((2, 1))), pb.Parameter(np.ones(1))
    both, alone = optim.SGD([p], lr=0.1, momentum=[0.9, 0.0], dampening=0.5), optim.SGD([q], lr=0.1, dampening=0.5)
    for _ in range(3):
        both.step([np.ones((2, 1))])
        alone.step([np.ones(1)])
    assert host(p)[1] == host(q) == pytest.approx(0.7)


def test_loading_its_own_state_changes_no_group() -> None:
    a, b = parameters()[:2]
    opt = optim.SGD([{"params": [a], "lr": 0.1}, {"params": [b]}], lr=0.5)
    opt.load_state_dict(opt.state_dict())
    assert (opt.lr, opt.groups[1].own) == (0.5, {})
    opt.lr = 0.01
    assert [group.lr for group in opt.groups] == [0.1, 0.01]


def test_a_rate_of_a_group_is_absolute() -> None:
    a, b = pb.Parameter(np.ones(1), name="a"), pb.Parameter(np.ones(1), name="b")
    opt = optim.SGD([a, b], lr=1.0, groups={"b": {"lr_scale": 0.1}})
    opt.groups[1]["lr"] = 0.5
    with pytest.raises(pb.PullbackError, match="absolute: set that instead of lr_scale"):
        opt.groups[1].lr_scale = 0.1
    opt.step([np.ones(1), np.ones(1)])
    assert (host(a), host(b)) == (0.0, 0.5)
    opt.groups[0].lr = 0.5
    with pytest.raises(pb.PullbackError, match="every group has a value of lr of its own"):
        opt.lr = 0.1
    with pytest.raises(pb.PullbackError, match="give one of them"):
        optim.SGD([{"params": [a]}], groups={"*": {"lr": 1.0}})


def test_gradients_that_are_memory_of_parameters_are_read_before_the_step() -> None:
    a, b = pb.Parameter(np.array([1.0, 2.0])), pb.Parameter(np.array([3.0, 5.0]))
    optim.SGD([a, b], lr=1.0).step([b, a])
    np.testing.assert_array_equal([host(a), host(b)], [[-2.0, -3.0], [2.0, 3.0]])
    c = pb.Parameter(np.arange(5000.0))
    optim.SGD([c], lr=0.5).step([c[::-1]])
    np.testing.assert_array_equal(host(c), np.arange(5000.0) - 0.5 * np.arange(5000.0)[::-1])


@pytest.mark.parametrize("rule", ["adamw", "nadam-decoupled", "radam-decoupled", "lion"])
def test_an_infinite_weight_stays_without_decay(rule: str) -> None:
    cls, options = RULES[rule]
    p = pb.Parameter(np.array([np.inf, -np.inf, 1.0]))
    cls([p], **{**options, "weight_decay": 0.0}).step([np.ones(3)])
    np.testing.assert_array_equal(host(p)[:2], [np.inf, -np.inf])


@pytest.mark.parametrize("value", [True, np.True_, float("inf"), 10**400, [[0.1], [0.2, 0.3]], "0.1", [True]], ids=repr)
def test_what_is_no_number_is_refused(value: Any) -> None:
    for name in ("lr", "weight_decay"):
        with pytest.raises(pb.PullbackError):
            optim.Adam([pb.Parameter(np.ones((1, 2)))], **{name: value})


def test_a_schedule_of_a_user_is_refused_because_the_device_does_not_know_it() -> None:
    class Mine(schedules.Schedule):
        def rate(self, t: int) -> float:
            return self.base * 10

    with pytest.raises(pb.PullbackError, match=r"Mine is a schedule of your own.*opt\.lr = schedule\.rate"):
        optim.SGD([pb.Parameter(1.0)], lr=Mine(0.1))


# ---- members: M networks whose weights are stacked

MEMBERS = 64
OWN: dict[str, Any] = {
    "lr": np.geomspace(1e-3, 1.0, MEMBERS), "weight_decay": np.linspace(0.0, 0.3, MEMBERS),
    "momentum": np.linspace(0.1, 0.9, MEMBERS),
    "betas": (np.linspace(0.1, 0.95, MEMBERS), np.linspace(0.5, 0.999, MEMBERS)), "eps": np.geomspace(1e-9, 1e-2, MEMBERS),
    "dampening": np.linspace(0.0, 0.8, MEMBERS),
}


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_members_with_different_values_are_solo_runs_bit_for_bit(rule: str, dtype: str) -> None:
    """A member has 3 * 5, 700, 1 and 0 weights: parts that cannot be read by packs, of more than one block, and empty ones."""
    cls, options = RULES[rule]
    rng = np.random.default_rng(3)
    shapes = [(3, 5), (700,), (), (0, 2)]
    start = [rng.standard_normal((MEMBERS, *shape)).astype(dtype) for shape in shapes]
    own = {name: OWN[name] for name in options if name in OWN}
    params = [pb.Parameter(x) for x in start]
    together = cls(params, **{**options, **own}, clip_norm=3.0)
    steps = [[rng.standard_normal(x.shape).astype(dtype) for x in start] for _ in range(3)]
    with pb.profile() as prof:
        for grads in steps:
            together.step([pb.tensor(g) for g in grads])
    before = ["lamb_ratio"] if rule == "lamb" else []
    assert [x.kernel for x in prof.launches if x.phase == door.OPTIMIZER] == ["clip_norm", *before, together.kernel] * 3
    norms = together.gradient_norm
    for m in range(0, MEMBERS, 9):
        alone = [pb.Parameter(x[m]) for x in start]
        values = {name: tuple([float(x[m]) for x in v]) if isinstance(v, tuple) else float(v[m]) for name, v in own.items()}
        opt = cls(alone, **{**options, **values}, clip_norm=3.0)
        for grads in steps:
            opt.step([pb.tensor(g[m]) for g in grads])
        for p, q in zip(params, alone):
            np.testing.assert_array_equal(host(p)[m], host(q))
        assert norms[m] == opt.gradient_norm


def test_members_may_have_schedules_and_a_state() -> None:
    rates = [schedules.Cosine(0.1, 9), schedules.Schedule(0.2), schedules.Step(0.3, every=2)]
    p, q = pb.Parameter(np.ones((3, 2))), pb.Parameter(np.ones((3, 2)))
    opt = optim.SGD([p], lr=rates, momentum=[0.1, 0.2, 0.3])
    g = pb.tensor(np.ones((3, 2)))
    for step in range(3):
        np.testing.assert_array_equal(opt.lr, [rate.rate(step) for rate in rates])
        opt.step([g])
    other = optim.SGD([q], lr=[1.0, 1.0, 1.0], momentum=0.5)
    q.assign(p)
    other.load_state_dict(opt.state_dict())
    np.testing.assert_array_equal(other.momentum, [0.1, 0.2, 0.3])
    for each in (opt, other):
        each.step([g])
    np.testing.assert_array_equal(host(p), host(q))
    with pytest.raises(pb.PullbackError, match=r"must be floats \(3, 32\)"):
        other.load_state_dict(optim.SGD([pb.Parameter(np.ones((3, 2)))], momentum=0.5).state_dict())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": [0.1, 0.2]}, r"lr has 2 values, one for each member, but the first axis of .*: its shape is \(3, 2\)"),
        ({"lr": [0.1, 0.2, 0.3], "eps": [1e-8, 1e-7]}, "lr has 3 values and eps has 2"),
        ({"eps": [[1e-8]]}, "finite number of 0 or more, or one for each member"),
        ({"weight_decay": [0.1, -0.1, 0.0]}, "finite number of 0 or more, or one for each member"),
    ],
)
def test_wrong_numbers_of_members_are_refused(options: Any, words: str) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        optim.Adam([pb.Parameter(np.ones((3, 2)))], **options)


@pytest.mark.parametrize("kind", [optim.Muon, optim.Adafactor, optim.SGD])
def test_a_list_of_one_number_is_one_member(kind: Any) -> None:
    """A solo run has Parameters without the axis of members, and is the same bit for bit."""
    rng = np.random.default_rng(4)
    start = [rng.standard_normal(shape) for shape in ((4, 6), (5,), (3, 2, 2))]
    one = kind([pb.Parameter(x[None]) for x in start], lr=[0.1], clip_norm=2.0)
    alone = kind([pb.Parameter(x) for x in start], lr=0.1, clip_norm=2.0)
    one.clip_adaptive = alone.clip_adaptive = 0.01
    pruned = [optim.Pruning(opt, 0.5) for opt in (one, alone)]
    for _ in range(3):
        grads = [rng.standard_normal(x.shape) for x in start]
        one.step([pb.tensor(g[None]) for g in grads])
        alone.step([pb.tensor(g) for g in grads])
    for p, q in zip(one.parameters, alone.parameters):
        np.testing.assert_array_equal(host(p)[0], host(q))
        for name, slot in alone.slots(q).items():
            np.testing.assert_array_equal(host(one.slots(p)[name])[0], host(slot))
    assert one.gradient_norm.tolist() == [alone.gradient_norm]
    assert pruned[0].sparsity.tolist() == [pruned[1].sparsity]


def test_a_state_keeps_groups_apart() -> None:
    groups = {"p1": {"lr": 0.5, "weight_decay": 0.1}}
    saved = optim.AdamW(parameters(), lr=schedules.Cosine(0.1, 9), groups=groups).state_dict()
    opt = optim.AdamW(parameters(), groups={"p1": {"eps": 0.1}})
    opt.load_state_dict(saved)
    assert [group.lr for group in opt.groups] == [0.1, 0.5]
    assert [group.weight_decay for group in opt.groups] == [0.01, 0.1]
    assert [group.eps for group in opt.groups] == [1e-8, 1e-8]
    with pytest.raises(pb.PullbackError, match="have several values of lr in the state; make the optimizer with the groups"):
        optim.AdamW(parameters()).load_state_dict(saved)
