"""pb.solve.minimize: its methods, what an iteration shows, arguments that change, bounds, and agreement with SciPy."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn

METHODS = ["L-BFGS", "L-BFGS-B", "BFGS", "SSBFGS", "SSBroyden", "Newton-CG"]


def rosenbrock(x: Any) -> Any:
    return pb.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def start(n: int) -> Any:
    return np.tile([-1.2, 1.0], n // 2)


@pytest.mark.parametrize("method", METHODS)
def test_rosenbrock_is_solved_by_every_method(method: str) -> None:
    result = pb.solve.minimize(rosenbrock, start(4), method, gtol=1e-8, ftol=0).result()
    assert result.success
    assert result.status == 0
    assert result.grad_norm < 1e-8
    assert result.nfev == result.njev > result.nit > 5
    np.testing.assert_allclose(result.x.numpy(), 1.0, atol=1e-7)
    np.testing.assert_allclose(result.jac.numpy(), 0.0, atol=1e-8)
    assert result["fun"] == result.fun < 1e-14


@pytest.mark.parametrize("method", METHODS)
def test_float32_reaches_its_own_precision(method: str) -> None:
    result = pb.solve.minimize(rosenbrock, pb.tensor([-1.2, 1.0]), method, gtol=1e-3).result()
    assert result.x.dtype == pb.float32
    np.testing.assert_allclose(result.x.numpy(), 1.0, atol=5e-3)


def test_gauss_newton_takes_residuals() -> None:
    def residuals(x: Any) -> Any:
        return {"a": 10 * (x[1:] - x[:-1] ** 2), "b": 1 - x[:-1]}

    result = pb.solve.minimize(residuals, start(4), "Gauss-Newton-CG", gtol=1e-10).result()
    assert result.success
    assert result.nit < 60
    np.testing.assert_allclose(result.x.numpy(), 1.0, atol=1e-9)


def test_an_iteration_shows_the_point_which_the_parameters_hold() -> None:
    p = pb.Parameter(start(2))
    losses = []
    for count, step in enumerate(pb.solve.minimize(lambda: rosenbrock(p), p, "BFGS"), 1):
        assert step.nit == count
        np.testing.assert_array_equal(p.numpy(), step.x.numpy())
        assert step.loss == pytest.approx(float(rosenbrock(p)), rel=1e-12)
        assert step.grad_norm == abs(step.jac.numpy()).max()
        losses.append(step.loss)
    assert losses == sorted(losses, reverse=True)
    np.testing.assert_allclose(p.numpy(), 1.0, atol=1e-5)


def test_a_module_a_tree_and_a_list_of_numbers_are_parameters() -> None:
    pb.random.seed(0)
    model = nn.Linear(3, 1).to(pb.float64)
    x = pb.random.Generator(1).normal((20, 3)).astype(pb.float64)
    y = x @ pb.tensor([1.0, -2.0, 3.0], pb.float64) + 0.5
    first = pb.solve.minimize(lambda m: pb.mean((m(x)[:, 0] - y) ** 2), model, gtol=1e-10, ftol=0).result()
    assert first.success
    np.testing.assert_allclose(model.weight.numpy(), [[1, -2, 3]], atol=1e-8)
    tree = {"w": np.zeros(3), "b": [np.zeros(()), None]}
    second = pb.solve.minimize(lambda t: pb.mean((x @ t["w"] + t["b"][0] - y) ** 2), tree, gtol=1e-10, ftol=0).result()
    np.testing.assert_allclose(second.x["w"].numpy(), [1, -2, 3], atol=1e-8)
    np.testing.assert_allclose(second.x["b"][0].numpy(), 0.5, atol=1e-8)
    third = pb.solve.minimize(lambda x: pb.sum((x - 2) ** 2), [0.0, 1.0]).result()
    np.testing.assert_allclose(third.x.numpy(), 2.0, atol=1e-4)


def test_parameters_that_are_not_trainable_stay() -> None:
    fixed = pb.Parameter([3.0], trainable=False)
    free = pb.Parameter([0.0])
    result = pb.solve.minimize(lambda p: pb.sum((p[0] - p[1]) ** 2), [free, fixed]).result()
    np.testing.assert_allclose(free.numpy(), 3.0, atol=1e-4)
    np.testing.assert_array_equal(fixed.numpy(), 3.0)
    assert result.x[1] is fixed


# ---- arguments


@pytest.mark.parametrize("method", [*METHODS, "scipy:L-BFGS-B"])
def test_what_changes_in_args_holds_from_the_next_iteration(method: str) -> None:
    """A penalty that grows during the minimisation leads to the constrained minimum x = (1, 1) / 2 of x . x with sum(x) = 1."""

    def loss(x: Any, penalty: Any) -> Any:
        return pb.sum(x * x) + penalty * (pb.sum(x) - 1) ** 2

    run = pb.solve.minimize(loss, np.array([3.0, -1.0]), method, args={"penalty": 1.0}, gtol=1e-7)
    for step in run:
        if step.args["penalty"] < 1e4:
            step.args["penalty"] *= 10
    assert run.args["penalty"] == 1e4
    expected = 1e4 / (1 + 2e4)
    np.testing.assert_allclose(step.x.numpy(), expected, atol=1e-6)
    if not method.startswith("scipy"):
        assert run.result().success


def test_arrays_flags_and_positional_args_may_change() -> None:
    def loss(x: Any, target: Any, power: int) -> Any:
        return pb.sum((x - target) ** power)

    run = pb.solve.minimize(loss, np.zeros(2), args=[np.zeros(2) + 5, 4], maxiter=300)
    for step in run:
        if step.nit == 3:
            step.args[0] *= 2  # changes the array in place
            step.args[1] = 2
    np.testing.assert_allclose(run.result().x.numpy(), 10.0, atol=1e-4)


def test_args_that_change_after_the_last_iteration_continue_the_minimisation() -> None:
    def loss(x: Any, target: Any) -> Any:
        return pb.sum((x - target) ** 2)

    targets = []
    for step in pb.solve.minimize(loss, np.zeros(2), args={"target": 1.0}):
        if step.grad_norm < 1e-5 and len(targets) < 2:
            targets.append(step.x.numpy()[0])
            step.args["target"] += 1.0
    np.testing.assert_allclose([*targets, step.x.numpy()[0]], [1, 2, 3], atol=1e-5)


# ---- bounds


def test_an_active_bound_is_exact() -> None:
    result = pb.solve.minimize(rosenbrock, np.array([-1.0, 2.0]), bounds=(None, [0.3, np.inf]), gtol=1e-10, ftol=0).result()
    assert result.success
    assert result.x.numpy()[0] == 0.3
    np.testing.assert_allclose(result.x.numpy()[1], 0.09, atol=1e-10)


@pytest.mark.parametrize("bounds", [
    (0.5, 2.0), (np.full(2, 0.5), 2.0), [(0.5, 2.0), (0.5, None)], ([0.5, 0.5], None), [(0.5, None), (0.5, None)],
    (pb.full((2,), 0.5), [2.0, None]), (np.array([0.5, 0.5]), np.array([2.0, 3.0])), [np.array([0.5, 0.5]), np.array([2.0, 3.0])],
    ([0.5, None], (0.5, None)), np.array([0.5, 2.0]),
])
def test_forms_of_bounds(bounds: Any) -> None:
    result = pb.solve.minimize(
        lambda x: pb.sum((x - pb.tensor([0.0, 1.0], pb.float64)) ** 2), np.array([9.0, 9.0]), bounds=bounds
    ).result()
    np.testing.assert_allclose(result.x.numpy(), [0.5, 1.0], atol=1e-6)
    assert result.x.numpy()[0] == 0.5


@pytest.mark.parametrize("kind", [list, np.array, pb.asarray, lambda pairs: tuple([np.array(pair) for pair in pairs])])
def test_pairs_for_three_unknowns(kind: Any) -> None:
    found = pb.solve.minimize(
        lambda x: pb.sum((x - 9) ** 2), np.ones(3), bounds=kind([(0.0, 3.0), (1.0, 5.0), (0.0, np.inf)])
    ).result()
    np.testing.assert_allclose(found.x.numpy(), [3, 5, 9], atol=1e-5)


@pytest.mark.parametrize("kind", [tuple, list, np.array])
@pytest.mark.parametrize("inner", [tuple, list])
def test_bounds_of_two_unknowns_that_may_be_pairs_or_sides_are_refused(kind: Any, inner: Any) -> None:
    bounds = kind([inner((0, 3)), inner((1, 5))])
    with pytest.raises(ValueError, match="is ambiguous for two unknowns") as caught:
        pb.solve.minimize(lambda x: pb.sum((x - 9) ** 2), np.ones(2), bounds=bounds)
    spelled = [part.split(" for ")[0] for part in str(caught.value).split("bounds=")[2:]]
    for text, wanted in zip(spelled, ([3, 5], [1, 5])):
        found = pb.solve.minimize(lambda x: pb.sum((x - 9) ** 2), np.array([0.5, 4.0]), bounds=eval(text)).result()
        np.testing.assert_array_equal(found.x.numpy(), wanted)
    with pytest.raises(ValueError, match=r"augmented_lagrangian: bounds=.* is ambiguous"):
        pb.solve.augmented_lagrangian(lambda x: pb.sum((x - 9) ** 2), np.ones(2), bounds=bounds)


def test_bounds_of_two_numbers_in_a_list_are_refused_with_spellings_that_work() -> None:
    start = [pb.tensor(0.5), pb.tensor(4.0)]
    with pytest.raises(
        ValueError, match=r"bounds=\(\[np.array\(0\), np.array\(1\)\], \[np.array\(3\), np.array\(5\)\]\) for the pairs"
    ):
        pb.solve.minimize(lambda p: (p[0] - 9) ** 2 + (p[1] - 9) ** 2, start, bounds=((0, 3), (1, 5)))
    bounds = ([np.array(0), np.array(1)], [np.array(3), np.array(5)])
    found = pb.solve.minimize(lambda p: (p[0] - 9) ** 2 + (p[1] - 9) ** 2, start, bounds=bounds).result()
    assert [float(x) for x in found.x] == [3.0, 5.0]


@pytest.mark.parametrize("method", ["L-BFGS-B", "L-BFGS", "scipy:L-BFGS-B", "scipy:TNC"])
def test_a_gtol_that_is_given_decides_alone(method: str) -> None:
    def quartic(x: Any) -> Any:
        return pb.sum(x**4)

    loose = pb.solve.minimize(quartic, np.array([1.0, 2.0]), method, ftol=1e-3, gtol=1e-9).result()
    assert loose.grad_norm > 1e-9
    found = pb.solve.minimize(quartic, np.array([1.0, 2.0]), method, gtol=1e-9).result()
    assert found.success
    assert found.grad_norm <= 1e-9


def test_bounds_of_a_tree_and_of_scipy() -> None:
    tree = {"a": pb.Parameter(np.zeros((2, 2))), "b": pb.Parameter(np.zeros(3))}

    def loss(t: Any) -> Any:
        return pb.sum((t["a"] - 3) ** 2) + pb.sum((t["b"] + 3) ** 2)

    pb.solve.minimize(loss, tree, bounds=({"a": None, "b": -1.0}, {"a": np.array([1.0, 2.0]), "b": None})).result()
    np.testing.assert_array_equal(tree["a"].numpy(), [[1, 2], [1, 2]])
    np.testing.assert_array_equal(tree["b"].numpy(), -1)
    optimize = pytest.importorskip("scipy.optimize")
    bounds = optimize.Bounds(np.zeros(2), np.ones(2))
    result = pb.solve.minimize(lambda x: pb.sum((x - 3) ** 2), np.zeros(2), bounds=bounds).result()
    np.testing.assert_array_equal(result.x.numpy(), 1)


def test_every_point_is_within_the_bounds() -> None:
    seen = []

    def loss(x: Any) -> Any:
        seen.append(x.numpy())
        return pb.sum(pb.sqrt(x)) + rosenbrock(x)

    pb.solve.minimize(loss, np.array([4.0, 0.5, 2.0]), bounds=([0.1, 0.2, 0.3], 4.0), capture=False).result()
    assert all([((x >= [0.1, 0.2, 0.3]) & (x <= 4)).all() for x in seen])


def test_random_quadratic_problems_with_bounds_meet_their_optimality_conditions() -> None:
    random = np.random.default_rng(0)
    for n in (1, 3, 12):
        factor = random.standard_normal((n, n))
        matrix, linear = factor @ factor.T + 0.1 * np.eye(n), random.standard_normal(n)
        low = random.uniform(-1, 0.5, n)
        high = low + random.choice([0.0, 0.3, np.inf], n)
        a, b = pb.tensor(matrix), pb.tensor(linear)
        result = pb.solve.minimize(
            lambda x, a=a, b=b: 0.5 * pb.vecdot(x, a @ x) - pb.vecdot(b, x),
            random.standard_normal(n),
            bounds=(low, high),
            gtol=1e-9,
            ftol=0,
        ).result()
        x = result.x.numpy()
        gradient = matrix @ x - linear
        assert ((low <= x) & (x <= high)).all()
        assert (gradient[(x > low) & (x < high)] < 1e-8).all()
        assert (gradient[(x == low) & (x < high)] >= -1e-8).all()
        assert (gradient[(x == high) & (x > low)] <= 1e-8).all()


# ---- ends


def test_limits_and_a_start_at_the_minimum() -> None:
    few = pb.solve.minimize(rosenbrock, start(2), maxiter=3).result()
    assert (few.nit, few.status, few.success) == (3, 1, False)
    assert "maxiter=3" in few.message
    none = pb.solve.minimize(rosenbrock, start(2), maxiter=0).result()
    assert (none.nit, none.nfev) == (0, 1)
    calls = pb.solve.minimize(rosenbrock, start(2), maxfun=5).result()
    assert "maxfun=5" in calls.message
    there = pb.solve.minimize(rosenbrock, np.ones(2))
    assert list(there) == []
    assert there.result().success


def test_result_continues_after_some_iterations_and_close_ends_it() -> None:
    p = pb.Parameter(start(2))
    run = pb.solve.minimize(lambda: rosenbrock(p), p)
    for step in run:
        if step.nit == 4:
            break
    assert run.result().nit > 4
    assert run.result() is run.result()
    p.assign(start(2))
    run = pb.solve.minimize(lambda: rosenbrock(p), p)
    step = next(run)
    run.close()
    np.testing.assert_array_equal(p.numpy(), step.x.numpy())
    with pytest.raises(pb.PullbackError, match="was ended"):
        run.result()


def test_an_exception_in_f_leaves_the_last_point() -> None:
    p, calls = pb.Parameter(start(2)), []

    def loss() -> Any:
        calls.append(1)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return rosenbrock(p)

    run, points = pb.solve.minimize(loss, p, capture=False), []

    def loop() -> None:
        for step in run:
            points.append(step.x.numpy())

    with pytest.raises(KeyboardInterrupt):
        loop()
    np.testing.assert_array_equal(p.numpy(), points[-1])


def test_a_loss_that_is_infinite_beyond_a_wall_is_avoided() -> None:
    for method in METHODS:
        result = pb.solve.minimize(lambda x: pb.sum(x - pb.log(x)), np.array([0.5, 30.0]), method, gtol=1e-6).result()
        np.testing.assert_allclose(result.x.numpy(), 1.0, atol=1e-4, err_msg=method)


def test_a_function_without_a_lower_bound_ends_at_a_finite_point() -> None:
    result = pb.solve.minimize(lambda x: -pb.sum(x**4), np.ones(2), maxiter=50).result()
    assert not result.success
    assert np.isfinite(result.x.numpy()).all()
    assert np.isfinite(result.fun)


def test_a_function_that_reads_values_runs_eagerly_without_a_warning() -> None:
    def loss(x: Any) -> Any:
        return pb.sum(x**2) if float(x[0]) > 0 else pb.sum(x**4)

    result = pb.solve.minimize(loss, np.array([3.0, 2.0]), bounds=(-1, 5)).result()
    assert result.success
    np.testing.assert_allclose(result.x.numpy(), 0.0, atol=0.05)


def test_a_stall_is_told() -> None:
    @pb.custom_gradient
    def wrong(x: Any) -> Any:
        return pb.sum(x * x), lambda g: -2 * g * x

    result = pb.solve.minimize(wrong, np.array([3.0, 2.0])).result()
    assert (result.status, result.success) == (2, False)
    assert "check_gradients" in result.message
    np.testing.assert_array_equal(result.x.numpy(), [3, 2])


@pytest.mark.parametrize("method", ["L-BFGS-B", "Newton-CG", "scipy:SLSQP"])
@pytest.mark.parametrize("how", ["assigned", "in place", "of the whole run"])
def test_arguments_that_the_loop_assigns_hold_from_the_next_iteration_on(method: str, how: str) -> None:
    options: Any = {} if "scipy" in method else {"gtol": 1e-10}
    if "scipy" in method:
        options["constraints"] = {"type": "ineq", "fun": lambda x, p, top: top - x[0]}
    run = pb.solve.minimize(
        lambda x, p, top: pb.sum((x - 3) ** 2) + p * pb.sum(x**4), [1.0, 2.0], method, args={"p": 1.0, "top": 9.0}, **options
    )
    for step in run:
        if how == "assigned":
            step.args = {"p": 0.0, "top": 2.0}
        elif how == "in place":
            step.args.update(p=0.0, top=2.0)
        else:
            run.args = {"p": 0.0, "top": 2.0}
        assert step.args == run.args == {"p": 0.0, "top": 2.0}
    np.testing.assert_allclose(run.result().x.numpy(), [2 if "scipy" in method else 3, 3], rtol=1e-5)


def test_bounds_of_an_ordered_dict_keep_its_order() -> None:
    """Leaves of an OrderedDict are in the order of insertion, those of a dict sorted by key; bounds follow in the same order."""
    for kind in (OrderedDict, dict):
        start = kind(b=pb.tensor(5.0, dtype=pb.float64), a=pb.tensor(5.0, dtype=pb.float64))
        run = pb.solve.minimize(lambda p: p["a"] ** 2 + p["b"] ** 2, start, bounds=(kind(b=2.0, a=0.5), None))
        found = run.result().x
        assert (found["b"].item(), found["a"].item()) == (2.0, 0.5)
