"""Derivatives of solutions by arguments, through least_squares and root, against closed forms and differences of whole solves."""

import warnings

import numpy as np
import pytest

import pullback as pb
from pullback.solve import least_squares, root
from pullback.solve.implicit import of_minimum

STRICT = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-13}


def ridge_data(m=20, n=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, n)), rng.standard_normal(m)


def ridge(x, lam, a, y):
    return [a @ x - y, pb.sqrt(lam) * x]


def solved(lam, a, y):
    return least_squares(ridge, pb.zeros(a.shape[1], dtype=pb.float64), (lam, a, y), **STRICT).x


def test_ridge_regression_has_the_closed_form() -> None:
    """x = h⁻¹ aᵀ y with h = aᵀ a + lam I, so dx/dlam = -h⁻¹ x."""
    a, y = ridge_data()
    lam = 0.7
    h = a.T @ a + lam * np.eye(4)
    x = np.linalg.solve(h, a.T @ y)
    dx, dy = -np.linalg.solve(h, x), np.linalg.solve(h, a.T)
    t = [pb.tensor(v) for v in (np.array(lam), a, y)]
    jacobians = pb.jacobian(solved, argnums=(0, 2), mode="reverse")(*t)
    np.testing.assert_allclose(jacobians[0].numpy(), dx, rtol=1e-8)
    np.testing.assert_allclose(jacobians[1].numpy(), dy, rtol=1e-8, atol=1e-10)
    value, tangent = pb.jvp(lambda lam: solved(lam, t[1], t[2]), (t[0],), (pb.tensor(1.0, dtype=pb.float64),))
    np.testing.assert_allclose(value.numpy(), x, rtol=1e-9)
    np.testing.assert_allclose(tangent.numpy(), dx, rtol=1e-8)
    second = pb.hessian(lambda lam: pb.sum(solved(lam, t[1], t[2]) ** 2))(t[0])
    wanted = 2 * dx @ dx + 2 * x @ (2 * np.linalg.solve(h, np.linalg.solve(h, x)))
    np.testing.assert_allclose(float(second), wanted, rtol=1e-8)


def fit(y, loss="linear", bounds=None, **options):
    t = pb.tensor(np.linspace(0, 3, 15))
    return least_squares(
        lambda x, y: x[0] * pb.exp(-x[1] * t) + 0.1 * x[1] ** 2 - y, [1.5, 0.8], (y,), bounds, loss, 0.3, **(STRICT | options)
    )


def curve(seed=2):
    t = np.linspace(0, 3, 15)
    y = 2 * np.exp(-t) + 0.1 + 0.1 * np.random.default_rng(seed).standard_normal(15)
    y[4] += 1.0
    return y


@pytest.mark.parametrize("loss", ["linear", "soft_l1", "cauchy", "huber", "arctan"])
@pytest.mark.parametrize("bounds", [None, ([0.0, 0.0], [1.6, 3.0]), ([0.0, 0.7], [1.55, 0.82])], ids=["free", "one", "all"])
def test_fits_against_differences_of_the_whole_solve(loss, bounds) -> None:
    y = curve()
    start = {"bounds": bounds}
    weights = pb.tensor([1.0, -2.0], dtype=pb.float64)

    def value(y):
        return pb.sum(weights * fit(y, loss, **start).x)

    found = pb.grad(value)(pb.tensor(y)).numpy()
    for i in (0, 4, 9):
        step = np.zeros(15)
        step[i] = 1e-5
        wanted = (float(value(pb.tensor(y + step))) - float(value(pb.tensor(y - step)))) / 2e-5
        np.testing.assert_allclose(found[i], wanted, rtol=1e-4, atol=1e-6)
    _, tangent = pb.jvp(value, (pb.tensor(y),), (pb.tensor(np.ones(15)),))
    np.testing.assert_allclose(float(tangent), found.sum(), rtol=1e-8, atol=1e-12)


