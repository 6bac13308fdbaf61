"""Starts and functions of solvers: arrays of other libraries, exchanged arguments, calls that do not fit, and what is shown."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import pullback as pb

solve = pb.solve
F64: Any = pb.float64


class Measured:
    """An array of another library."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.values if dtype is None else self.values.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["torch", "__array__"])
def test_arrays_of_other_libraries_are_starts(kind: str, dtype: str) -> None:
    torch = pytest.importorskip("torch") if kind == "torch" else None

    def made(values: Any) -> Any:
        return torch.tensor(values, dtype=getattr(torch, dtype)) if torch else Measured(np.array(values, dtype))

    def f(x: Any) -> Any:
        return pb.sum((x - 2) ** 2)

    for x in (
        solve.minimize(f, made([1.0, 3.0])).result().x,
        solve.minimize(lambda tree: f(tree["a"]), {"a": made([1.0, 3.0])}).result().x["a"],
        solve.augmented_lagrangian(f, made([1.0, 3.0]), ineq=lambda x: x).x,
        solve.least_squares(lambda x: x - 2, made([1.0, 3.0])).x,
        solve.least_squares(lambda x: x - 2, made([[1.0, 3.0], [0.0, 1.0]]), batch=True).x[1],
        solve.least_squares(lambda x: x[0] - 2, [made([1.0, 3.0])]).x[0],
        solve.root(lambda x: x**3 - 8, made([1.0, 3.0])).x,
    ):
        np.testing.assert_allclose(x.numpy(), [2, 2], rtol=1e-4)
        assert x.dtype.name == dtype


def test_a_function_as_the_start_is_told() -> None:
    f: Any = lambda x: pb.sum(x * x)
    for name, words in (
        ("least_squares", r"write least_squares\(residual_fn, x0\)"), ("root", r"write root\(f, x0\)"),
        ("minimize", r"write minimize\(f, params\)"), ("augmented_lagrangian", r"write augmented_lagrangian\(f, params\)"),
    ):
        with pytest.raises(pb.DTypeError, match=f"is a function, and must be the start. The two are exchanged: {words}"):
            getattr(solve, name)(np.ones(2), f)
        with pytest.raises(pb.DTypeError, match="is a function, and must be the start"):
            getattr(solve, name)(f, f)
    with pytest.raises(pb.DTypeError, match="The two are exchanged"):
        solve.minimize(pb.nn.Linear(1, 1), f)


def test_arguments_that_the_function_does_not_take_are_told() -> None:
    f: Any = lambda x, t, y: x - t * y
    p = pb.Parameter([1.0])
    for call, words in (
        (lambda: solve.least_squares(f, [1.0], (2.0,)), r"least_squares: residual_fn\(x, t, y\) is called with x and 1 further"),
        (lambda: solve.least_squares(f, [1.0]), "with x and no further arguments, which it does not take. Give in args="),
        (lambda: solve.root(f, [1.0], (1.0, 2.0, 3.0)), r"root: f\(x, t, y\) is called with x and 3 further arguments"),
        (lambda: solve.LevenbergMarquardt([p]).step(lambda t: p * t, (1.0, 2.0), 3.0), "with 2 arguments.*residual_fn in step"),
        (lambda: solve.root(lambda x, a: x - a, [1.0], {"a": 2.0}), r"root: args is a dict .*write args=\(a,\) with their values"),
    ):
        with pytest.raises(pb.ArgumentError, match=words):
            call()
    assert solve.root(lambda x, given: x - given["a"], [1.0], {"a": 2.0}).x.item() == 2  # a dict as one argument
    assert solve.root(lambda x, *args, **options: x - args[0]["a"], [1.0], {"a": 2.0}).x.item() == 2
    assert solve.root(partial(f, y=3.0), [1.0], (2.0,)).x.item() == pytest.approx(6)


def test_bounds_of_levenberg_marquardt_that_do_not_fit_are_told() -> None:
    net = pb.nn.Sequential(pb.nn.Linear(1, 2), pb.nn.Linear(2, 1))
    with pytest.raises(pb.ShapeError, match=r"the lower side \[0, -1\] does not fit the 4 tensors of the Parameters"):
        solve.LevenbergMarquardt(net, bounds=([0, -1], [1, 1]))
    p = pb.Parameter([0.5, 0.5], dtype=F64)
    for bounds in (([0, -1], [0.75, 1]), ([[0, -1]], [[0.75, 1]])):  # a number for each element of the only Parameter
        p.assign(pb.full(2, 0.5, dtype=F64))
        lm = solve.LevenbergMarquardt([p], bounds=bounds)
        for _ in range(20):
            lm.step(lambda: p - pb.tensor([3.0, -0.75], dtype=F64))
        np.testing.assert_allclose(p.numpy(), [0.75, -0.75], rtol=1e-6)


def test_a_minimisation_shows_how_to_run_it() -> None:
    run = solve.minimize(lambda x: pb.sum(x * x), [1.0, 2.0])
    assert repr(run) == "<a minimisation of 2 unknowns, not begun: .result() runs it to the end, a loop step by step>"
    next(run)
    assert "after 2 evaluations" in repr(run)
    run.result()
    assert "ended" in repr(run)
    with pytest.raises(AttributeError, match=r"'run': call \.result\(\)"):
        run.run()  # type: ignore[attr-defined]


def test_a_zero_jacobian_is_told_with_and_without_residuals() -> None:
    for rest, words in ((0, "at x, where all residuals are zero, too."), (1, "at x, so no step can be found from here.")):
        found = solve.least_squares(lambda x: x[0] * 0 + rest, [1.0, 2.0])  # noqa: B023
        assert not found.jac.numpy().any()
        assert found.message.endswith("The Jacobian is zero " + words)
