"""Steps of least squares on the host: the minimum of a linear model of the residuals within a trust region and within bounds.

The trust region is |D p| <= radius, where D scales the unknowns. Sources: Moré, "The Levenberg-Marquardt algorithm: implementation
and theory" (1978), for the equation of the damping; the model is factorised by QR, and its triangle by singular values, so that
each damping costs a product. Elements that a step would take over a bound stay on it, and the others are solved for again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from ..launch import door

Array = np.ndarray[Any, Any]

LARGE: Final = 300  # unknowns from which on the damping is found with Cholesky factors of JᵀJ instead of singular values
CLOSE: Final = 0.1  # how closely a step reaches the radius, as a share of it


class TrialStep(NamedTuple):
    """A step.

    Attributes:
        dx: the change of x.
        size: |D dx|.
        predicted: the decrease of the cost by the linear model.
        damping: the damping that made the step reach the radius; 0 for a full step.
    """

    dx: Array
    size: float
    predicted: float
    damping: float


def counted(name: str, run: Callable[[], Any], fmas: int, special_ops: int = 0, dtype: str = "float64") -> Any:
    """Runs work in NumPy as a launch of the phase "solver", with these operations as its cost."""
    before = door.enter(door.SOLVER)
    try:
        return door.run_counted(name, run, lambda _: {"fmas": fmas, "special_ops": special_ops, "dtype": dtype})
    finally:
        door.enter(before)


class Model:
    """The linear model r + J dx of the residuals, as a triangular system: |r + J dx|² is |q + R dx|² and a constant."""

    def __init__(self, j: Array, r: Array) -> None:
        m, n = j.shape
        if m > n:
            fmas = m * (n + 1) ** 2 - (n + 1) ** 3 // 3
            whole = counted("solver_qr", lambda: np.linalg.qr(np.column_stack([j, r]), mode="r"), fmas, n)
            self.r, self.q = whole[:n, :n], whole[:n, n]
        else:
            self.r, self.q = j, r

    def step(self, x: Array, low: Array, high: Array, held: Array, scale: Array, radius: float) -> TrialStep:
        """Returns the step of least model cost within the radius and the bounds. held: the elements that stay where they are."""
        dx, damping = np.zeros_like(x), 0.0
        free = ~held
        room = radius
        while free.any():
            p, damping = self._free_step(dx, free, scale, room)
            trial = x[free] + p
            below, above = trial < low[free], trial > high[free]
            if not (below | above).any():
                dx[free] = p
                break
            places = np.flatnonzero(free)
            dx[places[below]] = low[places[below]] - x[places[below]]
            dx[places[above]] = high[places[above]] - x[places[above]]
            free[places[below | above]] = False
            used = np.linalg.norm((scale * dx)[~free])
            room = max(np.sqrt(max(radius * radius - used * used, 0.0)), CLOSE * radius)
        moved = self.r @ dx
        predicted = -float(moved @ self.q + 0.5 * (moved @ moved))
        return TrialStep(dx, float(np.linalg.norm(scale * dx)), predicted, damping)

    def _free_step(self, dx: Array, free: Array, scale: Array, radius: float) -> tuple[Array, float]:
        """Returns the step of the free elements, given the others, and its damping."""
        own = self.r if free.all() else self.r[:, free]
        target = self.q if free.all() else self.q + self.r[:, ~free] @ dx[~free]
        solver = _singular(own / scale[free], target) if own.shape[1] <= LARGE else _Normal(own / scale[free], target)
        p, damping = within(solver, radius)
        return p / scale[free], damping


# ---- systems (A + damping I) p = -b


class _Spectral:
    """min |a p + q|² + damping |p|² by the singular values of a."""

    def __init__(self, u: Array, s: Array, v: Array, q: Array, shape: tuple[int, int]) -> None:
        self._s, self._v = s, v
        self._uq = u.T @ q
        self.gradient = float(np.linalg.norm(s * self._uq))
        cut = np.finfo(np.float64).eps * max(shape) * (s[0] if s.size else 0.0)
        self.regular = bool(s.size == shape[1] and s[-1] > cut)

    def solve(self, damping: float) -> tuple[Array, float]:
        """Returns p and the derivative of |p| by the damping."""
        s2 = self._s * self._s + damping
        with np.errstate(all="ignore"):
            c = np.where(s2 > 0, -self._s * self._uq / s2, 0.0)
            size = np.linalg.norm(c)
            slope = -float(np.sum(c * c / s2)) / size if size else 0.0
        return self._v.T @ c, slope


def _singular(a: Array, q: Array) -> _Spectral:
    m, n = a.shape
    k = min(m, n)
    u, s, v = counted("solver_svd", lambda: np.linalg.svd(a, full_matrices=False), 2 * m * n * k + 11 * k**3, k)
    return _Spectral(u, s, v, q, a.shape)


class _Normal:
    """The same by Cholesky factors of aᵀa + damping I."""

    def __init__(self, a: Array, q: Array) -> None:
        m, n = a.shape
        self._a = counted("solver_gram", lambda: a.T @ a, m * n * (n + 1) // 2)
        self._b = a.T @ q
        self.gradient = float(np.linalg.norm(self._b))
        self.regular = True
        self._floor = np.finfo(np.float64).eps * float(np.trace(self._a))

    def solve(self, damping: float) -> tuple[Array, float]:
        n = len(self._b)
        eye = np.eye(n) * max(damping, self._floor)
        rhs = np.empty((n, 1))
        rhs[:, 0] = -self._b
        p = counted("solver_cholesky", lambda: np.linalg.solve(self._a + eye, rhs), n**3 // 3, n)[:, 0]
        w = np.linalg.solve(self._a + eye, p)
        size = np.linalg.norm(p)
        return p, -float(p @ w) / size if size else 0.0


def within(solver: Any, radius: float) -> tuple[Array, float]:
    """Returns the solution of least size within the radius, and its damping, by Newton's method on 1 / |p| - 1 / radius."""
    p, slope = solver.solve(0.0)
    size = float(np.linalg.norm(p))
    if np.isfinite(size) and size <= (1 + CLOSE) * radius:
        return p, 0.0
    upper = solver.gradient / radius
    lower = (size - radius) / -slope if solver.regular and np.isfinite(size) and slope < 0 else 0.0
    damping = max(lower, 1e-3 * upper)
    for _ in range(30):
        p, slope = solver.solve(damping)
        size = float(np.linalg.norm(p))
        if abs(size - radius) <= CLOSE * radius or slope == 0:
            break
        lower, upper = (max(lower, damping), upper) if size > radius else (lower, min(upper, damping))
        damping -= (size - radius) / slope * (size / radius)
        if not lower < damping < upper:
            damping = max(np.sqrt(lower * upper), 1e-3 * upper)
    return p, damping
