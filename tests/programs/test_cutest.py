"""The minimisers against SciPy's on problems of the CUTEst collection: how many they solve, and in how many evaluations."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from cutest import PROBLEMS, Problem
from pullback.tensors import devices

optimize = pytest.importorskip("scipy.optimize")

# A subset that takes about a second. PULLBACK_ALL_CUTEST=1 runs all of the problems, in about a minute.
FEW = (
    "BARD", "BEALE", "BROYDN3D", "CAMEL6", "DENSCHND", "EDENSCH", "HATFLDC", "HELIX", "HS1", "HS2", "HS25", "HS38", "HS45", "HS110",
    "LIARWHD", "MCCORMCK", "NONSCOMP", "OBSTCLBL", "POWELLSG", "PSPDOC", "TORSION1", "VARDIM",
)
CHOSEN = list(PROBLEMS) if os.environ.get("PULLBACK_ALL_CUTEST") else FEW


class Run(NamedTuple):
    """The end of one run: the value, the number of evaluations, and True if it is a stationary point."""

    value: float
    evaluations: int
    settled: bool


def adapter(problem: Problem) -> Callable[[Any], Any]:
    """Returns the problem as a function of a tensor, with its own gradient: the solver is tested, and not the tape."""

    @pb.custom_gradient
    def f(x: Any) -> Any:
        value, gradient = problem.both(x.numpy())
        return pb.tensor(value, pb.float64), lambda g: g * pb.tensor(np.asarray(gradient, np.float64))

    return f


def ours(problem: Problem, method: str) -> Run:
    flat = {"ftol": 1e-14} if method == "L-BFGS-B" else {}
    run = pb.solve.minimize(
        adapter(problem), problem.start, method, bounds=problem.bounds, gtol=1e-6, maxiter=5000, maxfun=5000, **flat
    )
    result = run.result()
    return Run(result.fun, result.nfev, result.success or result.grad_norm < 1e-4)


def theirs(problem: Problem, method: str) -> Run:
    options: dict[str, Any] = {"gtol": 1e-6, "maxiter": 5000}
    options |= {"ftol": 1e-14, "maxfun": 5000} if method == "L-BFGS-B" else {}
    bounds = None if problem.bounds is None else optimize.Bounds(*problem.bounds)
    result = optimize.minimize(problem.both, problem.start, jac=True, method=method, bounds=bounds, options=options)
    return Run(float(result.fun), int(result.nfev), bool(result.success or abs(result.jac).max() < 1e-4))


def solved(run: Run, other: Run) -> bool:
    """True if the run settled, and not above the point of the other one."""
    best = min(run.value, other.value)
    return run.settled and run.value <= best + 1e-6 * max(1.0, abs(best))


@needs_kernels  # the number of evaluations is the same without kernels and on a GPU, where each takes many times as long
@pytest.mark.skipif(devices.default_device() != "cpu", reason="the problems are functions of NumPy")
@pytest.mark.parametrize("method", ["L-BFGS-B", "BFGS"])
@pytest.mark.filterwarnings("ignore")
def test_the_minimisers_solve_what_scipy_solves_in_no_more_evaluations(method: str) -> None:
    chosen = [PROBLEMS[name] for name in CHOSEN if method == "L-BFGS-B" or PROBLEMS[name].bounds is None]
    with np.errstate(all="ignore"):
        runs = {p.name: (ours(p, method), theirs(p, method)) for p in chosen}
    both = {name: (a, b) for name, (a, b) in runs.items() if solved(b, a)}
    missed = [name for name, (a, b) in both.items() if not solved(a, b)]
    assert len(missed) <= 0.05 * len(both), missed
    counts = [sum([run[i].evaluations for run in both.values()]) for i in (0, 1)]
    assert counts[0] <= 1.1 * counts[1], counts


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_gradient_of_a_problem_agrees_with_finite_differences(name: str) -> None:
    problem, random = PROBLEMS[name], np.random.default_rng(0)
    start = problem.start if problem.bounds is None else np.clip(problem.start, *problem.bounds)
    x = start + 1e-3 * random.random(start.size) * (1 + abs(start))
    direction = random.standard_normal(x.size)
    value, gradient = problem.both(x)
    step = 1e-6
    up, down = problem.both(x + step * direction)[0], problem.both(x - step * direction)[0]
    rounding = 4e-16 * max(abs(value), abs(up)) / step
    assert (up - down) / (2 * step) == pytest.approx(gradient @ direction, rel=1e-5, abs=10 * rounding + 1e-9)


def test_there_are_more_than_60_problems_of_at_most_100_unknowns() -> None:
    assert len(PROBLEMS) > 60
    assert max([problem.start.size for problem in PROBLEMS.values()]) <= 100
    assert sum([problem.bounds is not None for problem in PROBLEMS.values()]) > 20
