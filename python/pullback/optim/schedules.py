"""Learning rates as functions of the step. They are evaluated on the device of the update, so that nothing waits for the host.

In an optimizer's set of settings a schedule is a kind and a few numbers; csrc/math/settings.h has the same formulas. t is the
number of steps done before, so the first step uses rate(0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from ..errors import PullbackError
from ..exports import exported as _exported
from ..interop.unknown_names import attach_hints, explain_arguments
from .sparsity import PolynomialSparsity

__all__ = [
    "Cosine", "CosineRestarts", "Cyclic", "Exponential", "Linear", "MultiStep", "OneCycle", "Polynomial",
    "PolynomialSparsity", "Schedule", "Step",
    "WarmupCosine", "WarmupStableDecay",
]  # fmt: skip
MILESTONES = 6  # the most milestones of MultiStep


@explain_arguments
@attach_hints
@dataclass(frozen=True)
class Schedule:
    """A constant learning rate, and the base class of the other schedules, whose formulas start from `base`."""

    base: float
    kind: ClassVar[int] = 0
    falls: ClassVar[bool] = False  # true if the rate goes from base down to `end`

    def arguments(self) -> tuple[float, ...]:
        """Returns the numbers after `base`, in the order of csrc/math/settings.h."""
        return tuple([float(x) for x in astuple(self)[1:]])

    def rate(self, t: int) -> float:
        """Returns the learning rate of the step that follows `t` steps."""
        return self.base

    def __call__(self, t: int) -> float:
        """Returns rate(t)."""
        return self.rate(t)

    @classmethod
    def of(cls, base: float, arguments: Sequence[float]) -> Schedule:
        """Returns the schedule with these numbers, which `arguments()` returned."""
        return cls(base, *[_like(field.default, float(x)) for field, x in zip(fields(cls)[1:], arguments)])

    def __post_init__(self) -> None:
        _check_numbers(self, [field.name for field in fields(self)])
        self._check_range()
        steps = getattr(self, "steps", 1)
        if steps <= 0 or getattr(self, "every", 1) <= 0:
            raise PullbackError(
                f"{type(self).__name__}: a schedule over {steps} steps never moves; steps and every must be positive."
            )

    def _check_range(self) -> None:
        """Raises PullbackError for numbers that are probably in each other's places."""
        end = getattr(self, "end", 0.0)
        if self.falls and not 0 <= end <= self.base:
            raise PullbackError(
                f"{type(self).__name__}: the rate falls from base={self.base} to end={end}, which must be between 0 and base. The "
                f"arguments after steps are best given by name: warmup=10."
            )


