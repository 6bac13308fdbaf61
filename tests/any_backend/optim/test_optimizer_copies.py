"""A deep copy of a model and its optimizer continues from the original's state, independently of the original."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import OPTIMIZERS, batches, run, same, training


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_copy_and_the_first_one_go_on_alike(name: str) -> None:
    _, opt, step = training(OPTIMIZERS[name])
    data = batches(4)
    run(step, data)
    before = [(np.array(p.numpy()), {key: np.array(x.numpy()) for key, x in opt.slots(p).items()}) for p in opt.parameters]
    twin = copy.deepcopy(opt)
    for p, q in zip(opt.parameters, twin.parameters):
        same(p, q)
        for key in opt.slots(p):
            same(opt.slots(p)[key], twin.slots(q)[key])
    for p, (value, slots) in zip(opt.parameters, before):  # The original is unchanged.
        same(p, pb.asarray(value))
        for key, slot in slots.items():
            assert slot.any()
            same(opt.slots(p)[key], pb.asarray(slot))
    gradients: list[Any] = [pb.ones_like(p) for p in opt.parameters]
    opt.step(gradients)
    assert (opt.steps, twin.steps) == (5, 4)
    for p, (value, _) in zip(twin.parameters, before):  # The copy has separate memory.
        same(p, pb.asarray(value))
    twin.step([pb.ones_like(p) for p in twin.parameters])
    for p, q in zip(opt.parameters, twin.parameters):
        same(p, q)
        for key in opt.slots(p):
            same(opt.slots(p)[key], twin.slots(q)[key])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_was_pickled_with_its_network_goes_on_alike(name: str) -> None:
    net, opt, step = training(OPTIMIZERS[name])
    run(step, batches(4))
    net_, opt_ = pickle.loads(pickle.dumps((net, opt)))
    assert all([p is q for p, q in zip(opt_.parameters, net_.parameters())])
    assert (type(opt_), opt_.steps, opt_.lr) == (type(opt), opt.steps, opt.lr)
    for _ in range(2):
        opt.step([pb.ones_like(p) for p in opt.parameters])
        opt_.step([pb.ones_like(p) for p in opt_.parameters])
    for p, q in zip(opt.parameters, opt_.parameters):
        same(p, q)
        for key in opt.slots(p):
            same(opt.slots(p)[key], opt_.slots(q)[key])


def test_an_optimizer_that_was_pickled_can_be_captured() -> None:
    opt = pickle.loads(pickle.dumps(pb.optim.Adam([pb.Parameter([1.0, 2.0], name="w")], lr=0.1, clip_norm=1.0)))
    (p,) = opt.parameters
    step = pb.capture(lambda x: opt.minimize(lambda: pb.sum((p * x) ** 2)))
    losses = [float(step(pb.ones(2))) for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    assert opt.steps == 4