def test_an_active_bound_has_no_derivative() -> None:
    y = pb.tensor(curve())
    found = fit(y, bounds=([0.0, 0.0], [1.6, 3.0]))
    assert found.active_mask.tolist() == [1, 0]
    gradient = pb.grad(lambda y: fit(y, bounds=([0.0, 0.0], [1.6, 3.0])).x[0])(y)
    assert (gradient.numpy() == 0).all()


def test_a_batch_of_fits() -> None:
    y = np.stack([curve(seed) for seed in range(3)])
    t = pb.tensor(np.linspace(0, 3, 15))

    def f(x, y):
        return x[0] * pb.exp(-x[1] * t) + 0.1 * x[1] ** 2 - y

    x0 = pb.tensor(np.tile([1.5, 0.8], (3, 1)))
    weights = pb.tensor([1.0, -2.0], dtype=pb.float64)
    strict = {"ftol": 1e-14, "xtol": 1e-14, "gtol": 1e-12}
    found = pb.grad(lambda y: pb.sum(weights * least_squares(f, x0, (y,), batch=True, **strict).x))(pb.tensor(y))
    for k in range(3):
        one = pb.grad(lambda y: pb.sum(weights * fit(y, "linear").x))(pb.tensor(y[k]))
        np.testing.assert_allclose(found[k].numpy(), one.numpy(), rtol=1e-5, atol=1e-7)


def test_the_memory_does_not_depend_on_the_iterations() -> None:
    y, kept = pb.tensor(curve()), []
    for options in ({"max_nfev": 2}, {}):
        with pb.GradientTape() as tape:
            tape.watch(y)
            found = fit(y, **options)
        kept.append((len(tape.nodes), found.nfev))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pb.ConvergenceWarning)
            tape.gradient(found.x, y, output_gradients=pb.ones(2, dtype=pb.float64))
    assert kept[0][0] == kept[1][0]
    assert kept[0][1] < kept[1][1]


def test_a_singular_hessian_is_an_error_when_a_gradient_is_asked_for() -> None:
    def f(x, y):
        return x[0] + x[1] - y

    y = pb.tensor([1.0, 2.0])
    assert least_squares(f, [0.0, 0.0], (y,)).success
    with pytest.raises(pb.LinAlgError, match=r"singular .rank 1 of 2.*ridge"):
        pb.grad(lambda y: least_squares(f, [0.0, 0.0], (y,)).x[0])(y)
    z = pb.zeros((2, 2), dtype=pb.float64)
    with pytest.raises(pb.LinAlgError, match="of problem 0 is singular"):
        pb.grad(lambda y: pb.sum(least_squares(f, z, (y,), batch=True).x))(pb.tensor([[1.0, 2.0], [1.0, 3.0]]))


def test_a_watched_tensor_that_is_no_argument_is_an_error() -> None:
    y, w = pb.tensor(curve()), pb.Parameter(1.0, dtype=pb.float64)

    def solve():
        with pb.GradientTape() as tape:
            tape.watch(y)
            least_squares(lambda x, y: w * x[0] - y, [1.0], (y,))

    with pytest.raises(pb.TapeError, match=r"^least_squares: the function uses .* not in args.*Give it in args="):
        solve()


def test_arguments_in_a_dict_and_parameters() -> None:
    a, y = ridge_data()
    p = pb.Parameter(0.7, dtype=pb.float64)
    data = {"a": pb.tensor(a), "y": pb.tensor(y), "note": "ridge"}

    def f(x, lam, data):
        return ridge(x, lam, data["a"], data["y"])

    with pb.GradientTape() as tape:
        total = pb.sum(least_squares(f, pb.zeros(4, dtype=pb.float64), (p, data), **STRICT).x)
    h = a.T @ a + 0.7 * np.eye(4)
    wanted = -np.linalg.solve(h, np.linalg.solve(h, a.T @ y)).sum()
    np.testing.assert_allclose(float(tape.gradient(total, p)), wanted, rtol=1e-8)


