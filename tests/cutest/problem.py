"""The table of problems, and the decorators that add a function to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = Any


class Problem(NamedTuple):
    """A problem: the value and gradient of its function, the published start, and its bounds or None."""

    name: str
    both: Callable[[Array], tuple[float, Array]]
    start: Array
    bounds: tuple[Array, Array] | None


PROBLEMS: dict[str, Problem] = {}


def smooth(start: Any, low: Any = None, high: Any = None) -> Callable[[Any], Any]:
    """Adds a function that returns (value, gradient)."""

    def add(function: Any) -> Any:
        x = np.array(start, np.float64)
        bounds = None
        if low is not None or high is not None:
            sides = [(-np.inf if low is None else low), (np.inf if high is None else high)]
            bounds = tuple(np.broadcast_to(np.array(side, np.float64), x.shape).copy() for side in sides)
        name = function.__name__.upper()
        assert name not in PROBLEMS
        PROBLEMS[name] = Problem(name, function, x, bounds)  # type: ignore[arg-type]
        return function

    return add


def squares(start: Any, low: Any = None, high: Any = None) -> Callable[[Any], Any]:
    """Adds a function that returns (residuals, Jacobian), the sum of whose squares is minimised."""

    def add(function: Any) -> Any:
        def both(x: Array) -> tuple[float, Array]:
            r, jacobian = function(x)
            return float(r @ r), 2.0 * (r @ jacobian)

        both.__name__ = function.__name__
        smooth(start, low, high)(both)
        return function

    return add