@dataclass(frozen=True)
class Step(Schedule):
    """The rate is base * factor^floor(t / every)."""

    every: int = 1
    factor: float = 0.1
    kind: ClassVar[int] = 1

    def rate(self, t: int) -> float:
        return self.base * self.factor ** (t // self.every)


@dataclass(frozen=True)
class Exponential(Schedule):
    """The rate is base * factor^t."""

    factor: float = 0.99
    kind: ClassVar[int] = 2

    def _check_range(self) -> None:
        if not 0 <= self.factor <= 1:
            raise PullbackError(
                f"Exponential: factor={self.factor} multiplies the rate in each step; it must be from 0 to 1. A decay to d in n "
                f"steps is factor=d ** (1 / n)."
            )

    def rate(self, t: int) -> float:
        return self.base * self.factor**t


@dataclass(frozen=True)
class Cosine(Schedule):
    """The rate falls from base to `end` along half a cosine, in `steps` steps (Loshchilov & Hutter 2017, without restarts)."""

    steps: int = 1
    end: float = 0.0
    kind: ClassVar[int] = 3
    falls: ClassVar[bool] = True

    def rate(self, t: int) -> float:
        return _half_cosine(self.base, self.end, min(t / self.steps, 1.0))


@dataclass(frozen=True)
class Linear(Schedule):
    """The rate changes linearly from base * start to base * end, in `steps` steps, as torch's LinearLR does."""

    steps: int = 1
    start: float = 1.0
    end: float = 0.0
    kind: ClassVar[int] = 4

    def rate(self, t: int) -> float:
        return self.base * (self.start + (self.end - self.start) * min(t / self.steps, 1.0))


@dataclass(frozen=True)
class Polynomial(Schedule):
    """The rate is end + (base - end) * (1 - t / steps)^power, and stays at `end` after `steps` steps."""

    steps: int = 1
    end: float = 0.0
    power: float = 1.0
    kind: ClassVar[int] = 5

    def rate(self, t: int) -> float:
        return self.end + (self.base - self.end) * (1 - min(t / self.steps, 1.0)) ** self.power


@dataclass(frozen=True)
class WarmupCosine(Schedule):
    """The rate changes linearly from `start` to base in `warmup` steps, then along half a cosine to `end` at step `steps`."""

    steps: int = 1
    end: float = 0.0
    warmup: int = 0
    start: float = 0.0
    kind: ClassVar[int] = 6
    falls: ClassVar[bool] = True

    def rate(self, t: int) -> float:
        if t < self.warmup:
            return self.start + (self.base - self.start) * (t / self.warmup)
        left = self.steps - self.warmup
        return _half_cosine(self.base, self.end, min((t - self.warmup) / left, 1.0) if left > 0 else 1.0)


@dataclass(frozen=True)
class MultiStep(Schedule):
    """The rate is multiplied by `factor` at each of up to six milestones, which are numbers of steps (torch's MultiStepLR)."""

    milestones: Sequence[int] = ()
    factor: float = 0.1
    kind: ClassVar[int] = 7

    def __post_init__(self) -> None:
        given = self.milestones
        fits = isinstance(given, (list, tuple)) and len(given) <= MILESTONES
        if not (fits and all([isinstance(x, Real) and x >= 1 for x in given])):
            raise PullbackError(f"MultiStep: milestones={given!r}; give up to {MILESTONES} numbers of steps of 1 or more.")
        object.__setattr__(self, "milestones", tuple(sorted(given)))
        _check_numbers(self, ("base", "factor"))

    def arguments(self) -> tuple[float, ...]:
        return (float(self.factor), *[float(x) for x in self.milestones], *[0.0] * (MILESTONES - len(self.milestones)))

    @classmethod
    def of(cls, base: float, arguments: Sequence[float]) -> Schedule:
        return cls(base, tuple([int(x) for x in arguments[1 : 1 + MILESTONES] if x > 0]), float(arguments[0]))

    def rate(self, t: int) -> float:
        return self.base * math.prod([self.factor for milestone in self.milestones if milestone <= t])


@dataclass(frozen=True)
class OneCycle(Schedule):
    """The rate rises from base / div_factor to base along half a cosine, and falls to base / div_factor / final_div_factor along
    another one at step `steps` - 1 (Smith & Topin 2018; torch's OneCycleLR). `warmup` is the share of the steps in which it rises.
    """

    steps: int = 1
    warmup: float = 0.3
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    kind: ClassVar[int] = 8

    def rate(self, t: int) -> float:
        first, top, last = self.base / self.div_factor, self.warmup * self.steps - 1, self.steps - 1
        if t <= top:
            return _half_cosine(first, self.base, t / top if top > 0 else 1.0)
        return _half_cosine(self.base, first / self.final_div_factor, (t - top) / (last - top) if t < last else 1.0)


@dataclass(frozen=True)
class CosineRestarts(Schedule):
    """The rate falls from base to `end` along half a cosine in `steps` steps, and starts again; each fall is `growth` times as
    long as the one before (SGDR, Loshchilov & Hutter 2017; torch's CosineAnnealingWarmRestarts).
    """

    steps: int = 1
    growth: int = 1
    end: float = 0.0
    kind: ClassVar[int] = 9
    falls: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.growth < 1:
            raise PullbackError(f"CosineRestarts: growth={self.growth}; it must be 1 or more.")

    def rate(self, t: int) -> float:
        length: float = self.steps
        if self.growth == 1:
            t = t % self.steps
        while t >= length:
            t, length = t - int(length), length * self.growth
        return _half_cosine(self.base, self.end, t / length)


@dataclass(frozen=True)
class Cyclic(Schedule):
    """The rate rises linearly from base to `high` in `up` steps, and falls back in `down` steps, again and again (Smith 2017;
    torch's CyclicLR). `factor` multiplies high - base after each cycle: 0.5 is the mode "triangular2".
    """

    high: float = 0.1
    up: int = 2000
    down: int = 2000
    factor: float = 1.0
    kind: ClassVar[int] = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.up <= 0 or self.down <= 0:
            raise PullbackError(f"Cyclic: up={self.up} and down={self.down}; both must be positive numbers of steps.")

    def rate(self, t: int) -> float:
        cycle, rest = divmod(t, self.up + self.down)
        scale = rest / self.up if rest < self.up else (self.up + self.down - rest) / self.down
        return self.base + (self.high - self.base) * scale * self.factor**cycle


@dataclass(frozen=True)
class WarmupStableDecay(Schedule):
    """The rate changes linearly from `start` to base in `warmup` steps, stays, and goes to `end` in the last `decay` of `steps`
    steps (Hu et al. 2024, MiniCPM). After a share x of these it is end + (base - end) * (1 - x^power): linear, or 1 - sqrt with
    power=0.5.
    """

    steps: int = 1
    warmup: int = 0
    decay: int = 0
    end: float = 0.0
    start: float = 0.0
    power: float = 1.0
    kind: ClassVar[int] = 11
    falls: ClassVar[bool] = True

    def rate(self, t: int) -> float:
        if t < self.warmup:
            return self.start + (self.base - self.start) * (t / self.warmup)
        if t < self.steps - self.decay:
            return self.base
        part = min((t - (self.steps - self.decay)) / self.decay, 1.0) if self.decay > 0 else 1.0
        return self.end + (self.base - self.end) * (1 - part**self.power)


def _check_numbers(schedule: Schedule, names: Sequence[str]) -> None:
    """Raises PullbackError unless these attributes are numbers and the base is a rate."""
    for name in names:
        value: Any = getattr(schedule, name)
        if isinstance(value, Real) and not math.isfinite(value):
            raise PullbackError(f"{type(schedule).__name__}: {name}={value}; it must be a finite number.")
        if isinstance(value, bool) or not isinstance(value, Real):
            raise PullbackError(
                f"{type(schedule).__name__}: {name} is a {type(value).__name__}; it must be a number. A schedule is made before "
                f"the optimizer, which takes it: optim.SGD(params, lr=optim.schedules.Cosine(1e-3, steps=1000))."
            )
    if not schedule.base >= 0:
        raise PullbackError(f"a learning rate of {schedule.base} makes no sense; it must be 0 or more.")
    for name in ("every", "growth"):
        if getattr(schedule, name, 1) % 1:
            raise PullbackError(f"{type(schedule).__name__}: {name}={getattr(schedule, name)}; it must be a whole number.")


def _half_cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * part)) / 2


