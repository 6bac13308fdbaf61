"""Derivatives of the result of pb.solve.minimize by its arguments, and the profile of a minimisation."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import pullback as pb

random = np.random.default_rng(0)
X, Y = random.standard_normal((12, 3)), random.standard_normal(12)


def ridge(w: Any, strength: Any) -> Any:
    return pb.sum((X @ w - Y) ** 2) + strength * pb.sum(w * w)


def solution(strength: float) -> Any:
    return np.linalg.solve(X.T @ X + strength * np.eye(3), X.T @ Y)


def fitted(strength: Any, **more: Any) -> Any:
    return pb.solve.minimize(ridge, np.zeros(3), args={"strength": strength}, gtol=1e-11, ftol=0, **more).result().x


def test_ridge_regression_by_its_strength_has_the_closed_form() -> None:
    strength = pb.tensor(0.7, pb.float64)
    expected = -np.linalg.solve(X.T @ X + 0.7 * np.eye(3), solution(0.7))
    found = pb.jacobian(fitted)(strength).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-8)
    _, tangent = pb.jvp(fitted, (strength,), (pb.ones((), dtype=pb.float64),))
    np.testing.assert_allclose(tangent.numpy(), expected, atol=1e-8)


def test_a_gradient_with_an_active_bound_agrees_with_differences_of_the_whole_solve() -> None:
    low = np.sort(solution(0.7))[0] + 0.05

    def loss(strength: Any) -> Any:
        return pb.sum(fitted(strength, bounds=(low, None)) ** 3)

    with pb.GradientTape() as tape:
        strength = pb.tensor(0.7, pb.float64)
        tape.watch(strength)
        value = loss(strength)
    found = tape.gradient(value, strength).item()
    step = 1e-5
    both = [float(loss(pb.tensor(0.7 + sign * step, pb.float64))) for sign in (1, -1)]
    assert found == pytest.approx((both[0] - both[1]) / (2 * step), rel=1e-6)


def test_a_singular_hessian_is_told() -> None:
    def loss(a: Any) -> Any:
        run = pb.solve.minimize(lambda x, a: (pb.sum(x) - a) ** 2, np.zeros(2), args={"a": a}, gtol=1e-10)
        return pb.sum(run.result().x)

    with pytest.raises(pb.LinAlgError, match="minimize: the Hessian at the solution is singular"):
        pb.grad(loss)(pb.tensor(1.0, pb.float64))


def test_vmap_is_refused() -> None:
    with pytest.raises(pb.PullbackError, match="Loop over the examples"):
        pb.vmap(fitted)(pb.ones(2, dtype=pb.float64))


def test_a_profile_shows_the_solver_apart_from_f_and_its_gradient() -> None:
    with pb.profile() as prof:
        result = pb.solve.minimize(lambda x: pb.sum(x**4), np.full(8, 2.0)).result()
    assert prof.coverage == 1
    n, nfev = 8, result.nfev
    assert prof.forward.flops == nfev * (n - 1)
    assert prof.forward.special_ops == nfev * n
    assert prof.backward.flops >= nfev * n
    assert prof.solver.flops >= result.nit * 10 * 4 * n  # two products and two sums for each remembered step
    assert prof.optimizer.flops == 0
    assert prof.total.flops == prof.forward.flops + prof.backward.flops + prof.solver.flops + prof.other.flops


def quartic(x: Any, a: Any) -> Any:
    return pb.sum((x - a) ** 4 + (x - a) ** 2) + 0.5 * pb.sum(x * x) * pb.sum(x) + pb.sum(a**2)


def minimum(a: Any, **more: Any) -> Any:
    return pb.solve.minimize(quartic, np.full(2, 0.5), args=(a,), gtol=1e-10, **more).result()


@pytest.mark.parametrize("bounds", [None, (None, [0.1, np.inf])], ids=["free", "an active bound"])
@pytest.mark.parametrize("entry", ["fun", "jac", "x"])
def test_each_entry_of_a_result_agrees_with_differences_of_the_whole_solve(bounds: Any, entry: str) -> None:
    a = pb.tensor([0.7, 1.1], dtype=pb.float64)

    def value(a: Any) -> Any:
        found = minimum(a, bounds=bounds)[entry]
        return found if isinstance(found, float) else pb.sum(found * np.array([1.0, -2.0])) if entry != "fun" else found

    steps = 1e-5 * np.eye(2)
    wanted = [(float(value(a + pb.tensor(d))) - float(value(a - pb.tensor(d)))) / 2e-5 for d in steps]
    np.testing.assert_allclose(pb.grad(value)(a).numpy(), wanted, rtol=1e-5, atol=1e-7)
    for direction, slope in zip(np.eye(2), wanted):
        _, tangent = pb.jvp(value, (a,), (pb.tensor(direction),))
        np.testing.assert_allclose(tangent.item(), slope, rtol=1e-5, atol=1e-7)
    if entry == "jac" and bounds is not None:
        assert abs(wanted[0]) > 1  # the bound holds the first element, so its slope changes


def test_a_result_is_made_of_numbers_without_a_derivative() -> None:
    found = minimum(pb.tensor([0.7, 1.1], dtype=pb.float64))
    assert isinstance(found.fun, float)
    residuals = lambda x, a: pb.stack([x[0] - a, x[0] + a])
    cost = lambda a: pb.solve.minimize(residuals, [3.0], "Gauss-Newton-CG", args=(a,), gtol=1e-10).result().fun
    np.testing.assert_allclose(pb.grad(cost)(pb.tensor(1.3, pb.float64)).item(), 2.6, rtol=1e-9)  # the cost is a²


def test_forward_mode_and_the_hessian_of_a_minimum_are_those_of_reverse_mode() -> None:
    a = pb.tensor([0.7, 1.1], dtype=pb.float64)
    forward, reverse = [pb.jacobian(lambda a: minimum(a).x, mode=mode)(a).numpy() for mode in ("forward", "reverse")]
    np.testing.assert_allclose(forward, reverse, rtol=1e-8)

    def total(a: Any) -> Any:
        return pb.sum(minimum(a).x ** 3)

    step, gradient = 1e-5, pb.grad(total)
    wanted = [(gradient(a + pb.tensor(d)).numpy() - gradient(a - pb.tensor(d)).numpy()) / (2 * step) for d in step * np.eye(2)]
    np.testing.assert_allclose(pb.hessian(total)(a).numpy(), wanted, rtol=1e-6)
    np.testing.assert_allclose(pb.jacobian(gradient)(a).numpy(), wanted, rtol=1e-6)
    np.testing.assert_allclose(pb.hvp(total, a, pb.ones(2, dtype=pb.float64)).numpy(), np.sum(wanted, 0), rtol=1e-6)


def test_a_derivative_without_convergence_has_a_warning() -> None:
    a = pb.tensor([0.7, 1.1], dtype=pb.float64)
    with pytest.warns(pb.ConvergenceWarning, match=r"^minimize: .*no solution.*stopped by maxiter=1,.*grad_norm is 0\.\d"):
        pb.grad(lambda a: pb.sum(minimum(a, maxiter=1).x))(a)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pb.grad(lambda a: pb.sum(minimum(a).x))(a)
        minimum(a, maxiter=1)
