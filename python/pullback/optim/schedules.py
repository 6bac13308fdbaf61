"""Learning rates as functions of the step. They are evaluated on the device of the update, so that nothing waits for the host.

In the optimizer's control block a schedule is a kind and a few numbers; csrc/math/control.h has the same formulas. t is the
number of steps done before, so the first step uses rate(0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from numbers import Real
from typing import Any, ClassVar

from ..errors import PullbackError
from ..exports import exported as _exported
from ..interop.unknown_names import attach_hints, explain_arguments

__all__ = ["Cosine", "Exponential", "Linear", "Polynomial", "Schedule", "Step", "WarmupCosine"]


@explain_arguments
@attach_hints
@dataclass(frozen=True)
class Schedule:
    """A constant learning rate, and the base class of the other schedules, whose formulas start from `base`."""

    base: float
    kind: ClassVar[int] = 0

    def arguments(self) -> tuple[float, ...]:
        """Returns the numbers after `base`, in the order of csrc/math/control.h."""
        return tuple([float(x) for x in astuple(self)[1:]])

    def rate(self, t: int) -> float:
        """Returns the learning rate of the step that follows `t` steps."""
        return self.base

    def __call__(self, t: int) -> float:
        """Returns rate(t)."""
        return self.rate(t)

    def __post_init__(self) -> None:
        for field in fields(self):
            if not isinstance(value := getattr(self, field.name), Real):
                raise PullbackError(
                    f"{type(self).__name__}: {field.name} is a {type(value).__name__}; it must be a number. A schedule is made "
                    f"before the optimizer, which takes it: optim.SGD(params, lr=optim.schedules.Cosine(1e-3, steps=1000))."
                )
        if not self.base >= 0:
            raise PullbackError(f"a learning rate of {self.base} makes no sense; it must be 0 or more.")
        steps = getattr(self, "steps", 1)
        if steps <= 0 or getattr(self, "every", 1) <= 0:
            raise PullbackError(
                f"{type(self).__name__}: a schedule over {steps} steps never moves; steps and every must be positive."
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

    def rate(self, t: int) -> float:
        return self.base * self.factor**t


@dataclass(frozen=True)
class Cosine(Schedule):
    """The rate falls from base to `end` along half a cosine, in `steps` steps (Loshchilov & Hutter 2017, without restarts)."""

    steps: int = 1
    end: float = 0.0
    kind: ClassVar[int] = 3

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

    def rate(self, t: int) -> float:
        if t < self.warmup:
            return self.start + (self.base - self.start) * (t / self.warmup)
        left = self.steps - self.warmup
        return _half_cosine(self.base, self.end, min((t - self.warmup) / left, 1.0) if left > 0 else 1.0)


def _half_cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * part)) / 2


def as_schedule(lr: Any) -> Schedule:
    """Returns a schedule unchanged and a number as a constant schedule. Raises PullbackError for anything else."""
    if isinstance(lr, Schedule):
        return lr
    if isinstance(lr, Real):
        return Schedule(float(lr))
    raise PullbackError(
        f"lr is a {type(lr).__name__}; it must be a number or one of optim.schedules, which are evaluated on the device. For "
        f"a rate of your own, set opt.lr before each step."
    )


def from_numbers(kind: float, base: float, arguments: Sequence[float]) -> Schedule:
    """Returns the schedule that a control block holds. Raises PullbackError if the numbers are not a schedule."""
    for cls in (Schedule, *Schedule.__subclasses__()):
        if cls.kind == kind and all([math.isfinite(x) for x in arguments]):
            return cls(float(base), *[_like(field.default, float(x)) for field, x in zip(fields(cls)[1:], arguments)])
    raise PullbackError(f"load_state_dict: the control block holds no schedule of this version (kind {kind}).")


def _like(default: Any, x: float) -> float:
    return int(x) if isinstance(default, int) and x.is_integer() else x


_exported(globals())
