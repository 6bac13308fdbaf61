"""The state of every rule: it exists before the first step, changes in steps only, and resumes bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import OPTIMIZERS, batches, run, same, training
from conftest import host
from pullback import optim


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slots_exist_before_the_first_step_and_are_zero(name: str) -> None:
    opt = training(OPTIMIZERS[name])[1]
    for p in opt.parameters:
        slots = opt.slots(p)
        if not opt.composed:  # Other rules have slots of other shapes, and other ones for vectors.
            assert {*slots} - {"average"} == {*opt.slot_names}
            assert all(value.shape == p.shape for value in slots.values())
        for slot, value in slots.items():
            assert (host(value) == opt.slot_starts.get(slot, 0)).all()


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_a_geometric_sum_of_the_gradients(captured: bool, nesterov: bool) -> None:
    p = pb.Parameter([1.0, -2.0, 0.5])
    opt = optim.SGD([p], lr=0.1, momentum=0.9, nesterov=nesterov)
    grads = np.random.default_rng(0).standard_normal((30, 3)).astype(np.float32)

    def step(g: Any) -> None:
        opt.step([g])

    step = pb.capture(step) if captured else step
    for k, g in enumerate(grads):
        step(pb.tensor(g))
        expected = sum(0.9 ** (k - i) * grads[i].astype(np.float64) for i in range(k + 1))
        np.testing.assert_allclose(host(opt.slots(p)["momentum"]), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_saved_loaded_and_continued_is_the_uninterrupted_run(name: str, captured: bool, tmp_path: Path) -> None:
    data = batches(8)
    net, opt, step = training(OPTIMIZERS[name])
    run(pb.capture(step) if captured else step, data[:4])
    pb.save(tmp_path / "state.safetensors", {"net": net.state_dict(), "opt": opt.state_dict()})
    run(step, data[4:], seed=2)
    other, resumed, step = training(OPTIMIZERS[name])
    saved = pb.load(tmp_path / "state.safetensors")
    other.load_state_dict(saved["net"])
    resumed.load_state_dict(saved["opt"])
    assert resumed.steps == 4
    run(pb.capture(step) if captured else step, data[4:], seed=2)
    assert resumed.steps == opt.steps
    for p, q in zip(opt.parameters, resumed.parameters):
        same(p, q)
        for slot, value in opt.slots(p).items():
            same(value, resumed.slots(q)[slot])


def test_a_loaded_optimizer_has_the_hash_of_the_saved_one(tmp_path: Path) -> None:
    """The factor of clipping in the last step is no part of a state."""
    opt, other = [optim.SGD([pb.Parameter(np.ones(3))], lr=0.1, clip_norm=0.05) for _ in range(2)]
    for _ in range(2):
        opt.step([pb.tensor(np.ones(3))])
    pb.save(tmp_path / "state.safetensors", opt.state_dict())
    other.load_state_dict(pb.load(tmp_path / "state.safetensors"))
    assert pb.hash(opt) == pb.hash(other)
    before = pb.hash(opt)
    opt.clip_norm = 10.0
    opt.clip_norm = 0.05
    assert pb.hash(opt) == before
