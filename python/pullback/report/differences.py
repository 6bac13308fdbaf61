"""Derivatives by finite differences in float64, extrapolated to step 0: for `pb.check_gradients` and `tape.check`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

ELEMENTWISE_UP_TO: Final = 64  # An array with more elements is checked along random directions.
LEVELS: Final = 5  # the default number of step sizes: the step, half of it, a quarter …
COLUMNS: Final = 4  # extrapolations of one step size at most
EPSILON: Final = float(np.finfo(np.float64).eps)

Array = np.ndarray[Any, Any]


class Slope(NamedTuple):
    """The derivative at t = 0 of a function of one number t. All fields have the shape of the function's values.

    Attributes:
        value: the derivative; NaN if the function is not defined around 0.
        error: the estimated error of `value`, at least the rounding error; infinite if `value` is NaN.
        kink: True where the difference to the left and the one to the right do not approach each other.
    """

    value: Array
    error: Array
    kink: Array


def derivative(
    f: Callable[[float], Any],
    step: float,
    *,
    factor: float = 2.0,
    levels: int = LEVELS,
    enough: float = 1e-12,
    rounding: float = 0.0,
    argument: Any = 0.0,
) -> Slope:
    """Returns f'(0) by central differences with steps of `step`, step / factor, …, extrapolated to step 0.

    The value is the entry of the extrapolation table with the smallest estimated error relative to its size, separately for each
    element.

    Args:
        f: returns an array (or a number) for each t, always of the same shape.
        levels: the largest number of steps. Each takes two evaluations of f; f(0) takes one.
        enough: no smaller steps are tried once every relative error is at most this.
        rounding: the rounding error of the values of f, if it is more than that of float64.
        argument: the magnitude of the numbers that f adds t to, which makes t inexact; a number, or one for each element.

    Source: Ridders 1982, "Accurate computation of F'(x)".
    """
    base = np.asarray(f(0.0), np.float64)
    small = 1e-6 * (1 + np.abs(base))  # errors of derivatives below it are compared absolutely
    best, least, kink = np.full(base.shape, np.nan), np.full(base.shape, np.inf), np.zeros(base.shape, bool)
    lowest = least
    row: list[Any] = []
    gap: Any = np.zeros(base.shape)
    for level in range(levels):
        h = step / factor**level
        above, below = np.asarray(f(h), np.float64), np.asarray(f(-h), np.float64)
        of_values = np.maximum(rounding, EPSILON * np.maximum(np.abs(above), np.abs(base)))
        noise = (of_values + EPSILON * argument * np.abs(above - below) / h) / h
        wider, gap = gap, np.abs((above - base) / h - (base - below) / h)
        previous, row = row, [(above - below) / (2 * h)]
        for k, coarser in enumerate(previous[:COLUMNS]):
            finer = row[k] + (row[k] - coarser) / (factor ** (2 * (k + 1)) - 1)
            row.append(finer)
            error = np.maximum(np.maximum(np.abs(finer - row[k]), np.abs(finer - coarser)), 2 * noise)
            relative = error / (np.abs(finer) + small)
            better = relative < lowest
            best, least, lowest = [np.where(better, *pair) for pair in ((finer, best), (error, least), (relative, lowest))]
            # Where the function is smooth, the gap shrinks with the step. At a kink it stays, and at a jump it grows.
            apart = (gap > wider / factor**0.5) & (gap > 100 * error)
            kink = np.where(better, apart, kink)
        if level > 1 and np.all(least <= enough * np.abs(best)):
            break
    return Slope(best, least, kink)


def directions(point: Array, rng: np.random.Generator, count: int) -> Iterator[tuple[str, Array]]:
    """Yields (description, direction): one per element of a small array, `count` random directions for a large one.

    The largest component of each direction is 1.
    """
    if point.size <= ELEMENTWISE_UP_TO:
        for index in np.ndindex(point.shape):
            yield f"element {index}", unit(point.shape, index)
    else:
        for k in range(count):
            direction = rng.standard_normal(point.shape)
            yield f"random direction {k}", direction / np.abs(direction).max()


def unit(shape: tuple[int, ...], index: tuple[int, ...]) -> Array:
    """Returns an array of zeros with a 1 at the index."""
    direction = np.zeros(shape)
    direction[index] = 1.0
    return direction
