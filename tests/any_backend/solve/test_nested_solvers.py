"""Solvers inside of solvers, optimizers and transforms, whose arguments are Parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb

F64: Any = pb.float64
TARGET = np.array([1.0, -0.5])


def inner_loss(x: Any, y: Any) -> Any:
    """Its minimum has a curved dependence on y."""
    return pb.sum((x - y * y) ** 2) + 0.3 * pb.sum((x - y) ** 4)


def inner(y: Any, as_dict: bool = False, **more: Any) -> Any:
    given: Any = {"y": y} if as_dict else (y,)
    return pb.solve.minimize(inner_loss, [0.2, 0.1], args=given, gtol=1e-11, ftol=0.0, **more).result().x


def outer_loss(y: Any, **more: Any) -> Any:
    return pb.sum((inner(y, **more) - TARGET) ** 2) + 0.1 * pb.sum(y * y)


def slopes(f: Any, y: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Finite differences of a function of an array."""
    ends = [[np.asarray(f(pb.tensor(y + sign * step * row)).numpy()) for sign in (1, -1)] for row in np.eye(y.size)]
    return np.stack([(a - b) / (2 * step) for a, b in ends], axis=-1)


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("as_dict", [True, False])
@pytest.mark.parametrize("method", ["L-BFGS-B", "BFGS", "Newton-CG"])
def test_a_parameter_in_args_has_the_derivatives_of_a_tensor(method: str, as_dict: bool, capture: bool) -> None:
    start = np.array([0.7, -0.4])
    p = pb.Parameter(start)
    more: dict[str, Any] = {"method": method, "as_dict": as_dict, "capture": capture}
    wanted = slopes(outer_loss, start)
    np.testing.assert_allclose(pb.grad(lambda y: outer_loss(y, **more))(p).numpy(), wanted, rtol=1e-6)
    with pb.GradientTape() as tape:
        value = outer_loss(p, **more)
    np.testing.assert_allclose(tape.gradient(value, p).numpy(), wanted, rtol=1e-6)
    _, tangent = pb.jvp(lambda y: outer_loss(y, **more), (p,), (pb.tensor([1.0, 2.0], F64),))
    np.testing.assert_allclose(tangent.item(), wanted @ [1.0, 2.0], rtol=1e-6)
    second = slopes(pb.grad(outer_loss), start)
    np.testing.assert_allclose(pb.hessian(lambda y: outer_loss(y, **more))(p).numpy(), second, rtol=1e-5, atol=1e-9)


def test_a_parameter_next_to_tensors_and_numbers_in_args() -> None:
    p, s = pb.Parameter(np.array(0.7)), pb.tensor(1.3, F64)

    def found(p: Any, s: Any) -> Any:
        f = lambda x, power, p, c, s: pb.sum((x - s * p) ** power) + c * pb.sum(x * x)
        return pb.sum(pb.solve.minimize(f, np.zeros(2), args=(2, p, 0.5, s), gtol=1e-11).result().x)

    step = 1e-5
    ends = [found(pb.tensor(0.7 + sign * step, F64), s).item() for sign in (1, -1)]
    np.testing.assert_allclose(pb.grad(found)(p, s).item(), (ends[0] - ends[1]) / (2 * step), rtol=1e-7)
    np.testing.assert_allclose([g.item() for g in pb.grad(found, (0, 1))(p, s)], [2 * 1.3 / 1.5, 2 * 0.7 / 1.5], rtol=1e-9)


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("method", ["L-BFGS-B", "BFGS", "Newton-CG", "scipy:BFGS"])
def test_minimize_in_the_objective_of_minimize(method: str, capture: bool) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    found = pb.solve.minimize(outer_loss, [0.7, -0.4], method, gtol=1e-7, capture=capture).result()

    def by_scipy(y: np.ndarray) -> float:
        lower = lambda x: np.sum((x - y * y) ** 2) + 0.3 * np.sum((x - y) ** 4)
        x = optimize.minimize(lower, [0.2, 0.1], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-16}).x
        return float(np.sum((x - TARGET) ** 2) + 0.1 * np.sum(y * y))

    wanted = optimize.minimize(by_scipy, [0.7, -0.4], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-14})
    assert found.success
    np.testing.assert_allclose(found.x.numpy(), wanted.x, atol=1e-5)


def test_minimize_in_the_objective_of_other_solvers_and_optimizers() -> None:
    start = np.array([0.9, 0.8])
    goal = np.array([0.6, 0.5])
    residuals = lambda y: inner(y) - goal
    by_root, by_least_squares = [solver(residuals, start).x for solver in (pb.solve.root, pb.solve.least_squares)]
    np.testing.assert_allclose(inner(by_root).numpy(), goal, atol=1e-8)
    np.testing.assert_allclose(by_least_squares.numpy(), by_root.numpy(), atol=1e-6)
    p = pb.Parameter(start)
    lm = pb.solve.LevenbergMarquardt([p])
    for _ in range(8):
        lm.step(lambda: residuals(p))
    np.testing.assert_allclose(p.numpy(), by_root.numpy(), atol=1e-6)
    q = pb.Parameter(start)
    pb.optim.SGD([q], lr=0.1).minimize(lambda: outer_loss(q))
    np.testing.assert_allclose(q.numpy(), start - 0.1 * slopes(outer_loss, start), atol=1e-8)


def test_a_parameter_that_is_not_in_args_is_refused() -> None:
    p = pb.Parameter(np.array([0.7, -0.4]))
    with pytest.raises(pb.TapeError, match=r"^minimize: the function uses an unnamed Parameter.*not in args"):
        pb.grad(lambda y: pb.sum(pb.solve.minimize(lambda x: inner_loss(x, y), [0.2, 0.1]).result().x))(p)
