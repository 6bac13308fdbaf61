"""NIST's certified nonlinear regressions: 6 digits and more for lower and average difficulty, from both starting points."""

import numpy as np
import pytest

import pullback as pb
from nist_problems import MODELS, NAMES, read

STRICT = {"ftol": 1e-12, "xtol": 1e-12, "gtol": 1e-12, "max_nfev": 2000}


def test_the_data_are_those_that_were_certified() -> None:
    """The certified parameters give the certified sum of squares, to their 11 digits."""
    levels = []
    for name in NAMES:
        problem = read(name)
        levels.append(problem.level)
        squares = float(pb.sum(problem.residuals(pb.tensor(problem.parameters)) ** 2))
        # that of Lanczos1 is 1e-25, and the parameters are rounded to 11 digits
        assert squares == pytest.approx(problem.sum_of_squares, rel=1e-9, abs=1e-20), name
    assert len(MODELS) == 27
    assert [levels.count(level) for level in ("Lower", "Average", "Higher")] == [8, 11, 8]


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("name", [name for name in NAMES if read(name).level != "Higher"])
def test_lower_and_average(name, start) -> None:
    problem = read(name)
    found = pb.solve.least_squares(problem.residuals, pb.tensor(problem.starts[start]), capture=True, **STRICT)
    assert found.success
    assert problem.digits(found.x) >= 6
    if name != "Lanczos1":
        assert 2 * found.cost == pytest.approx(problem.sum_of_squares, rel=1e-8)


@pytest.mark.parametrize("name", [name for name in NAMES if read(name).level == "Higher"])
def test_higher(name) -> None:
    """Both starting points of all eight; the digits are at least those of the other levels."""
    problem = read(name)
    for start in problem.starts:
        found = pb.solve.least_squares(problem.residuals, pb.tensor(start), capture=True, **STRICT)
        assert problem.digits(found.x) >= 6
        assert np.isfinite(found.cost)
