"""Which elements of a minimum are on their bounds, and whether a point is a minimum, judged by the Hessian there."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from .implicit import FAILED

Array = np.ndarray[Any, Any]

FAR: Final = 1e-3  # a derivative has about as many digits as the point, so that one with fewer than three is told


class Point(NamedTuple):
    """The end of a minimisation, on the host. unsolved: why it has not converged, or ""."""

    x: Array
    gradient: Array
    low: Any
    high: Any
    gtol: float
    unsolved: str

    def judge(self, hessian: Array) -> tuple[Array, str]:
        """Returns the elements that may move, as booleans, and why the point is no minimum ("" if it is one)."""
        free = self.free(hessian)
        return free, FAILED + self.unsolved if self.unsolved else self._distance(hessian, free)

    def free(self, hessian: Array) -> Array:
        """Returns False for the elements that are on a bound, or so near to it that their step crosses it.

        An element on a bound from which the gradient leads back, by more than gtol, is free. The step of an element is that of
        Newton's method for it alone, the gradient over the curvature. This is the rule of Bertsekas (Projected Newton methods,
        1982) with the inverse diagonal of the Hessian as its matrix M, so that the units of x and of f do not matter. Methods of
        SciPy end at a distance from a bound, by rounding or because they work inside of it.
        """
        x, g, step = self.x, self.gradient, self._steps(hessian)
        crosses = (x - step <= self.low) & (g > 0) | (x - step >= self.high) & (g < 0)
        on = (x <= self.low) & (g >= -self.gtol) | (x >= self.high) & (g <= self.gtol)
        return ~(crosses | on)

    def _steps(self, hessian: Array) -> Array:
        """Returns what each element loses in a step of Newton's method for it alone. It has no end where f is not convex."""
        curvature = np.diagonal(hessian)
        endless = np.where(np.abs(self.gradient) > self.gtol, np.copysign(np.inf, self.gradient), 0.0)
        return np.where(curvature > 0, self.gradient / np.where(curvature > 0, curvature, 1.0), endless)

    def _distance(self, hessian: Array, free: Array) -> str:
        """Returns why the point is no minimum, though the method converged by a condition of its own."""
        norm = float(np.max(np.abs(self.x - np.clip(self.x - self.gradient, self.low, self.high))))
        if norm <= self.gtol or not np.isfinite(hessian).all():
            return ""
        moves = self.x - np.clip(self.x - self._steps(hessian), self.low, self.high)
        moves[free] = np.linalg.lstsq(hessian[np.ix_(free, free)], self.gradient[free], rcond=None)[0]
        far = float(np.max(np.abs(moves)))
        if far <= FAR * max(1.0, float(np.max(np.abs(self.x)))):
            return ""
        return (
            f", though the method has converged by its own conditions (success is True): grad_norm is {norm:.2g}, and a step of "
            f"Newton's method would change x by {far:.2g}"
        )
