"""Pruning: which weights are pruned, that they stay exactly 0, and that states, copies and recordings have the masks."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import REASON, needs_kernels, same
from conftest import host
from pullback import nn, optim
from pullback.optim.schedules import PolynomialSparsity
from update_rules import RULES

UNTYPED: Any = optim.Pruning  # for wrong arguments
SHAPES = ((12, 9), (9,), (7, 5, 3))
FLOATS = ("float16", "bfloat16", "float32", "float64")


def made(rule: str = "adamw", dtype: str = "float32", **options: Any) -> Any:
    """Returns an optimizer of three Parameters, of which the second has one axis. Every call returns an equal one."""
    rng = np.random.default_rng(5)
    params = [pb.Parameter(rng.standard_normal(shape), name=f"p{k}", dtype=dtype) for k, shape in enumerate(SHAPES)]
    kind, hyper = RULES[rule]
    return kind(params, **{**hyper, **options})


def gradients(opt: Any, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [pb.tensor(rng.standard_normal(p.shape), dtype=p.dtype) for p in opt.parameters]


def zeros(x: Any) -> Any:
    return host(x).astype(float) == 0


def smallest(values: list[Any], pruned: list[Any], count: int) -> list[Any]:
    """Returns which of the values are pruned, if the `count` smallest of all are: the pruned ones first, then by magnitude."""
    flat = np.concatenate([np.where(mask, -1, np.abs(x)).ravel() for x, mask in zip(values, pruned)])
    found = np.zeros(flat.size, bool)
    found[np.argsort(flat, kind="stable")[:count]] = True
    ends = np.cumsum([x.size for x in values])
    return [part.reshape(x.shape) for part, x in zip(np.split(found, ends[:-1]), values)]


# ---- the schedule


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PolynomialSparsity(0.0, 1.0, 0, 5), r"end=1.0; a sparsity is a share of the weights, a number in \[0, 1\)"),
        (lambda: PolynomialSparsity(-0.1, 0.5, 0, 5), "start=-0.1"),
        (lambda: PolynomialSparsity(0.0, float("nan"), 0, 5), "end=nan"),
        (lambda: PolynomialSparsity(0.0, 0.5, 5, 4), "stop=4 is before begin=5"),
        (lambda: PolynomialSparsity(0.0, 0.5, -1, 4), "begin=-1; it must be a number of steps of 0 or more"),
        (lambda: PolynomialSparsity(0.0, 0.5, 0, 4, every=0), "every=0; it must be a number of steps of 1 or more"),
        (lambda: PolynomialSparsity(0.0, 0.5, 0, 4, power=0), "power=0; it must be a positive number"),
        (lambda: UNTYPED(made(), 1.0), r"Pruning: schedule=1.0; a sparsity is a share"),
        (lambda: UNTYPED(made(), "half"), "Pruning: schedule is a str; give a share of the weights such as 0.8"),
        (lambda: UNTYPED(made(), lambda t: 80), "Pruning: the schedule after 0 steps=80"),
        (lambda: UNTYPED(nn.Linear(2, 3), 0.5), r"a Linear was given, and not an optimizer. Write Pruning\(opt, schedule\)"),
        (lambda: UNTYPED(made(), 0.5, scope="layer"), 'scope=\'layer\'; it is "tensor" or "global"'),
        (lambda: UNTYPED(made(), 0.5, []), "params is empty"),
        (lambda: UNTYPED(made(), 0.5, [pb.Parameter([1.0])]), "is not a parameter of this AdamW"),
        (lambda: UNTYPED(optim.SGD([pb.Parameter([1.0])]), 0.5), "no parameter of the optimizer has two axes or more"),
        (lambda: optim.Pruning(optim.Pruning(opt := made(), 0.5) and opt, 0.5), "the optimizer is pruned already"),
    ],
)
def test_wrong_arguments_are_refused_in_words(make: Any, words: str) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        make()


def test_weights_of_two_dtypes_have_no_common_scale() -> None:
    params = [pb.Parameter(pb.ones((2, 2)), dtype=dtype) for dtype in ("float32", "float64")]
    with pytest.raises(pb.DTypeError, match='scope="global" compares weights, which must have one dtype'):
        optim.Pruning(optim.SGD(params), 0.5, scope="global")


# ---- which weights


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scope", ["tensor", "global"])
def test_the_smallest_weights_are_pruned_as_the_schedule_says(scope: Any, dtype: str) -> None:
    opt, schedule = made(dtype=dtype), PolynomialSparsity(0.2, 0.8, begin=2, stop=9, every=3)
    pruning = optim.Pruning(opt, schedule, scope=scope)
    chosen = [opt.parameters[0], opt.parameters[2]]
    pruned, last = [np.zeros(p.shape, bool) for p in chosen], 0.0
    for step in range(14):
        values, share = [host(p).astype(float) for p in chosen], schedule(step)
        if share != last and scope == "global":
            pruned = smallest(values, pruned, round(share * sum([x.size for x in values])))
        elif share != last:
            pruned = [smallest([x], [mask], round(share * x.size))[0] for x, mask in zip(values, pruned)]
        last = share
        opt.step(gradients(opt, step))
        for p, mask in zip(chosen, pruned):
            np.testing.assert_array_equal(zeros(p), mask)
        assert not zeros(opt.parameters[1]).any()
        count, total = sum([int(mask.sum()) for mask in pruned]), sum([mask.size for mask in pruned])
        assert pruning.sparsity == count / total
        assert abs(count - share * total) <= (1 if scope == "global" else 2)  # weights: one for each Parameter
        assert pruning.report() == {"p0": pruned[0].mean(), "p2": pruned[1].mean()}
        np.testing.assert_array_equal(host(pruning.masks()["p2"]), ~pruned[1])


def test_equal_weights_are_pruned_in_their_order_and_nan_never() -> None:
    p = pb.Parameter([[1.0, np.nan, -1.0, 1.0, 0.5, -np.inf, 1.0, np.nan]])
    opt = optim.SGD([p], lr=0.0)
    optim.Pruning(opt, lambda t: 3 / 8)
    opt.step([pb.zeros((1, 8))])
    assert host(p)[0].tolist()[:7] == [0.0, pytest.approx(np.nan, nan_ok=True), 0.0, 1.0, 0.0, -np.inf, 1.0]


def test_weights_come_back_only_if_the_schedule_falls() -> None:
    opt = made("sgd-momentum")
    optim.Pruning(opt, lambda t: [0.5, 0.5, 0.25, 0.25, 0.75][t])
    p = opt.parameters[0]
    masks = []
    for step in range(5):
        opt.step(gradients(opt, step))
        masks.append(zeros(p))
    assert [mask.sum() for mask in masks] == [54, 54, 27, 27, 81]
    np.testing.assert_array_equal(masks[0], masks[1])
    assert (masks[0] | ~masks[2]).all()  # Those that are pruned were pruned before.
    assert (masks[4] | ~masks[3]).all()


def test_params_may_be_named() -> None:
    opt = made()
    pruning = optim.Pruning(opt, 0.5, {"bias": opt.parameters[1]})
    opt.step(gradients(opt, 0))
    assert list(pruning.report()) == ["p1"]
    assert [zeros(p).sum() for p in opt.parameters] == [0, 4, 0]  # half of 9, rounded to an even number
    weights = "1 parameters of 9 weights, 50.0% pruned in the next step"
    assert repr(pruning) == f"Pruning(ConstantSparsity(share=0.5), scope='tensor'; {weights})"


# ---- in every step


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rule", list(RULES))
def test_a_pruned_weight_and_its_slots_are_0_after_every_step(rule: str, dtype: str) -> None:
    opt, free = made(rule, dtype, ema=0.9), made(rule, dtype, ema=0.9)
    pruning = optim.Pruning(opt, PolynomialSparsity(0.3, 0.7, begin=1, stop=5, every=2))
    for step in range(8):
        before, g = [host(p).astype(float) for p in opt.parameters], gradients(opt, step)
        preview = opt.preview(g)
        deltas = opt.step(g, return_delta=True)
        free.step(g)
        masks = pruning.masks()
        for p, old, delta, shown in zip(opt.parameters, before, deltas, preview):
            same(delta, shown)
            again = pb.tensor(old, dtype=p.dtype) + delta
            np.testing.assert_array_equal(host(again), host(p))
            if p.name in masks:
                pruned = ~host(masks[p.name])
                assert pruned.sum() == round(pruning.schedule(step) * p.size)
                for x in (p, *opt.slots(p).values()):
                    assert zeros(x)[pruned].all()
        same(opt.parameters[1], free.parameters[1])  # It is not pruned.


@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize("rule", ["adamw", "muon"])
def test_a_preview_changes_no_masks(rule: str, capture: bool) -> None:
    """It tells the change of the next step, which chooses masks, and leaves those of the last step."""
    if capture and REASON:
        pytest.skip(REASON)
    params = [pb.Parameter(p, name=p.name) for p in made().parameters]
    opt: Any = optim.Muon(params, lr=0.1) if rule == "muon" else optim.AdamW(params, lr=0.1)
    pruning = optim.Pruning(opt, lambda t: (0.2, 0.6, 0.4)[t % 3])
    preview: Any = pb.capture(lambda *g: opt.preview(list(g))) if capture else lambda *g: opt.preview(list(g))
    for step in range(7):
        g, before = gradients(opt, step), pruning.saved()
        shown = preview(*g)
        assert pruning.saved()["sparsities"] == before["sparsities"]
        for name, mask in pruning.masks().items():
            same(mask, before["masks"][name])
        for x, y in zip(shown, opt.step(g, return_delta=True)):
            same(x, y)
    if capture:
        assert preview.stats().captures == 1


@pytest.mark.parametrize("constraint", [optim.constraints.Box(0.5, 1.0), optim.constraints.Simplex(axis=0), lambda w: w + 1])
def test_a_pruned_weight_is_0_whatever_its_constraint_is(constraint: Any) -> None:
    opt = made()
    for p in opt.parameters:
        p.constraint = constraint
    pruning = optim.Pruning(opt, 0.5)
    for step in range(3):
        g = gradients(opt, step)
        before, preview = [host(p).copy() for p in opt.parameters], opt.preview(g)
        deltas = opt.step(g, return_delta=True)
        for p, old, delta, shown in zip(opt.parameters, before, deltas, preview):
            same(delta, shown)
            np.testing.assert_allclose(old + host(delta), host(p), atol=1e-6)
        for name, mask in pruning.masks().items():
            p = opt.parameters[int(name[1])]
            np.testing.assert_array_equal(zeros(p)[~host(mask)], True)
            if isinstance(constraint, optim.constraints.Simplex):  # The weights that are left are distributions.
                np.testing.assert_allclose(host(p).sum(axis=0), host(mask).any(axis=0), rtol=1e-6)


def test_a_value_that_is_assigned_to_a_pruned_weight_is_gone_after_the_next_step() -> None:
    opt = made()
    optim.Pruning(opt, 0.5)
    opt.step(gradients(opt, 0))
    pruned = zeros(opt.parameters[0])
    opt.parameters[0].assign(pb.ones(SHAPES[0]))
    opt.step(gradients(opt, 1))
    np.testing.assert_array_equal(zeros(opt.parameters[0]), pruned)


@pytest.mark.parametrize("scope", ["tensor", "global"])
def test_a_parameter_without_a_gradient_is_pruned_in_its_next_step_with_one(scope: Any) -> None:
    opt = made("sgd", lr=1e-9)
    pruning = optim.Pruning(opt, 0.5, scope=scope)
    first, last = opt.parameters[0], opt.parameters[2]
    g = gradients(opt, 0)
    opt.step([g[0], None, None])
    assert (zeros(first).sum(), zeros(last).sum()) == (54, 0)
    opt.step([None, None, g[2]])
    assert (zeros(first).sum(), zeros(last).sum()) == (54, 52)
    assert pruning.sparsity == 106 / 213


def test_an_ended_pruning_lets_all_weights_train() -> None:
    opt = made()
    pruning = optim.Pruning(opt, 0.5)
    opt.step(gradients(opt, 0))
    assert zeros(opt.parameters[0]).any()
    assert opt.pruning is pruning
    pruning.remove()
    assert opt.pruning is None
    assert zeros(opt.parameters[0]).any()
    opt.step(gradients(opt, 1))
    assert not zeros(opt.parameters[0]).any()
    for ask in (lambda: pruning.sparsity, pruning.report, pruning.masks, pruning.remove):
        with pytest.raises(pb.PullbackError, match="this Pruning was removed from its optimizer"):
            ask()
    optim.Pruning(opt, 0.3)


def test_members_are_pruned_one_by_one() -> None:
    rng = np.random.default_rng(2)
    for scope in ("tensor", "global"):
        values = [[rng.standard_normal((6, 4)), rng.standard_normal((4, 3))] for _ in range(3)]
        stacked = optim.Adam([pb.Parameter(np.stack(x)) for x in zip(*values)], lr=[0.1, 0.2, 0.3])
        alone = [optim.Adam([pb.Parameter(x) for x in value], lr=lr) for value, lr in zip(values, (0.1, 0.2, 0.3))]
        schedule = PolynomialSparsity(0.2, 0.6, 1, 3, every=1)
        together, each = optim.Pruning(stacked, schedule, scope=scope), [optim.Pruning(x, schedule, scope=scope) for x in alone]
        for _ in range(5):
            grads = [rng.standard_normal(p.shape) for p in stacked.parameters]
            stacked.step([pb.tensor(g) for g in grads])
            for k, one in enumerate(alone):
                one.step([pb.tensor(g[k]) for g in grads])
                for p, q in zip(stacked.parameters, one.parameters):
                    same(p[k], q)
            np.testing.assert_array_equal(together.sparsity, [one.sparsity for one in each])


# ---- states, copies, recordings


def trained(steps: int, **options: Any) -> Any:
    opt = made()
    optim.Pruning(opt, PolynomialSparsity(0.1, 0.8, 0, 6, every=2), **options)
    for step in range(steps):
        opt.step(gradients(opt, step))
    return opt


def test_a_state_has_the_masks() -> None:
    whole, opt = trained(8), trained(3)
    state = opt.state_dict()
    other = trained(0)
    for p, q in zip(other.parameters, opt.parameters):
        p.assign(q)
    other.load_state_dict(state)
    for name, mask in opt.pruning.masks().items():
        same(mask, other.pruning.masks()[name])
    for step in range(3, 8):
        other.step(gradients(opt, step))
    for p, q in zip(whole.parameters, other.parameters):
        same(p, q)
    other.load_state_dict(made().state_dict())  # of an optimizer that prunes nothing
    assert other.pruning.sparsity == 0.0
    with pytest.raises(pb.PullbackError, match=r"the state has masks of pruned weights; make optim\.Pruning\(opt, \.\.\.\) before"):
        made().load_state_dict(state)
    before = opt.pruning.report()
    bad = [
        ({"masks": {}, "sparsities": {}}, "the state has no masks for exactly p0, p2"),
        (3, "the state has no masks"),
        ({**state["pruning"], "sparsities": {"p0": 0.5, "p2": 2}}, 'the sparsity of "p2"=2'),
        ({**state["pruning"], "masks": {"p0": pb.ones(3), "p2": pb.ones(3)}}, 'the mask of "p0" has shape'),
    ]
    for part, words in bad:
        with pytest.raises(pb.PullbackError, match=words):
            opt.load_state_dict({**state, "pruning": part})
    assert opt.pruning.report() == before


def test_a_file_of_a_training_has_the_masks(tmp_path: Path) -> None:
    def rig() -> Any:
        pb.random.seed(1)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        opt = optim.Adam(net.parameters(), lr=0.1)
        return net, opt, optim.Pruning(opt, 0.5)

    (net, opt, pruning), (twin, copied, again) = rig(), rig()
    opt.step(gradients(opt, 0))
    pb.save_training(tmp_path / "run.safetensors", net, opt)
    pb.load_training(tmp_path / "run.safetensors", twin, copied)
    assert again.report() == pruning.report()
    for x in (opt, copied):
        x.step(gradients(x, 1))
    for p, q in zip(net.parameters(), twin.parameters()):
        same(p, q)


def test_a_copy_has_masks_of_its_own() -> None:
    opt = trained(3)
    copies = [copy.deepcopy(opt), pickle.loads(pickle.dumps(opt)), pickle.loads(pickle.dumps(opt.pruning))._opt]
    before = opt.pruning.report()
    for step in range(3, 7):
        for other in copies:
            other.step(gradients(opt, step))
    assert opt.pruning.report() == before
    for step in range(3, 7):
        opt.step(gradients(opt, step))
    for other in copies:
        assert other.pruning.report() == opt.pruning.report()
        for p, q in zip(opt.parameters, other.parameters):
            same(p, q)


@pytest.mark.parametrize("scope", ["tensor", "global"])
def test_a_captured_step_prunes_like_an_eager_one(scope: Any) -> None:
    eager, other = trained(0, scope=scope), trained(0, scope=scope)
    step = pb.capture(lambda *g: [*other.preview(g), *other.step(g, return_delta=True)])
    for k in range(10):
        g = gradients(eager, k)
        for x, y in zip([*eager.preview(g), *eager.step(g, return_delta=True)], step(*g)):
            same(x, y)
        for p, q in zip(eager.parameters, other.parameters):
            same(p, q)
            for name, slot in eager.slots(p).items():
                same(slot, other.slots(q)[name])
    assert eager.pruning.report() == other.pruning.report()


@needs_kernels
def test_a_replay_of_several_steps_chooses_masks_before_them() -> None:
    opt = trained(0)
    step = pb.capture(lambda g: opt.step([g, None, None]), steps=4)
    for calls in range(1, 4):
        step(pb.tensor(np.random.default_rng(calls).standard_normal((4, *SHAPES[0])), dtype="float32"))
        assert abs(zeros(opt.parameters[0]).mean() - opt.pruning.schedule(1 if calls == 1 else 4 * (calls - 1))) < 0.01


@needs_kernels
def test_pruning_that_begins_or_ends_later_reaches_captured_steps() -> None:
    opt = made()
    step = pb.capture(lambda *g: opt.step(g))
    for k in range(3):
        step(*gradients(opt, k))
    pruning = optim.Pruning(opt, 0.5)
    step(*gradients(opt, 3))
    assert zeros(opt.parameters[0]).mean() == 0.5
    pruning.remove()
    step(*gradients(opt, 4))
    assert not zeros(opt.parameters[0]).any()
    with pytest.raises(pb.CaptureError, match="a new Pruning"):
        pb.capture(lambda x: (optim.Pruning(opt, 0.5), x)[1])(pb.ones(2))


def test_masks_need_no_launch_of_their_own_between_two_choices() -> None:
    opt = trained(2)
    with pb.profile() as prof:
        opt.step(gradients(opt, 0))
        opt.step(gradients(opt, 1))
    assert sorted([x.kernel for x in prof.launches]) == ["adamw_step", "adamw_step", "prune"]


def test_counting_flops_chooses_no_masks() -> None:
    opt = trained(0)
    pb.flops(lambda: opt.step(gradients(opt, 0)))
    assert opt.pruning.sparsity == 0.0
