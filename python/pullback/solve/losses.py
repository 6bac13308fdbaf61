"""Robust losses of least squares: functions rho of a squared residual that grow more slowly than the square.

The cost of residuals r is 1/2 sum(C² rho((r / C)²)), where C is `f_scale`. The functions and their names are those of SciPy's
`least_squares`. The scaling of residuals and Jacobian follows Triggs et al., "Bundle adjustment: a modern synthesis" (2000).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from ..interop.wrong_calls import one_of
from .arguments import positive

NAMES: Final = ("linear", "soft_l1", "huber", "cauchy", "arctan")
FLOOR: Final = 0.1  # the least curvature of a residual where rho is concave, as a share of its weight rho'


def _linear(xp: Any, z: Any) -> tuple[Any, Any, Any]:
    return z, xp.ones_like(z), xp.zeros_like(z)


def _soft_l1(xp: Any, z: Any) -> tuple[Any, Any, Any]:
    root = xp.sqrt(1 + z)
    return 2 * z / (root + 1), 1 / root, -0.5 / ((1 + z) * root)  # 2 (root - 1) would cancel for a small z


def _huber(xp: Any, z: Any) -> tuple[Any, Any, Any]:
    inside = z <= 1
    root = xp.sqrt(xp.where(inside, xp.ones_like(z), z))
    return xp.where(inside, z, 2 * root - 1), 1 / root, xp.where(inside, xp.zeros_like(z), -0.5 / (root * root * root))


def _cauchy(xp: Any, z: Any) -> tuple[Any, Any, Any]:
    slope = 1 / (1 + z)
    return xp.log1p(z), slope, -slope * slope


def _arctan(xp: Any, z: Any) -> tuple[Any, Any, Any]:
    slope = 1 / (1 + z * z)
    return xp.atan(z), slope, -2 * z * slope * slope


_RULES: Final = dict(zip(NAMES, (_linear, _soft_l1, _huber, _cauchy, _arctan)))


class Scaled(NamedTuple):
    """The cost of residuals, and what a Gauss-Newton step needs.

    Attributes:
        rho: C² rho of each residual; the cost is half their sum.
        weighted: rho' times the residual. The gradient of the cost is Jᵀ times it.
        rows: the factor of each row of the Jacobian.
        residuals: the residuals that belong to the scaled Jacobian.
    """

    rho: Any
    weighted: Any
    rows: Any
    residuals: Any


class Loss:
    """A robust loss: one of NAMES, with the size of a residual (`scale`) at which it departs from the square."""

    def __init__(self, owner: str, name: Any, scale: Any) -> None:
        one_of(owner, "loss", name, NAMES)
        self.scale = positive(owner, "f_scale", scale, ": the size from which on a residual is an outlier")
        self.linear = name == "linear"
        self._rule: Callable[..., tuple[Any, Any, Any]] = _RULES[name]

    def values(self, xp: Any, r: Any) -> Any:
        """Returns C² rho((r / C)²) of each residual. xp: the namespace of the residuals, NumPy or pullback's ops."""
        if self.linear:
            return r * r
        c = self.scale
        return self._rule(xp, (r / c) * (r / c))[0] * (c * c)

    def cost(self, r: Any) -> float:
        """Returns the cost of NumPy residuals, infinite if one of them is not finite."""
        with np.errstate(all="ignore"):
            found = 0.5 * float(np.sum(self.values(np, r)))
        return found if np.isfinite(r).all() and math.isfinite(found) else math.inf

    def scaled(self, xp: Any, r: Any) -> Scaled:
        """Returns what a step needs. Where rho is so concave that the curvature is nearly negative, a share of rho' takes its
        place: with all of it, the model is an upper bound of the cost."""
        if self.linear:
            return Scaled(r * r, r, None, r)
        c = self.scale
        z = (r / c) * (r / c)
        rho, slope, bend = self._rule(xp, z)
        curvature = slope + 2 * bend * z
        rows = xp.sqrt(xp.where(curvature > FLOOR * slope, curvature, FLOOR * slope))
        weighted = slope * r
        return Scaled(rho * (c * c), weighted, rows, weighted / rows)
