"""pb.solve.minimize with recordings: how often f runs in Python, and the number of evaluations on a larger problem."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels

pytestmark = needs_kernels


def rosenbrock(x: Any) -> Any:
    return pb.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


@pytest.mark.filterwarnings("ignore:calls.* is counted in:UserWarning")
def test_rosenbrock_100_takes_at_most_a_tenth_more_evaluations_than_scipy() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    x, calls = np.tile([-1.2, 1.0], 50), [0]

    def loss(x: Any) -> Any:
        calls[0] += 1
        return rosenbrock(x)

    options = {"gtol": 1e-8, "ftol": 0.0, "maxfun": 15000, "maxiter": 15000}
    theirs = optimize.minimize(optimize.rosen, x, jac=optimize.rosen_der, method="L-BFGS-B", options=options)
    ours = pb.solve.minimize(loss, x, gtol=1e-8, ftol=0).result()
    assert ours.grad_norm < 1e-8
    assert ours.nfev <= 1.1 * theirs.nfev
    assert calls[0] == 2, "f runs once for each of the two functions that a recording replays"


@pytest.mark.filterwarnings("ignore:calls.* is counted in:UserWarning")
@pytest.mark.parametrize("method", ["L-BFGS-B", "SSBroyden", "Newton-CG"])
def test_a_penalty_that_grows_needs_no_new_recording(method: str) -> None:
    calls, x = [0], np.array([-1.2, 1.0])

    def loss(x: Any, penalty: Any) -> Any:
        calls[0] += 1
        return rosenbrock(x) + penalty * (x[0] - 0.5) ** 2

    for step in pb.solve.minimize(loss, x, method, args={"penalty": 1.0}, gtol=1e-8):
        step.args["penalty"] = min(2 * step.args["penalty"], 1e3)
    np.testing.assert_allclose(step.x.numpy(), [0.5, 0.25], atol=1e-2)
    assert calls[0] == 2


def test_captured_and_eager_runs_take_the_same_steps() -> None:
    x = np.array([-1.2, 1.0, 0.3])
    for method in ("L-BFGS", "BFGS"):
        runs = [pb.solve.minimize(rosenbrock, x, method, capture=capture) for capture in (True, False)]
        captured, eager = [[step.x.numpy() for step in run] for run in runs]
        np.testing.assert_array_equal(captured, eager)
