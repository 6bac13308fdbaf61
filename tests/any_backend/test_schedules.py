"""Schedules against those of torch.optim.lr_scheduler, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import optim
from pullback.optim import schedules as s
from pullback.optim.sets import ARGUMENTS, schedule_of

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare the schedules with")
lr = torch.optim.lr_scheduler

PAIRS: dict[str, tuple[Any, Any]] = {
    "StepLR": (s.Step(0.1, every=4, factor=0.5), lambda o: lr.StepLR(o, 4, 0.5)),
    "MultiStepLR": (s.MultiStep(0.1, [9, 3, 17], factor=0.3), lambda o: lr.MultiStepLR(o, [3, 9, 17], 0.3)),
    "ConstantLR": (s.MultiStep(0.1 / 4, [5], factor=4.0), lambda o: lr.ConstantLR(o, 1 / 4, 5)),
    "LinearLR": (s.Linear(0.1, steps=6, start=0.2, end=0.9), lambda o: lr.LinearLR(o, 0.2, 0.9, 6)),
    "ExponentialLR": (s.Exponential(0.1, factor=0.9), lambda o: lr.ExponentialLR(o, 0.9)),
    "PolynomialLR": (s.Polynomial(0.1, steps=8, power=2.0), lambda o: lr.PolynomialLR(o, 8, 2.0)),
    "OneCycleLR": (s.OneCycle(0.1, steps=25), lambda o: lr.OneCycleLR(o, 0.1, 25, cycle_momentum=False)),
    "OneCycleLR long": (
        s.OneCycle(0.1, steps=25, warmup=0.6, div_factor=5.0, final_div_factor=10.0),
        lambda o: lr.OneCycleLR(o, 0.1, 25, pct_start=0.6, div_factor=5.0, final_div_factor=10.0, cycle_momentum=False),
    ),
    "CosineAnnealingWarmRestarts": (s.CosineRestarts(0.1, steps=6), lambda o: lr.CosineAnnealingWarmRestarts(o, 6)),
    "CosineAnnealingWarmRestarts longer": (
        s.CosineRestarts(0.1, steps=2, growth=3, end=0.01), lambda o: lr.CosineAnnealingWarmRestarts(o, 2, 3, 0.01),
    ),
    "CyclicLR": (s.Cyclic(0.1, high=0.7, up=3, down=4), lambda o: lr.CyclicLR(o, 0.1, 0.7, 3, 4, cycle_momentum=False)),
    "CyclicLR triangular2": (
        s.Cyclic(0.1, high=0.7, up=3, down=3, factor=0.5),
        lambda o: lr.CyclicLR(o, 0.1, 0.7, 3, mode="triangular2", cycle_momentum=False),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_a_schedule_is_torchs(name: str) -> None:
    ours, make = PAIRS[name]
    opt = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    theirs = make(opt)
    for t in range(25):
        assert ours.rate(t) == pytest.approx(opt.param_groups[0]["lr"], rel=1e-12, abs=1e-16)
        opt.step()
        if t < 24:  # OneCycleLR refuses further steps
            theirs.step()


@pytest.mark.parametrize(
    "schedule",
    [s.Schedule(0.1), s.Step(0.1, every=3, factor=0.5), s.Exponential(0.1, factor=0.8),
     s.Cosine(0.1, steps=8, end=0.01), s.Linear(0.1, steps=5, start=0.2, end=1.0),
     s.Polynomial(0.1, steps=6, end=0.02, power=2.0), s.WarmupCosine(0.1, steps=10, warmup=4, end=0.001),
     s.MultiStep(0.1, [2, 5, 9], factor=0.5), s.OneCycle(0.1, steps=10, warmup=0.4),
     s.CosineRestarts(0.1, steps=3, growth=2, end=0.01), s.CosineRestarts(0.1, steps=3),
     s.Cyclic(0.1, high=0.5, up=3, down=2, factor=0.5),
     s.WarmupStableDecay(0.1, steps=10, warmup=3, decay=4, end=0.01, power=0.5)],
    ids=lambda schedule: type(schedule).__name__,
)  # fmt: skip
def test_schedule_on_the_device_is_the_formula(schedule: Any) -> None:
    p = pb.Parameter(np.zeros(3))
    opt = optim.SGD([p], lr=schedule)
    for t in range(12):
        delta = (opt.step([pb.tensor(np.ones(3))], return_delta=True) or [])[0]
        assert float(delta[0]) == pytest.approx(-schedule.rate(t), rel=1e-12, abs=1e-15)


def test_warmup_stable_decay_has_three_parts() -> None:
    plain = s.WarmupStableDecay(1.0, steps=10, warmup=2, decay=4, end=0.2)
    assert [plain(t) for t in (0, 1, 2, 5, 6, 8, 10, 99)] == pytest.approx([0.0, 0.5, 1.0, 1.0, 1.0, 0.6, 0.2, 0.2])
    root = s.WarmupStableDecay(1.0, steps=10, decay=4, power=0.5)
    assert [root(t) for t in (0, 6, 7, 10)] == pytest.approx([1.0, 1.0, 0.5, 0.0])
    assert s.WarmupStableDecay(1.0, steps=3)(3) == 0.0


@pytest.mark.parametrize("name", PAIRS)
def test_a_schedule_survives_the_set_of_its_parameter(name: str) -> None:
    ours = PAIRS[name][0]
    assert len(ours.arguments()) <= ARGUMENTS
    p = pb.Parameter([1.0], name="p")
    opt = optim.SGD([p], lr=ours)
    row = opt.state_dict()["settings"]["p"].numpy()[0].tolist()
    assert repr(schedule_of(row)) == repr(ours)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: s.MultiStep(0.1, range(1, 9)), r"milestones=range\(1, 9\); give up to 6 numbers of steps"),
        (lambda: s.MultiStep(0.1, [0, 3]), r"milestones=\[0, 3\]; give up to 6"),
        (lambda: s.MultiStep(0.1, 3), r"milestones=3; give up to 6"),
        (lambda: s.OneCycle(0.1, steps=0), "never moves"),
        (lambda: s.CosineRestarts(0.1, steps=4, growth=0), "growth=0; it must be 1 or more"),
        (lambda: s.Cyclic(0.1, high=0.2, up=0), "up=0 and down=2000; both must be positive"),
        (lambda: s.WarmupCosine(1e-3, 10, 100), "falls from base=0.001 to end=100, which must be between 0 and base"),
        (lambda: s.Exponential(1e-2, 100), r"factor=100 multiplies the rate in each step.*d \*\* \(1 / n\)"),
        (lambda: s.Cosine(0.1, steps=float("inf")), "steps=inf; it must be a finite number"),
        (lambda: s.Step(0.1, every=0.5), "every=0.5; it must be a whole number"),
        (lambda: s.Schedule(True), "base is a bool"),
        (lambda: s.WarmupStableDecay("0.1", steps=4), "base is a str; it must be a number"),
    ],
)
def test_a_wrong_schedule_is_refused(make: Any, words: str) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        make()
