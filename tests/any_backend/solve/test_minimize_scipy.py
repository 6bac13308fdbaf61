"""Every method of scipy.optimize.minimize through pb.solve.minimize, with pullback's gradients."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.solve.scipy_methods import SCIPY

optimize = pytest.importorskip("scipy.optimize")


def rosenbrock(x: Any) -> Any:
    return pb.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def test_the_table_has_every_method_of_scipy() -> None:
    from scipy.optimize._minimize import MINIMIZE_METHODS

    assert {name.lower() for name in SCIPY} == set(MINIMIZE_METHODS)


TARGET, WEIGHTS = np.array([1.0, -2.0]), np.array([3.0, 0.5])


def bowl(x: Any, library: Any = pb) -> Any:
    """A convex function whose minimum no method finds in one step."""
    return library.sum(WEIGHTS * (x - TARGET) ** 2) + library.exp(x[0] + x[1])


def slope(x: Any) -> Any:
    return 2 * WEIGHTS * (x - TARGET) + np.exp(x.sum())


@pytest.mark.parametrize("name", SCIPY)
def test_a_method_agrees_with_a_direct_call_and_yields_its_iterations(name: str) -> None:
    facts, x = SCIPY[name], np.array([-0.5, 0.3])
    more: dict[str, Any] = {"jac": slope} if facts.gradient else {}
    if facts.hessian:
        more["hess"] = lambda x: np.diag(2 * WEIGHTS) + np.exp(x.sum())
    theirs = optimize.minimize(lambda x: bowl(x, np), x, method=name, **more)
    threads = set()

    def loss(p: Any) -> Any:
        threads.add(threading.get_ident())
        return bowl(p)

    p = pb.Parameter(x)
    run = pb.solve.minimize(loss, p, f"scipy:{name}")
    steps = [(step.nit, step.loss, step.x.numpy()) for step in run]
    result = run.result()
    assert threads == {threading.get_ident()}, "f runs in the thread of the caller"
    assert result.success
    assert result.message == theirs.message
    assert result.nit == len(steps) == steps[-1][0]
    np.testing.assert_allclose(result.x.numpy(), theirs.x, atol=1e-4 if facts.gradient else 2e-3)
    np.testing.assert_array_equal(result.x.numpy(), p.numpy())
    assert result.fun == pytest.approx(theirs.fun, abs=1e-8 if facts.gradient else 1e-5)
    if facts.hessian:
        assert result.nhev > 0


@pytest.mark.parametrize("name", [name for name, facts in SCIPY.items() if facts.bounds])
def test_bounds_reach_scipy(name: str) -> None:
    result = pb.solve.minimize(bowl, np.array([0.0, 0.0]), f"scipy:{name}", bounds=(None, [0.5, -2.5])).result()
    np.testing.assert_allclose(result.x.numpy(), [0.5, -2.5], atol=1e-3)


@pytest.mark.filterwarnings("ignore:delta_grad")  # trust-constr notices that one constraint is linear
@pytest.mark.parametrize("name", [name for name, facts in SCIPY.items() if facts.constraints])
def test_constraints_have_our_gradients(name: str) -> None:
    radius = {"type": "ineq", "fun": lambda x: 1 - pb.sum(x * x)}
    line = {"type": "eq", "fun": lambda x: x[0] - 2 * x[1]}
    run = pb.solve.minimize(lambda x: -pb.sum(x), np.array([0.1, 0.1]), f"scipy:{name}", constraints=[radius, line])
    np.testing.assert_allclose(run.result().x.numpy(), [2 / 5**0.5, 1 / 5**0.5], atol=1e-3)


def test_options_tolerances_and_limits() -> None:
    short = pb.solve.minimize(rosenbrock, np.zeros(2), "scipy:bfgs", maxiter=2).result()
    assert (short.nit, short.success) == (2, False)
    assert (
        pb.solve.minimize(rosenbrock, np.zeros(2), "scipy:L-BFGS-B", gtol=1e-10, ftol=0.0, options={"maxcor": 3}).result().success
    )
    assert pb.solve.minimize(rosenbrock, np.zeros(2), "scipy:Nelder-Mead", maxfun=9).result().nfev <= 10


def test_a_loop_that_ends_early_and_an_error_in_f_leave_no_thread() -> None:
    before = threading.active_count()
    run = pb.solve.minimize(rosenbrock, np.zeros(2), "scipy:BFGS")
    next(run)
    run.close()
    calls = []

    def failing(x: Any) -> Any:
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("no more")
        return rosenbrock(x)

    with pytest.raises(RuntimeError, match="no more"):
        pb.solve.minimize(failing, np.zeros(2), "scipy:SLSQP", capture=False).result()
    assert threading.active_count() == before


def test_float32_parameters_and_trees() -> None:
    tree = {"a": pb.Parameter([3.0]), "b": pb.Parameter([[1.0, 2.0]])}
    run = pb.solve.minimize(lambda t: pb.sum((t["a"] - 1) ** 2) + pb.sum(t["b"] ** 2), tree, "scipy:SLSQP")
    assert run.result().success
    np.testing.assert_allclose(tree["a"].numpy(), 1, atol=1e-3)
    assert tree["b"].shape == (1, 2)


@pytest.mark.parametrize("method", ["trust-constr", "SLSQP", "COBYQA"])
def test_a_nonlinear_constraint_of_scipy(method: str) -> None:
    """The point of the unit ball that is next to (1, 1, 1) is (1, 1, 1) / sqrt(3)."""
    start = pb.tensor([-1.2, 1.0, 3.0], dtype=pb.float64)
    both = lambda x: pb.stack([pb.sum(x**2), x[0]])
    constraint = optimize.NonlinearConstraint(both, -1, 1)
    found = pb.solve.minimize(lambda x: pb.sum((x - 1) ** 2), start, f"scipy:{method}", constraints=[constraint]).result()
    np.testing.assert_allclose(found.x.numpy(), np.full(3, 3**-0.5), atol=1e-4)
