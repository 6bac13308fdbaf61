"""Derivatives of the result of pb.solve.minimize by its arguments, and the profile of a minimisation."""

from __future__ import annotations

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
