"""Solvers answer the habits of users of SciPy: keywords, lists of numbers, constraints, functions that ignore x, empty batches."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import pullback as pb

solve = pb.solve
F64: Any = pb.float64


@pytest.mark.parametrize(
    ("solver", "words"),
    [
        (
            "least_squares",
            {"jac": "exact", "method": "trust region", "tr_solver": "QR", "diff_step": "exact", "maxfev": "max_nfev="},
        ),
        ("minimize", {"jac": "exact", "hess": "exact", "tol": "gtol=", "callback": "iterate over", "x0": "params="}),
        ("root", {"jac": "exact", "tol": "ftol=", "options": "max_nfev=", "maxiter": "max_nfev="}),
        (
            "augmented_lagrangian",
            {
                "constraints": r'"fun": c} is ineq=\[c\].*is eq=\[h\]', "method": "L-BFGS-B", "gtol": "tol=", "rho": "penalty=",
                "x0": "params=", "fun": "f=", "max_iter": "maxiter=", "lb": "bounds=",
            },
        ),
    ],
)
def test_keywords_of_scipy_are_answered(solver: str, words: dict[str, str]) -> None:
    for name, word in words.items():
        with pytest.raises(TypeError, match=rf"^{solver}\(\) got an unexpected keyword argument '{name}': .*{word}"):
            getattr(solve, solver)(lambda x: x, [1.0], **{name: 1})
    with pytest.raises(TypeError, match="It takes"):
        getattr(solve, solver)(lambda x: x, [1.0], zzz=1)


def test_the_start_by_its_name_in_scipy_is_answered() -> None:
    for solver in (solve.minimize, solve.augmented_lagrangian):
        with pytest.raises(TypeError, match="'x0': the start is the second argument, params="):
            solver(lambda x: x, x0=[1.0])  # type: ignore[call-arg]
    for finder in (solve.least_squares, solve.root):
        with pytest.raises(TypeError, match="'params': the start is the second argument, x0="):
            finder(lambda x: x, params=[1.0])  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("keyword", "word"),
    [
        ("lr", "finds the length of each step"), ("lambda_", "damping="), ("damping_factor", "damping="), ("tau", "damping="),
        ("max_damping", "between 1e-15 and 1e15"), ("method", 'solver= here: "auto"'), ("max_iter", "takes one step"),
        ("gtol", "takes one step"), ("attempts", "trials="), ("x_scale", 'scaling="columns"'), ("args", "lm.step"),
    ],
)
def test_keywords_of_levenberg_marquardt_are_answered(keyword: str, word: str) -> None:
    with pytest.raises(TypeError, match=rf"LevenbergMarquardt\(\) got an unexpected keyword argument '{keyword}': .*{word}"):
        solve.LevenbergMarquardt([pb.Parameter([1.0])], **{keyword: 1})


def test_options_of_other_libraries_are_answered() -> None:
    p = pb.Parameter([1.0])
    calls: list[tuple[Any, str]] = [
        (lambda: solve.root(lambda x: x, [1.0], method="hybr"), 'It is "hybrid" here'),  # type: ignore[arg-type]
        (lambda: solve.root(lambda x: x, [1.0], method="krylov"), "Its method is not here"),  # type: ignore[arg-type]
        (lambda: solve.least_squares(lambda x: x, [1.0], loss="Huber"), "Did you mean 'huber'"),
        (lambda: solve.least_squares(lambda x: x, [1.0], mode="rev"), "'auto', 'forward', 'reverse'"),  # type: ignore[arg-type]
        (lambda: solve.LevenbergMarquardt([p], solver="QR"), "Did you mean 'qr'"),  # type: ignore[arg-type]
        (lambda: solve.LevenbergMarquardt([p], solver="lu"), "factorise a matrix"),  # type: ignore[arg-type]
        (lambda: solve.LevenbergMarquardt([p], scaling="jac"), 'It is "columns" here'),  # type: ignore[arg-type]
    ]
    for call, words in calls:
        with pytest.raises(pb.ArgumentError, match=words):
            call()


def test_a_parameter_that_is_nan_is_named() -> None:
    p, q = pb.Parameter([1.0, np.nan], name="rates"), pb.Parameter([[1.0, np.inf]])
    with pytest.raises(pb.ArgumentError, match='LevenbergMarquardt: element 1 of Parameter "rates" is nan'):
        solve.LevenbergMarquardt([p]).step(lambda: 2 * p)
    with pytest.raises(pb.ArgumentError, match=r"element 1 of an unnamed Parameter of shape \(1, 2\), number 1 of the .* is inf"):
        solve.LevenbergMarquardt([pb.Parameter([1.0]), q]).step(lambda: 2 * q)
    fine = pb.Parameter([1.0, 2.0])
    with pytest.raises(pb.ArgumentError, match="residual 0 is nan at the present Parameters"):
        solve.LevenbergMarquardt([fine]).step(lambda a: fine * a, np.array([np.nan, 1.0]))


def test_single_arguments_need_no_tuple() -> None:
    for one in (3.0, pb.tensor(3.0, F64), np.array(3.0)):
        for args in (one, (one,), [one]):
            found: list[Any] = [
                solve.least_squares(lambda x, a: x - a, [1.0], args),
                solve.root(lambda x, a: x - a, [1.0], args),
                solve.minimize(lambda x, a: pb.sum((x - a) ** 2), [1.0], args=args).result(),
                solve.augmented_lagrangian(lambda x, a: pb.sum((x - a) ** 2), [1.0], args=args),
            ]
            for result in found:
                np.testing.assert_allclose(result.x.numpy(), 3.0, atol=1e-6)
    assert solve.root(lambda x: x - 1, [3.0], None).success


def test_results_answer_the_names_of_other_libraries() -> None:
    run = solve.minimize(lambda x: pb.sum(x**2), [1.0])
    cases: list[tuple[Any, str, str]] = [
        (run, "x", "call .result() first"), (next(run), "fun", "it is .loss here"), (run.result(), "grad", "it is .jac here"),
        (solve.least_squares(lambda x: x, [1.0]), "nit", "it is .nfev here"), (solve.root(lambda x: x, [1.0]), "root", "it is .x"),
        (solve.augmented_lagrangian(lambda x: pb.sum(x**2), [1.0]), "v", ".eq and .ineq"),
        (solve.LevenbergMarquardt([pb.Parameter([1.0])]), "zero_grad", "computes derivatives by itself"),
    ]
    for value, name, words in cases:
        with pytest.raises(AttributeError) as caught:
            getattr(value, name)
        assert words in str(caught.value)
        assert not hasattr(value, name)


@pytest.mark.parametrize("solver", ["minimize", "augmented_lagrangian", "least_squares", "root"])
def test_every_error_of_an_argument_is_pullbacks_and_of_pythons_kind(solver: str) -> None:
    call: Any = getattr(solve, solver)
    start, option = ("params", "maxiter") if solver in ("minimize", "augmented_lagrangian") else ("x0", "max_nfev")
    for error, kind, words, given in (
        (pb.ArgumentError, ValueError, option, {option: -1}),
        (pb.ArgumentError, ValueError, "is nan", {start: np.array([np.nan])}),
        (pb.DTypeError, TypeError, "capture", {"capture": 3}),
        (pb.DTypeError, TypeError, "must be a function", {"f" if solver != "least_squares" else "residual_fn": 3.0}),
        (pb.DTypeError, TypeError, start, {start: {1.0}}),
    ):
        arguments = {"residual_fn" if solver == "least_squares" else "f": lambda x: pb.sum(x * x), start: np.ones(1), **given}
        with pytest.raises(error, match=rf"^{solver}: .*{words}") as caught:
            [*call(**arguments)]  # runs a minimisation
        assert isinstance(caught.value, kind)


@pytest.mark.parametrize(("name", "word"), [("curve_fit", "least_squares"), ("fsolve", "root"), ("fmin_bfgs", "minimize")])
def test_functions_of_scipy_are_answered(name: str, word: str) -> None:
    with pytest.raises(AttributeError, match=word):
        getattr(solve, name)


@pytest.mark.parametrize("params", [[3.0, 2.0], 3.0, {"a": 3.0, "b": [2.0]}, np.array([3.0, 2.0])])
def test_python_numbers_are_float64_in_every_solver(params: Any) -> None:
    def f(x: Any) -> Any:
        return [x["a"] - 1, x["b"][0] - 1] if isinstance(x, dict) else x - 1

    def total(x: Any) -> Any:
        r = f(x)
        return r[0] ** 2 + r[1] ** 2 if isinstance(r, list) else pb.sum(r**2)

    for found in (solve.least_squares(f, params), solve.minimize(total, params).result(), solve.root(f, params)):
        leaf: Any = found.x["a"] if isinstance(params, dict) else found.x
        assert leaf.dtype == F64
        np.testing.assert_allclose(leaf.numpy(), 1.0, atol=1e-6)


def test_python_numbers_beside_tensors_take_their_dtype() -> None:
    found = solve.minimize(lambda p: p["a"] ** 2 + pb.sum(p["b"] ** 2), {"a": 1.0, "b": pb.ones(2)}).result()
    assert found.x["a"].dtype == pb.float32


# ---- constraints


def distance(x: Any, a: Any) -> Any:
    return pb.sum((x - a) ** 2)


@pytest.mark.parametrize(
    ("constraint", "first"),
    [
        ({"fun": lambda x: x[0] - 0.5}, 0.5),
        ({"fun": lambda x, a: x[0] - 2 * a}, 2.0),
        ({"fun": lambda x, b, c: x[0] - b * c, "args": (0.5, 0.5)}, 0.25),
    ],
)
@pytest.mark.parametrize("args", [[1.0], {"a": 1.0}])
def test_constraints_take_no_arguments_those_of_f_or_different_ones(constraint: Any, first: float, args: Any) -> None:
    run = solve.minimize(distance, [3.0, 2.0], "scipy:SLSQP", args=args, constraints=[{"type": "eq", **constraint}])
    np.testing.assert_allclose(run.result().x.numpy(), [first, 1.0], atol=1e-6)
    if "args" not in constraint:
        found = solve.augmented_lagrangian(distance, [3.0, 2.0], eq=[constraint["fun"]], args=args)
        np.testing.assert_allclose(found.x.numpy(), [first, 1.0], atol=1e-6)


def test_constraints_may_come_from_any_iterable() -> None:
    for many in ({"c": lambda x: 0.5 - x[0]}.values(), (c for c in [lambda x: 0.5 - x[0]])):
        found = solve.augmented_lagrangian(lambda x: pb.sum((x - 1) ** 2), [3.0, 2.0], ineq=many, eq=None)
        np.testing.assert_allclose(found.x.numpy(), [0.5, 1.0], atol=1e-6)


@pytest.mark.parametrize("constant", [lambda x: 1.0, lambda x: pb.ones(2, dtype=F64)])
def test_a_constraint_that_is_constant(constant: Any) -> None:
    run = solve.minimize(distance, [3.0, 2.0], "scipy:SLSQP", args=[1.0], constraints={"type": "ineq", "fun": constant})
    np.testing.assert_allclose(run.result().x.numpy(), 1.0, atol=1e-6)


# ---- functions that do not depend on x, roots of higher order


@pytest.mark.filterwarnings("ignore::pullback.errors.ZeroGradientWarning")
@pytest.mark.parametrize("solver", [solve.least_squares, solve.root])
def test_a_function_that_ignores_x_is_refused(solver: Any) -> None:
    with pytest.raises(pb.errors.UnconnectedError, match="does not depend on x"):
        solver(lambda x: pb.ones(1, dtype=F64), [1.0])


def test_a_jacobian_of_zeros_is_mentioned() -> None:
    found = solve.least_squares(lambda x: pb.maximum(x, 0.0) + 1, [-1.0])
    assert "The Jacobian is zero at x" in found.message
    assert "zero" not in solve.least_squares(lambda x: x - 1, [0.0]).message


def test_a_root_of_fourth_order_has_converged_when_f_is_tiny() -> None:
    found = solve.root(lambda x: x**4, [1.0])
    assert found.success
    assert abs(float(found.fun)) < 1e-31
    loose = solve.root(lambda x: x**4, [1.0], ftol=1e-8)
    assert loose.success
    assert 1e-12 < float(loose.fun) <= 1e-8
    assert not solve.root(lambda x: x * x + 1, [3.0]).success
    far = solve.root(lambda x: pb.exp(x) - 1, [30.0])  # |f| falls by many orders before x is near the root
    np.testing.assert_allclose(far.x.numpy(), 0.0, atol=1e-12)
    with pytest.raises(pb.ArgumentError, match="ftol"):
        solve.root(lambda x: x, [1.0], ftol=-1.0)


# ---- transforms


def solution(solver: str, a: Any) -> Any:
    return getattr(solve, solver)(lambda x, a: x * x - a, [1.0], (a,)).x


@pytest.mark.parametrize("solver", ["root", "least_squares"])
def test_inside_vmap_the_message_names_the_solver(solver: str) -> None:
    with pytest.raises(pb.errors.VmapError, match=rf"{solver}: .*vmap") as error:
        pb.vmap(partial(solution, solver))(pb.ones(3))
    assert ("batch=True" in str(error.value)) == (solver == "least_squares")


@pytest.mark.parametrize("solver", ["root", "least_squares"])
@pytest.mark.usefixtures("native")
def test_inside_a_captured_function_the_message_names_the_solver(solver: str) -> None:
    with pytest.raises(pb.errors.CaptureError, match=rf"pb\.solve\.{solver}, which iterates on the host"):
        pb.capture(partial(solution, solver))(pb.tensor(2.0))


# ---- batches

X0 = pb.zeros((5, 2), dtype=F64)
Y = pb.asarray(np.linspace(1.0, 2.0, 5)[:, None] * np.ones((1, 2)))


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_batch_makes_no_more_evaluations_than_max_nfev(most: int) -> None:
    found = solve.least_squares(lambda x, y: pb.exp(x) - 2 * y, X0, (Y,), batch=True, max_nfev=most)
    np.testing.assert_array_equal(found.nfev, most)
    np.testing.assert_array_equal(found.status, 0)


def test_bounds_of_each_problem() -> None:
    high = np.linspace(0.5, 3.0, 5)[:, None] * np.ones((1, 2))
    found = solve.least_squares(lambda x, y: x - y, X0, (Y,), batch=True, bounds=(0.0, high))
    np.testing.assert_allclose(found.x.numpy(), np.minimum(Y.numpy(), high), atol=1e-6)
    np.testing.assert_array_equal(found.active_mask[:2], 1)
    np.testing.assert_array_equal(found.x.numpy()[:2], high[:2])
    shared = solve.least_squares(lambda x, y: x - y, X0, (Y,), batch=True, bounds=(-1.0, [3.0, 1.2]))
    np.testing.assert_allclose(shared.x.numpy(), np.minimum(Y.numpy(), [3.0, 1.2]), atol=1e-6)
    with pytest.raises(ValueError, match="element 1 of x0 of problem 2"):
        solve.least_squares(lambda x, y: x - y, X0, (Y,), batch=True, bounds=(0.0, [[1, 1], [1, 1], [1, -1], [1, 1], [1, 1]]))
    with pytest.raises(pb.errors.ShapeError, match="does not fit x0"):
        solve.least_squares(lambda x, y: x - y, X0, (Y,), batch=True, bounds=(0.0, high[:3]))


def test_an_empty_batch_has_an_empty_result() -> None:
    found = solve.least_squares(lambda x, y: x - y, X0[:0], (Y[:0],), batch=True)
    assert found.x.shape == (0, 2)
    assert found.cost.shape == found.status.shape == (0,)
    assert found.message == []


# ---- bounds


@pytest.mark.parametrize("kind", [list, np.array, pb.asarray])
def test_pairs_in_least_squares_are_told_that_bounds_are_two_sides(kind: Any) -> None:
    pairs = [(0.0, 3.0), (1.0, 5.0), (0.0, 9.5)]
    with pytest.raises(pb.errors.ShapeError, match=r"bounds must be a pair.*bounds are \(lower, upper\), which tuple\(zip"):
        solve.least_squares(lambda x: x - 9, [1.0, 2.0, 3.0], bounds=kind(pairs))
    for bounds in (tuple(zip(*pairs)), np.array(pairs).T):
        found = solve.least_squares(lambda x: x - 9, [1.0, 2.0, 3.0], bounds=bounds)
        np.testing.assert_allclose(found.x.numpy(), [3, 5, 9], atol=1e-8)


@pytest.mark.parametrize("kind", [list, tuple, np.array, pb.asarray])
def test_pairs_for_two_unknowns_that_would_be_sides_as_well_are_refused(kind: Any) -> None:
    pairs = kind([(0.0, 3.0), (1.0, 5.0)])
    with pytest.raises(pb.ArgumentError, match=r"least_squares: bounds=.* is ambiguous for two unknowns") as caught:
        solve.least_squares(lambda x: x - 9, [0.5, 4.0], bounds=pairs)
    spelled = [part.split(" for ")[0] for part in str(caught.value).split("bounds=")[2:]]
    for text, wanted in zip(spelled, ([3, 5], [1, 5])):
        found = solve.least_squares(lambda x: x - 9, [0.5, 4.0], bounds=eval(text))
        np.testing.assert_array_equal(found.x.numpy(), wanted)
    with pytest.raises(pb.ArgumentError, match="x0 is outside the bounds"):
        solve.least_squares(lambda x: x - 9, [2.0, 2.0], bounds=pairs)
    found = solve.least_squares(lambda x: x - 9, [0.5, 4.0], bounds=([0.0, 3.0], [1.0, 5.0]))  # as SciPy's users write sides
    np.testing.assert_array_equal(found.x.numpy(), [1, 5])
    p = [pb.Parameter(0.5), pb.Parameter(4.0)]
    with pytest.raises(pb.ArgumentError, match=r"LevenbergMarquardt: .*ambiguous.*\[np.array\(0.0\), np.array\(1.0\)\]"):
        solve.LevenbergMarquardt(p, bounds=pairs)


@pytest.mark.parametrize("sides", [([0.0, 0.0], [3.0, 5.0]), ([-1.0, 1.0], [1.0, 5.0]), ([0.0, 4.0], [4.5, 5.0])])
def test_sides_of_two_unknowns_that_are_no_pairs_around_x0_are_read(sides: Any) -> None:
    for bounds in (sides, np.array(sides)):
        found = solve.least_squares(lambda x: x - 9, [1.0, 4.2], bounds=bounds)
        np.testing.assert_array_equal(found.x.numpy(), sides[1])
