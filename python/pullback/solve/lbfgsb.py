"""L-BFGS-B: bounds by the generalised Cauchy point and a minimisation over the free elements, as tensors on the device.

Sources: Byrd, Lu, Nocedal and Zhu 1995; Morales and Nocedal 2011 (the projection of the subspace minimum). The walk along the
projected gradient, which the paper does from one bound to the next, is here a sort and cumulative sums: all segments at once.
"""

from __future__ import annotations

import math
from typing import Any

from ..ops.cumulative import cumulative_sum
from ..ops.elementwise import clip, maximum, minimum, sqrt, where
from ..ops.gather import take
from ..ops.linalg import matmul, outer, vecdot
from ..ops.movement import concat
from ..ops.reduce import argmax, min as smallest, sum as total
from ..ops.shape import expand_dims, flip
from ..ops.sort import argsort
from ..tensors.creation import full, zeros
from ..tensors.ranges import eye
from ..tensors.tensor import Tensor
from .lbfgs import LBFGS, State


class LBFGSB(LBFGS):
    """The rule of L-BFGS-B. It remembers what L-BFGS does; the direction leads to a point within the bounds.

    The approximation of the Hessian is B = theta I + W' J W, where the rows of W are one vector y / sqrt(y . s) (J = 1) and one
    vector B s / sqrt(s . B s) (J = -1) for each remembered step.
    """

    def first_step(self, norm: float) -> float:
        low, high = self.bounds
        boxed = bool(((low > -math.inf) & (high < math.inf)).all().item())
        return 1.0 if boxed else min(1.0, 1.0 / norm)

    def direction(self, x: Tensor, g: Tensor, state: State) -> Tensor:
        theta, rows, signs = self._factors(state)
        low, high = self.bounds
        cauchy = self._cauchy(x, g, theta, rows, signs)
        free = (cauchy > low) & (cauchy < high)
        # the gradient of the model at the Cauchy point, and the Newton step of the model over the free elements
        moved = cauchy - x
        residual = where(free, g + theta * moved + matmul(signs * matmul(rows, moved), rows), 0.0)
        within = where(free, rows, 0.0)
        inner = matmul(within, within.T) / theta + eye(rows.shape[0], dtype=x.dtype, device=x.device) * signs
        solved = solved_quasi_definite(inner, matmul(within, residual))
        newton = where(free, matmul(solved, within) / (theta * theta) - residual / theta, 0.0)
        return self._within(x, g, cauchy, newton) - x

    def _factors(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Returns theta, the rows of W and their signs. The row of an empty place is zero."""
        steps, changes, inverse, scale = state
        theta = 1.0 / scale
        up = changes * expand_dims(sqrt(inverse), axis=1)
        down: list[Tensor] = []
        for i in range(self.memory):
            s = steps[i]
            bs = theta * s
            if i:
                before, drop = up[:i], concat(down)
                bs = bs + matmul(matmul(before, s), before) - matmul(matmul(drop, s), drop)
            sbs = vecdot(s, bs)
            used = sbs > 0
            down.append(expand_dims(where(used, bs / sqrt(where(used, sbs, 1.0)), 0.0), axis=0))
        m = self.memory
        kind: dict[str, Any] = {"dtype": up.dtype, "device": up.device}
        return theta, concat([up, *down]), concat([full((m,), 1.0, **kind), full((m,), -1.0, **kind)])

    def _cauchy(self, x: Tensor, g: Tensor, theta: Tensor, rows: Tensor, signs: Tensor) -> Tensor:
        """Returns the first local minimum of the quadratic model along the projected gradient."""
        low, high = self.bounds
        bound = where(g < 0, high, low)
        slope = where(g == 0, 1.0, g)
        times = where(g == 0, math.inf, maximum((x - bound) / slope, 0.0))
        d = where(times > 0, -g, 0.0)
        order = argsort(times)
        ends, ds = take(times, order), take(d, order)
        columns = take(rows, order, axis=1)
        none = zeros((1,), dtype=x.dtype, device=x.device)
        finite = where(ends < math.inf, ends, 0.0)
        starts = concat([none, finite])  # segment k begins where the k-th element reaches its bound
        square = concat([flip(cumulative_sum(flip(ds * ds))), none])
        part = ds * columns
        column = zeros((rows.shape[0], 1), dtype=x.dtype, device=x.device)
        p = concat([flip(cumulative_sum(flip(part, axis=1), axis=1), axis=1), column], axis=1)
        z = concat([column, cumulative_sum(finite * part, axis=1)], axis=1) + starts * p
        signed = expand_dims(signs, axis=1) * p
        first = square * (theta * starts - 1.0) + total(signed * z, axis=0)
        second = theta * square + total(signed * p, axis=0)
        curved = where(second > 0, second, theta * square * self.objective.epsilon)
        moving = square > 0
        stop = starts + maximum(where(moving, -first / where(moving, curved, 1.0), 0.0), 0.0)
        ends = concat([ends, full((1,), math.inf, dtype=x.dtype, device=x.device)])
        time = take(stop, argmax((stop <= ends) | ~moving))
        return where(times <= time, where(times > 0, bound, x), where(d == 0, x, x + time * d))

    def _within(self, x: Tensor, g: Tensor, cauchy: Tensor, newton: Tensor) -> Tensor:
        """Returns the Newton step from the Cauchy point, projected onto the bounds; or cut short, if that does not lead down."""
        low, high = self.bounds
        projected = clip(cauchy + newton, low, high)
        down = vecdot(projected - x, g) < 0
        room = where(newton > 0, high - cauchy, low - cauchy)
        still = newton == 0
        longest = smallest(where(still, 1.0, room / where(still, 1.0, newton)))
        return where(down, projected, clip(cauchy + minimum(longest, 1.0) * newton, low, high))


def solved_quasi_definite(matrix: Tensor, right: Tensor) -> Tensor:
    """Returns the solution of a symmetric system whose matrix is positive definite, then negative definite, in two blocks.

    Such a matrix needs no pivoting. The elimination is unrolled, so that a recording can hold it on every device.
    """
    n = matrix.shape[0]
    work = concat([matrix, expand_dims(right, axis=1)], axis=1)
    for i in range(n):
        row = work[i] / work[i, i]
        is_row = eye(n, dtype=matrix.dtype, device=matrix.device)[i]
        work = work - outer(work[:, i] - is_row, row)
    return work[:, n]
