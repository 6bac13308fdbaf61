"""What pb.solve.minimize and augmented_lagrangian refuse, in words."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

import pullback as pb


def square(x: Any) -> Any:
    return pb.sum(x * x)


WRONG = pb.ArgumentError
REFUSED = {
    "bounds crossed": ({"bounds": (0, np.array([2.0, -2.5]))}, WRONG, "bounds of element 1 cross.*0 and the upper one -2.5"),
    "a pair crossed": ({"bounds": [(0, None), (5, 2)]}, WRONG, "element 1 cross"),
    "a NaN bound": ({"bounds": (np.nan, 1.0)}, WRONG, "lower bound of element 0 is NaN"),
    "bounds of another shape": ({"bounds": (np.zeros(3), np.ones(3))}, pb.ShapeError, r"shape \(3,\).*its shape \(2,\)"),
    "three pairs for two": ({"bounds": [(0, 1)] * 3}, pb.ShapeError, "3 entries for 2 unknowns"),
    "a number as bounds": ({"bounds": 1.0}, pb.ShapeError, "bounds is a float"),
    "bounds for BFGS": ({"method": "BFGS", "bounds": (0, 1)}, WRONG, 'BFGS takes no bounds. Use "L-BFGS-B".*scipy:TNC'),
    "no scalar": ({"f": lambda x: x * x}, pb.ShapeError, r"shape \(2,\).*only a scalar.*least_squares"),
    "no value": ({"f": lambda x: None}, pb.DTypeError, "returned None"),
    "a tuple": ({"f": lambda x: (pb.sum(x), 1)}, pb.DTypeError, "returned a tuple"),
    "no function": ({"f": 3.0}, pb.DTypeError, "f is a float"),
    "NaN at the start": ({"f": lambda x: pb.sum(pb.log(x - 5))}, WRONG, "loss is nan at the start"),
    "infinite at the start": ({"f": lambda x: pb.sum(1 / (x - 1))}, WRONG, "loss is inf at the start"),
    "an infinite gradient": ({"f": lambda x: pb.sum(pb.sqrt(x - 1))}, WRONG, "gradient of element 0 is not finite"),
    "integers": ({"params": np.array([1, 2])}, pb.DTypeError, "dtype int64.*float32 and float64.*astype"),
    "half precision": ({"params": pb.ones(2, dtype=pb.float16)}, pb.DTypeError, "float16; solvers need float32 or float64"),
    "two dtypes": ({"params": [pb.ones(2), pb.ones(2, dtype=pb.float64)]}, pb.DTypeError, "float32 and .*float64"),
    "twice": ({"params": [p := pb.Parameter([1.0]), p]}, pb.PullbackError, "twice"),
    "nothing": ({"params": []}, pb.PullbackError, "nothing to change"),
    "empty": ({"params": np.zeros(0)}, pb.ShapeError, "no elements"),
    "a string": ({"params": "x"}, pb.DTypeError, "params is a str"),
    "a constraint": ({"params": pb.Parameter([1.0], constraint=abs)}, pb.PullbackError, "has a constraint"),
    "an unknown method": ({"method": "Adam"}, WRONG, "'Adam' is none of 'L-BFGS', 'L-BFGS-B', 'BFGS', 'SSBFGS'.*'scipy:NAME'"),
    "a method of SciPy": ({"method": "SLSQP"}, WRONG, "Did you mean 'scipy:SLSQP'"),
    "an unknown method of SciPy": ({"method": "scipy:Adam"}, WRONG, "'scipy:Nelder-Mead', .*'scipy:SLSQP'"),
    "bounds for CG": ({"method": "scipy:CG", "bounds": (0, 1)}, WRONG, "scipy:CG takes no bounds. Use .*scipy:TNC"),
    "constraints for TNC": ({"method": "scipy:TNC", "constraints": {"type": "eq", "fun": square}}, WRONG, "no constraints"),
    "an odd constraint": ({"method": "scipy:SLSQP", "constraints": {"type": "le", "fun": square}}, WRONG, '"type"'),
    "gtol for Powell": ({"method": "scipy:Powell", "gtol": 1e-3}, WRONG, "has no gtol"),
    "constraints": ({"constraints": {"type": "eq", "fun": square}}, WRONG, "augmented_lagrangian"),
    "options": ({"options": {"maxls": 3}}, WRONG, "options is for methods of SciPy"),
    "no dependence": ({"f": lambda x: pb.ones(())}, pb.UnconnectedError, "does not depend on the parameters"),
    "a number": ({"f": lambda x: float(x.numpy().sum())}, pb.UnconnectedError, "does not depend on the parameters"),
    "arguments for a method": ({"method": (), "bounds": "BFGS"}, WRONG, r"method=\(\) is none of"),
    "a list of methods": ({"method": ["BFGS"]}, WRONG, "is none of"),
    "a tolerance in words": ({"gtol": "small"}, WRONG, "gtol='small' must be a number of 0 or more"),
    "a negative tolerance": ({"ftol": -1.0}, WRONG, "ftol=-1.0 must"),
    "memory": ({"memory": 0}, WRONG, "memory=0 must be an integer of 1"),
    "maxiter": ({"maxiter": 2.5}, WRONG, "maxiter=2.5"),
    "arguments f lacks": ({"args": {"penalty": 1.0}}, WRONG, "args has penalty"),
    "one argument f lacks": ({"args": 3.0}, WRONG, r"f\(x: .*does not take \(params, arguments\); args has 1 of them"),
    "an unknown keyword": ({"max_iters": 3}, TypeError, "Did you mean: 'maxiter'"),
    "a method in lower case": ({"method": "bfgs"}, WRONG, "Did you mean 'BFGS'"),
    "a method without its hyphens": ({"method": "lbfgs"}, WRONG, "Did you mean 'L-BFGS'"),
    "SciPy's in lower case": ({"method": "nelder-mead"}, WRONG, "Did you mean 'scipy:Nelder-Mead'"),
    "SciPy's, misspelled": ({"method": "scipy:neldermead"}, WRONG, "Did you mean 'scipy:Nelder-Mead'"),
    "a method of least squares": ({"method": "lm"}, WRONG, "pb.solve.least_squares has a trust region"),
    "a flag": ({"capture": "yes"}, pb.DTypeError, "capture='yes' must be True or False"),
    "options of a kind": ({"method": "scipy:BFGS", "options": 3}, pb.DTypeError, "options is a int"),
    "an array as constraints": ({"method": "scipy:SLSQP", "constraints": np.ones(2)}, pb.DTypeError, "constraints has a ndarray"),
    "bounds in words": ({"bounds": ("a", "b")}, pb.DTypeError, "bounds must be made of real numbers, and has a str: 'a'"),
    "a NaN in the start": ({"params": np.array([1.0, np.nan])}, WRONG, "element 1 of params is nan"),
    "a complex start": ({"params": np.array([1j, 2.0])}, pb.DTypeError, "params is complex.*real and imaginary parts apart"),
    "a list of integers": ({"params": [1, 2]}, pb.DTypeError, r"dtype int64.*or \[1.0, 2.0\] for \[1, 2\]"),
    "a bound in words": ({"bounds": (0, "1")}, pb.DTypeError, "bounds must be made of real numbers, and has a str: '1'"),
    "pairs in words": ({"bounds": [(0, None), (0, "1")]}, pb.DTypeError, "bounds must be made of real numbers"),
    "objects for a loss": ({"f": lambda x: {1.0}}, pb.DTypeError, "minimize: the value of f: a set is not made of numbers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_minimize_refuses(case: str) -> None:
    given, error, words = REFUSED[case]
    call: dict[str, Any] = {"f": square, "params": np.ones(2), **given}
    with np.errstate(all="ignore"), pytest.raises(error, match=words):
        pb.solve.minimize(**call).result()


INEQ = {"type": "ineq", "fun": square}
BETWEEN = types.SimpleNamespace(fun=square, lb=0, ub=1)  # has the attributes of SciPy's NonlinearConstraint
BY_THE_LAGRANGIAN = {
    "a number for a function": ({"eq": [3.0]}, "eq has a float"),
    "a number": ({"ineq": 3.0}, "ineq has a float. Give one function of the parameters, or a list"),
    "SciPy's dict": ({"ineq": INEQ}, r"ineq has a dict.*give that of {\"type\": \"ineq\", \"fun\": c} as ineq=\[c\]"),
    "SciPy's dicts": ({"eq": [INEQ]}, r"eq has a dict.*as eq=\[c\]"),
    "SciPy's objects": ({"ineq": [BETWEEN]}, r"ineq=\[lambda x: c\(x\) - lb, lambda x: ub - c\(x\)\]"),
    "no penalty": ({"penalty": None}, "penalty=None must be a positive number"),
    "maxiter": ({"maxiter": "many"}, "maxiter='many' must be an integer of 1 or more"),
    "maxfun": ({"maxfun": 0}, "maxfun=0 must be"),
    "bounds crossed": ({"bounds": (1, 0)}, "cross"),
    "no tolerance": ({"tol": 0}, "tol=0 must"),
    "integers": ({"params": np.array([1])}, "int64"),
}


@pytest.mark.parametrize("case", BY_THE_LAGRANGIAN)
def test_augmented_lagrangian_refuses(case: str) -> None:
    given, words = BY_THE_LAGRANGIAN[case]
    with pytest.raises(pb.PullbackError, match=words):
        pb.solve.augmented_lagrangian(square, **{"params": np.ones(2), **given})


def test_constraints_are_named_in_errors() -> None:
    def solve(f: Any = square, **constraints: Any) -> Any:
        return pb.solve.augmented_lagrangian(f, np.ones(2), **constraints)

    with pytest.raises(pb.DTypeError, match="augmented_lagrangian: eq returned None and no values of the constraint"):
        solve(eq=lambda x: None)
    with pytest.raises(pb.DTypeError, match=r"the value of ineq\[1\]: a str is not made of numbers"):
        solve(ineq=[lambda x: x, lambda x: "a"])
    words = r"ineq\(x, b\) takes neither \(params, arguments\) nor the parameters alone; args has a\."
    with pytest.raises(pb.ArgumentError, match=words):
        solve(lambda x, a: a * square(x), ineq=lambda x, b: x, args={"a": 3.0})


def test_the_structure_of_bounds_is_that_of_the_parameters() -> None:
    start = {"b": 1.0, "a": np.ones(2)}

    def f(p: Any) -> Any:
        return pb.sum((p["a"] - 4) ** 2) + (p["b"] - 9) ** 2

    found = pb.solve.minimize(f, start, bounds=({"a": 0, "b": None}, {"a": [1, None], "b": 5}), gtol=1e-9).result().x
    np.testing.assert_allclose(found["a"].numpy(), [1, 4], rtol=1e-8)
    assert found["b"].item() == 5
    for wrong in ({"a": 0, "c": 1}, [0, 1, 2]):
        with pytest.raises(pb.ShapeError, match=r"the lower bounds .* do not fit the 2 tensors of params"):
            pb.solve.minimize(f, start, bounds=(wrong, 5))


def test_arguments_that_the_loop_changes_are_checked() -> None:
    def run(change: Any) -> None:
        for step in pb.solve.minimize(lambda x, p: square(x - 3) + p * square(x) ** 2, np.ones(2), args={"p": 1.0}):
            change(step)

    def replaced(step: Any) -> None:
        step.args = {"p": np.nan}

    words = "the loss is nan with the args that the loop has changed. Give args with which f is finite"
    with np.errstate(all="ignore"), pytest.raises(pb.ArgumentError, match=words):
        run(replaced)
    with pytest.raises(pb.ArgumentError, match=r"f\(x, p\) does not take \(params, arguments\); args has p, q\."):
        run(lambda step: step.args.update(q=2.0))
    for name in ("x", "loss", "arg"):
        with pytest.raises(AttributeError, match=rf"Iteration\.{name} cannot be set: only .args can"):
            run(lambda step: setattr(step, name, 1.0))  # noqa: B023


def test_scipy_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(pb.PullbackError, match=r"needs SciPy.*pip install scipy"):
        pb.solve.minimize(square, np.ones(2), "scipy:BFGS")
