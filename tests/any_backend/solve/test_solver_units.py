"""Success of a solver does not depend on the units of its function, and a function that falls for ever has no minimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.solve import least_squares, root


def rosenbrock(x: Any) -> Any:
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


START = np.array([-1.2, 1.0])


# ---- success does not depend on the units of the residuals and of x


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("robust", [False, True])
def test_success_does_not_depend_on_the_units(batch: bool, dtype: str, robust: bool) -> None:
    """An absolute gtol called the start a minimum of small residuals, and an absolute xtol that of small unknowns."""
    t = np.linspace(0, 4, 30, dtype=dtype)
    y = pb.tensor((2 * np.exp(-1.3 * t) + 0.1 * np.sin(50 * t)).astype(dtype))
    for scale in (1.0, 1e-5, 1e-13, 1e12):
        for unit in (1.0, 1e-3, 1e3) if dtype == "float32" else (1.0, 1e-20, 1e15):
            for fit in (True, False):

                def f(x, scale=scale, unit=unit, fit=fit):
                    a, b = x[0] / unit, x[1] / unit
                    return scale * (a * pb.exp(-b * pb.tensor(t)) - y if fit else pb.stack([10 * (b - a * a), 1 - a]))

                x0 = pb.tensor((np.array([1.0, 1.0] if fit else [-1.2, 1.0]) * unit).astype(dtype))
                more = {"loss": "soft_l1", "f_scale": scale} if robust else {}
                found = least_squares(f, pb.reshape(x0, (1, 2)) if batch else x0, batch=batch, **more)
                assert np.all(found.success)
                expected = ([2.0619, 1.3283] if robust else [2.06327, 1.33019]) if fit else [1.0, 1.0]
                np.testing.assert_allclose(np.ravel(found.x.numpy()) / unit, expected, rtol=2e-3)


@pytest.mark.parametrize("batch", [False, True])
def test_gtol_alone_ends_where_rounding_hides_the_residuals(batch: bool) -> None:
    x0 = pb.tensor([[-1.2, 1.0]] if batch else [-1.2, 1.0], pb.float64)
    found = least_squares(lambda x: pb.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]]) * 1e-9, x0, batch=batch, ftol=None, xtol=None)
    assert np.all(found.success)
    np.testing.assert_allclose(np.ravel(found.x.numpy()), 1.0, rtol=1e-12)


def test_residuals_whose_squares_vanish_are_told() -> None:
    found = least_squares(lambda x: 1e-170 * (x - 2), pb.tensor([1.0], pb.float64))
    assert (found.success, found.status) == (False, -4)
    assert "squares of the residuals" in found.message
    many = least_squares(lambda x, s: s * (x - 2), pb.ones((2, 1)), args=(pb.tensor([1.0, 1e-25]),), batch=True)
    assert many.status.tolist()[1] == -4
    assert many.success.tolist() == [True, False]


# ---- success does not depend on the units of f


def test_columns_whose_squares_vanish_are_told() -> None:
    """In float32 the squares of 1e-20 are 0, so that the first unknown could not move."""
    t = np.linspace(0, 4, 30, dtype="float32")
    y = pb.tensor((2 * np.exp(-1.3 * t) + 0.5).astype("float32"))
    args, starts = (pb.stack([pb.tensor(t)] * 2), pb.stack([y] * 2)), np.array([1.0, 1.0, 0.0])

    def found(scale: float, unit: float) -> Any:
        def f(x: Any, t: Any, y: Any) -> Any:
            return scale * (x[0] * unit * pb.exp(-x[1] * t) + x[2] - y)

        x0 = pb.tensor((starts / np.array([unit, 1, 1])).astype("float32"))
        return least_squares(f, pb.stack([x0] * 2), args=args, batch=True)

    assert found(1e-10, 1e-10).status.tolist() == [-4, -4]
    assert found(1e-10, 1.0).success.tolist() == found(1.0, 1e-10).success.tolist() == [True, True]
    np.testing.assert_allclose(found(1.0, 1e-10).x.numpy()[0], [2e10, 1.3, 0.5], rtol=1e-5)


@pytest.mark.parametrize(("scale", "unit", "status"), [(1e-150, 1e-12, -4), (1e140, 1e20, -2), (1e-140, 1e-3, 0)])
def test_a_column_whose_squares_have_no_place_in_float64_is_told(scale: float, unit: float, status: int) -> None:
    t = np.linspace(0, 4, 30)
    y = 2 * np.exp(-1.3 * t) + 0.5

    def f(x: Any) -> Any:
        return scale * (x[0] * unit * pb.exp(-x[1] * t) + x[2] - y)

    found = least_squares(f, [1.0 / unit, 1.0, 0.0])
    assert found.status == status or (status == 0 and found.success)
    assert found.success == (status == 0)


@pytest.mark.parametrize("method", ["L-BFGS", "BFGS", "SSBroyden", "Newton-CG"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_success_of_a_function_times_a_small_number_is_that_of_the_function(method: str, dtype: str) -> None:
    """An absolute gtol or ftol called the start a minimum."""
    x0 = START.astype(dtype)
    for scale in (1e-12, 1e-4, 1e-8):
        found = pb.solve.minimize(lambda x, scale=scale: scale * rosenbrock(x), x0, method).result()
        assert found.success or (dtype == "float32" and scale == 1e-12)  # where products of the method vanish
        assert rosenbrock(found.x.astype("float64")).item() < 1e-5  # 24 at the start, of which this is four roundings in float32
    near = pb.solve.minimize(lambda x: 1e-8 * rosenbrock(x), found.x, method).result()  # a warm start ends soon
    assert near.success
    assert near.nfev < 80
    wrong = pb.custom_gradient(lambda x: (1e-8 * pb.sum(x * x), lambda g: -2e-8 * g * x))
    assert not pb.solve.minimize(wrong, x0, method).result().success


@pytest.mark.parametrize("method", ["L-BFGS", "BFGS", "SSBroyden", "Newton-CG"])
def test_squares_of_a_gradient_that_vanish_are_told(method: str) -> None:
    for scale in (1e-30, 1e30):
        found = pb.solve.minimize(lambda x, scale=scale: scale * rosenbrock(x), START.astype("float32"), method).result()
        assert found.success == (abs(found.x.numpy() - 1) < 1e-2).all()
        assert found.success or "its square is 0 or infinite" in found.message


@pytest.mark.parametrize("method", ["L-BFGS", "BFGS", "SSBroyden", "Newton-CG"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_function_that_falls_for_ever_has_no_minimum(method: str, dtype: str) -> None:
    falling = [
        lambda x: -pb.sum(x * x), lambda x: x[0] * x[1], lambda x: -pb.sum(pb.log(x)), lambda x: -pb.sqrt(pb.sum(x)),
        lambda x: -pb.sum(pb.exp(x)), lambda x: -pb.sum(x), lambda x: pb.sum(x * x - x**4), lambda x: -1 / x[0],
    ]
    for f in falling:
        found = pb.solve.minimize(f, np.array([3.0, 3.1], dtype), method, maxiter=1000, maxfun=3000).result()
        assert not found.success
    bottom = pb.solve.minimize(lambda x: -pb.sum(x * x), np.array([1.0, 2.0], "float32"), method).result()
    assert bottom.status in (2, 3)
    flat = pb.solve.minimize(lambda x: pb.sum(pb.exp(-x)), np.array([0.0], dtype), method).result()
    assert flat.success  # its infimum is 0


def test_a_result_of_scipy_that_is_minus_infinity_is_no_success() -> None:
    pytest.importorskip("scipy.optimize")
    found = pb.solve.minimize(lambda x: -pb.sum(x * x), np.array([1.0, 2.0]), "scipy:L-BFGS-B").result()
    assert found.fun == -np.inf
    assert (found.success, found.status) == (False, 3)


# ---- equations in different units


@pytest.mark.parametrize("units", [(1.0, 1.0), (1e8, 1e-6), (1e-9, 1e5), (1e-100, 1e-90)])
def test_each_equation_of_a_root_is_solved_in_its_own_unit(units: tuple[float, float]) -> None:
    """An equation in large units hid that one in small units was not solved."""
    solved, unit = 0, np.array(units)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        a, b = np.round(rng.standard_normal((2, 2)) * 2, 1), np.round(rng.standard_normal(2) * 2, 1)
        found = root(lambda x, a=a, b=b: pb.tensor(unit) * (pb.tensor(a) @ x + 3 * pb.sin(x) - pb.tensor(b)), np.zeros(2))
        solved += found.success
        if found.success:
            np.testing.assert_allclose(found.fun.numpy() / unit, 0, atol=1e-9)
    assert solved >= 20
