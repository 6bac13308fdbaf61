"""Schedules against those of torch.optim.lr_scheduler, on the host and on the device, and what they refuse."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import optim
from pullback.optim import schedules as s
from pullback.optim.program import Program

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare the schedules with")
lr = torch.optim.lr_scheduler

STEPS = 200
MANY = [3, 9, 17, 30, 31, 55, 90, 120, 121, 170]
PAIRS: dict[str, tuple[Any, Any]] = {
    "StepLR": (s.Step(0.1, every=4, factor=0.9), lambda o: lr.StepLR(o, 4, 0.9)),
    "MultiStepLR": (s.MultiStep(0.1, [9, 3, 17], factor=0.3), lambda o: lr.MultiStepLR(o, [3, 9, 17], 0.3)),
    "MultiStepLR many": (s.MultiStep(0.1, MANY, factor=0.7), lambda o: lr.MultiStepLR(o, MANY, 0.7)),
    "ConstantLR": (s.Constant(0.1, steps=7, factor=1 / 4), lambda o: lr.ConstantLR(o, 1 / 4, 7)),
    "ConstantLR default": (s.Constant(0.1), lambda o: lr.ConstantLR(o)),
    "LinearLR": (s.Linear(0.1, steps=90, start=0.2, end=0.9), lambda o: lr.LinearLR(o, 0.2, 0.9, 90)),
    "ExponentialLR": (s.Exponential(0.1, factor=0.97), lambda o: lr.ExponentialLR(o, 0.97)),
    "PolynomialLR": (s.Polynomial(0.1, steps=180, power=2.0), lambda o: lr.PolynomialLR(o, 180, 2.0)),
    "CosineAnnealingLR": (s.Cosine(0.1, steps=STEPS, end=0.01), lambda o: lr.CosineAnnealingLR(o, STEPS, 0.01)),
    "LambdaLR": (s.Lambda(0.1, lambda t: 0.95**t, STEPS), lambda o: lr.LambdaLR(o, lambda t: 0.95**t)),
    "MultiplicativeLR": (
        s.Multiplicative(0.1, lambda t: 1 - t / 1e4, STEPS), lambda o: lr.MultiplicativeLR(o, lambda t: 1 - t / 1e4),
    ),
    "OneCycleLR": (s.OneCycle(0.1, steps=STEPS), lambda o: lr.OneCycleLR(o, 0.1, STEPS, cycle_momentum=False)),
    "OneCycleLR long": (
        s.OneCycle(0.1, steps=STEPS, warmup=0.6, div_factor=5.0, final_div_factor=10.0),
        lambda o: lr.OneCycleLR(o, 0.1, STEPS, pct_start=0.6, div_factor=5.0, final_div_factor=10.0, cycle_momentum=False),
    ),
    "OneCycleLR linear": (
        s.OneCycle(0.1, steps=STEPS, anneal_strategy="linear"),
        lambda o: lr.OneCycleLR(o, 0.1, STEPS, anneal_strategy="linear", cycle_momentum=False),
    ),
    "OneCycleLR in three phases": (
        s.OneCycle(0.1, steps=STEPS, warmup=0.4, three_phase=True),
        lambda o: lr.OneCycleLR(o, 0.1, STEPS, pct_start=0.4, three_phase=True, cycle_momentum=False),
    ),
    "OneCycleLR in three lines": (
        s.OneCycle(0.1, steps=STEPS, warmup=0.25, anneal_strategy="linear", three_phase=True),
        lambda o: lr.OneCycleLR(o, 0.1, STEPS, pct_start=0.25, anneal_strategy="linear", three_phase=True, cycle_momentum=False),
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
    "CyclicLR exp_range": (
        s.Cyclic(0.1, high=0.7, up=8, down=5, decay=0.98),
        lambda o: lr.CyclicLR(o, 0.1, 0.7, 8, 5, mode="exp_range", gamma=0.98, cycle_momentum=False),
    ),
    "SequentialLR": (
        s.Sequential([s.Linear(0.1, 20, 0.1, 1.0), s.Cosine(0.1, steps=100), s.Exponential(0.1, factor=0.9)], [20, 120]),
        lambda o: lr.SequentialLR(
            o, [lr.LinearLR(o, 0.1, 1.0, 20), lr.CosineAnnealingLR(o, 100), lr.ExponentialLR(o, 0.9)], [20, 120]
        ),
    ),
    "ChainedScheduler": (
        s.Product(s.Exponential(0.1, factor=0.99), s.Linear(1.0, steps=30, start=0.2, end=1.0), s.Step(1.0, every=50, factor=0.5)),
        lambda o: lr.ChainedScheduler([lr.ExponentialLR(o, 0.99), lr.LinearLR(o, 0.2, 1.0, 30), lr.StepLR(o, 50, 0.5)]),
    ),
}
OURS: dict[str, Any] = {
    "Schedule": s.Schedule(0.1),
    "WarmupCosine": s.WarmupCosine(0.1, steps=150, warmup=40, end=0.001),
    "WarmupStableDecay": s.WarmupStableDecay(0.1, steps=160, warmup=30, decay=60, end=0.01, power=0.5),
    "Polynomial": s.Polynomial(0.1, steps=60, end=0.02, power=2.0),
    "Cosine": s.Cosine(0.1, steps=70, end=0.01),
    "Table": s.Table([0.5, 0.25, *np.linspace(0.2, 0.1, 90)]),
    "Product of sequences": s.Sequential([s.Schedule(0.1), s.Table(np.linspace(1, 0.5, 40))], [25])
    * s.Sequential([s.Linear(1.0, steps=12, start=0.1, end=1.0), s.MultiStep(1.0, MANY), s.OneCycle(2.0, steps=50)], [12, 99])
    * 0.5,
    **{name: ours for name, (ours, _) in PAIRS.items()},
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_schedule_is_torchs(name: str) -> None:
    ours, make = PAIRS[name]
    opt = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    theirs = make(opt)
    for t in range(STEPS):
        assert ours.rate(t) == pytest.approx(opt.param_groups[0]["lr"], rel=1e-12, abs=1e-16)
        opt.step()
        if t < STEPS - 1:  # OneCycleLR refuses further steps
            theirs.step()


def test_there_is_a_schedule_for_each_of_torch() -> None:
    names = {name.split()[0] for name in PAIRS} | {"ReduceLROnPlateau", "LRScheduler"}
    assert {*lr.__all__} == names


@pytest.mark.parametrize("name", OURS)
def test_the_device_computes_the_rate_of_the_host(name: str) -> None:
    schedule = OURS[name]
    opt = optim.SGD([pb.Parameter(np.zeros(1))], lr=schedule)
    one = [pb.tensor(np.ones(1))]
    found = [-host((opt.step(one, return_delta=True) or [])[0])[0] for _ in range(STEPS)]
    wanted = [schedule.rate(t) for t in range(STEPS)]
    np.testing.assert_allclose(found, wanted, rtol=1e-15, atol=1e-16 * max(wanted))
    assert opt.lr == schedule.rate(STEPS)


def test_powers_are_those_of_the_device_after_many_steps() -> None:
    """x**n is not exact to the last bit, so that host and device multiply in the same order."""
    for schedule in (
        s.Exponential(0.1, factor=0.99999),
        s.Step(0.1, every=3, factor=0.9999),
        s.Cyclic(0.1, 0.5, 3, 4, decay=0.9999),
    ):
        opt = optim.SGD([pb.Parameter(np.zeros(1), name="p")], lr=schedule)
        given = opt.state_dict()
        numbers = given["settings"]["p"].numpy().copy()
        numbers[:, 2] = 123457  # the clock
        opt.load_state_dict({**given, "steps": 123457, "settings": {"p": pb.tensor(numbers, dtype="float64")}})
        delta = (opt.step([pb.tensor(np.ones(1))], return_delta=True) or [])[0]
        assert -host(delta)[0] == schedule.rate(123457)


def test_warmup_stable_decay_has_three_parts() -> None:
    plain = s.WarmupStableDecay(1.0, steps=10, warmup=2, decay=4, end=0.2)
    assert [plain(t) for t in (0, 1, 2, 5, 6, 8, 10, 99)] == pytest.approx([0.0, 0.5, 1.0, 1.0, 1.0, 0.6, 0.2, 0.2])
    root = s.WarmupStableDecay(1.0, steps=10, decay=4, power=0.5)
    assert [root(t) for t in (0, 6, 7, 10)] == pytest.approx([1.0, 1.0, 0.5, 0.0])
    assert s.WarmupStableDecay(1.0, steps=3)(3) == 0.0


def test_a_table_and_a_cosine_stay_at_their_end() -> None:
    assert [s.Table([3.0, 2.0])(t) for t in (0, 1, 2, 99)] == [3.0, 2.0, 2.0, 2.0]
    assert s.Table([3.0, 2.0]).base == 3.0
    assert s.Lambda(2.0, lambda t: t, 4) == s.Table([0.0, 2.0, 4.0, 6.0])
    assert s.Multiplicative(2.0, lambda t: t, 4) == s.Table([2.0, 2.0, 4.0, 12.0])
    assert s.Cosine(0.1, steps=5, end=0.01)(99) == 0.01


def test_products() -> None:
    half, decay = s.Schedule(0.5), s.Exponential(0.1, factor=0.5)
    assert half * decay == s.Product(half, decay) != decay * half
    assert 0.5 * decay == decay * 0.5 == s.Product(decay, 0.5)
    assert half * (decay * half) == s.Product(half, decay, half)
    assert (half * decay).rate(2) == 0.5 * 0.1 * 0.25
    assert repr(half * decay) == "Product(Schedule(base=0.5), Exponential(base=0.1, factor=0.5))"
    with pytest.raises(TypeError):
        half * "3"
    with pytest.raises(TypeError):
        half * True


@pytest.mark.parametrize("name", [*OURS, "plateau"])
def test_a_schedule_survives_the_settings_of_its_parameter(name: str) -> None:
    ours = OURS.get(name, s.ReduceOnPlateau(0.1, 0.5, 3, 0.01, "max", "abs", 2, 1e-3) * s.Linear(1.0, steps=5))
    program = Program(np.zeros((0, 32)), 1)
    program.place({0: [ours]})
    settings = program.placed[0][0].settings
    assert len(settings) == 9
    read = Program(program.rows, 1).read(settings)
    assert (read.schedule, repr(read.schedule)) == (ours, repr(ours))
    assert read.rows == program.placed[0][0].rows


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: s.MultiStep(0.1, [0, 3]), r"milestones=\[0, 3\]; give a list of numbers of steps"),
        (lambda: s.MultiStep(0.1, 3), r"milestones=3; give a list"),
        (lambda: s.MultiStep(0.1, [2.5]), r"milestones=\[2.5\]; give a list"),
        (lambda: s.OneCycle(0.1, steps=0), "OneCycle: steps=0; it must be a number of 1 step or more"),
        (lambda: s.OneCycle(0.1, steps=9, warmup=2.0), "warmup=2.0.*a share from 0 to 1 of the steps"),
        (lambda: s.OneCycle(0.1, steps=9, warmup=0.6, three_phase=True), "warmup=0.6.*a share from 0 to 0.5"),
        (lambda: s.OneCycle(0.1, steps=9, anneal_strategy="sin"), 'anneal_strategy=\'sin\'.*must be "cos" or "linear"'),
        (lambda: s.OneCycle(0.1, steps=9, three_phase=1), "three_phase=1; .*True or False"),
        (lambda: s.CosineRestarts(0.1, steps=4, growth=0), "growth=0; it must be 1 or more"),
        (lambda: s.Cyclic(0.1, high=0.2, up=0), "up=0 and down=2000; both must be positive"),
        (lambda: s.WarmupCosine(1e-3, 10, 100), "falls from base=0.001 to end=100, which must be between 0 and base"),
        (lambda: s.Exponential(1e-2, 100), r"factor=100 multiplies the rate in each step.*d \*\* \(1 / n\)"),
        (lambda: s.Cosine(0.1, steps=float("inf")), "steps=inf; it must be a finite number"),
        (lambda: s.Step(0.1, every=0.5), "every=0.5; it must be a whole number"),
        (lambda: s.Constant(0.1, steps=0), "steps=0; it must be a number of 1 step or more"),
        (lambda: s.Step(0.1, 0), "Step: every=0; it must be a number of 1 step or more"),
        (lambda: s.OneCycle(0.1, 10, warmup=1.5), "warmup=1.5; it is a share from 0 to 1 of the steps, not a number of steps"),
        (lambda: s.WarmupCosine(0.1, 1000, warmup=0.1), r"warmup=0.1; .* for a share of them write warmup=round\(0.1 \* steps\)"),
        (lambda: s.WarmupStableDecay(0.1, 1000, decay=0.2), r"decay=0.2; .*decay=round\(0.2 \* steps\)"),
        (lambda: s.Cosine(0.1, 2.5), r"Cosine: steps=2.5; it must be a whole number\."),
        (lambda: s.WarmupCosine(0.1, 5, warmup=9), "warmup=9 and steps=5; the warmup is a part of the steps, from 0 to 5"),
        (lambda: s.WarmupCosine(0.1, 5, warmup=-1), "warmup=-1 and steps=5"),
        (lambda: s.WarmupStableDecay(0.1, 5, warmup=3, decay=3), "warmup=3, decay=3 and steps=5; both are parts of the steps"),
        (lambda: s.Polynomial(0.1, steps=4, power=-1), "power=-1; it must be 0 or more"),
        (lambda: s.Schedule(True), "base is a bool"),
        (lambda: s.WarmupStableDecay("0.1", steps=4), "base is a str; it must be a number"),
        (lambda: s.Sequential([], []), r"schedules=\[\]; give a list of at least one"),
        (lambda: s.Sequential(s.Schedule(0.1), []), "give a list of at least one schedule"),
        (lambda: s.Sequential([0.1, 0.2], []), r"milestones=\[\] for 2 schedules; give 1 ascending"),
        (lambda: s.Sequential([0.1, 0.2, 0.3], [5, 5]), r"milestones=\[5, 5\] for 3 schedules"),
        (lambda: s.Sequential([0.1, 0.2, 0.3], [5, 3]), r"milestones=\[5, 3\]"),
        (lambda: s.Sequential([0.1, 0.2], [0]), r"milestones=\[0\]"),
        (lambda: s.Sequential([0.1, 0.2], [2.5]), r"milestones=\[2.5\]"),
        (lambda: s.Sequential([0.1, "x"], [2]), "Sequential: schedule is a str"),
        (
            lambda: s.Sequential([s.Sequential([0.1], []), 0.2], [2]),
            "is a Sequential, which has pieces itself. Give all pieces to one",
        ),
        (
            lambda: s.Sequential([s.Schedule(0.1) * 2, 0.2], [2]),
            r"is a Product, which has pieces.*Product\(Sequential\(\.\.\.\), \.\.\.\)",
        ),
        (lambda: s.Product(), "Product: 0 schedules; give 1 to 32"),
        (lambda: s.Product(*[1.0] * 33), "Product: 33 schedules; give 1 to 32"),
        (lambda: s.Product(math.nan), "Product: schedule=nan; it must be a finite number"),
        (lambda: s.Table([]), "there are no rates"),
        (lambda: s.Table([0.1, -0.2]), "the rate of step 1 is -0.2"),
        (lambda: s.Table([0.1, math.nan]), "the rate of step 1 is nan"),
        (lambda: s.Table(3.0), "rates=3.0; give a list of numbers"),
        (lambda: s.Table(["a"]), "give a list of numbers"),
        (lambda: s.Lambda(0.1, 0.9, 5), "Lambda: a float was given, and not a function"),
        (lambda: s.Lambda(0.1, lambda t: -t, 5), "the rate of step 1 is -0.1"),
        (lambda: s.Lambda(0.1, lambda t: 1.0, 0), "Lambda: steps=0; it must be a whole number of 1 or more"),
        (lambda: s.Multiplicative("a", lambda t: 1.0, 3), "Multiplicative: base is a str"),
        (lambda: s.ReduceOnPlateau(0.1, factor=1.0), "factor=1.0 multiplies the rate; it must be from 0 to less than 1"),
        (lambda: s.ReduceOnPlateau(0.1, patience=-1), "patience, threshold, cooldown and end must be 0 or more"),
        (lambda: s.ReduceOnPlateau(0.1, patience=1.5), "patience=1.5; it must be a whole number"),
        (lambda: s.ReduceOnPlateau(0.1, mode="least"), 'mode=\'least\'.*must be "min" or "max"'),
        (lambda: s.ReduceOnPlateau(0.1, threshold=math.inf), "threshold=inf; it must be a finite number"),
    ],
)
def test_a_wrong_schedule_is_refused(make: Any, words: str) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        make()


@pytest.mark.parametrize(
    "name", ["Cosine", "Linear", "Polynomial", "WarmupCosine", "OneCycle", "CosineRestarts", "WarmupStableDecay"]
)
def test_steps_are_required(name: str) -> None:
    kind = getattr(s, name)
    with pytest.raises(TypeError, match=f"{name} needs steps=, the number of steps until the rate has reached its end"):
        kind(0.1)
    for made in (kind(0.1, 50), kind(base=0.1, steps=50)):
        assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made
        assert made.rate(20) > 0


def test_what_would_never_change_the_rate_or_end_it_at_once_is_required() -> None:
    with pytest.raises(TypeError, match="Step needs every=, the number of steps after which"):
        s.Step(0.1, factor=0.5)
    with pytest.raises(TypeError, match="MultiStep needs milestones=, the numbers of steps after which"):
        s.MultiStep(0.1)


def test_a_schedule_of_ones_own_is_listed() -> None:
    class Mine(s.Schedule):
        def rate(self, t: int) -> float:
            return self.base / (1 + t)

    p = pb.Parameter([1.0])
    for make in (lambda: optim.SGD([p], lr=Mine(0.1)), lambda: s.Product(Mine(0.1), 2.0), lambda: s.Sequential([Mine(0.1)], [])):
        with pytest.raises(pb.PullbackError, match=r"Mine is a schedule of your own.*Lambda\(base, function, steps\)"):
            make()
    assert optim.SGD([p], lr=s.Table([Mine(0.1).rate(t) for t in range(9)])).lr == 0.1


def test_the_momentum_of_one_cycle_by_hand_is_torchs() -> None:
    """The line of docs/optimizers.md that cycles the momentum."""
    theirs = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    schedule, shape = lr.OneCycleLR(theirs, 0.1, 100), s.OneCycle(1.0, steps=100, div_factor=2.0, final_div_factor=1.0)
    for t in range(100):
        assert 0.95 - 0.1 * (2 * shape.rate(t) - 1) == pytest.approx(theirs.param_groups[0]["momentum"], abs=1e-12)
        theirs.step()
        if t < 99:
            schedule.step()
