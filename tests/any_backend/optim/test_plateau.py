"""ReduceOnPlateau against torch's, observed on the device: eager and captured, for members and groups, saved and resumed."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import optim
from pullback.launch import door
from pullback.optim import schedules as s
from pullback.optim.program import SPARE

OPTIONS: list[dict[str, Any]] = [
    {},
    {"factor": 0.5, "patience": 2, "threshold": 0.05},
    {"factor": 0.5, "patience": 1, "threshold": 0.02, "threshold_mode": "abs", "cooldown": 3},
    {"factor": 0.7, "patience": 0, "threshold": 0.1, "mode": "max", "cooldown": 1, "end": 0.02},
    {"factor": 0.3, "patience": 3, "threshold": 0.01, "mode": "max", "threshold_mode": "abs"},
    {"factor": 0.9, "patience": 0, "end": 0.0999999999},  # a reduction that is too small
]


def metrics(seed: int = 0, count: int = 200) -> list[float]:
    """Returns the losses of a training that falls, stays, is bad, and falls again."""
    rng = np.random.default_rng(seed)
    falls = np.concatenate(
        [np.linspace(1, 0.5, count // 4), np.full(count // 2, 0.5), np.linspace(0.5, 0.1, count - 3 * (count // 4))]
    )
    found = falls + 0.03 * rng.standard_normal(count)
    found[count // 3] = math.nan
    return found.tolist()


def made(schedule: Any, params: int = 1, **options: Any) -> Any:
    return optim.SGD([pb.Parameter(np.zeros(2), name=f"p{i}") for i in range(params)], lr=schedule, **options)


def delta(opt: Any) -> list[float]:
    """Does a step with gradients of -1, and returns the changes, which are the learning rates that the update has used."""
    deltas = opt.step([pb.tensor(-np.ones(p.shape)) for p in opt.parameters], return_delta=True) or []
    return [float(host(d).flat[0]) for d in deltas]


@pytest.mark.parametrize("options", OPTIONS)
def test_reduce_on_plateau_is_torchs(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare the schedule with")
    theirs = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    least = {"min_lr": options["end"]} if "end" in options else {}
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, **{k: x for k, x in options.items() if k != "end"}, **least)
    opt = made(s.ReduceOnPlateau(0.1, **options))
    assert opt.lr == 0.1
    rates = []
    for k, metric in enumerate(metrics()):
        theirs.step()
        plateau.step(metric)
        opt.observe(metric if k % 2 else pb.tensor(metric, dtype="float64"))
        assert opt.lr == theirs.param_groups[0]["lr"]
        rates.append(opt.lr)
        if k % 20 == 0:
            assert delta(opt) == [opt.lr]
    assert opt.steps == 10
    assert (len({*rates}) > 2) == (options.get("end", 0) < 0.09)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "uint8"])
def test_a_metric_has_any_dtype_of_numbers(dtype: str) -> None:
    opt = made(s.ReduceOnPlateau(0.1, factor=0.5, patience=0, threshold=0.0))
    for value, rate in ((5, 0.1), (3, 0.1), (3, 0.05), (4, 0.025), (2, 0.025)):
        opt.observe(pb.tensor(value, dtype=dtype))
        assert opt.lr == rate
    opt.observe(np.float32(1))
    opt.observe(np.array(1))
    assert opt.lr == 0.0125


def test_an_observation_is_one_launch_and_takes_effect_in_the_next_step() -> None:
    opt = made(
        s.ReduceOnPlateau(0.1, factor=0.5, patience=0), 3, groups={"p1": {"lr": s.ReduceOnPlateau(0.2, factor=0.1, patience=0)}}
    )
    metric = pb.tensor(1.0)
    opt.observe(metric)
    with pb.profile() as prof:
        opt.observe(metric)
    assert [(x.kernel, x.phase) for x in prof.launches] == [("observe", door.OPTIMIZER)]
    np.testing.assert_allclose(delta(opt), [0.05, 0.02, 0.05], rtol=1e-15)
    assert (opt.lr, opt.groups[1].lr) == (0.05, 0.2 * 0.1)


def test_a_plateau_as_a_factor_and_as_a_piece() -> None:
    warm = s.Linear(0.1, steps=4, start=0.25, end=1.0)
    product = made(s.Product(warm, s.ReduceOnPlateau(1.0, factor=0.5, patience=0)))
    sequence = made(s.Sequential([warm, s.ReduceOnPlateau(0.1, factor=0.5, patience=0)], [4]), groups={"p0": {"lr_scale": 2.0}})
    for opt in (product, sequence):
        opt.observe(1.0)
        opt.observe(1.0)
    for t in range(8):
        assert product.lr == warm.rate(t) * 0.5
        assert delta(product) == [warm.rate(t) * 0.5]
        # As for other schedules, the rate is without lr_scale. The piece observes from step 4 on.
        assert sequence.groups[0].lr == (warm.rate(t) if t < 4 else 0.1)
        assert delta(sequence) == [2 * (warm.rate(t) if t < 4 else 0.1)]


@pytest.mark.parametrize("factor", [None, 2.0])
def test_a_piece_observes_from_its_milestone_on(factor: float | None) -> None:
    pieces = s.Sequential([s.Linear(0.1, 5, 0.1, 1.0), s.ReduceOnPlateau(0.1, factor=0.5, patience=1)], [5])
    opt = made(pieces if factor is None else pieces * factor, 2)
    base = 0.1 * (factor or 1.0)
    for t in range(5):
        assert opt.lr == delta(opt)[0] == pieces.rate(t) * (factor or 1.0)
        if t < 4:  # The fifth step is the last one of the line.
            opt.observe(1.0)
            opt.observe(-math.inf)
        if t == 2:
            restored = made(s.Schedule(0.1), 2)
            restored.load_state_dict(opt.state_dict())
    for _ in range(2):
        delta(restored)
    for each in (opt, restored):
        for rate in (1.0, 1.0, 0.5, 0.5, 0.25):  # the first observation is the best one, and two bad ones reduce the rate
            each.observe(1.0)
            assert each.lr == delta(each)[0] == base * rate


def test_each_member_observes_its_own_metric() -> None:
    base, options = [0.1, 0.2, 0.3], {"factor": 0.5, "patience": 1, "threshold": 0.1}
    together = optim.SGD([pb.Parameter(np.zeros((3, 2)))], lr=[s.ReduceOnPlateau(x, **options) for x in base])
    solo = [made(s.ReduceOnPlateau(x, **options)) for x in base]
    every = np.array([metrics(seed, 40) for seed in range(3)])
    for k, row in enumerate(every.T):
        together.observe(pb.tensor(row, dtype="float64"))
        for opt, metric in zip(solo, row):
            opt.observe(metric)
        np.testing.assert_array_equal(together.lr, [opt.lr for opt in solo])
        if k % 9 == 0:
            deltas = together.step([pb.tensor(-np.ones((3, 2)))], return_delta=True) or []
            assert host(deltas[0])[:, 0].tolist() == [delta(opt)[0] for opt in solo]
    assert len({*together.lr.tolist()}) == 3
    assert max(together.lr) < 0.3
    together.observe(0.9)  # of all members
    for opt in solo:
        opt.observe(0.9)
    np.testing.assert_array_equal(together.lr, [opt.lr for opt in solo])


def test_one_schedule_for_members_is_a_plateau_for_each() -> None:
    opt = optim.SGD([pb.Parameter(np.zeros((2, 1)))], lr=s.ReduceOnPlateau(0.1, factor=0.5, patience=0), momentum=[0.0, 0.5])
    opt.observe([1.0, 1.0])
    assert opt.lr == 0.1
    opt.observe([2.0, 0.5])
    assert opt.lr.tolist() == [0.05, 0.1]


@pytest.mark.parametrize("as_piece", [False, True])
def test_more_plateaus_than_free_rows_make_the_program_longer(as_piece: bool) -> None:
    plateau: Any = s.ReduceOnPlateau(0.1, factor=0.5, patience=0)
    members = SPARE + 2
    opt = optim.SGD([pb.Parameter(np.zeros((members, 1)))], lr=[plateau * s.Linear(1.0, 9) if as_piece else plateau] * members)
    worse = np.arange(members) % 2
    opt.observe(np.ones(members))
    opt.observe(2.0 * worse)
    np.testing.assert_array_equal(opt.lr, np.where(worse, 0.05, 0.1))


@needs_kernels
def test_a_captured_observation_is_the_eager_one() -> None:
    schedule = s.ReduceOnPlateau(0.1, factor=0.5, patience=1) * s.Linear(1.0, steps=30)
    opts = [made(schedule, 2, clip_norm=1.0) for _ in range(2)]

    def train(opt: Any, g: Any, metric: Any) -> Any:
        opt.step([g, g])
        opt.observe(metric.mean())
        return metric + 1

    replay = pb.capture(lambda g, metric: train(opts[1], g, metric))
    rng = np.random.default_rng(0)
    for value in metrics(1, 40):
        g, metric = pb.tensor(rng.standard_normal(2)), pb.tensor(np.full(3, value))
        train(opts[0], g, metric)
        replay(g, metric)
        assert opts[0].lr == opts[1].lr
        for p, q in zip(opts[0].parameters, opts[1].parameters):
            np.testing.assert_array_equal(host(p), host(q))
    assert opts[0].lr < 0.1 * 0.5
    assert replay.stats().recordings == 1
    with pytest.raises(pb.CaptureError, match="reading lr"):
        pb.capture(lambda: opts[1].lr)()
    opts[1].lr = 0.1
    with pytest.raises(pb.PullbackError, match="no learning rate of this optimizer depends on a metric"):
        replay(g, metric)


@needs_kernels
@pytest.mark.parametrize("first", ["step", "observe"])
@pytest.mark.parametrize("rule", ["SGD", "Muon"])
def test_a_recording_follows_what_changes_after_it(rule: str, first: str) -> None:
    """The table is made anew for a longer schedule, and clipping begins, whichever of the two calls the recording saw first."""
    schedule = s.ReduceOnPlateau(0.1, factor=0.5, patience=0)
    opts = [getattr(optim, rule)([pb.Parameter(np.ones((3, 2)), name="p")], lr=schedule) for _ in range(2)]

    def train(opt: Any, g: Any, metric: Any) -> None:
        calls = [lambda: opt.step([g]), lambda: opt.observe(metric)]
        for call in calls if first == "step" else calls[::-1]:
            call()

    replay = pb.capture(lambda g, metric: train(opts[1], g, metric))
    rng = np.random.default_rng(0)
    for change in ({}, {"lr": s.Table([1.0] * 300) * schedule}, {"clip_norm": 0.1}, {"lr": schedule}):
        for opt in opts:
            for name, value in change.items():
                setattr(opt, name, value)
        for _ in range(3):
            g, metric = pb.tensor(rng.standard_normal((3, 2))), pb.tensor(1.0)
            train(opts[0], g, metric)
            replay(g, metric)
            assert opts[0].lr == opts[1].lr < 1.0
            np.testing.assert_array_equal(host(opts[0].parameters[0]), host(opts[1].parameters[0]))


@needs_kernels
def test_two_optimizers_observe_in_one_recording() -> None:
    a, b = [made(s.ReduceOnPlateau(0.1, factor=0.5, patience=0)) for _ in range(2)]
    replay = pb.capture(lambda metric: [opt.observe(metric) for opt in (a, b)])
    for _ in range(3):
        replay(pb.tensor(1.0))
    b.lr = 0.1
    with pytest.raises(pb.PullbackError, match="depends on a metric"):
        replay(pb.tensor(1.0))
    assert a.lr == 0.1 * 0.5**3, "the failed call had observed a before it reached b"


@pytest.mark.parametrize("how", ["state", "pickle", "copy"])
def test_a_plateau_goes_on_where_it_was(how: str) -> None:
    schedule = s.ReduceOnPlateau(0.1, factor=0.5, patience=2, cooldown=1)
    values = metrics(2, 60)
    opt, groups = made(schedule, 2, groups={"p1": {"lr": s.Sequential([0.3, schedule], [9])}}), {"p1": {"lr": 7.0}}
    for metric in values[:31]:
        opt.observe(metric)
        delta(opt)
    if how == "state":
        twin = made(5.0, 2, groups=groups)
        twin.load_state_dict(opt.state_dict())
    else:
        twin = pickle.loads(pickle.dumps(opt)) if how == "pickle" else copy.deepcopy(opt)
    assert twin.lr == opt.lr < 0.1
    for metric in values[31:]:
        for each in (opt, twin):
            each.observe(metric)
        assert (opt.lr, opt.groups[1].lr) == (twin.lr, twin.groups[1].lr)
        assert delta(opt) == delta(twin)
    assert opt.groups[1].lr == opt.lr < 0.1 / 2
    for name, rows in opt.state_dict()["settings"].items():
        np.testing.assert_array_equal(host(rows), host(twin.state_dict()["settings"][name]))
    rows = len(opt._table.program.rows)
    np.testing.assert_array_equal(host(opt.state_dict()["program"]), host(twin.state_dict()["program"])[:rows])


def test_a_plateau_that_is_set_again_starts_anew() -> None:
    opt = made(s.ReduceOnPlateau(0.1, factor=0.5, patience=0))
    for _ in range(4):
        opt.observe(1.0)
    assert opt.lr == 0.1 * 0.5**3
    opt.lr = s.ReduceOnPlateau(0.1, factor=0.5, patience=0)
    assert opt.lr == 0.1
    opt.observe(2.0)  # the best one of the new plateau
    assert opt.lr == 0.1
    assert "0.1 by ReduceOnPlateau(base=0.1" in repr(opt)


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (pb.ones(3), r"shape \(3,\); it must be \(\) or \(1,\)"),
        (np.ones((1, 1)), r"shape \(1, 1\)"),
        (True, "the metric is a bool; give a number"),
        ("low", "str"),
        (None, "not made of numbers"),
    ],
)
def test_a_wrong_metric_is_refused(metric: Any, words: str) -> None:
    opt = made(s.ReduceOnPlateau(0.1, patience=0))
    opt.observe(1.0)
    before = host(opt.state_dict()["program"]).copy()
    with pytest.raises((pb.PullbackError, TypeError), match=words):
        opt.observe(metric)
    np.testing.assert_array_equal(host(opt.state_dict()["program"]), before)


def test_an_optimizer_without_a_plateau_refuses_to_observe() -> None:
    for schedule in (0.1, s.Cosine(0.1, steps=5) * 0.5):
        with pytest.raises(pb.PullbackError, match=r"SGD.observe: no learning rate.*ReduceOnPlateau\(1e-3\)"):
            made(schedule).observe(1.0)
