"""Schedules of pruning: the share of weights that are 0, as a function of the number of steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ..errors import PullbackError

Sparsity = Callable[[int], float]


@dataclass(frozen=True)
class PolynomialSparsity:
    """The sparsity goes from `start` at step `begin` to `end` at step `stop` along a polynomial, which is steep at first:
    end + (start - end) * (1 - (t - begin) / (stop - begin))^power (Zhu & Gupta 2017, eq. 1). Before it is 0, and afterwards `end`.

    It changes at `begin`, every `every` steps after that, and at `stop`. With begin=stop it is 0 before and `end` afterwards.

    Args:
        start, end: shares of the weights, in [0, 1).
        begin, stop: numbers of steps of the optimizer.
        every: the number of steps from one change to the next.
        power: the exponent.

    Raises PullbackError for shares and steps that are none.
    """

    start: float
    end: float
    begin: int
    stop: int
    every: int = 100
    power: float = 3.0

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            checked_share("PolynomialSparsity", name, getattr(self, name))
        for name, least in (("begin", 0), ("stop", 0), ("every", 1)):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
                raise PullbackError(f"PolynomialSparsity: {name}={value!r}; it must be a number of steps of {least} or more.")
        if self.stop < self.begin:
            raise PullbackError(f"PolynomialSparsity: stop={self.stop} is before begin={self.begin}.")
        if isinstance(self.power, bool) or not isinstance(self.power, Real) or not 0 < self.power < math.inf:
            raise PullbackError(f"PolynomialSparsity: power={self.power!r}; it must be a positive number.")

    def sparsity(self, t: int) -> float:
        """Returns the share of pruned weights in the step that follows `t` steps."""
        from .schedules.schedule import whole_power

        if t < self.begin:
            return 0.0
        if t >= self.stop:
            return float(self.end)
        left = 1 - (t - self.begin) // self.every * self.every / (self.stop - self.begin)
        rest = left**self.power if self.power % 1 else whole_power(left, self.power)  # the last digit of ** depends on the machine
        return self.start * rest + self.end * (1 - rest)

    def __call__(self, t: int) -> float:
        """Returns sparsity(t)."""
        return self.sparsity(t)


@dataclass(frozen=True)
class ConstantSparsity:
    """A sparsity that is the same from the first step on."""

    share: float

    def __call__(self, t: int) -> float:
        """Returns the share."""
        return self.share


def checked_share(what: str, name: str, value: Any) -> float:
    """Returns a sparsity as a float. Raises PullbackError unless it is in [0, 1)."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real) or not 0 <= float(value) < 1:
        raise PullbackError(f"{what}: {name}={value!r}; a sparsity is a share of the weights, a number in [0, 1).")
    return float(value)


def as_sparsity(schedule: float | Sparsity) -> Sparsity:
    """Returns a function of the number of steps unchanged, and a number as a constant function. Raises PullbackError."""
    if callable(schedule) and not isinstance(schedule, type):
        return schedule
    if isinstance(schedule, Real):
        return ConstantSparsity(checked_share("Pruning", "schedule", schedule))
    raise PullbackError(
        f"Pruning: schedule is a {type(schedule).__name__}; give a share of the weights such as 0.8, "
        f"optim.schedules.PolynomialSparsity, or a function of the number of steps."
    )
