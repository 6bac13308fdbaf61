"""Compares the pullbacks of one recorded op with finite differences, and says where they differ most."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from .differences import ELEMENTWISE_UP_TO, Slope, derivative, directions, unit
from .points import Function

RTOL: Final = 1e-6  # the allowed relative difference, besides the error of the finite differences
DIRECTIONS: Final = 3  # random directions for an argument of many elements
STEP, FACTOR, LEVELS, ENOUGH = 0.1, 10.0, 14, 1e-7  # of `derivative`: the steps are 0.1 max(1, |x|) to 1e-14 max(1, |x|)
COARSE: Final = 1e-2  # finite differences with a larger relative error decide nothing
TINY: Final = 1e-9  # times the function's values: an error that is small even if all derivatives are 0
AWAY: Final = (1e-3, 1e-2)  # how far an argument at a kink is moved, relative to max(1, |x|)

Array = np.ndarray[Any, Any]
Trial = tuple[str, Array]  # a description and a direction


class Measured(NamedTuple):
    """A derivative by a pullback and by finite differences.

    Attributes:
        pullback: which of the op's pullbacks this is.
        argument: the name of the argument.
        where: the element of the argument, or the direction.
        ours, theirs: the derivative by the pullback and by finite differences.
        error: the estimated error of the finite differences.
    """

    pullback: str
    argument: str
    where: str
    ours: float
    theirs: float
    error: float

    @property
    def difference(self) -> float:
        return abs(self.ours - self.theirs)

    @property
    def allowed(self) -> float:
        """How far the two may be apart: the relative tolerance, and the error of the finite differences."""
        return RTOL * max(abs(self.ours), abs(self.theirs)) + self.error

    @property
    def excess(self) -> float:
        """The difference in units of the allowed one; more than 1 is wrong."""
        ratio = self.difference / self.allowed if self.allowed else math.inf if self.difference else 0.0
        return ratio if ratio == ratio else math.inf


@dataclass
class Comparison:
    """The result of `compare`.

    Attributes:
        measured: for each pullback and argument, the derivative that is worst off.
        malformed: for each gradient that cannot be compared, what is wrong with it.
        kinks: the elements (or directions) at a kink or a jump. They were compared a little away from it.
    """

    measured: list[Measured] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)
    kinks: int = 0

    @property
    def worst(self) -> Measured | None:
        return max(self.measured, key=lambda m: m.excess, default=None)


def compare(function: Function, rng: np.random.Generator) -> Comparison:
    """Compares every pullback of the function with finite differences, by each of its checked arguments."""
    comparison = Comparison()
    cotangents = [rng.uniform(0.5, 1.5, y.shape) * rng.choice([-1.0, 1.0], y.shape) for y in function.run(function.point)]
    by = _by_element if function.elementwise else _by_direction
    for i in function.checked:
        for step in (STEP, STEP / 3):  # With an unlucky step, finite differences can be wrong: then the other one decides.
            part = Comparison()
            by(_Differences(function, i, cotangents, step, rng), part)
            if all([m.excess <= 1 for m in part.measured]):
                break
        comparison.measured += part.measured
        comparison.malformed += part.malformed
        comparison.kinks += part.kinks
    return comparison


@dataclass(frozen=True)
class _Differences:
    """What is compared at one time: the gradient of one argument of the function, for these cotangents of its results."""

    function: Function
    i: int
    cotangents: Sequence[Array]
    step: float
    rng: np.random.Generator

    @property
    def name(self) -> str:
        return self.function.names[self.i]

    @property
    def x(self) -> Array:
        return self.function.point[self.i]

    def run(self, x: Array) -> list[Array]:
        """Returns the function's results for another value of the argument."""
        return self.function.run(self.at(x))

    def at(self, x: Array) -> list[Any]:
        point = self.function.point
        return [*point[: self.i], x, *point[self.i + 1 :]]

    def derivative(self, f: Callable[[float], Any], argument: Any, rounding: float = 0.0) -> Slope:
        return derivative(f, self.step, factor=FACTOR, levels=LEVELS, enough=ENOUGH, rounding=rounding, argument=argument)

    def gradients(self, x: Array, cotangents: Sequence[Array], comparison: Comparison) -> Iterator[tuple[str, Array]]:
        """Yields (name of the pullback, gradient) at x, for each pullback that returns one of the right shape."""
        for name, pull in self.function.pulls.items():
            try:
                gx = pull(self.at(x), cotangents)[self.i]
            except Exception as error:  # any error of a user's pullback
                comparison.malformed.append(f"{name} raised {type(error).__name__}: {error}")
                continue
            gx = np.zeros(x.shape) if gx is None else gx
            if gx.shape == x.shape:
                yield name, gx
            else:
                words = f"{name} returned a gradient of shape {gx.shape} for {self.name}, which has the shape {x.shape}"
                comparison.malformed.append(words)


def _undecided(slope: Slope, size: Any) -> Array:
    """True at kinks, and where the finite differences do not settle. size: the magnitude of the function's values."""
    fine = slope.error <= COARSE * np.abs(slope.value)
    largest = np.abs(slope.value[fine]).max(initial=0.0)
    settled = fine | (slope.error <= COARSE * largest) | (slope.error <= TINY * (1 + np.abs(size)))
    return slope.kink | ~settled | ~np.isfinite(slope.error)


def _size(x: Array) -> Array:
    """Returns max(1, |x|), the unit in which steps are measured."""
    return np.maximum(1.0, np.where(np.isfinite(x), np.abs(x), 1.0))


