"""What all schedules have in common: the constant one, the numbers that the device reads, and the checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from numbers import Real
from typing import Any, ClassVar, Final, Protocol

import numpy as np

from ...errors import PullbackError
from ...interop.gate import explain_arguments
from ...interop.unknown_names import attach_hints

ARGUMENTS: Final = 7  # the most arguments of a schedule


class Rows(Protocol):
    """The program: rows of numbers behind the sets of an optimizer, for schedules that are more than a few numbers.

    The methods that begin with "put" take free rows, and return the number of the first one.
    """

    def put_pieces(self, pieces: Sequence[tuple[int, Schedule]]) -> int: ...
    def put_numbers(self, numbers: Sequence[float]) -> int: ...
    def put_plateau(self, base: float, arguments: Sequence[float], best: float) -> int: ...
    def pieces(self, row: float, count: float) -> list[tuple[int, Schedule]]: ...
    def numbers(self, row: float, count: float) -> list[float]: ...
    def plateau(self, row: float) -> Schedule: ...


@explain_arguments
@attach_hints
@dataclass(frozen=True)
class Schedule:
    """A constant learning rate, and the base class of the other schedules, whose formulas start from `base`.

    `a * b` is the schedule `Product(a, b)`.
    """

    base: float
    kind: ClassVar[int] = 0
    falls: ClassVar[bool] = False  # true if the rate goes from base down to `end`
    # the attributes that are whole numbers
    counts: ClassVar[tuple[str, ...]] = ("steps", "every", "growth", "patience", "cooldown")
    _needs: ClassVar[Mapping[str, str]] = {  # the meaning of arguments without a default
        "steps": "the number of steps until the rate has reached its end",
        "every": "the number of steps after which the rate is multiplied by factor",
        "milestones": "the numbers of steps after which the rate is multiplied by factor",
    }

    @property
    def observes(self) -> bool:
        """True if the rate also depends on what `opt.observe` is given."""
        return False

    def arguments(self) -> tuple[float, ...]:
        """Returns the numbers after `base`, in the order of csrc/math/schedule.h."""
        return tuple([float(x) for x in astuple(self)[1:]])

    def settings(self, rows: Rows) -> list[float]:
        """Returns the numbers of a set that make it follow this schedule. They begin with the kind."""
        return in_settings(self.kind, self.base, self.arguments())

    def rate(self, t: int) -> float:
        """Returns the learning rate of the step that follows `t` steps."""
        return self.base

    def __call__(self, t: int) -> float:
        """Returns rate(t)."""
        return self.rate(t)

    def __mul__(self, other: Any) -> Schedule:
        """Returns the schedule whose rate is the product of both rates. The other one may be a number."""
        from .composed import Product

        return Product(self, other) if isinstance(other, Schedule) or _is_number(other) else NotImplemented

    __rmul__ = __mul__

    @classmethod
    def of(cls, base: float, arguments: Sequence[float], rows: Rows) -> Schedule:
        """Returns the schedule whose `settings` have these numbers."""
        return cls(base, *[_like(field.type, float(x)) for field, x in zip(fields(cls)[1:], arguments)])

    def __post_init__(self) -> None:
        check_numbers(self, [field.name for field in fields(self)])
        self._check_range()

    def _check_range(self) -> None:
        """Raises PullbackError for numbers that are probably in each other's places."""
        end = getattr(self, "end", 0.0)
        if self.falls and not 0 <= end <= self.base:
            raise PullbackError(
                f"{type(self).__name__}: the rate falls from base={self.base} to end={end}, which must be between 0 and base. The "
                f"arguments after steps are best given by name: warmup=10."
            )


def in_settings(kind: int, base: float, arguments: Sequence[float]) -> list[float]:
    """Returns the numbers from the kind of a schedule to the last of its arguments."""
    return [float(kind), float(base), *[float(x) for x in arguments], *[0.0] * (ARGUMENTS - len(arguments))]


