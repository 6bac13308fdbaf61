"""Derivatives of minima on bounds and under constraints: right, or refused, and told where the point is no minimum."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import pullback as pb

F64: Any = pb.float64
T = pb.tensor(3.0, F64)


def distance(x: Any, t: Any) -> Any:
    return pb.sum((x - t) ** 2)


def room(x: Any, t: Any) -> Any:
    return 4 - pb.sum(x)


# ---- general constraints


def by_scipy(t: Any, constraints: Any, method: str = "scipy:SLSQP") -> Any:
    return pb.solve.minimize(distance, [1.0, 1.0], method, args=(t,), constraints=constraints).result()


def forms_of_the_constraint(t: Any) -> list[Any]:
    optimize = pytest.importorskip("scipy.optimize")
    return [
        {"type": "ineq", "fun": room},
        {"type": "eq", "fun": room},
        {"type": "ineq", "fun": lambda x: 4 - pb.sum(x)},
        {"type": "ineq", "fun": lambda x, room: room - pb.sum(x), "args": (t + 1,)},
        {"type": "ineq", "fun": lambda x, *_: t + 1 - pb.sum(x)},
        optimize.NonlinearConstraint(lambda x: pb.sum(x), -np.inf, 4.0),
        optimize.LinearConstraint(np.ones((1, 2)), -np.inf, 4.0),
    ]


@pytest.mark.parametrize("form", range(7))
def test_a_minimum_of_scipy_under_constraints_refuses_derivatives(form: int) -> None:
    def entry(name: str) -> Any:
        return lambda t: pb.sum(by_scipy(t, forms_of_the_constraint(t)[form])[name]) + t

    for name in ("x", "fun", "jac"):
        with pytest.raises(pb.TapeError, match=r"^minimize: a minimum under constraints has no derivatives.*pb\.solve\.root"):
            pb.grad(entry(name))(T)
        with pytest.raises(pb.TapeError, match=r"^minimize: a minimum under constraints has no derivatives"):
            pb.jvp(entry(name), (T,), (pb.ones((), dtype=F64),))


@pytest.mark.filterwarnings("ignore:delta_grad")  # trust-constr notices that the constraint is linear
@pytest.mark.parametrize("method", ["COBYLA", "COBYQA", "trust-constr"])
def test_every_method_that_takes_constraints_refuses(method: str) -> None:
    pytest.importorskip("scipy.optimize")
    with pytest.raises(pb.TapeError, match="under constraints has no derivatives"):
        pb.grad(lambda t: by_scipy(t, {"type": "ineq", "fun": room}, f"scipy:{method}").fun)(T)


def test_an_augmented_lagrangian_refuses_derivatives() -> None:
    def found(t: Any, **more: Any) -> Any:
        return pb.solve.augmented_lagrangian(distance, [1.0, 1.0], args=(t,), **more)

    entries: list[Any] = [lambda found: found.x, lambda found: found.fun, lambda found: found.ineq[0]]
    for entry in entries:
        with pytest.raises(pb.TapeError, match=r"^augmented_lagrangian: a minimum under constraints has no derivatives"):
            pb.grad(lambda t, entry=entry: pb.sum(entry(found(t, ineq=room))) + t)(T)
    with pytest.raises(pb.TapeError, match=r"^augmented_lagrangian: a minimum under constraints has no derivatives"):
        pb.jvp(lambda t: pb.sum(found(pb.stop_gradient(t), ineq=lambda x, _: t - pb.sum(x)).x), (T,), (T,))
    assert isinstance(found(T, ineq=room).fun, float)


def test_a_minimum_under_constraints_is_a_constant_where_that_is_meant() -> None:
    pytest.importorskip("scipy.optimize")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slope = pb.grad(lambda t: t * pb.sum(by_scipy(pb.stop_gradient(t), {"type": "ineq", "fun": room}).x))(T)
        other = pb.grad(lambda t: t * pb.solve.augmented_lagrangian(distance, [1.0, 1.0], ineq=room, args=(3.0,)).fun)(T)
    np.testing.assert_allclose([slope.item(), other.item()], [4.0, 2.0], atol=1e-6)
    p = pb.Parameter(np.array([1.0, 1.0]))
    with pb.GradientTape() as tape:  # which watches the unknowns themselves
        result = pb.solve.augmented_lagrangian(distance, p, ineq=room, args=(3.0,))
        value = pb.sum(p * result.x)
    np.testing.assert_allclose(tape.gradient(value, p).numpy(), 2.0, atol=1e-6)


def test_the_conditions_of_the_minimum_give_its_derivative_by_root() -> None:
    """This is what the error advises. The constraint is curved and depends on the argument."""

    def constraint(x: Any, t: Any) -> Any:
        return t - pb.sum(x * x)

    def f(x: Any, t: Any) -> Any:
        return pb.sum((x - np.array([2.0, 3.0])) ** 2) + t * x[0]

    def solved(t: Any) -> Any:
        return pb.solve.augmented_lagrangian(f, [1.0, 1.0], ineq=constraint, args=(t,), tol=1e-11)

    def conditions(z: Any, t: Any) -> Any:
        lagrangian = pb.grad(lambda x: f(x, t) - z["m"][0] * constraint(x, t))
        return [lagrangian(z["x"]), constraint(z["x"], t)]

    found = solved(pb.stop_gradient(T))
    start = {"x": found.x, "m": found.ineq[0]}
    slopes = pb.jacobian(lambda t: pb.solve.root(conditions, start, args=(t,)).x["x"])(T).numpy()
    step = 1e-5
    wanted = [solved(T + sign * step).x.numpy() for sign in (1, -1)]
    np.testing.assert_allclose(slopes, (wanted[0] - wanted[1]) / (2 * step), atol=1e-5)


# ---- bounds that a method only comes near to


def bounded(t: Any, method: str, bounds: Any = (0, 0.5), f: Any = distance, **more: Any) -> Any:
    return pb.solve.minimize(f, [0.1, 0.1], method, bounds=bounds, args=(t,), **more).result()


METHODS = ["L-BFGS-B", *[f"scipy:{name}" for name in ("trust-constr", "Powell", "Nelder-Mead", "SLSQP", "TNC", "COBYQA")]]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("size", "unit"), [(1.0, 1.0), (1e3, 1.0), (1.0, 10.0)], ids=["plain", "large f", "small units of x"])
def test_an_active_bound_holds_its_element_however_near_to_it_a_method_ends(method: str, size: float, unit: float) -> None:
    """The second element is free, and coupled with the first."""
    pytest.importorskip("scipy.optimize")

    def f(x: Any, t: Any) -> Any:
        y = x * unit
        return size * (pb.sum((y - t * np.array([1.0, 0.1])) ** 2) + 0.1 * y[0] * y[1])

    found = bounded(T, method, (0, 0.5 / unit), f).x.numpy() * unit
    np.testing.assert_allclose(found, [0.5, 0.275], atol=2e-3)
    slopes = pb.jacobian(lambda t: bounded(t, method, (0, 0.5 / unit), f).x)(T).numpy() * unit
    np.testing.assert_allclose(slopes, [0.0, 0.1], atol=1e-9)  # the second element is 0.1 t - 0.05 * 0.5


@pytest.mark.parametrize("method", [name for name in METHODS if name != "scipy:Nelder-Mead"])
def test_an_element_near_to_a_bound_that_it_does_not_need_is_free(method: str) -> None:
    pytest.importorskip("scipy.optimize")
    t = pb.tensor(0.49, F64)
    np.testing.assert_allclose(pb.jacobian(lambda t: bounded(t, method).x)(t).numpy(), 1.0, atol=1e-9)


def test_a_method_that_ends_on_a_bound_which_the_gradient_leaves_has_a_warning() -> None:
    """The simplex of Nelder and Mead falls flat on the bound 0.5, next to the minimum 0.49."""
    pytest.importorskip("scipy.optimize")
    t = pb.tensor(0.49, F64)
    assert bounded(t, "scipy:Nelder-Mead").x[0].item() == 0.5
    with pytest.warns(pb.ConvergenceWarning, match="grad_norm is 0.02, and a step of Newton's method would change x by 0.01"):
        slopes = pb.jacobian(lambda t: bounded(t, "scipy:Nelder-Mead").x)(t)
    np.testing.assert_allclose(slopes.numpy(), 1.0, atol=1e-9)  # those of the minimum, which is on no bound


def test_an_element_whose_bounds_are_equal_stays_there() -> None:
    bounds = (np.array([0.5, -9.0]), np.array([0.5, 9.0]))
    for t in (T, -T):
        run = lambda t: pb.solve.minimize(distance, [0.5, 0.1], bounds=bounds, args=(t,), gtol=1e-9).result().x
        np.testing.assert_allclose(pb.jacobian(run)(t).numpy(), [0.0, 1.0], atol=1e-9)


def test_the_derivative_by_a_lower_bound_and_where_f_is_concave() -> None:
    pytest.importorskip("scipy.optimize")

    def f(x: Any, t: Any) -> Any:  # the first element falls to its lower bound along a curve without a minimum
        return -((x[0] - 2) ** 2) - x[0] * t + (x[1] - t * t * (2 + x[0])) ** 2

    t, bounds = pb.tensor(-0.3, F64), (-1.0, np.array([9.0, 9.0]))
    for method in ("L-BFGS-B", "scipy:SLSQP", "scipy:trust-constr"):
        slopes = pb.jacobian(lambda t, method=method: bounded(t, method, bounds, f).x)(t).numpy()
        ends = [bounded(t + sign * 1e-4, method, bounds, f).x.numpy() for sign in (1, -1)]
        np.testing.assert_allclose(slopes, (ends[0] - ends[1]) / 2e-4, atol=2e-3)


@pytest.mark.parametrize("method", ["L-BFGS-B", "scipy:Powell", "scipy:Nelder-Mead"])
def test_a_derivative_where_a_method_converged_far_from_the_minimum_has_a_warning(method: str) -> None:
    pytest.importorskip("scipy.optimize")
    if method == "L-BFGS-B":
        loose: dict[str, Any] = {"ftol": 2.0}
    else:
        loose = {"options": {"xatol": 1e9, "fatol": 1e9} if "Nelder" in method else {"xtol": 1e9, "ftol": 1e9}}

    def f(x: Any, t: Any) -> Any:
        return pb.sum((x - 0.1 * t) ** 4 + (x - 0.1 * t) ** 2 + 0.1 * x[0] * x[1] ** 3)

    def run(t: Any, **more: Any) -> Any:
        return bounded(t, method, f=f, **more)

    assert run(T, **loose).success
    words = r"^minimize: .*no solution, though the method has converged.*grad_norm is \d.*Newton's method would change x by \d"
    with pytest.warns(pb.ConvergenceWarning, match=words):
        pb.grad(lambda t: pb.sum(run(t, **loose).x))(T)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pb.grad(lambda t: pb.sum(run(t).x))(T)
