"""Trust-region Newton-CG, with products of the Hessian or of the Gauss-Newton matrix (Steihaug 1983)."""

from __future__ import annotations

import math
from typing import Any, Final

from ..ops.linalg import vecdot
from ..ops.movement import stack
from ..tensors.creation import zeros
from ..tensors.tensor import Tensor
from .descent import BOTTOMLESS, NOISE, OUT_OF_RANGE, Iterate, Iterates, Stop, Tolerances
from .objective import LossPoint, Objective

ACCEPTED: Final = 1e-4  # the least gain, as a share of the predicted one, with which a step is taken


class TrustRegion:
    """Minimises by steps that minimise a quadratic model within a radius, approximately, by conjugate gradients."""

    def __init__(self, objective: Objective, tolerances: Tolerances) -> None:
        self.objective, self.tolerances = objective, tolerances

    def reached(self, at: LossPoint) -> Stop | None:
        """Returns a Stop if the minimisation ends where it begins."""
        return self.tolerances.reached(None, at)

    def steps(self, at: LossPoint) -> Iterates:
        """Yields one Iterate per accepted step, and receives True if the user has changed arguments since."""
        objective, radius, hidden = self.objective, 1.0, False
        while True:
            found = self._model_step(at, radius)
            if found is None:
                yield self._ended(at, OUT_OF_RANGE)
                return
            d, length, predicted, at_border = found
            new = objective.evaluate(at.x, d, 1.0)
            ratio = self._ratio(at, new, predicted)
            if not ratio >= 0.25:  # also for a NaN
                radius = 0.25 * length
            elif ratio > 0.75 and at_border:
                radius = 2.0 * radius
            if new.loss == -math.inf:
                yield self._ended(at, BOTTOMLESS)
                return
            if not (hidden or ratio > ACCEPTED) and new.slope >= -0.5 * predicted:
                near = not at_border and length <= math.sqrt(objective.epsilon) * objective.length(at.x)
                hidden = near or self._is_hidden(at, new, predicted)
            if ratio > ACCEPTED:
                hidden = False
                before, at = at, new
                if (yield Iterate(at, self.tolerances.reached(before, at))):
                    at = objective.evaluate(at.x)
                    objective.check_start(at, changed=True)
                    self.tolerances.begin(at)
            elif not radius > objective.epsilon * objective.length(at.x):
                yield self._ended(at, self.tolerances.stalled(at, hidden))
                return

    def _ended(self, at: LossPoint, stop: Stop) -> Iterate:
        """Returns the last Iterate, which is taken back to `at`."""
        self.objective.unknowns.place(at.x)
        return Iterate(at, stop, False)

    def _ratio(self, at: LossPoint, new: LossPoint, predicted: float) -> float:
        """Returns the gain as a share of the predicted one. Where rounding hides the gain, a smaller gradient counts as one."""
        if not (math.isfinite(new.loss) and math.isfinite(new.grad_norm)):
            return -math.inf
        if self._is_hidden(at, new, predicted):
            return 1.0 if new.grad_norm < at.grad_norm else -1.0
        return (at.loss - new.loss) / predicted if predicted > 0.0 else -1.0

    def _is_hidden(self, at: LossPoint, new: LossPoint, predicted: float) -> bool:
        """True if rounding of the loss hides what a step gains, and what the model predicts of it."""
        noise = NOISE * self.objective.epsilon * max(abs(at.loss), abs(new.loss))
        return abs(at.loss - new.loss) <= noise and predicted <= noise

    def _model_step(self, at: LossPoint, radius: float) -> tuple[Tensor, float, float, bool] | None:
        """Returns a step within the radius, its length, the decrease that the model predicts, and True if it ends at the radius.

        Returns None if the square of the gradient, or its product with the Hessian, is out of the range of the dtype.
        """
        objective, g = self.objective, at.gradient
        z, r, p = zeros((objective.unknowns.size,), dtype=g.dtype, device=g.device), g, objective.call("down", _down, g, of_f=False)
        square, goal, zz_next, model = radius * radius, 0.0, 0.0, 0.0
        for i in range(2 * objective.unknowns.size + 10):
            objective.nhev += 1
            bp, *next_ones, report = objective.call("conjugate", self._conjugate, at.x, g, z, r, p, *objective.given)
            rr, pbp, zz, zp, pp, zz_next, rr_next, model = report.numpy().tolist()
            if i == 0:
                if not 0.0 < rr < math.inf or pp == 0.0 or math.isinf(pbp):
                    return None
                goal = min(0.25, rr**0.5) * rr  # (min(0.5, sqrt(|g|)) * |g|) squared
            if not (pbp > 0.0 and zz_next < square):
                root = math.sqrt(max(0.0, zp * zp + pp * (square - zz)))
                away = objective.scalar((square - zz) / (zp + root) if zp > 0.0 else (root - zp) / pp)
                d, model = objective.call("border", _border, g, z, r, p, bp, away, of_f=False)
                return d, radius, -float(model.item()), True
            z, r, p = next_ones
            if rr_next <= goal:
                break
        return z, zz_next**0.5, -model, False

    def _conjugate(self, x: Tensor, g: Tensor, z: Tensor, r: Tensor, p: Tensor, *leaves: Tensor) -> Any:
        """Returns one step of conjugate gradients, and the eight numbers that the host reads to decide if it may be taken."""
        bp = self.objective.curvature(x, p, *leaves)
        rr, pbp = vecdot(r, r), vecdot(p, bp)
        length = rr / pbp
        z_next, r_next = z + length * p, r + length * bp
        rr_next = vecdot(r_next, r_next)
        model = 0.5 * vecdot(z_next, r_next + g)
        numbers = [rr, pbp, vecdot(z, z), vecdot(z, p), vecdot(p, p), vecdot(z_next, z_next), rr_next, model]
        return bp, z_next, r_next, (rr_next / rr) * p - r_next, stack(numbers)


def _down(g: Tensor) -> Tensor:
    return -g


def _border(g: Tensor, z: Tensor, r: Tensor, p: Tensor, bp: Tensor, away: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the step z + away * p, and the value of the model there."""
    d = z + away * p
    return d, 0.5 * vecdot(d, r + away * bp + g)