def as_schedule(lr: Any) -> Schedule:
    """Returns a schedule unchanged and a number as a constant schedule. Raises PullbackError for anything else."""
    if isinstance(lr, Schedule):
        if type(lr).__module__ != __name__:
            raise PullbackError(
                f"{type(lr).__name__} is a schedule of your own, whose formula the device does not know. Set opt.lr before each "
                f"step instead: opt.lr = schedule.rate(opt.steps)."
            )
        return lr
    if isinstance(lr, Real) and not isinstance(lr, (bool, np.bool_)):
        try:
            return Schedule(float(lr))
        except OverflowError:
            return Schedule(math.inf)  # which is refused
    raise PullbackError(
        f"lr is a {type(lr).__name__}; it must be a number or one of optim.schedules, which are evaluated on the device. For "
        f"a rate of your own, set opt.lr before each step."
    )


def from_numbers(kind: float, base: float, arguments: Sequence[float]) -> Schedule:
    """Returns the schedule that a set of settings holds. Raises PullbackError if the numbers are not a schedule."""
    for cls in (Schedule, *Schedule.__subclasses__()):
        if cls.kind == kind and all([math.isfinite(x) for x in arguments]):
            return cls.of(float(base), arguments)
    raise PullbackError(f"load_state_dict: the settings hold no schedule of this version (kind {kind}).")


def _like(default: Any, x: float) -> float:
    return int(x) if isinstance(default, int) and x.is_integer() else x


_exported(globals())
