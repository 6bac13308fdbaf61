"""The schedules that are one formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import ClassVar, Final

from ...errors import PullbackError
from .schedule import Rows, Schedule, between, check_numbers, half_cosine, in_settings, is_count, is_list, line, whole_power

MILESTONES: Final = 6  # the most milestones of MultiStep that its set holds itself
MANY_STEPS: Final = 13  # the kind of a MultiStep with more milestones


@dataclass(frozen=True)
class Constant(Schedule):
    """The rate is base * factor in the first `steps` steps, and base from then on (torch's ConstantLR)."""

    steps: int = 5
    factor: float = 1 / 3
    kind: ClassVar[int] = 12

    def rate(self, t: int) -> float:
        return self.base * self.factor if t < self.steps else self.base


@dataclass(frozen=True)
class Step(Schedule):
    """The rate is base * factor^floor(t / every)."""

    every: int
    factor: float = 0.1
    kind: ClassVar[int] = 1

    def rate(self, t: int) -> float:
        return self.base * whole_power(self.factor, t // self.every)


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
        return self.base * whole_power(self.factor, t)


@dataclass(frozen=True)
class Cosine(Schedule):
    """The rate falls from base to `end` along half a cosine, in `steps` steps (Loshchilov & Hutter 2017, without restarts).

    It stays at `end`, while that of torch's CosineAnnealingLR, which is the same before, rises again.
    """

    steps: int
    end: float = 0.0
    kind: ClassVar[int] = 3
    falls: ClassVar[bool] = True

    def rate(self, t: int) -> float:
        return half_cosine(self.base, self.end, min(t / self.steps, 1.0))


@dataclass(frozen=True)
class Linear(Schedule):
    """The rate changes linearly from base * start to base * end, in `steps` steps, as torch's LinearLR does."""

    steps: int
    start: float = 1.0
    end: float = 0.0
    kind: ClassVar[int] = 4

    def rate(self, t: int) -> float:
        return self.base * line(self.start, self.end, min(t / self.steps, 1.0))


@dataclass(frozen=True)
class Polynomial(Schedule):
    """The rate is end + (base - end) * (1 - t / steps)^power, and stays at `end` after `steps` steps."""

    steps: int
    end: float = 0.0
    power: float = 1.0
    kind: ClassVar[int] = 5

    def rate(self, t: int) -> float:
        return between(self.base, self.end, (1 - min(t / self.steps, 1.0)) ** self.power)


@dataclass(frozen=True)
class WarmupCosine(Schedule):
    """The rate changes linearly from `start` to base in `warmup` steps, then along half a cosine to `end` at step `steps`."""

    steps: int
    end: float = 0.0
    warmup: int = 0
    start: float = 0.0
    kind: ClassVar[int] = 6
    falls: ClassVar[bool] = True
    counts: ClassVar[tuple[str, ...]] = ("steps", "warmup")

    def _check_range(self) -> None:
        super()._check_range()
        if not 0 <= self.warmup <= self.steps:
            raise PullbackError(
                f"WarmupCosine: warmup={self.warmup} and steps={self.steps}; the warmup is a part of the steps, from 0 to "
                f"{self.steps}."
            )

    def rate(self, t: int) -> float:
        if t < self.warmup:
            return line(self.start, self.base, t / self.warmup)
        left = self.steps - self.warmup
        return half_cosine(self.base, self.end, min((t - self.warmup) / left, 1.0) if left > 0 else 1.0)


@dataclass(frozen=True)
class MultiStep(Schedule):
    """The rate is multiplied by `factor` at each of the milestones, which are numbers of steps (torch's MultiStepLR)."""

    milestones: Sequence[int]
    factor: float = 0.1
    kind: ClassVar[int] = 7

    def __post_init__(self) -> None:
        given = self.milestones
        if not is_list(given, is_count):
            raise PullbackError(f"MultiStep: milestones={given!r}; give a list of numbers of steps of 1 or more.")
        object.__setattr__(self, "milestones", tuple(sorted([int(x) for x in given])))
        check_numbers(self, ("base", "factor"))

    def arguments(self) -> tuple[float, ...]:
        return (float(self.factor), *[float(x) for x in self.milestones], *[0.0] * (MILESTONES - len(self.milestones)))

    def settings(self, rows: Rows) -> list[float]:
        if len(self.milestones) <= MILESTONES:
            return super().settings(rows)
        row = rows.put_numbers([float(x) for x in self.milestones])
        return in_settings(MANY_STEPS, self.base, (row, len(self.milestones), self.factor))

    @classmethod
    def of(cls, base: float, arguments: Sequence[float], rows: Rows) -> Schedule:
        return cls(base, tuple([int(x) for x in arguments[1 : 1 + MILESTONES] if x > 0]), float(arguments[0]))

    @classmethod
    def of_many(cls, base: float, arguments: Sequence[float], rows: Rows) -> Schedule:
        """Like `of`, for more milestones than a set holds itself."""
        return cls(base, tuple([int(x) for x in rows.numbers(*arguments[:2])]), float(arguments[2]))

    def rate(self, t: int) -> float:
        return self.base * whole_power(self.factor, sum([milestone <= t for milestone in self.milestones]))


@dataclass(frozen=True)
class OneCycle(Schedule):
    """The rate rises from base / div_factor to base, and falls to base / div_factor / final_div_factor at step `steps` - 1
    (Smith & Topin 2018; torch's OneCycleLR). `warmup` is the share of the steps in which it rises.

    anneal_strategy: "cos" for halves of a cosine, or "linear".
    three_phase: the rate falls to base / div_factor in as many steps as it has risen, and in the rest of the steps to its end.
    """

    steps: int
    warmup: float = 0.3
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    anneal_strategy: str = "cos"
    three_phase: bool = False
    kind: ClassVar[int] = 8

    def __post_init__(self) -> None:
        if self.anneal_strategy not in ("cos", "linear") or self.three_phase.__class__ is not bool:
            raise PullbackError(
                f"OneCycle: anneal_strategy={self.anneal_strategy!r} and three_phase={self.three_phase!r}; the first must be "
                f'"cos" or "linear", the second True or False.'
            )
        check_numbers(self, ("base", "steps", "warmup", "div_factor", "final_div_factor"))
        most = 0.5 if self.three_phase else 1
        if not 0 <= self.warmup <= most:
            raise PullbackError(
                f"OneCycle: warmup={self.warmup}; it is a share from 0 to {most} of the steps, and no number of steps."
            )
        if self.div_factor <= 0 or self.final_div_factor <= 0:
            raise PullbackError(
                f"OneCycle: div_factor={self.div_factor} and final_div_factor={self.final_div_factor}; both must be positive."
            )

    def arguments(self) -> tuple[float, ...]:
        linear = self.anneal_strategy == "linear"
        return (*[float(x) for x in astuple(self)[1:5]], float(linear), float(self.three_phase))

    @classmethod
    def of(cls, base: float, arguments: Sequence[float], rows: Rows) -> Schedule:
        _, steps, warmup, div_factor, final_div_factor = astuple(super().of(base, arguments[:4], rows))[:5]
        strategy = "linear" if arguments[4] else "cos"
        return cls(base, steps, warmup, div_factor, final_div_factor, strategy, bool(arguments[5]))

    def rate(self, t: int) -> float:
        first, top, last = self.base / self.div_factor, self.warmup * self.steps - 1, self.steps - 1
        middle = 2 * top if self.three_phase else top
        if t <= top:
            way = first, self.base, t / top if top > 0 else 1.0
        elif t <= middle:
            way = self.base, first, (t - top) / (middle - top)
        else:
            start = first if self.three_phase else self.base
            way = start, first / self.final_div_factor, (t - middle) / (last - middle) if t < last else 1.0
        return (line if self.anneal_strategy == "linear" else half_cosine)(*way)


@dataclass(frozen=True)
class CosineRestarts(Schedule):
    """The rate falls from base to `end` along half a cosine in `steps` steps, and starts again; each fall is `growth` times as
    long as the one before (SGDR, Loshchilov & Hutter 2017; torch's CosineAnnealingWarmRestarts).
    """

    steps: int
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
        return half_cosine(self.base, self.end, t / length)


@dataclass(frozen=True)
class Cyclic(Schedule):
    """The rate rises linearly from base to `high` in `up` steps, and falls back in `down` steps, again and again (Smith 2017;
    torch's CyclicLR). The amplitude, high - base, is multiplied by `factor` after each cycle and by `decay` after each step:
    factor=0.5 is the mode "triangular2", and decay=gamma is "exp_range".
    """

    high: float = 0.1
    up: int = 2000
    down: int = 2000
    factor: float = 1.0
    decay: float = 1.0
    kind: ClassVar[int] = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.up <= 0 or self.down <= 0:
            raise PullbackError(f"Cyclic: up={self.up} and down={self.down}; both must be positive numbers of steps.")

    def rate(self, t: int) -> float:
        cycle, rest = divmod(t, self.up + self.down)
        scale = rest / self.up if rest < self.up else (self.up + self.down - rest) / self.down
        height = (self.high - self.base) * scale
        return self.base + height * whole_power(self.factor, cycle) * whole_power(self.decay, t)


@dataclass(frozen=True)
class WarmupStableDecay(Schedule):
    """The rate changes linearly from `start` to base in `warmup` steps, stays, and goes to `end` in the last `decay` of `steps`
    steps (Hu et al. 2024, MiniCPM). After a share x of these it is end + (base - end) * (1 - x^power): linear, or 1 - sqrt with
    power=0.5.
    """

    steps: int
    warmup: int = 0
    decay: int = 0
    end: float = 0.0
    start: float = 0.0
    power: float = 1.0
    kind: ClassVar[int] = 11
    falls: ClassVar[bool] = True
    counts: ClassVar[tuple[str, ...]] = ("steps", "warmup", "decay")

    def _check_range(self) -> None:
        super()._check_range()
        if min(self.warmup, self.decay) < 0 or self.warmup + self.decay > self.steps:
            raise PullbackError(
                f"WarmupStableDecay: warmup={self.warmup}, decay={self.decay} and steps={self.steps}; both are parts of the steps, "
                f"which do not overlap."
            )

    def rate(self, t: int) -> float:
        if t < self.warmup:
            return line(self.start, self.base, t / self.warmup)
        if t < self.steps - self.decay:
            return self.base
        part = min((t - (self.steps - self.decay)) / self.decay, 1.0) if self.decay > 0 else 1.0
        return between(self.base, self.end, 1 - part**self.power)
