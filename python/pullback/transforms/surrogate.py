"""The slopes of a function that is known only by the inputs and outputs that pass by."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..autodiff.site import warn
from ..errors import ZeroGradientWarning

RIDGE = 1e-6  # of the mean variance of the inputs: directions in which they vary less than a thousandth tell nothing
MEMORY = 8  # pairs that are remembered, per unknown slope of one output


class Surrogate:
    """An affine function, fitted to pairs of input and output by recursive least squares with exponential forgetting.

    Older pairs count less, so that the slopes follow a curved function to where its inputs are now. Directions in which the
    inputs did not vary have slope 0: nothing is known of them.

    Source: Ljung & Söderström 1983, "Theory and Practice of Recursive Identification"; the moments are merged as in Chan,
    Golub & LeVeque 1983.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets all pairs."""
        self._weight = 0.0
        self._mean_x: Any = 0.0
        self._mean_y: Any = 0.0
        self._xx: Any = 0.0  # sums of products about the means
        self._xy: Any = 0.0

    def see(self, x: Any, y: Any) -> None:
        """Takes pairs: x of shape (pairs, n), y of shape (pairs, m). Other n or m than before start anew."""
        if self._weight and (self._mean_x.shape, self._mean_y.shape) != (x.shape[1:], y.shape[1:]):
            self.reset()
        count, keep = len(x), math.exp(-len(x) / (MEMORY * (x.shape[1] + 1)))
        mean_x, mean_y = x.mean(axis=0), y.mean(axis=0)
        old = keep * self._weight
        self._weight = old + count
        dx, dy = mean_x - self._mean_x, mean_y - self._mean_y
        share = old * count / self._weight
        centred = x - mean_x
        self._xx = keep * self._xx + centred.T @ centred + share * np.outer(dx, dx)
        self._xy = keep * self._xy + centred.T @ (y - mean_y) + share * np.outer(dx, dy)
        self._mean_x = self._mean_x + dx * (count / self._weight)
        self._mean_y = self._mean_y + dy * (count / self._weight)

    def slopes(self) -> Any:
        """(n, m): how much each output grows with each input. Zeros, with a ZeroGradientWarning, before the inputs varied."""
        size = float(np.trace(self._xx)) / len(self._xx)
        if not size > 0:
            warn(
                "black_box: the surrogate has seen no two inputs that differ, so its gradient is zero. Call it with other "
                "inputs first.",
                ZeroGradientWarning,
            )
            return np.zeros_like(self._xy)
        return np.linalg.solve(self._xx + RIDGE * size * np.eye(len(self._xx)), self._xy)
