"""Adafactor, compared with torch.optim.Adafactor: slots of other shapes than the Parameters', members, states and captures."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same, same_state
from conftest import host
from pullback import optim
from pullback.optim import schedules

SHAPES = ((5, 3), (7,), (), (2, 3, 4), (40, 30), (1, 6), (0, 3))
OTHER = {"lr": 0.1, "weight_decay": 0.1, "beta2_decay": -0.5, "eps": (1e-4, 1e-2), "d": 2.0}


def parameters(dtype: str = "float32", seed: int = 0, scale: float = 0.1) -> list[pb.Parameter]:
    rng = np.random.default_rng(seed)
    return [pb.Parameter(scale * rng.standard_normal(s), dtype=dtype, name=f"p{i}") for i, s in enumerate(SHAPES)]


def gradients(params: Any, count: int, seed: int = 1) -> list[list[pb.Tensor]]:
    rng = np.random.default_rng(seed)
    return [[pb.tensor(rng.standard_normal(p.shape), dtype=p.dtype) for p in params] for _ in range(count)]


@pytest.mark.parametrize("options", [{}, OTHER], ids=["defaults", "others"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
def test_the_rule_is_torchs(dtype: str, tolerance: float, options: dict[str, Any]) -> None:
    """100 steps. Gradients below the machine epsilon reach the bound of the variance."""
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare the rule with")
    params = [p for p in parameters(dtype) if p.size]  # torch divides by the number of weights
    theirs = [torch.nn.Parameter(torch.from_numpy(host(p).copy())) for p in params]
    opt, reference = optim.Adafactor(params, **options), torch.optim.Adafactor(theirs, **options)
    for step, grads in enumerate(gradients(params, 100)):
        scale = 1e-9 if step % 5 == 4 else 1.0
        grads = [scale * g for g in grads]
        opt.step(grads)
        for p, g in zip(theirs, grads):
            p.grad = torch.from_numpy(host(g).copy())
        reference.step()
    for p, q in zip(params, theirs):
        np.testing.assert_allclose(host(p), q.detach().numpy(), rtol=0, atol=tolerance)
        for name, slot in opt.slots(p).items():
            np.testing.assert_allclose(host(slot), reference.state[q][name].numpy(), rtol=20 * tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_the_rule_in_float32_rounded_once(dtype: str) -> None:
    half = parameters(dtype)
    wide = [pb.Parameter(p.astype("float32")) for p in half]
    a, b = optim.Adafactor(half, lr=0.1), optim.Adafactor(wide, lr=0.1)
    (grads,) = gradients(half, 1)
    a.step(grads)
    before = [host(p).copy() for p in wide]
    b.step([g.astype("float32") for g in grads])
    for p, q, old in zip(half, wide, before):
        change = (host(q) - old).astype(p.dtype)
        np.testing.assert_allclose(host(p).astype(np.float32), (old.astype(p.dtype) + change).astype(np.float32), rtol=1e-2)
        assert all([slot.dtype == pb.float32 for slot in a.slots(p).values()])


def test_slots_have_the_shapes_of_rows_and_columns() -> None:
    params = parameters()
    opt = optim.Adafactor(params)
    wanted = {(5, 3): [(5, 1), (1, 3)], (2, 3, 4): [(2, 3, 1), (2, 1, 4)], (40, 30): [(40, 1), (1, 30)], (1, 6): [(1, 1), (1, 6)]}
    for p in params:
        found = opt.slots(p)
        if p.shape in wanted:
            assert list(found) == ["row_var", "col_var"]
            assert [x.shape for x in found.values()] == wanted[p.shape]
        elif p.size:
            assert {name: x.shape for name, x in found.items()} == {"variance": p.shape}
        assert not any([host(x).any() for x in found.values()])


def test_a_state_continues_the_run_and_damaged_ones_change_nothing() -> None:
    grads = gradients(parameters(), 6)
    one, other = (optim.Adafactor(parameters(), **OTHER) for _ in range(2))
    for g in grads[:3]:
        one.step(g)
    state = one.state_dict()
    assert list(state["slots"]["p0"]) == ["row_var", "col_var"]
    for p, q in zip(one.parameters, other.parameters):
        q.assign(p)
    other.load_state_dict(state)
    twins = [other, copy.deepcopy(one), pickle.loads(pickle.dumps(one))]
    for g in grads[3:]:
        for opt in (one, *twins):
            opt.step(g)
    for twin in twins:
        for p, q in zip(one.parameters, twin.parameters):
            same(p, q)
            for name, slot in one.slots(p).items():
                same(slot, twin.slots(q)[name])
    before = one.state_dict()
    for slots, message in [
        ({"row_var": pb.zeros((5, 1)), "col_var": pb.zeros((3, 1))}, r'slot "col_var" of "p0" has shape \(3, 1\)'),
        ({"variance": pb.zeros((5, 3))}, "entries for"),
    ]:
        with pytest.raises(pb.PullbackError, match=message):
            one.load_state_dict({**state, "slots": {**state["slots"], "p0": slots}})
    for name, slots in one.state_dict()["slots"].items():
        for key, slot in slots.items():
            same(slot, before["slots"][name][key])


@needs_kernels
def test_a_captured_step_is_the_eager_one_and_new_values_need_no_recording() -> None:
    made = [optim.Adafactor(parameters(), lr=schedules.Cosine(0.1, 9), clip_norm=0.5) for _ in range(2)]
    eager, captured = made
    step = pb.capture(lambda *grads: captured.step([*grads]))
    for k, grads in enumerate(gradients(eager.parameters, 8)):
        for opt in made:
            opt.weight_decay, opt.d, opt.beta2_decay = 0.01 * k, 1 + k / 4, -0.8 + k / 20
            opt.eps = (None if k % 2 else 1e-3, 1e-3 * (k + 1))
        eager.step(grads)
        step(*grads)
    same_state(eager, captured)
    assert step.stats().captures == 1


@pytest.mark.parametrize("clip_norm", [None, 0.7])
def test_members_are_solo_runs(clip_norm: float | None) -> None:
    members, rng = 64, np.random.default_rng(2)
    start = [rng.standard_normal((members, *s)).astype(np.float32) for s in ((4, 3), (5,), (2, 3, 4))]
    options = {
        "lr": rng.uniform(0.01, 0.1, members), "weight_decay": rng.uniform(0, 0.1, members), "d": rng.uniform(1, 2, members),
        "beta2_decay": rng.uniform(-0.9, -0.5, members), "eps": (None, rng.uniform(1e-3, 1e-1, members)),
    }
    stacked = [pb.Parameter(x) for x in start]
    solo = [[pb.Parameter(x[m]) for x in start] for m in range(members)]
    together = optim.Adafactor(stacked, **options, clip_norm=clip_norm)
    apart = []
    for m in range(members):
        own = {name: (None, x[1][m]) if name == "eps" else x[m] for name, x in options.items()}
        apart.append(optim.Adafactor(solo[m], **own, clip_norm=clip_norm))
    assert together.slots(stacked[0])["col_var"].shape == (members, 1, 3)
    assert together.slots(stacked[1])["variance"].shape == (members, 5)
    for _ in range(3):
        grads = [rng.standard_normal(p.shape).astype(np.float32) for p in stacked]
        together.step([pb.tensor(g) for g in grads])
        for m, opt in enumerate(apart):
            opt.step([pb.tensor(g[m]) for g in grads])
    for i, p in enumerate(stacked):
        for m in range(members):
            np.testing.assert_array_equal(host(p)[m], host(solo[m][i]))


def test_groups_missing_gradients_previews_and_deltas() -> None:
    params = parameters()
    opt = optim.Adafactor(params, lr=0.1, groups={"p[01]": {"d": 3.0, "eps": (1e-3, 1e-2)}, "p4": {"lr_scale": 0.5}}, ema=0.5)
    alone = [optim.Adafactor([pb.Parameter(p)], lr=0.1 if i != 4 else 0.05) for i, p in enumerate(params)]
    for i in (0, 1):
        alone[i].d, alone[i].eps = 3.0, (1e-3, 1e-2)
    for k, grads in enumerate(gradients(params, 5)):
        given = [None if (i + k) % 3 == 0 else g for i, g in enumerate(grads)]
        before = [host(p).copy() for p in params]
        previewed = opt.preview(given)
        for p, old in zip(params, before):
            np.testing.assert_array_equal(host(p), old)
        deltas = opt.step(given, return_delta=True)
        for p, old, seen, delta in zip(params, before, previewed, deltas):
            same(seen, delta)
            np.testing.assert_array_equal(host(p), old + host(delta))
        for other, g in zip(alone, given):
            if g is not None:
                other.step([g])
    for p, other in zip(params, alone):
        same(p, other.parameters[0])
    assert (opt.groups[0].eps, opt.groups[1].eps, opt.eps) == ((None, 1e-3), (1e-3, 1e-2), (None, 1e-3))


def test_masks_leave_factors_whole() -> None:
    params = [p for p in parameters() if p.size]
    opt = optim.Adafactor(params, lr=0.1)
    kept = [np.arange(p.size).reshape(p.shape) % 3 != 0 for p in params]
    opt._memory.masks = [pb.tensor(mask.astype(np.uint8)).array for mask in kept]
    for grads in gradients(params, 3):
        opt.step(grads)
    for p, mask in zip(params, kept):
        assert not host(p)[~mask].any()
        for slot in map(host, opt.slots(p).values()):  # The factors of a single row have a number for each weight, too.
            assert not slot[~mask].any() if slot.shape == p.shape else slot.all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d": 0.5}, "at least 1"),
        ({"beta2_decay": 0.1}, "at most 0"),
        ({"beta2_decay": math.nan}, "finite number"),
        ({"eps": (-1e-3, 1e-3)}, "finite number of 0 or more"),
        ({"eps": 1e-3}, "eps"),
        ({"eps": (None, None)}, "eps"),
        ({"weight_decay": -1.0}, "finite number of 0 or more"),
        ({"lr": [0.1, 0.2]}, "first axis"),
    ],
)
def test_bad_values_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pb.PullbackError, match=message):
        optim.Adafactor(parameters(), **options)
    opt = optim.Adafactor(parameters())
    ((name, value),) = options.items()
    with pytest.raises(pb.PullbackError):
        setattr(opt, name, value)
    assert "lr=0.01, beta2_decay=-0.8, eps=(None, 0.001), d=1.0, weight_decay=0.0" in repr(opt)
