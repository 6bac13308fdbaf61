"""What pb.solve.minimize and augmented_lagrangian refuse, in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb


def square(x: Any) -> Any:
    return pb.sum(x * x)


REFUSED = {
    "bounds crossed": ({"bounds": (0, np.array([2.0, -2.5]))}, ValueError, "bounds of element 1 cross.*0 and the upper one -2.5"),
    "a pair crossed": ({"bounds": [(0, None), (5, 2)]}, ValueError, "element 1 cross"),
    "a NaN bound": ({"bounds": (np.nan, 1.0)}, ValueError, "lower bound of element 0 is NaN"),
    "bounds of another shape": ({"bounds": (np.zeros(3), np.ones(3))}, pb.ShapeError, r"shape \(3,\).*its shape \(2,\)"),
    "three pairs for two": ({"bounds": [(0, 1)] * 3}, pb.ShapeError, "3 entries for 2 unknowns"),
    "a number as bounds": ({"bounds": 1.0}, pb.ShapeError, "bounds is a float"),
    "bounds for BFGS": ({"method": "BFGS", "bounds": (0, 1)}, ValueError, 'BFGS takes no bounds. Use "L-BFGS-B".*scipy:TNC'),
    "no scalar": ({"f": lambda x: x * x}, pb.ShapeError, r"shape \(2,\).*only a scalar.*least_squares"),
    "no value": ({"f": lambda x: None}, pb.TapeError, "returned None"),
    "a tuple": ({"f": lambda x: (pb.sum(x), 1)}, pb.TapeError, "returned a tuple"),
    "no function": ({"f": 3.0}, pb.TapeError, "f is a float"),
    "NaN at the start": ({"f": lambda x: pb.sum(pb.log(x - 5))}, ValueError, "loss is nan at the start"),
    "infinite at the start": ({"f": lambda x: pb.sum(1 / (x - 1))}, ValueError, "loss is inf at the start"),
    "an infinite gradient": ({"f": lambda x: pb.sum(pb.sqrt(x - 1))}, ValueError, "gradient of element 0 is not finite"),
    "integers": ({"params": np.array([1, 2])}, pb.DTypeError, "dtype int64.*float32 and float64.*astype"),
    "half precision": ({"params": pb.ones(2, dtype=pb.float16)}, pb.DTypeError, "float16; solvers need float32 or float64"),
    "two dtypes": ({"params": [pb.ones(2), pb.ones(2, dtype=pb.float64)]}, pb.DTypeError, "float32 and .*float64"),
    "twice": ({"params": [p := pb.Parameter([1.0]), p]}, pb.PullbackError, "twice"),
    "nothing": ({"params": []}, pb.PullbackError, "nothing to change"),
    "empty": ({"params": np.zeros(0)}, pb.ShapeError, "no elements"),
    "a string": ({"params": "x"}, pb.DTypeError, "params is a str"),
    "a constraint": ({"params": pb.Parameter([1.0], constraint=abs)}, pb.PullbackError, "has a constraint"),
    "an unknown method": ({"method": "Adam"}, ValueError, "'Adam' is none of 'L-BFGS', 'L-BFGS-B', 'BFGS', 'SSBFGS'.*'scipy:NAME'"),
    "a method of SciPy": ({"method": "SLSQP"}, ValueError, 'Did you mean "scipy:SLSQP"'),
    "an unknown method of SciPy": ({"method": "scipy:Adam"}, ValueError, "scipy:Nelder-Mead, .*scipy:SLSQP"),
    "bounds for CG": ({"method": "scipy:CG", "bounds": (0, 1)}, ValueError, "scipy:CG takes no bounds. Use .*scipy:TNC"),
    "constraints for TNC": ({"method": "scipy:TNC", "constraints": {"type": "eq", "fun": square}}, ValueError, "no constraints"),
    "an odd constraint": ({"method": "scipy:SLSQP", "constraints": {"type": "le", "fun": square}}, ValueError, '"type"'),
    "gtol for Powell": ({"method": "scipy:Powell", "gtol": 1e-3}, ValueError, "has no gtol"),
    "constraints": ({"constraints": {"type": "eq", "fun": square}}, ValueError, "augmented_lagrangian"),
    "options": ({"options": {"maxls": 3}}, ValueError, "options is for methods of SciPy"),
    "no dependence": ({"f": lambda x: pb.ones(())}, pb.UnconnectedError, "does not depend on the parameters"),
    "a number": ({"f": lambda x: float(x.numpy().sum())}, pb.UnconnectedError, "does not depend on the parameters"),
    "a list of methods": ({"method": ["BFGS"]}, ValueError, "is none of"),
    "a tolerance in words": ({"gtol": "small"}, ValueError, "gtol='small' must be a number of 0 or more"),
    "a negative tolerance": ({"ftol": -1.0}, ValueError, "ftol=-1.0 must"),
    "memory": ({"memory": 0}, ValueError, "memory=0 must be an integer of 1"),
    "maxiter": ({"maxiter": 2.5}, ValueError, "maxiter=2.5"),
    "arguments f lacks": ({"args": {"penalty": 1.0}}, pb.TapeError, "args has penalty"),
    "args of a kind": ({"args": 3.0}, pb.DTypeError, "args is a float"),
    "an unknown keyword": ({"max_iter": 3}, TypeError, "Did you mean: 'maxiter'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_minimize_refuses(case: str) -> None:
    given, error, words = REFUSED[case]
    call: dict[str, Any] = {"f": square, "params": np.ones(2), **given}
    with np.errstate(all="ignore"), pytest.raises(error, match=words):
        pb.solve.minimize(**call).result()


BY_THE_LAGRANGIAN = {
    "a number for a function": ({"eq": [3.0]}, "eq has a float"),
    "bounds crossed": ({"bounds": (1, 0)}, "cross"),
    "no tolerance": ({"tol": 0}, "tol=0 must"),
    "integers": ({"params": np.array([1])}, "int64"),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_THE_LAGRANGIAN)
def test_augmented_lagrangian_refuses(case: str) -> None:
    given, words = BY_THE_LAGRANGIAN[case]
    with pytest.raises((pb.PullbackError, ValueError), match=words):
        pb.solve.augmented_lagrangian(square, **{"params": np.ones(2), **given})


def test_scipy_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(pb.PullbackError, match=r"needs SciPy.*pip install scipy"):
        pb.solve.minimize(square, np.ones(2), "scipy:BFGS")
