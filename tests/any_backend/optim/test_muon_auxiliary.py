"""The parameters that Muon leaves to another rule: one optimizer with the groups, states, clipping and deltas of both."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from test_muon import gradients, parameters

import pullback as pb
from captured_step import needs_kernels, same, same_state
from conftest import host
from pullback import optim
from pullback.optim import schedules

SHAPES = ((7,), (5, 3), (2, 3, 4), (3, 5), (), (8, 8), (5, 3))
MATRICES, OTHERS = (1, 3, 5, 6), (0, 2, 4)


def made(auxiliary: Any = optim.AdamW, seed: int = 0, **options: Any) -> optim.Muon:
    return optim.Muon(parameters(shapes=SHAPES, seed=seed), lr=0.05, auxiliary=auxiliary, **options)


def apart(auxiliary: Any, options: Any = None, **of_muon: Any) -> tuple[list[pb.Parameter], optim.Muon, Any]:
    """Returns the same Parameters with two optimizers, Muon for the matrices and another one for the others."""
    params = parameters(shapes=SHAPES)
    one = optim.Muon([params[i] for i in MATRICES], lr=0.05, **of_muon)
    return params, one, auxiliary([params[i] for i in OTHERS], **(options or {}))


@pytest.mark.parametrize(
    ("auxiliary", "options"),
    [
        (optim.AdamW, {}),
        (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        (optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.3}),
        (optim.Lion, {"weight_decay": 0.1}),
        (optim.LAMB, {"lr": schedules.Linear(0.1, 4)}),
        (optim.RMSprop, {"momentum": 0.9, "centered": True}),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_the_others_are_updated_as_by_the_auxiliary_alone(auxiliary: Any, options: dict[str, Any]) -> None:
    opt = made(auxiliary, auxiliary_options=options)
    params, one, other = apart(auxiliary, options)
    for k, grads in enumerate(gradients(params, 6)):
        given = [None if (i + k) % 4 == 0 else g for i, g in enumerate(grads)]
        opt.step(given)
        one.step([given[i] for i in MATRICES])
        other.step([given[i] for i in OTHERS])
    for p, q in zip(opt.parameters, params):
        same(p, q)
    for i, k in enumerate(OTHERS):
        mine, alone = opt.slots(opt.parameters[k]), other.slots(other.parameters[i])
        assert sorted(mine) == sorted(alone)
        for name in mine:
            same(mine[name], alone[name])
    assert list(opt.slots(opt.parameters[1])) == ["momentum"]
    assert opt.auxiliary is not None
    assert opt.auxiliary.rule is auxiliary
    assert opt.auxiliary.lr == other.lr
    assert [p.name for p in opt.auxiliary.parameters] == ["p0", "p2", "p4"]


def test_clipping_is_joint_and_the_gradient_scale_holds_for_all() -> None:
    opt, joint = made(clip_norm=0.5), optim.SGD(parameters(shapes=SHAPES), lr=0.0, clip_norm=0.5)
    params, one, other = apart(optim.AdamW)
    opt.gradient_scale = joint.gradient_scale = 0.25
    for grads in gradients(params, 3):
        opt.step(grads)
        joint.step(grads)
        assert opt.gradient_norm == joint.gradient_norm
        clipped = [np.float32(0.25 * 0.5 / (joint.gradient_norm + 1e-6)) * g for g in grads]
        one.step([clipped[i] for i in MATRICES])
        other.step([clipped[i] for i in OTHERS])
    for p, q in zip(opt.parameters, params):
        np.testing.assert_allclose(host(p), host(q), rtol=1e-5, atol=1e-6)
    opt.clip_value = 1e-3
    assert opt.auxiliary is not None
    assert opt.auxiliary.clip_value == 1e-3
    opt.clip_value = None
    opt.lr_scale = 0.5
    assert (opt.lr_scale, opt.auxiliary.lr_scale) == (0.5, 0.5)


def test_groups_have_values_of_both_rules() -> None:
    groups = {"p[0-3]": {"lr_scale": 0.5, "weight_decay": 0.0}, "p[23]": {"betas": (0.5, 0.9), "momentum": 0.8}, "p4": {"lr": 0.7}}
    opt = made(groups=groups)
    names = [(group.name, [p.name for p in group.parameters]) for group in opt.groups]
    assert names == [
        ("rest", ["p5", "p6"]),
        ("p[0-3] (Muon)", ["p1"]),
        ("p[0-3] (AdamW)", ["p0"]),
        ("p[0-3] and p[23] (Muon)", ["p3"]),
        ("p[0-3] and p[23] (AdamW)", ["p2"]),
        ("p4", ["p4"]),
    ]
    params = parameters(shapes=SHAPES)
    muon = [
        optim.Muon([params[i]], lr=0.05 * scale, momentum=momentum, weight_decay=decay)
        for i, scale, momentum, decay in [(1, 0.5, 0.95, 0.0), (3, 0.5, 0.8, 0.0), (5, 1, 0.95, 0.1), (6, 1, 0.95, 0.1)]
    ]
    adamw = [
        optim.AdamW([params[i]], lr=lr, betas=betas, weight_decay=decay)
        for i, lr, betas, decay in [(0, 5e-4, (0.9, 0.999), 0.0), (2, 5e-4, (0.5, 0.9), 0.0), (4, 0.7, (0.9, 0.999), 0.01)]
    ]
    for k, grads in enumerate(gradients(params, 4)):
        if k == 2:
            opt.groups[3].momentum, opt.groups[4].betas = 0.6, (0.4, 0.7)
            muon[1].momentum, adamw[1].betas = 0.6, (0.4, 0.7)
        opt.step(grads)
        for each in (*muon, *adamw):
            each.step([grads[int(str(p.name)[1])] for p in each.parameters])
    for p, q in zip(opt.parameters, params):
        same(p, q)
    opt.weight_decay = 0.3  # of the matrices without a value of their own
    assert [group.weight_decay for group in opt.groups] == [0.3, 0.0, 0.0, 0.0, 0.0, 0.01]
    with pytest.raises(pb.PullbackError, match="betas of a group cannot be set"):
        opt.groups[0].betas = (0.1, 0.2)


def test_groups_of_torch_and_hyper_parameters_of_the_auxiliary() -> None:
    params = parameters(shapes=SHAPES)
    opt = optim.Muon([{"params": params[:4], "weight_decay": 0.0}, {"params": params[4:], "lr": 0.1}])
    assert [group.name for group in opt.groups] == ["0 (Muon)", "0 (AdamW)", "1 (Muon)", "1 (AdamW)"]
    assert [group.lr for group in opt.groups] == [1e-3, 1e-3, 0.1, 0.1]
    auxiliary = opt.auxiliary
    assert auxiliary is not None
    auxiliary.lr, auxiliary.betas = schedules.Exponential(0.2, 0.5), (0.8, 0.9)
    opt.step(gradients(params, 1)[0])
    assert (auxiliary.lr, opt.groups[1].lr, opt.groups[3].lr, opt.lr) == (0.1, 0.1, 0.1, 1e-3)
    assert (auxiliary.betas, opt.groups[1].betas) == ((0.8, 0.9), (0.8, 0.9))
    assert "Auxiliary(AdamW: lr=0.1, betas=(0.8, 0.9)" in repr(opt)
    assert "eps" in dir(auxiliary)
    for name in ("momentum", "steps", "parameters"):
        with pytest.raises(pb.PullbackError, match="of the auxiliary cannot be set: lr, lr_scale"):
            setattr(auxiliary, name, 1)
    with pytest.raises(AttributeError, match="has no attribute 'nesterov'"):
        _ = auxiliary.nesterov
    with pytest.raises(pb.PullbackError, match=r"betas=\(0.5, nan\); each number must be in \[0, 1\)"):
        auxiliary.betas = (0.5, float("nan"))
    assert auxiliary.betas == (0.8, 0.9)


def test_convolutions_are_flattened_and_names_are_left_to_the_auxiliary() -> None:
    params = parameters(shapes=((4, 2, 3, 3), (6, 4), (6, 4), (5,)))
    flat = parameters(shapes=((4, 18), (6, 4)))
    for p, q in zip(flat, params):
        p.assign(pb.reshape(q, p.shape))
    opt = optim.Muon(params, flatten=True, auxiliary_names=["p2"])
    alone = optim.Muon(flat)
    assert opt.auxiliary is not None
    assert [p.name for p in opt.auxiliary.parameters] == ["p2", "p3"]
    for grads in gradients(params, 3):
        opt.step(grads)
        alone.step([pb.reshape(g, p.shape) for g, p in zip(grads, flat)])
    for p, q in zip(flat, params):
        same(p, pb.reshape(q, p.shape))
    assert opt.slots(params[0])["momentum"].shape == (4, 2, 3, 3)


def test_a_state_and_copies_continue_the_run() -> None:
    one = made(groups={"p[01]": {"weight_decay": 0.0}}, ema=0.9, clip_norm=1.0)
    other = made(groups={"p[01]": {"weight_decay": 0.5}}, ema=0.5)
    grads = gradients(one.parameters, 6)
    for k, g in enumerate(grads[:3]):
        one.auxiliary.lr = 0.1 / (k + 1)  # type: ignore[union-attr]
        one.step(g)
    state = one.state_dict()
    assert {name: sorted(slots) for name, slots in state["slots"].items()} == {
        f"p{i}": ["average", "momentum"] if i in MATRICES else ["average", "m", "v"] for i in range(len(SHAPES))
    }
    for p, q in zip(one.parameters, other.parameters):
        q.assign(p)
    other.load_state_dict(state)
    twins = [other, copy.deepcopy(one), pickle.loads(pickle.dumps(one))]
    for twin in twins:
        assert twin.auxiliary is not None
        assert twin.auxiliary.lr == one.auxiliary.lr  # type: ignore[union-attr]
        assert [group.weight_decay for group in twin.groups] == [0.1, 0.01, 0.0, 0.0]
    for k, g in enumerate(grads[3:]):
        for opt in (one, *twins):
            opt.step(g)
            opt.auxiliary.betas = (0.5, 0.9 - k / 10)  # type: ignore[union-attr]
            opt.groups[1].eps = 1e-6
    for twin in twins:
        for p, q in zip(one.parameters, twin.parameters):
            same(p, q)
            for name, slot in one.slots(p).items():
                same(slot, twin.slots(q)[name])
    for given, message in [
        (made(optim.Lion).state_dict(), "formula 'muon and lion_step', this optimizer's is 'muon and adamw_step'"),
        ({**state, "slots": {**state["slots"], "p1": state["slots"]["p0"]}}, "entries for"),
    ]:
        with pytest.raises(pb.PullbackError, match=message):
            one.load_state_dict(given)


def test_previews_deltas_averages_bounds_and_masks() -> None:
    class Box:
        bounds = (-0.05, 0.08)

        def __call__(self, p: Any) -> Any:
            return pb.clip(p, *self.bounds)

    opt = made(ema=0.5)
    for p in opt.parameters:
        p.constraint = Box()
    masks = [np.arange(p.size).reshape(p.shape) % 3 != 0 for p in opt.parameters]
    average = [np.zeros(p.shape, np.float32) for p in opt.parameters]
    for k, grads in enumerate(gradients(opt.parameters, 4)):
        if k == 2:
            opt._memory.masks = [pb.tensor(mask.astype(np.uint8)).array for mask in masks]
        before = [host(p).copy() for p in opt.parameters]
        seen = opt.preview(grads)
        assert all([np.array_equal(host(p), x) for p, x in zip(opt.parameters, before)])
        deltas = opt.step(grads, return_delta=True)
        for i, p in enumerate(opt.parameters):
            x = host(p).copy()
            same(seen[i], deltas[i])
            np.testing.assert_allclose(before[i] + host(deltas[i]), x, rtol=0, atol=1e-8)
            assert np.float32(-0.05) <= x.min(initial=0) <= x.max(initial=0) <= np.float32(0.08)
            average[i] = x if k == 0 else (average[i] + x) / 2
            if k >= 2:
                average[i] = np.where(masks[i], average[i], 0)
                assert not x[~masks[i]].any()
                assert not any([host(slot)[~masks[i]].any() for slot in opt.slots(p).values()])
            np.testing.assert_allclose(host(opt.averaged(p)), average[i], rtol=1e-6, atol=1e-9)


@needs_kernels
def test_missing_gradients_are_captured_and_counted() -> None:
    eager, captured = made(), made()
    opts = (eager, captured)
    steps = [pb.capture(lambda *grads, only=only: captured.step([g if i in only else None for i, g in enumerate(grads)]))
             for only in (MATRICES, OTHERS, (0, 1, 2, 6))]
    for grads in gradients(eager.parameters, 4):
        for step, only in zip(steps, (MATRICES, OTHERS, (0, 1, 2, 6))):
            eager.step([g if i in only else None for i, g in enumerate(grads)])
            step(*grads)
    same_state(eager, captured)
    assert [opt.steps for opt in opts] == [12, 12]
    for opt in opts:
        settings = opt.state_dict()["settings"]
        assert [int(host(settings[f"p{i}"])[0, 0]) for i in range(len(SHAPES))] == [8, 8, 8, 4, 4, 4, 8]
        assert {int(host(settings[f"p{i}"])[0, 2]) for i in range(len(SHAPES))} == {12}
