"""The 35 problems of Moré, Garbow & Hillstrom from their standard starting points, and from 10 and 100 times these."""

import numpy as np
import pytest

import pullback as pb
from more_garbow_hillstrom import PROBLEMS

# Starts from which least_squares ends elsewhere, at a local minimum, where a function is flat or overflows, or after 1,000
# evaluations. SciPy's "trf" with x_scale="jac" ends elsewhere from 13 of the 105 starts.
ELSEWHERE = {
    ("Powell badly scaled", 10), ("Powell badly scaled", 100), ("Beale", 10), ("Beale", 100), ("Jennrich and Sampson", 100),
    ("Gulf research and development", 100), ("Box", 100), ("Biggs EXP6", 100), ("Osborne 2", 10), ("Osborne 2", 100),
    ("Trigonometric", 10), ("Trigonometric", 100), ("Chebyquad", 10), ("Chebyquad", 100),
}


def test_there_are_35() -> None:
    assert len(PROBLEMS) == 35


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_a_known_minimum_is_found(problem) -> None:
    for factor in (1, 10, 100):
        if (problem.name, factor) in ELSEWHERE:
            continue
        x0 = pb.tensor(factor * np.array(problem.start, float))
        found = pb.solve.least_squares(
            problem.residuals, x0, ftol=1e-10, xtol=1e-10, gtol=1e-10, max_nfev=1000, capture=True
        )
        squares = 2 * found.cost
        assert found.success, factor
        assert min([abs(squares - x) - 1e-4 * x for x in problem.minima]) < 1e-8, (factor, squares)