def check_numbers(schedule: Schedule, names: Sequence[str]) -> None:
    """Raises PullbackError unless these attributes are numbers and the base is a rate."""
    for name in names:
        value: Any = getattr(schedule, name)
        if isinstance(value, Real) and not math.isfinite(value):
            raise PullbackError(f"{type(schedule).__name__}: {name}={value}; it must be a finite number.")
        if not _is_number(value):
            raise PullbackError(
                f"{type(schedule).__name__}: {name} is a {type(value).__name__}; it must be a number. A schedule is made before "
                f"the optimizer, which takes it: optim.SGD(params, lr=optim.schedules.Cosine(1e-3, steps=1000))."
            )
    if not schedule.base >= 0:
        raise PullbackError(f"{type(schedule).__name__}: base={schedule.base}; a learning rate must be 0 or more.")
    if not getattr(schedule, "power", 0) >= 0:
        raise PullbackError(f"{type(schedule).__name__}: power={getattr(schedule, 'power', 0)}; it must be 0 or more.")
    for name in schedule.counts:
        value = getattr(schedule, name, 1)
        if value % 1:
            share = f" of steps; for a share of them write {name}=round({value} * steps)" if 0 < value < 1 else ""
            raise PullbackError(f"{type(schedule).__name__}: {name}={value}; it must be a whole number{share}.")
    for name in ("steps", "every"):
        if getattr(schedule, name, 1) < 1:
            raise PullbackError(
                f"{type(schedule).__name__}: {name}={getattr(schedule, name)}; it must be a number of 1 step or more."
            )


def whole_power(x: float, n: float) -> float:
    """Returns x^n for a whole n >= 0 with the roundings of csrc/math/schedule.h."""
    y, rest = 1.0, int(n)
    while rest:
        if rest & 1:
            y *= x
        x *= x
        rest >>= 1
    return y


def between(start: float, end: float, share: float) -> float:
    """Returns the rate between two rates of which this share of their difference is left."""
    return end + (start - end) * share


def half_cosine(start: float, end: float, part: float) -> float:
    return between(start, end, (1 + math.cos(math.pi * part)) / 2)


def line(start: float, end: float, part: float) -> float:
    return start + (end - start) * part


def as_schedule(what: str, lr: Any) -> Schedule:
    """Returns a schedule unchanged and a number as a constant schedule. `what`: its name in messages, such as "SGD: lr".

    Raises PullbackError for anything else.
    """
    if isinstance(lr, Schedule):
        if type(lr).__module__ != Schedule.__module__:
            raise PullbackError(
                f"{what}: {type(lr).__name__} is a schedule of your own, whose formula the device does not know. List its rates "
                f"with optim.schedules.Lambda(base, function, steps), or set opt.lr before each step: "
                f"opt.lr = schedule.rate(opt.steps)."
            )
        return lr
    if _is_number(lr):
        try:
            rate = float(lr)
        except OverflowError:
            rate = math.inf
        if not 0 <= rate < math.inf:
            raise PullbackError(f"{what}={lr}; it must be a finite number of 0 or more, or a schedule.")
        return Schedule(rate)
    raise PullbackError(
        f"{what} is a {type(lr).__name__}; it must be a number or one of optim.schedules, which are evaluated on the device. For "
        f"a rate of your own, set opt.lr before each step."
    )


def is_list(given: Any, item: Callable[[Any], bool]) -> bool:
    """True for a list, a tuple, a range or a NumPy array of such items, or of none."""
    return isinstance(given, (list, tuple, range, np.ndarray)) and all([item(x) for x in given])


def is_count(x: Any) -> bool:
    """True for a whole number of 1 or more."""
    return _is_number(x) and x >= 1 and x % 1 == 0


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def _like(kind: Any, x: float) -> float:
    """Returns a number as an int if the field is one. kind: the annotation of the field."""
    return int(x) if kind == "int" and x.is_integer() else x