def _away(x: Array, where: Any, rng: np.random.Generator) -> Array:
    return np.where(where, x + _size(x) * rng.uniform(*AWAY, x.shape), x)


# ---- elementwise ops: all elements at once


def _by_element(differences: _Differences, comparison: Comparison) -> None:
    x, (g,) = differences.x, differences.cotangents
    unit_of_x = np.broadcast_to(_size(x), g.shape)

    def slope_at(x: Array) -> Slope:
        slope = differences.derivative(lambda t: differences.run(x + t * _size(differences.x))[0], np.abs(x) / unit_of_x)
        return Slope(slope.value / unit_of_x, slope.error / unit_of_x, slope.kink)

    slope = slope_at(x)
    undecided = _undecided(slope, differences.run(x)[0])
    if undecided.any():
        at_kink = _summed(undecided, x.shape) > 0
        comparison.kinks += int(at_kink.sum())
        x = _away(x, at_kink, differences.rng)
        slope = slope_at(x)
        undecided = _undecided(slope, differences.run(x)[0])
    if undecided.all() and undecided.size:
        return
    g = np.where(undecided, 0.0, g)
    theirs = _summed(np.where(undecided, 0.0, slope.value) * g, x.shape)
    errors = _summed(np.where(undecided, 0.0, slope.error) * np.abs(g), x.shape)
    left_out = undecided if undecided.shape == x.shape else np.zeros(x.shape, bool)
    for name, gx in differences.gradients(x, [g], comparison):
        if x.size:
            allowed = RTOL * np.maximum(np.abs(gx), np.abs(theirs)) + errors
            excess = np.where(left_out, -1.0, np.nan_to_num(np.abs(gx - theirs) - allowed, nan=np.inf))
            at = np.unravel_index(int(np.argmax(excess)), x.shape)
            where = f"element {tuple(map(int, at))}"
            comparison.measured.append(Measured(name, differences.name, where, float(gx[at]), float(theirs[at]), float(errors[at])))


def _summed(values: Array, shape: tuple[int, ...]) -> Array:
    """Returns the sum of the values over the axes along which an argument of this shape was broadcast."""
    values = values.sum(axis=tuple(range(values.ndim - len(shape))), dtype=np.float64)
    return values.sum(axis=tuple([axis for axis, n in enumerate(shape) if n == 1]), keepdims=True).reshape(shape)


# ---- all other ops: along directions


def _by_direction(differences: _Differences, comparison: Comparison) -> None:
    trials = list(directions(differences.x, differences.rng, DIRECTIONS))
    undecided = _along(differences, differences.x, trials, comparison)
    if undecided:
        comparison.kinks += len(undecided)
        _along(differences, _away(differences.x, True, differences.rng), undecided, comparison)


def _along(differences: _Differences, x: Array, trials: Sequence[Trial], comparison: Comparison) -> Sequence[Trial]:
    """Compares at x, along each direction. Returns the directions in which the finite differences decide nothing."""
    if not trials:
        return []
    size = math.hypot(*[float(np.linalg.norm((g * y)[np.isfinite(y)])) for g, y in zip(differences.cotangents, differences.run(x))])

    def slope_along(direction: Array) -> Slope:
        longest = float(_size(x)[direction != 0].max(initial=1.0))

        def value(t: float) -> float:
            ys = differences.run(x + (t * longest) * direction)
            return math.fsum([float((g * y).sum()) for g, y in zip(differences.cotangents, ys)])

        argument = float(np.abs(x)[direction != 0].max(initial=0.0, where=np.isfinite(x)[direction != 0])) / longest
        slope = differences.derivative(value, argument, differences.function.rounding * size)
        return Slope(slope.value / longest, slope.error / longest, slope.kink)

    slopes = [slope_along(direction) for _, direction in trials]
    undecided = _undecided(Slope(*[np.array(column) for column in zip(*slopes)]), size)
    for name, gx in differences.gradients(x, differences.cotangents, comparison):
        measured = [
            Measured(name, differences.name, where, float((gx * direction).sum()), float(slope.value), float(slope.error))
            for (where, direction), slope, skip in zip(trials, slopes, undecided)
            if not skip
        ]
        worst = max(measured, key=lambda m: m.excess, default=None)
        if worst is not None and worst.excess > 1 and x.size > ELEMENTWISE_UP_TO:
            worst = _located(worst, gx, dict(trials)[worst.where], slope_along)
        comparison.measured += [] if worst is None else [worst]
    return [trial for trial, skip in zip(trials, undecided) if skip]


def _located(worst: Measured, gx: Array, direction: Array, slope_along: Callable[[Array], Slope]) -> Measured:
    """Returns the derivative by an element that is wrong, found by halving the direction in which the gradient is wrong."""

    def off(places: Array) -> float:
        part = np.zeros(direction.size)
        part[places] = direction.ravel()[places]
        return abs(float((gx.ravel() * part).sum()) - float(slope_along(part.reshape(direction.shape)).value))

    places = np.arange(direction.size)
    while len(places) > 1:
        places = max(np.array_split(places, 2), key=off)
    index = tuple(map(int, np.unravel_index(int(places[0]), direction.shape)))
    slope = slope_along(unit(direction.shape, index))
    found = worst._replace(where=f"element {index}", ours=float(gx[index]), theirs=float(slope.value), error=float(slope.error))
    return found if found.excess > 1 else worst