def test_a_minimum_of_a_scalar() -> None:
    a, y = [pb.tensor(v) for v in ridge_data()]

    def f(x, lam):
        return 0.5 * pb.sum((a @ x - y) ** 2) + 0.5 * lam * pb.sum(x * x)

    lam = pb.tensor(0.7, dtype=pb.float64)
    x = solved(lam, a, y)
    found = pb.jacobian(lambda lam: of_minimum("minimize", f, x, (lam,)))(lam)
    h = a.numpy().T @ a.numpy() + 0.7 * np.eye(4)
    np.testing.assert_allclose(found.numpy(), -np.linalg.solve(h, x.numpy()), rtol=1e-8)


# ---- roots


def circle(x, a):
    return pb.stack([x[0] ** 2 + x[1] ** 2 - a, x[0] - x[1] ** 3])


@pytest.mark.parametrize("method", ["hybrid", "newton"])
@pytest.mark.parametrize("dtype", [pb.float32, pb.float64], ids=str)
def test_roots_and_their_derivatives(method, dtype) -> None:
    a = pb.tensor(2.0, dtype=dtype)
    x0 = pb.tensor([3.0, 1.0], dtype=dtype)
    found = root(circle, x0, (a,), method)
    assert found.success
    assert found.status == 1
    assert found["njev"] > 0
    rtol = 1e-5 if dtype == pb.float32 else 1e-9
    np.testing.assert_allclose(found.x.numpy(), [1, 1], rtol=rtol)
    slope = np.linalg.solve([[2, 2], [1, -3]], [1, 0])
    np.testing.assert_allclose(pb.jacobian(lambda a: root(circle, x0, (a,), method).x)(a).numpy(), slope, rtol=rtol * 10)
    _, tangent = pb.jvp(lambda a: root(circle, x0, (a,), method).x, (a,), (pb.ones((), dtype=dtype),))
    np.testing.assert_allclose(tangent.numpy(), slope, rtol=rtol * 10)


def test_second_derivatives_of_a_root() -> None:
    def cube(a):
        return root(lambda x, a: x**3 - a, [1.0], (a,)).x[0]

    a = pb.tensor(5.0, dtype=pb.float64)
    np.testing.assert_allclose(float(pb.grad(cube)(a)), 5 ** (-2 / 3) / 3, rtol=1e-9)
    np.testing.assert_allclose(float(pb.grad(pb.grad(cube))(a)), -2 / 9 * 5 ** (-5 / 3), rtol=1e-9)
    np.testing.assert_allclose(float(pb.hessian(cube)(a)), -2 / 9 * 5 ** (-5 / 3), rtol=1e-9)


def test_roots_far_from_the_start() -> None:
    assert abs(float(root(lambda x: pb.exp(x) - 1, [30.0]).x[0])) < 1e-9
    assert abs(float(root(lambda x: pb.atan(x), [5.0]).x[0])) < 1e-9
    found = root(lambda x: pb.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]]), [-1.2, 1.0])
    np.testing.assert_allclose(found.x.numpy(), [1, 1], rtol=1e-8)


def test_a_system_without_a_root_says_so() -> None:
    for method in ("newton", "hybrid"):
        found = root(lambda x: x**2 + 1, [1.0], method=method)
        assert not found.success
        assert found.status < 0
        assert found.message
    assert root(circle, [30.0, 10.0], (2.0,), max_nfev=2).status == 0


