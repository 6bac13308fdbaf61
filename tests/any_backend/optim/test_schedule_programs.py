"""The rows of numbers behind the sets of an optimizer, which its schedules of several pieces use."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import optim
from pullback.optim import schedules as s
from pullback.optim.program import SPARE
from pullback.optim.schedules import PolynomialSparsity
from pullback.optim.sets import ARGUMENT, CLOCK, SCHEDULE

WARM = s.Sequential([s.Linear(0.1, steps=5, start=0.2, end=1.0), s.Cosine(0.1, steps=20)], [5])
LONG = s.Table(np.linspace(1, 0, 300))


def made(lr: Any, count: int = 3, **options: Any) -> Any:
    return optim.SGD([pb.Parameter(np.zeros(2), name=f"p{i}") for i in range(count)], lr=lr, **options)


def rates(opt: Any) -> list[float]:
    """Does a step with gradients of -1, and returns the changes, which are the learning rates that the update has used."""
    deltas = opt.step([pb.tensor(-np.ones(p.shape)) for p in opt.parameters], return_delta=True) or []
    return [float(host(d).flat[0]) for d in deltas]


def sets(opt: Any) -> Any:
    return np.array([host(rows) for rows in opt.state_dict()["settings"].values()])


def test_groups_have_different_schedules_and_equal_ones_share_rows() -> None:
    groups = {"p1": {"lr": LONG}, "p2": {"lr": s.Sequential(WARM.schedules, WARM.milestones)}, "p3": {"lr": LONG * 0.5}}
    opt = made(WARM, 5, groups=groups)
    for t in range(30):
        assert [opt.lr, *[group.lr for group in opt.groups[1:]]] == [x.rate(t) for x in (WARM, LONG, WARM, LONG * 0.5)]
        assert rates(opt) == [x.rate(t) for x in (WARM, LONG, WARM, LONG * 0.5, WARM)]
    found = sets(opt)
    assert (found[0] == found[[2, 4]]).all()


def test_members_have_different_schedules() -> None:
    schedules = [WARM, s.Schedule(0.3), LONG, WARM, s.Step(0.1, every=3) * s.Linear(1.0, steps=7)]
    opt = optim.SGD([pb.Parameter(np.zeros((5, 2)))], lr=schedules)
    solo = [made(schedule, 1) for schedule in schedules]
    for _ in range(12):
        deltas = opt.step([pb.tensor(-np.ones((5, 2)))], return_delta=True) or []
        assert host(deltas[0])[:, 0].tolist() == [rates(each)[0] for each in solo]
    np.testing.assert_array_equal(opt.lr, [schedule.rate(12) for schedule in schedules])
    (found,) = sets(opt)
    assert (found[0] == found[3]).all()


def test_rows_are_used_again() -> None:
    opt = made(0.1)
    table = opt._table.array
    assert len(table) == 3 + SPARE
    for k in range(2, 20):
        opt.lr = s.Sequential([s.Schedule(x / 100) for x in range(1, SPARE + 1)], [k * (x + 1) for x in range(SPARE - 1)])
        assert rates(opt) == [opt._defaults["lr"].rate(k - 2)] * 3
    assert opt._table.array is table, "the rows of the schedule before were free"
    opt.lr = 0.5
    assert not host(opt.state_dict()["program"]).any()
    opt.lr = WARM
    opt.lr_scale = 2.0
    assert rates(opt) == [2 * WARM.rate(18)] * 3


def test_a_longer_schedule_makes_the_table_anew() -> None:
    opt = made(WARM, groups={"p1": {"lr": s.ReduceOnPlateau(0.3, factor=0.5, patience=0)}})
    rates(opt)
    for _ in range(3):
        opt.observe(1.0)
    before, table = host(opt.state_dict()["program"]), opt._table.array
    opt.lr = LONG
    assert opt._table.array is not table
    assert rates(opt) == [LONG.rate(1), 0.3 * 0.25, LONG.rate(1)]
    assert len(opt._table.program.rows) > len(before)
    opt.observe(1.0)
    assert opt.groups[1].lr == 0.3 * 0.125


@needs_kernels
@pytest.mark.parametrize(
    "schedule", [WARM, LONG, LONG * WARM, s.MultiStep(0.1, range(1, 20), factor=0.9)], ids=lambda x: type(x).__name__
)
def test_captured_is_eager(schedule: Any) -> None:
    opts = [made(schedule) for _ in range(2)]
    replay = pb.capture(lambda *g: opts[1].step(list(g), return_delta=True))
    for _ in range(25):
        g = [pb.tensor(-np.ones(2))] * 3
        assert host(replay(*g)[0]).tolist() == host(opts[0].step(g, return_delta=True)[0]).tolist()
        assert opts[0].lr == opts[1].lr
    assert replay.stats().recordings == 1


@needs_kernels
def test_a_recording_follows_a_new_schedule_and_a_new_table() -> None:
    opt = made(0.1)
    replay = pb.capture(lambda g: (opt.step([g, g, g], return_delta=True), opt.preview([g, g, g])))
    g = pb.tensor(-np.ones(2))
    for t, (schedule, recordings) in enumerate([(0.1, 1), (WARM, 1), (WARM * 0.5, 1), (LONG, 2), (WARM, 2), (0.1, 2)]):
        opt.lr = schedule
        deltas, previews = replay(g)
        wanted = [s.Schedule(0.1).rate(x) if schedule == 0.1 else schedule.rate(x) for x in (t, t + 1)]
        assert [host(d)[0] for d in (*deltas, *previews)] == [wanted[0]] * 3 + [wanted[1]] * 3
        assert replay.stats().recordings == recordings


@needs_kernels
def test_updates_of_single_parameters_follow_a_new_schedule() -> None:
    opts = [made(0.1) for _ in range(2)]

    def minimize(opt: Any) -> Any:
        return opt.minimize(lambda: pb.sum((opt.parameters[0] - 1) * opt.parameters[1] + opt.parameters[2]), gate="op")

    replay = pb.capture(lambda: minimize(opts[1]))
    for schedule in (0.1, WARM, LONG * WARM, 0.2):
        for opt in opts:
            opt.lr = schedule
        for _ in range(3):
            assert float(minimize(opts[0])) == float(replay())
            for p, q in zip(opts[0].parameters, opts[1].parameters):
                np.testing.assert_array_equal(host(p), host(q))
    np.testing.assert_array_equal(sets(opts[0]), sets(opts[1]))


@pytest.mark.parametrize("how", ["state", "pickle", "copy"])
@pytest.mark.parametrize("schedule", [WARM, LONG, LONG * WARM], ids=lambda x: type(x).__name__)
def test_an_optimizer_goes_on_in_another_one(schedule: Any, how: str) -> None:
    opt = made(schedule, groups={"p1": {"lr": WARM * 2}})
    for _ in range(3):
        rates(opt)
    if how == "state":
        twin = made(LONG, groups={"p1": {"lr_scale": 3.0}})
        twin.load_state_dict(opt.state_dict())
    else:
        twin = pickle.loads(pickle.dumps(opt)) if how == "pickle" else copy.deepcopy(opt)
    for _ in range(9):
        assert rates(opt) == rates(twin)
    assert (twin.lr, twin._defaults["lr"], twin.groups[1].lr) == (opt.lr, opt._defaults["lr"], opt.groups[1].lr)
    opt.lr = twin.lr = LONG * 0.25
    assert rates(opt) == rates(twin) == [LONG.rate(12) * 0.25, WARM.rate(12) * 2, LONG.rate(12) * 0.25]


def test_a_state_survives_a_file(tmp_path: Any) -> None:
    net, other = pb.nn.Linear(2, 2), pb.nn.Linear(2, 2)
    opts = [
        optim.SGD(net.parameters(), lr=WARM * s.ReduceOnPlateau(1.0, factor=0.5, patience=0)),
        optim.SGD(other.parameters(), lr=1.0),
    ]
    opts[0].observe(1.0)
    opts[0].observe(1.0)
    pb.save_training(tmp_path / "file", net, opts[0])
    pb.load_training(tmp_path / "file", other, opts[1])
    assert opts[0].lr == opts[1].lr == WARM.rate(0) * 0.5


def damaged(opt: Any, where: str, row: int, index: int, value: float) -> dict[str, Any]:
    given = opt.state_dict()
    table = host(given["program"] if where == "program" else given["settings"]["p0"]).copy()
    table[row, index] = value
    tensor = pb.tensor(table, dtype="float64")
    return {**given, "program": tensor} if where == "program" else {**given, "settings": {**given["settings"], "p0": tensor}}


@pytest.mark.parametrize(
    ("where", "row", "index", "value", "words"),
    [
        ("settings", 0, ARGUMENT, 99, "it has no 3.0 rows from 99.0 on"),
        ("settings", 0, ARGUMENT, 0.5, "it has no 3.0 rows from 0.5 on"),
        ("settings", 0, ARGUMENT, -1, "it has no 3.0 rows from -1.0 on"),
        ("settings", 0, ARGUMENT + 1, 0, "it has no 0.0 rows"),
        ("settings", 0, SCHEDULE, 77, "no schedule of this version"),
        ("settings", 0, SCHEDULE, 18, "no schedule of this version"),
        ("program", 0, SCHEDULE, 17, r"no schedule of this version \(kind 17"),
        ("program", 0, ARGUMENT, 0, "pieces of pieces have pieces"),
        ("program", 3, CLOCK, 1, "does not begin at step 0"),
        ("program", 4, CLOCK, 0, "milestones"),
        ("program", 2, ARGUMENT, np.nan, "no schedule of this version"),
        ("program", 5, SCHEDULE, 0, "it has no 1 rows from 5.0 on"),
        ("program", 5, 1, -1, "no valid state"),
        ("program", 5, 3, np.nan, "no valid state"),
        ("program", 5, 4, 0.5, "no valid state"),
        ("program", 5, 6, 1, "no valid state"),
    ],
)
def test_a_damaged_program_is_refused(where: str, row: int, index: int, value: float, words: str) -> None:
    """The rows are: three factors, two pieces of the first factor, the state of the third."""
    opt = made(WARM * s.Schedule(1.0) * s.ReduceOnPlateau(1.0), 1)
    before = repr(opt), sets(opt)
    with pytest.raises(pb.PullbackError, match=words):
        opt.load_state_dict(damaged(opt, where, row, index, value))
    assert repr(opt) == before[0]
    np.testing.assert_array_equal(sets(opt), before[1])
    assert rates(opt) == [WARM.rate(0)]


def test_states_of_other_layouts_are_refused() -> None:
    opt = made(WARM, 1)
    given = opt.state_dict()
    older = {name: x for name, x in given.items() if name != "program"}
    for state, words in (
        (older, 'the state has no "program"; an earlier version'),
        ({**given, "program": pb.zeros((4, 31), dtype="float64")}, r"the program has shape \(4, 31\)"),
        ({**given, "program": pb.zeros((4, 32), dtype="int64")}, r"the program has shape \(4, 32\) and dtype int64"),
        ({**given, "program": None}, "the program is a NoneType"),
        ({**given, "program": pb.zeros((0, 32), dtype="float64")}, "milestones"),
    ):
        with pytest.raises(pb.PullbackError, match=words):
            opt.load_state_dict(state)
    assert rates(opt) == [WARM.rate(0)]


def test_a_polynomial_sparsity_is_its_formula() -> None:
    schedule = PolynomialSparsity(0.1, 0.9, begin=10, stop=45, every=10)
    wanted = {0: 0.0, 9: 0.0, 10: 0.1, 19: 0.1, 45: 0.9, 1000: 0.9}
    wanted |= {t: 0.9 - 0.8 * (1 - (t - 10) // 10 * 10 / 35) ** 3 for t in range(10, 45)}
    for t, share in wanted.items():
        assert schedule.sparsity(t) == schedule(t) == pytest.approx(share, abs=1e-15)
    assert PolynomialSparsity(0.0, 0.8, 5, 5)(4) == 0.0
    assert PolynomialSparsity(0.0, 0.8, 5, 5)(5) == 0.8
    assert PolynomialSparsity(0.0, 0.8, 0, 10, every=1, power=1)(5) == pytest.approx(0.4)
    assert pickle.loads(pickle.dumps(schedule)) == schedule != PolynomialSparsity(0.1, 0.9, 10, 45)
    assert repr(schedule) == "PolynomialSparsity(start=0.1, end=0.9, begin=10, stop=45, every=10, power=3.0)"
