"""The line search of Moré and Thuente (1994), which finds a step that meets the strong Wolfe conditions."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import NamedTuple


class LinePoint(NamedTuple):
    """A step, and the value and slope of the function there."""

    step: float
    value: float
    slope: float

    def lowered(self, gradient: float) -> LinePoint:
        """Returns this point of the function minus the line of this gradient."""
        return LinePoint(self.step, self.value - self.step * gradient, self.slope - gradient)


class Wolfe(NamedTuple):
    """The tolerances of a line search: of the decrease, of the slope, and of the relative width of the bracket."""

    decrease: float = 1e-3
    slope: float = 0.9
    width: float = 0.1
    evaluations: int = 20


Search = Generator[float, tuple[float, float], str]


def more_thuente(value: float, slope: float, first: float, largest: float, wolfe: Wolfe, noise: float = 0.0) -> Search:
    """Yields steps and receives the (value, slope) there. Returns "found", or "stalled" if no step can be told from the best one.

    Args:
        value, slope: of the function at the step 0. The slope is negative.
        first: the first step that is tried.
        largest: the longest step that is allowed.
        noise: the rounding of a value. Where values differ by no more, only the slopes decide (Hager and Zhang 2005).

    A value that is not finite counts as too long a step: the next one is a fifth of it, or lies between the best step and it.
    """
    aim = wolfe.decrease * slope
    best = other = LinePoint(0.0, value, slope)
    bracketed, auxiliary = False, True  # auxiliary: the first stage, which works on the function minus its line of decrease
    low, high, step = 0.0, 5.0 * first, min(first, largest)
    width, width_before = largest, 2.0 * largest
    for _ in range(wolfe.evaluations):
        f, g = yield step
        if not (math.isfinite(f) and math.isfinite(g)):
            largest = high = step
            step = best.step + 0.2 * (step - best.step)
            continue
        now, line = LinePoint(step, f, g), value + step * aim
        auxiliary = auxiliary and not (f <= line and g >= 0.0)
        if f <= line and abs(g) <= -wolfe.slope * slope:
            return "found"
        if abs(f - value) <= noise and wolfe.slope * slope <= g <= (2.0 * wolfe.decrease - 1.0) * slope:
            return "found"
        if step == largest and f <= line and g <= aim:
            return "found"
        lower = aim if auxiliary and f > line and f <= best.value else 0.0
        best, other, step, bracketed = _next(best, other, now, lower, bracketed, (low, high))
        if bracketed:
            if abs(other.step - best.step) >= 0.66 * width_before:
                step = best.step + 0.5 * (other.step - best.step)
            width_before, width = width, abs(other.step - best.step)
            low, high = sorted((best.step, other.step))
        else:
            low, high = step + 1.1 * (step - best.step), step + 4.0 * (step - best.step)
        step = min(step, largest)
        if bracketed and (not low < step < high or high - low <= wolfe.width * high):
            return "stalled"
    return "stalled"


def _next(
    best: LinePoint, other: LinePoint, now: LinePoint, lower: float, bracketed: bool, limits: tuple[float, float]
) -> tuple[LinePoint, LinePoint, float, bool]:
    """Returns the new ends of the interval, the next step, and True if the ends bracket a minimum.

    lower: the gradient of the line that is subtracted from the function while the step is chosen.
    """
    a, b, c = best.lowered(lower), other.lowered(lower), now.lowered(lower)
    opposed = c.slope * math.copysign(1.0, a.slope) < 0.0
    if c.value > a.value:
        step, closed = _shorter(a, c), True
    elif opposed:
        step, closed = _turned(a, c), True
    elif abs(c.slope) < abs(a.slope):
        step, closed = _flatter(a, b, c, bracketed, limits), bracketed
    elif bracketed:
        step, closed = _cubic(c, b), True
    else:
        step, closed = (limits[1] if c.step > a.step else limits[0]), False
    if c.value > a.value:
        other = now
    else:
        best, other = now, best if opposed else other
    return best, other, step, closed


def _shorter(a: LinePoint, c: LinePoint) -> float:
    """Returns the step after a value that is higher: from the cubic, or halfway to the parabola if the cubic is farther."""
    cubic = _cubic(a, c)
    parabola = a.step + a.slope / ((a.value - c.value) / (c.step - a.step) + a.slope) / 2.0 * (c.step - a.step)
    return cubic if abs(cubic - a.step) < abs(parabola - a.step) else cubic + (parabola - cubic) / 2.0


def _turned(a: LinePoint, c: LinePoint) -> float:
    """Returns the step after a lower value where the slope has turned: the cubic's or the secant's, whichever is farther."""
    cubic, secant = _cubic(c, a), c.step + c.slope / (c.slope - a.slope) * (a.step - c.step)
    return cubic if abs(cubic - c.step) > abs(secant - c.step) else secant


def _flatter(a: LinePoint, b: LinePoint, c: LinePoint, bracketed: bool, limits: tuple[float, float]) -> float:
    """Returns the step after a lower value whose slope has the same sign and is smaller."""
    theta = 3.0 * (a.value - c.value) / (c.step - a.step) + a.slope + c.slope
    scale = max(abs(theta), abs(a.slope), abs(c.slope))
    root = scale * math.sqrt(max(0.0, (theta / scale) ** 2 - (a.slope / scale) * (c.slope / scale)))
    root = -root if c.step > a.step else root
    ratio = (root - c.slope + theta) / (root + (a.slope - c.slope) + root) if root + (a.slope - c.slope) + root else 0.0
    away = limits[1] if c.step > a.step else limits[0]
    cubic = c.step + ratio * (a.step - c.step) if ratio < 0.0 and root != 0.0 else away
    secant = c.step + c.slope / (c.slope - a.slope) * (a.step - c.step)
    nearer = abs(cubic - c.step) < abs(secant - c.step)
    if bracketed:
        step, end = cubic if nearer else secant, c.step + 0.66 * (b.step - c.step)
        return min(end, step) if c.step > a.step else max(end, step)
    return min(max(secant if nearer else cubic, limits[0]), limits[1])


def _cubic(a: LinePoint, c: LinePoint) -> float:
    """Returns the minimum of the cubic through two points with their slopes, computed from the first point."""
    theta = 3.0 * (a.value - c.value) / (c.step - a.step) + a.slope + c.slope
    scale = max(abs(theta), abs(a.slope), abs(c.slope))
    root = scale * math.sqrt(max(0.0, (theta / scale) ** 2 - (a.slope / scale) * (c.slope / scale)))
    root = -root if c.step < a.step else root
    below = root - a.slope + root + c.slope
    return a.step + ((root - a.slope + theta) / below if below else 0.5) * (c.step - a.step)
