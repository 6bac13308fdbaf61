"""Schedules that are made of others, lists of rates, and the one that waits for a metric to improve.

Their numbers are rows of the program, which follows the sets of an optimizer (see ../program.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Final

from ...errors import PullbackError
from .schedule import Rows, Schedule, as_schedule, check_numbers, in_settings, is_count, is_list

MOST_FACTORS: Final = 32  # of a Product


@dataclass(frozen=True, init=False)
class Sequential(Schedule):
    """One schedule after another: `schedules[i + 1]` from step `milestones[i]` on, which is step 0 for it (torch's SequentialLR).

    The schedules may be any but a Sequential or a Product. Each has its own base: a warmup and a decay usually have the same one.

    Raises: PullbackError if there is not one schedule more than milestones, or the milestones are not positive and ascending.
    """

    base: float = field(init=False, repr=False)
    schedules: Sequence[Schedule] = ()
    milestones: Sequence[int] = ()
    kind: ClassVar[int] = 16

    def __init__(self, schedules: Sequence[Schedule], milestones: Sequence[int]) -> None:
        if not isinstance(schedules, (list, tuple)) or not schedules:
            raise PullbackError(f"Sequential: schedules={schedules!r}; give a list of at least one schedule.")
        pieces = tuple([as_schedule("Sequential: schedule", schedule) for schedule in schedules])
        for piece in pieces:
            if isinstance(piece, (Sequential, Product)):
                raise PullbackError(
                    f"Sequential: one of the schedules is a {type(piece).__name__}, which has pieces itself. Give all "
                    f"pieces to one Sequential, and multiply it: Product(Sequential(...), ...)."
                )
        steps = list(milestones) if is_list(milestones, is_count) else None
        if steps is None or len(steps) != len(pieces) - 1 or not all([a < b for a, b in pairwise([0, *steps])]):
            raise PullbackError(
                f"Sequential: milestones={milestones!r} for {len(pieces)} schedules; give {len(pieces) - 1} ascending steps of 1 "
                f"or more: the step from which each schedule but the first one applies."
            )
        _set(self, base=pieces[0].base, schedules=pieces, milestones=tuple([int(x) for x in steps]))

    @property
    def observes(self) -> bool:
        return any([piece.observes for piece in self.schedules])

    def settings(self, rows: Rows) -> list[float]:
        row = rows.put_pieces(list(zip((0, *self.milestones), self.schedules)))
        return in_settings(self.kind, self.base, (row, len(self.schedules)))

    @classmethod
    def of(cls, base: float, arguments: Sequence[float], rows: Rows) -> Schedule:
        starts, pieces = zip(*rows.pieces(*arguments[:2]))
        if starts[0] != 0:
            raise PullbackError("Sequential: the first schedule does not begin at step 0.")
        return cls(pieces, starts[1:])

    def rate(self, t: int) -> float:
        first, piece = [(a, piece) for a, piece in zip((0, *self.milestones), self.schedules) if a <= t][-1]
        return piece.rate(t - first)


@dataclass(frozen=True, init=False)
class Product(Schedule):
    """The rate is the product of the rates of up to 32 schedules (torch's ChainedScheduler).

    One of them has the learning rate as its base, and the others usually have a base of 1: `Product(Cosine(1e-3, steps=900),
    Linear(1.0, steps=50, start=0.0, end=1.0))`, or the same with `*`. A number is a constant factor. A factor may be a Sequential,
    and the factors of a Product among them become factors of this one.
    """

    base: float = field(init=False, repr=False)
    schedules: Sequence[Schedule] = ()
    kind: ClassVar[int] = 17

    def __init__(self, *schedules: Schedule | float) -> None:
        factors: list[Schedule] = []
        for schedule in [as_schedule("Product: schedule", schedule) for schedule in schedules]:
            factors += schedule.schedules if isinstance(schedule, Product) else [schedule]
        if not 1 <= len(factors) <= MOST_FACTORS:
            raise PullbackError(f"Product: {len(factors)} schedules; give 1 to {MOST_FACTORS} of them.")
        _set(self, base=math.prod([factor.base for factor in factors]), schedules=tuple(factors))

    def __repr__(self) -> str:
        return f"Product({', '.join([repr(factor) for factor in self.schedules])})"

    @property
    def observes(self) -> bool:
        return any([factor.observes for factor in self.schedules])

    def settings(self, rows: Rows) -> list[float]:
        row = rows.put_pieces([(0, factor) for factor in self.schedules])
        return in_settings(self.kind, self.base, (row, len(self.schedules)))

    @classmethod
    def of(cls, base: float, arguments: Sequence[float], rows: Rows) -> Schedule:
        return cls(*[factor for _, factor in rows.pieces(*arguments[:2])])

    def rate(self, t: int) -> float:
        return math.prod([factor.rate(t) for factor in self.schedules])


@dataclass(frozen=True, init=False)
class Table(Schedule):
    """A list of rates, one for each step. After the last one the rate stays."""

    base: float = field(init=False, repr=False)
    rates: Sequence[float] = ()
    kind: ClassVar[int] = 14

    def __init__(self, rates: Iterable[float]) -> None:
        try:
            found = [float(x) for x in rates]
        except (TypeError, ValueError, OverflowError):
            raise PullbackError(f"Table: rates={rates!r}; give a list of numbers, one for each step.") from None
        if not found:
            raise PullbackError("Table: there are no rates; give at least one.")
        for t, x in enumerate(found):
            if not (x >= 0 and math.isfinite(x)):
                raise PullbackError(f"Table: the rate of step {t} is {x}; a learning rate must be a finite number of 0 or more.")
        _set(self, base=found[0], rates=tuple(found))

    def __repr__(self) -> str:
        few = ", ".join([f"{x:g}" for x in self.rates[:3]])
        return f"Table([{few}{', ...' if len(self.rates) > 3 else ''}] of {len(self.rates)} steps)"

    def settings(self, rows: Rows) -> list[float]:
        return in_settings(self.kind, self.base, (rows.put_numbers(self.rates), len(self.rates)))

    @classmethod
    def of(cls, base: float, arguments: Sequence[float], rows: Rows) -> Schedule:
        return cls(rows.numbers(*arguments[:2]))

    def rate(self, t: int) -> float:
        return self.rates[min(t, len(self.rates) - 1)]


def Lambda(base: float, function: Callable[[int], float], steps: int) -> Table:
    """Returns the Table of base * function(t) for the first `steps` steps, after which the rate stays (torch's LambdaLR).

    The function is called for all steps at once, on the host.
    """
    _check_function("Lambda", base, function, steps)
    return Table([base * function(t) for t in range(steps)])


def Multiplicative(base: float, function: Callable[[int], float], steps: int) -> Table:
    """Returns the Table of `steps` rates that begins with base and multiplies it by function(t) before each step t > 0 (torch's
    MultiplicativeLR). After the last of them the rate stays.
    """
    _check_function("Multiplicative", base, function, steps)
    return Table(accumulate(range(1, steps), lambda rate, t: rate * function(t), initial=base))


@dataclass(frozen=True)
class ReduceOnPlateau(Schedule):
    """The rate is multiplied by `factor` when a metric has stopped improving: when more than `patience` values in a row that
    `opt.observe(metric)` was given were not better than the best one before (torch's ReduceLROnPlateau).

    Args:
        base: the first rate. As a factor of a Product it is usually 1.
        mode: "min" if the metric should fall, "max" if it should rise.
        threshold: a value is better only by this share of the best one, or with threshold_mode="abs" by this amount.
        cooldown: the number of values after a reduction in which bad ones do not count.
        end: the least rate. A reduction by less than 1e-8 is not done.

    The rate lives on the device with what has been observed; `opt.lr` shows it, and `rate(t)` is the first one. A rate that is set
    later starts anew. As a piece of a Sequential it ignores what is observed before its milestone; as a factor it always observes.
    """

    factor: float = 0.1
    patience: int = 10
    threshold: float = 1e-4
    mode: str = "min"
    threshold_mode: str = "rel"
    cooldown: int = 0
    end: float = 0.0
    kind: ClassVar[int] = 15

    def __post_init__(self) -> None:
        check_numbers(self, ("base", "factor", "patience", "threshold", "cooldown", "end"))
        if self.mode not in ("min", "max") or self.threshold_mode not in ("rel", "abs"):
            raise PullbackError(
                f"ReduceOnPlateau: mode={self.mode!r} and threshold_mode={self.threshold_mode!r}; the first must be "
                f'"min" or "max", the second "rel" or "abs".'
            )
        if not 0 <= self.factor < 1:
            raise PullbackError(f"ReduceOnPlateau: factor={self.factor} multiplies the rate; it must be from 0 to less than 1.")
        if min(self.patience, self.threshold, self.cooldown, self.end) < 0:
            raise PullbackError("ReduceOnPlateau: patience, threshold, cooldown and end must be 0 or more.")

    @property
    def observes(self) -> bool:
        return True

    @property
    def worst(self) -> float:
        """What the best metric is before the first observation."""
        return math.inf if self.mode == "min" else -math.inf

    def arguments(self) -> tuple[float, ...]:
        flags = float(self.mode == "max"), float(self.threshold_mode == "rel")
        return float(self.factor), float(self.patience), self.threshold, float(self.cooldown), float(self.end), *flags

    def settings(self, rows: Rows) -> list[float]:
        return in_settings(self.kind, self.base, (rows.put_plateau(self.base, self.arguments(), self.worst), 1))

    @classmethod
    def of(cls, base: float, arguments: Sequence[float], rows: Rows) -> Schedule:
        return rows.plateau(arguments[0])

    @classmethod
    def of_row(cls, base: float, arguments: Sequence[float]) -> Schedule:
        """Returns the schedule with these `arguments()`."""
        factor, patience, threshold, cooldown, end, maximizes, relative = arguments
        modes = "max" if maximizes else "min", "rel" if relative else "abs"
        return cls(base, factor, int(patience), threshold, *modes, int(cooldown), end)


def _check_function(name: str, base: Any, function: Any, steps: Any) -> None:
    as_schedule(f"{name}: base", base)
    if not callable(function):
        raise PullbackError(f"{name}: a {type(function).__name__} was given, and not a function of the number of the step.")
    if not is_count(steps):
        raise PullbackError(f"{name}: steps={steps!r}; it must be a whole number of 1 or more, how many rates to list.")


def _set(schedule: Schedule, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(schedule, name, value)
