"""What says that it converged has converged: NIST's nonlinear regressions from both starts, in float64 and in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from more_garbow_hillstrom import PROBLEMS
from nist_problems import NAMES, Problem, read

SLACK = {"float64": 1e-3, "float32": 0.1}  # of the certified sum of squares
# Starts from which a solver ends elsewhere, with the sum of squares there over the certified one.
ELSEWHERE = {
    ("BoxBOD", 0): 8.366,  # b2 grows without bound: the constant that fits best, where MINPACK ends, too
    ("MGH17", 0): 1.46,  # in float32: a valley that is flat to rounding, in which float64 has not converged either
}


def in_dtype(problem: Problem, dtype: str) -> Problem:
    return problem._replace(x=problem.x.astype(dtype), y=problem.y.astype(dtype))


def squares(problem: Problem, b: Any) -> float:
    """Returns the sum of squares at b, computed in float64."""
    with np.errstate(all="ignore"):
        return float(pb.sum(problem.residuals(pb.tensor(np.asarray(b, np.float64))) ** 2))


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_success_of_least_squares_is_the_certified_minimum(name: str, batch: bool) -> None:
    problem = read(name)
    least = problem.sum_of_squares + 1e-12 * float(pb.sum(problem.y**2))  # that of Lanczos1 is below what rounding leaves
    for start, x0 in enumerate(problem.starts):
        for dtype, slack in SLACK.items():
            given = in_dtype(problem, dtype)
            if batch:
                found = pb.solve.least_squares(lambda b, p=given: p.residuals(b), pb.tensor(x0[None].astype(dtype)), batch=True)
                x, success, message = found.x.numpy()[0], bool(found.success[0]), found.message[0]
            else:
                found = pb.solve.least_squares(given.residuals, pb.tensor(x0.astype(dtype)), capture=True)
                x, success, message = found.x.numpy(), found.success, found.message
            ratio = squares(problem, x) / least
            if not success:
                assert any(word in message for word in ("maximum number", "infinite or NaN")), message
            elif ratio > 1 + slack:
                assert ratio == pytest.approx(ELSEWHERE[name, start], rel=1e-2), (start, dtype)
                assert dtype == "float32" or name == "BoxBOD"


def test_a_valley_that_begins_where_longer_steps_overflow_is_followed() -> None:
    """In float32 the first steps with finite residuals gain less than rounding shows. The search ended there, as converged."""
    problem = read("MGH17")
    for start in problem.starts:
        found = pb.solve.least_squares(in_dtype(problem, "float32").residuals, pb.tensor(start.astype("float32")))
        assert squares(problem, found.x.numpy()) < 1.5 * problem.sum_of_squares
    rat43 = read("Rat43")  # the first step leads to finite residuals with an infinite Jacobian
    found = pb.solve.least_squares(in_dtype(rat43, "float32").residuals, pb.tensor(rat43.starts[0].astype("float32")))
    assert found.success
    assert squares(rat43, found.x.numpy()) < 1.001 * rat43.sum_of_squares


@pytest.mark.parametrize("batch", [False, True])
def test_a_wall_of_infinite_residuals_is_no_minimum(batch: bool) -> None:
    """Every step that lowers the cost by more than rounding leads beyond the wall."""
    x0 = pb.tensor(np.ones(1, np.float32))
    wall = lambda x: pb.where(x > 1.0, pb.inf, 1e3 - x)
    found = pb.solve.least_squares(wall, pb.reshape(x0, (1, 1)) if batch else x0, batch=batch)
    assert not np.any(found.success)
    assert ("maximum number" if batch else "No step was found that lowers the cost") in str(found.message)
    bounded = pb.solve.least_squares(wall, pb.reshape(x0, (1, 1)) if batch else x0, batch=batch, bounds=(-np.inf, 1.0))
    assert np.all(bounded.success)


@pytest.mark.parametrize("start", [0, 1])
def test_where_least_squares_ends_elsewhere_scipy_does(start: int) -> None:
    optimize = pytest.importorskip("scipy.optimize", reason="SciPy is not installed")
    problem = read("BoxBOD")
    f = lambda b: problem.residuals(pb.tensor(b)).numpy()
    theirs = optimize.least_squares(f, problem.starts[start], method="lm", x_scale="jac")  # MINPACK, with the scale that is ours
    assert theirs.success
    expected = ELSEWHERE["BoxBOD", 0] if start == 0 else 1.0
    assert 2 * theirs.cost / problem.sum_of_squares == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("method", ["L-BFGS", "L-BFGS-B", "BFGS", "Newton-CG", "Gauss-Newton-CG"])
@pytest.mark.parametrize("name", ["Gauss1", "MGH10", "MGH17", "Thurber", "Chwirut1", "Rat42"])
def test_success_of_minimize_in_float32_is_what_float64_reaches(name: str, method: str) -> None:
    """One step that lowered a loss in float32 by less than 1e-6 of it was called convergence, hundreds of times above."""
    problem = read(name)
    for start in problem.starts:
        loss: dict[str, float] = {}
        success: dict[str, bool] = {}
        for dtype in ("float64", "float32"):
            given = in_dtype(problem, dtype)
            f = given.residuals if method.startswith("Gauss") else lambda b, p=given: 0.5 * pb.sum(p.residuals(b) ** 2)
            try:
                found = pb.solve.minimize(f, pb.tensor(start.astype(dtype)), method=method).result()
            except pb.PullbackError:  # the loss of the start is not finite in float32
                success[dtype] = False
                continue
            loss[dtype], success[dtype] = squares(problem, found.x.numpy()) / 2, found.success
            assert found.success or found.message
        if success["float32"] and success["float64"]:
            assert loss["float32"] < 2 * loss["float64"] + 1e-3  # of small losses, ftol is the absolute change


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["Box", "Powell badly scaled", "Trigonometric", "Chebyquad", "Biggs EXP6"])
def test_success_far_from_standard_starts_of_more_garbow_hillstrom(name: str, dtype: str) -> None:
    """Steps that are short because the radius is, or beside an element that the residuals do not show, were called convergence."""
    (problem,) = [problem for problem in PROBLEMS if problem.name == name]
    for factor in (10, 100):
        x0 = pb.tensor((factor * np.array(problem.start, float)).astype(dtype))
        f = lambda x, p=problem: p.residuals(x).astype(dtype)
        found = pb.solve.least_squares(f, x0)
        if found.success:  # a stationary point: no change of one element would lower the cost by much
            j, r = (np.asarray(part.numpy(), np.float64) for part in (found.jac, found.fun))
            norms = np.linalg.norm(j, axis=0)
            cosines = np.abs(j.T @ r) / np.where(norms > 0, norms, 1.0) / (np.linalg.norm(r) or 1.0)
            assert 2 * float(found.cost) < 1e-6 or cosines.max() < 1e-2, (factor, cosines)
        if x0.size == found.fun.size:
            solved = pb.solve.root(f, x0)
            squares = float(pb.sum(problem.residuals(pb.tensor(np.asarray(solved.x.numpy(), float))) ** 2))
            assert squares < 1e-5 or not solved.success, (factor, squares)