def test_bad_input_of_root_is_refused_in_words() -> None:
    for make, kind, words in (
        (lambda: root(lambda x: x[:1], [1.0, 2.0]), pb.ShapeError, "1 numbers for 2 unknowns"),
        (lambda: root(lambda x: pb.log(x - 1), [1.0]), ValueError, "residual 0"),
        (lambda: root(lambda x: x, [1]), pb.DTypeError, "floats"),
        (lambda: root(lambda x: x, [1.0], method="hybr"), pb.PullbackError, "hybrid"),
        (lambda: root(lambda x: x, [1.0], xtol=2.0), ValueError, "xtol"),
        (lambda: root(lambda x: x, [1.0], max_nfev=0), ValueError, "max_nfev"),
        (lambda: pb.grad(lambda a: root(lambda x, a: x**2 * a, [0.0], (a,)).x[0])(2.0), pb.LinAlgError, "Jacobian of f.*singular"),
    ):
        with pytest.raises(kind, match=words):
            make()


# ---- other results, and arguments that are missing


def test_residuals_and_cost_have_derivatives() -> None:
    """The residuals x - a and x + a have the least cost a² at x = 0."""
    f = lambda x, a: pb.stack([x[0] - a, x[0] + a])
    solution = lambda a: least_squares(f, [3.0], args=(a,), **STRICT)
    a = pb.tensor(1.3, dtype=pb.float64)
    np.testing.assert_allclose(pb.grad(lambda a: solution(a).cost)(a).item(), 2.6, rtol=1e-9)
    np.testing.assert_allclose(pb.grad(lambda a: pb.sum(solution(a).fun ** 2))(a).item(), 5.2, rtol=1e-9)
    many = pb.tensor([0.5, 1.0, 2.0], dtype=pb.float64)
    total = lambda a: pb.sum(least_squares(f, np.ones((3, 1)), args=(a,), batch=True, **STRICT).cost)
    np.testing.assert_allclose(pb.grad(total)(many).numpy(), 2 * many.numpy(), rtol=1e-9)
    assert isinstance(solution(a).cost, float)


@pytest.mark.parametrize("solver", ["least_squares", "root", "minimize"])
def test_a_watched_value_that_is_not_in_args_is_refused(solver: str) -> None:
    zero, a = pb.zeros(2, dtype=pb.float64), pb.tensor(1.0, dtype=pb.float64)
    p = pb.Parameter(a)

    def solve(a):
        if solver == "minimize":
            return pb.solve.minimize(lambda x: pb.sum((x - a) ** 2), zero).result().x
        return getattr(pb.solve, solver)(lambda x: x - a, zero).x

    def under_a_tape():
        with pb.GradientTape():
            solve(p)

    assert np.allclose(solve(p).numpy(), 1.0)
    for derivative in (lambda: pb.grad(lambda a: pb.sum(solve(a)))(a), lambda: pb.jvp(solve, (a,), (a,)), under_a_tape):
        with pytest.raises(pb.TapeError, match=rf"^{solver}: the function uses .* not in args.*Give it in args="):
            derivative()


@pytest.mark.parametrize("solver", ["root", "least_squares", "batch"])
def test_a_derivative_without_convergence_has_a_warning(solver: str) -> None:
    a, options = pb.tensor([2.0, 1.0], dtype=pb.float64), {"batch": True} if solver == "batch" else {}
    start = pb.ones((2, 1) if options else 2, dtype=pb.float64)

    def total(a, most):
        solve = root if solver == "root" else least_squares
        return pb.sum(solve(lambda x, a: x**2 - a, start, (a,), max_nfev=most, **options).x)

    words = {
        "root": "root: .*length of f.x. is", "least_squares": "evaluations is exceeded, and the optimality is",
        "batch": "1 of 2 problems did not converge. The first is number 0: The",
    }
    with pytest.warns(pb.ConvergenceWarning, match=words[solver]):
        pb.grad(total)(a, 2)
    with pytest.warns(pb.ConvergenceWarning):
        pb.jvp(lambda a: total(a, 2), (a,), (a,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        total(a, 2)
        np.testing.assert_allclose(pb.grad(total)(a, 100).numpy(), 0.5 / np.sqrt([2, 1]), rtol=1e-7)
