"""Random configurations of optimizers: a training gives the same bits in every way to run it, and what other formulas give.

PULLBACK_OPTIMIZERS is the number of configurations of each test. For a long run, set it to 2000.
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from captured_step import REASON, needs_kernels
from conftest import host
from pullback import backends, optim
from pullback.optim.sets import CLIP_FACTOR, SCHEDULE
from pullback.tensors import devices
from random_optimizer_runs import Run, assert_equal, bits
from random_optimizers import COUNT, Configuration

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy's, about infinities
    pytest.mark.parametrize("seed", range(COUNT)),
]


def equal_runs(got: list[dict[str, Any]], wanted: list[dict[str, Any]], config: Any) -> None:
    for k, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert_equal(a, b, f"{config}\nafter step {k}")


# ---- the same bits in every way


@needs_kernels
def test_captured_steps_are_eager_steps(seed: int) -> None:
    config = Configuration(seed)
    equal_runs(Run(config).run(capture=True), Run(config).run(), config)


@needs_kernels
def test_a_call_of_several_steps_is_as_many_steps(seed: int) -> None:
    """A call does all steps up to the next change between steps, which have gradients of the same Parameters."""
    config = Configuration(seed)
    eager, run = Run(config).run(), Run(config)
    k = 0
    while k < config.steps:
        run.before(k)
        end = k + 1
        while end < config.steps and not config.events[end] and config.missing[end] == config.missing[k] and not config.pruning:
            end += 1
        steps = [[g for grads in run.tensors(i) for g in grads if g is not None] for i in range(k, end)]
        if steps[0]:
            pb.capture(run.body(k), steps=end - k)(*[pb.stack(list(each)) for each in zip(*steps)])
        else:
            for i in range(k, end):
                run.step(i)
        assert_equal(run.state(), eager[end - 1], f"{config}\nsteps {k} to {end - 1}")
        k = end


def test_members_are_solo_runs(seed: int) -> None:
    config = Configuration(seed, stacked=True)
    members = config.members or 0
    together, solo = Run(config), [Run(config, m) for m in range(members)]
    for k in range(config.steps):
        results = []
        for run in (together, *solo):
            run.before(k)
            results.append(run.step(k))
        whole = together.state()
        if not all([run.refused == together.refused for run in solo]):
            return  # A value that one of the members must not have is refused for all.
        for m, run in enumerate(solo):
            for name, x in run.state().items():
                if name in ("steps", "program"):
                    continue
                y = whole[name][m::members] if name == "sets" else whole[name][m]
                if name == "sets":  # The rest says where in the program schedules are.
                    x, y = x[:, :SCHEDULE], y[:, :SCHEDULE]
                assert bits(y) == bits(x), f"{config}\nmember {m} after step {k}: {name}"
            for got, wanted in zip(results[m + 1], results[0]):
                assert [bits(x) for x in got] == [bits(x[m]) for x in wanted], f"{config}\nmember {m} in step {k}: changes"


def by_state(run: Run) -> Run:
    """Returns a new run with the weights and the state of another one."""
    other = Run(run.config)
    if run.opt.pruning is None and other.opt.pruning is not None:
        other.opt.pruning.remove()
    for p, q in zip(run.parameters, other.parameters):
        q.assign(p)
        q.constraint = p.constraint
    for group, mine in zip(run.opt.groups, other.opt.groups):  # A state has values, and not which of them belong to a group.
        mine.own.update(group.own)
    other.opt.load_state_dict(run.opt.state_dict())
    return other


def by_copy(run: Run) -> Run:
    other = copy.copy(run)
    other.adopt(copy.deepcopy(run.opt))
    return other


def by_pickle(run: Run) -> Run:
    other = copy.copy(run)
    other.adopt(pickle.loads(pickle.dumps(run.opt)))
    return other


@pytest.mark.parametrize("way", [by_state, by_copy, by_pickle], ids=lambda f: f.__name__)
def test_a_copy_goes_on_like_the_first_one(seed: int, way: Callable[..., Run]) -> None:
    """The copy is made in the middle, is captured afterwards, and shares no memory with the first one."""
    config = Configuration(seed)
    eager, first = Run(config).run(), Run(config)
    begin = seed % config.steps
    for k in range(begin):
        first.before(k)
        first.step(k)
    other = way(first)
    for k in range(begin, config.steps):
        other.before(k)
        other.step(k, capture=bool(seed % 2) and first.opt._native is not None)
        got, wanted = other.state(), dict(eager[k])
        if way is by_state:  # The factor of clipping is computed in each step, and rows that are not used may be more.
            for state in (got, wanted):
                state["sets"] = np.delete(state["sets"], CLIP_FACTOR, axis=1)
                state["program"] = state["program"][: int(np.flatnonzero(state["program"].any(axis=1)).max(initial=-1)) + 1]
        assert_equal(got, wanted, f"{config}\ncopied before step {begin}, after step {k}")
    for k in range(begin, config.steps):
        first.before(k)
        first.step(k)
        assert_equal(first.state(), eager[k], f"{config}\nthe first one, copied before step {begin}, after step {k}")


def test_a_training_goes_back_to_a_state(seed: int) -> None:
    """Its captured functions replay their recordings before and after it, if there are kernels."""
    config = Configuration(seed)
    eager, run, begin = Run(config).run(), Run(config), seed % config.steps
    for k in range(config.steps):
        run.before(k)
        if k == begin:
            weights, state = [host(p).copy() for p in run.parameters], run.opt.state_dict()
            for i in range(k, config.steps):
                run.step(i, capture=REASON is None)
            for p, w in zip(run.parameters, weights):
                p.assign(w)
            run.opt.load_state_dict(state)
        run.step(k, capture=REASON is None)
        got, wanted = run.state(), dict(eager[k])
        for each in (got, wanted):
            each["sets"] = np.delete(each["sets"], CLIP_FACTOR, axis=1)
        assert_equal(got, wanted, f"{config}\nback before step {begin}, after step {k}")


def test_a_gate_changes_no_bits(seed: int) -> None:
    config = Configuration(seed)
    one, other = Run(config), Run(config)
    for k in range(config.steps):
        for run in (one, other):
            run.before(k)
        gate: Any = "op"
        if any([any(absent) for absent in config.missing[k]]) or config.composed or one.opt.clip_norm is not None:
            gate = "graph"
        for run, how in ((one, "graph"), (other, gate)):
            grads = run.joined(run.tensors(k))
            if any([g is None for g in grads]):
                run.opt.step(grads)
            else:
                run.opt.minimize(lambda grads=grads, run=run: linear(run.parameters, grads), gate=how)
        assert_equal(other.state(), one.state(), f"{config}\nstep {k} by {gate}")


def linear(params: Any, grads: Any) -> Any:
    """Returns a loss that has these gradients."""
    return sum([pb.sum(p * g).astype("float64") for p, g in zip(params, grads)], pb.tensor(0.0, dtype="float64"))


@needs_kernels
def test_devices_give_the_same_bits_under_everywhere(seed: int) -> None:
    for reason in (backends.why_not("cuda"), pb.config.why_not()):
        if reason:
            pytest.skip(reason)
    config, before = Configuration(seed), pb.config.reproducible
    found = []
    pb.config.reproducible = "everywhere"
    try:
        for device in ("cpu", "cuda"):
            with pb.use_device(device):
                found.append(Run(config).run(capture=bool(seed % 2)))
    finally:
        pb.config.reproducible = before
    equal_runs(found[1], found[0], config)


# ---- previews, changes and errors


def test_a_preview_tells_the_change_and_changes_nothing(seed: int) -> None:
    config = Configuration(seed)
    run = Run(config)
    for k in range(config.steps):
        run.before(k)
        grads = run.joined(run.tensors(k))
        before, versions = run.state(), [p.version for p in run.parameters]
        shown = run.opt.preview(grads)
        assert_equal(run.state(), before, f"{config}\npreview of step {k}")
        assert [p.version for p in run.parameters] == versions
        deltas = run.opt.step(grads, return_delta=True)
        assert [bits(x) for x in shown] == [bits(x) for x in deltas], f"{config}\npreview of step {k}"


def test_before_and_change_give_after(seed: int) -> None:
    """Exactly where neither a constraint nor a random rounding has changed the value, elsewhere within a unit in the last place of
    the largest of the three.

    The change of a weight with a master is that of the master.
    """
    config = Configuration(seed)
    run = Run(config)
    for k in range(config.steps):
        run.before(k)
        grads = run.joined(run.tensors(k))
        before = weights(run)
        deltas = run.opt.step(grads, return_delta=True)
        for p, old, new, delta in zip(run.parameters, before, weights(run), deltas):
            change, what = host(delta), f"{config}\n{p.label()} in step {k}"
            assert change.dtype == new.dtype
            again = (old + change).astype(new.dtype)
            at_random = "stochastic_rounding" in config.options and new.dtype.itemsize == 2
            if not at_random and (p.constraint is None or isinstance(p.constraint, optim.constraints.NonNegative)):
                pruned = ~np.isfinite(old) & (new == 0)  # No change leads from there to 0.
                assert bits(np.where(pruned, 0, again) + 0) == bits(new + 0), f"{what}\n{old!r}\n{change!r}\n{new!r}"
                continue
            wide = [x.astype(np.float64) for x in (old, change, new)]
            most = np.max(np.abs(wide), axis=0)
            close = np.abs(again.astype(np.float64) - wide[2]) <= float(ml_dtypes.finfo(new.dtype).eps) * most
            assert (close | ~np.isfinite(most)).all(), f"{what}\n{old!r}\n{change!r}\n{new!r}"


def weights(run: Run) -> list[Any]:
    """Returns the values that the changes are added to: the masters of half precision weights that have them."""
    refreshed = []
    for p in run.parameters:
        master = run.opt.slots(p).get("master")
        if master is None:
            refreshed.append(host(p).copy())
            continue
        high, low = host(master), host(p)
        with np.errstate(all="ignore"):
            refreshed.append(np.where(high.astype(low.dtype) == low, high, low.astype(high.dtype)))
    return refreshed


def test_an_error_changes_nothing(seed: int) -> None:
    config = Configuration(seed)
    run, rng = Run(config), np.random.default_rng(seed)
    for k in range(config.steps):
        run.before(k)
        run.step(k)
    opt, before = run.opt, run.state()
    grads: list[Any] = [pb.zeros(p.shape, dtype=p.dtype) for p in run.parameters]
    i = int(rng.integers(len(grads)))
    longer, other = pb.zeros((*grads[i].shape, 2), dtype=grads[i].dtype), "float32" if grads[i].dtype == np.float64 else "float64"
    state = opt.state_dict()
    name = next(iter(state["settings"]))
    settings = np.array(host(state["settings"][name]))
    settings[..., rng.integers(settings.shape[-1])] = np.nan
    wrong: list[Callable[[], Any]] = [
        lambda: opt.step([*grads[:i], longer, *grads[i + 1 :]]),
        lambda: opt.step([*grads[:i], grads[i].astype(other), *grads[i + 1 :]]),
        lambda: opt.preview([*grads, grads[0]]),
        lambda: opt.step([*grads, grads[0]], return_delta=True),
        lambda: setattr(opt, "lr", -1.0),
        lambda: setattr(opt, "lr", [0.1] * 5),
        lambda: setattr(opt, "clip_norm", 0.0),
        lambda: setattr(opt.groups[-1], "lr_scale", math.nan),
        lambda: opt.observe(pb.zeros((7,))),
        lambda: opt.load_state_dict({**state, "steps": -1}),
        lambda: opt.load_state_dict({**state, "rule": "other"}),
        lambda: opt.load_state_dict({**state, "settings": {**state["settings"], name: pb.tensor(settings)}}),
        lambda: opt.load_state_dict({**state, "slots": {**state["slots"], name: {}, "more": {}}}),
        lambda: opt.load_state_dict({**state, "program": pb.ones(host(state["program"]).shape)}),
    ]
    if opt.pruning is not None:
        masks = state["pruning"]["masks"]
        bad = {key: pb.zeros((9, 9)) for key in masks}
        wrong.append(lambda: opt.load_state_dict({**state, "pruning": {**state["pruning"], "masks": bad}}))
    for number, act in enumerate(wrong):
        try:
            act()
        except pb.PullbackError:
            assert_equal(run.state(), before, f"{config}\nerror {number}")
        else:
            assert number in (11, 13), f"{config}\nnumber {number} is no error"  # not all numbers of a set are checked
            opt.load_state_dict(state)
            before = run.state()
    # It goes on as one that has seen no errors.
    other_run = by_copy(run)
    for each in (run, other_run):
        each.opt.step([pb.ones(p.shape, dtype=p.dtype) for p in each.parameters])
    assert_equal(run.state(), other_run.state(), f"{config}\nafter errors")


# ---- what other formulas give


def test_the_formula_in_numpy_gives_the_step_of_the_kernel(seed: int) -> None:
    """Each step begins from equal states, so that differences do not add up. They are rounding errors, relative to the largest
    number of an array: of tens of roundings, and of products that square the largest singular value five times for Muon.
    """
    config = Configuration(seed)
    config.special = False  # Kernels flush denormal numbers to zero, and NumPy does not.
    native, plain = Run(config), Run(config)
    for opt in (plain.opt, getattr(plain.opt, "_auxiliary", None)):
        if opt is not None:
            opt._native = opt._memory.kernels = None
    factor = 2000 if config.cls is optim.Muon else 100
    for k in range(config.steps):
        for run in (native, plain):
            run.before(k)
        for (_, target), (_, value) in zip(plain.arrays(), native.arrays(), strict=True):
            devices.write(target, value)
        before = native.state()
        native.step(k)
        plain.step(k)
        got, wanted = native.state(), plain.state()
        for name, x in wanted.items():
            y, what = got[name], f"{config}\nstep {k}: {name}"
            if name in ("steps", "program") or x.dtype == np.bool_:
                assert bits(x) == bits(y), what
                continue
            wide = [a.astype(np.float64) for a in (x, y, before[name])]
            if name == "sets":
                np.testing.assert_allclose(wide[1][:, :SCHEDULE], wide[0][:, :SCHEDULE], rtol=1e-5, atol=1e-12, err_msg=what)
                continue
            eps = float(ml_dtypes.finfo(x.dtype).eps)
            most = max([float(np.abs(a).max(initial=0)) for a in wide])
            np.testing.assert_allclose(
                wide[1], wide[0], rtol=0, atol=most * (2 * eps if x.itemsize == 2 else factor * eps), err_msg=what
            )
