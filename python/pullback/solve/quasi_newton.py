"""BFGS and the self-scaled methods of the Broyden family, which keep a dense approximation of the inverse Hessian on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..ops.elementwise import abs as absolute, maximum, minimum, sqrt, where
from ..ops.linalg import matmul, outer, vecdot
from ..tensors.creation import zeros
from ..tensors.ranges import eye
from ..tensors.tensor import Tensor
from .lbfgs import State
from .line_search import Wolfe

if TYPE_CHECKING:
    from .objective import Objective


class BFGS:
    """The rule of BFGS. The matrix begins as the identity and is scaled by s . y / y . y before its first change."""

    wolfe: ClassVar[Wolfe] = Wolfe(1e-4, 0.9, 1e-14)
    stops_flat: ClassVar[bool] = False

    def __init__(self, objective: Objective, memory: int) -> None:
        self.objective = objective

    def first_step(self, norm: float) -> float:
        """Returns the first step along a direction of this Euclidean norm that no remembered step has scaled."""
        return 1.0 / norm

    def start(self, x: Tensor) -> State:
        """Returns the identity, and 0 for a matrix that no step has changed."""
        return eye(x.shape[0], dtype=x.dtype, device=x.device), zeros((), dtype=x.dtype, device=x.device)

    def direction(self, x: Tensor, g: Tensor, state: State) -> Tensor:
        """Returns the direction at x, where the gradient is g."""
        return -matmul(state[0], g)

    def remember(self, s: Tensor, y: Tensor, g: Tensor, state: State) -> State:
        """Returns the matrix after a step s that changed the gradient from g to g + y.

        It stays as it is unless the curvature along the step is positive by more than rounding.
        """
        inverse, used = state
        sy, yy = vecdot(s, y), vecdot(y, y)
        good = sy > self.objective.epsilon * vecdot(-g, s)
        sy = where(good, sy, 1.0)
        first = where(used == 0, sy / where(good, yy, 1.0), 1.0)
        hy = first * matmul(inverse, y)
        yhy = where(good, vecdot(y, hy), 1.0)
        # s = step * direction and B s = -step * g, so that s . B s needs no product with B; the scale of B is that of its inverse
        sbs = where(good, self._sbs(s, g, inverse) / first, 1.0)
        shrunk, family = self.scales(sy, yhy, sbs, s.shape[0])
        # Broyden's family: H - H y y' H / y'Hy + family v v', scaled, plus s s' / s'y
        v = s / sy - hy / yhy
        updated = (first * inverse - outer(hy, hy) / yhy + outer((family * yhy) * v, v)) / shrunk + outer(s, s) / sy
        return where(good, updated, inverse), where(good, 1.0, used)

    def _sbs(self, s: Tensor, g: Tensor, inverse: Tensor) -> Tensor:
        """Returns s . B s for a step along -H g: with t = |s| / |H g| it is t * t * (g . H g)."""
        d = matmul(inverse, g)
        dd = vecdot(d, d)
        return vecdot(s, s) / where(dd > 0, dd, 1.0) * vecdot(g, d)

    def scales(self, sy: Tensor, yhy: Tensor, sbs: Tensor, n: int) -> tuple[Tensor | float, Tensor | float]:
        """Returns the divisor of the inverse matrix, and the member of Broyden's family: 1 for BFGS, 0 for DFP."""
        return 1.0, 1.0


class SSBFGS(BFGS):
    """Self-scaled BFGS (Al-Baali 1998): the inverse matrix is divided by min(1, s . y / s . B s) before each change."""

    def scales(self, sy: Tensor, yhy: Tensor, sbs: Tensor, n: int) -> tuple[Tensor | float, Tensor | float]:
        return minimum(1.0, sy / sbs), 1.0


class SSBroyden(BFGS):
    """The self-scaled Broyden method (Al-Baali 1998, Urban, Stefanou and Pons 2025), which also chooses the member of the family.

    b = s.Bs / s.y and h = y.Hy / s.y; theta is the member of the family of B, where 0 is BFGS.
    """

    def scales(self, sy: Tensor, yhy: Tensor, sbs: Tensor, n: int) -> tuple[Tensor | float, Tensor | float]:
        h, b = yhy / sy, sbs / sy
        a = maximum(h * b - 1.0, 1e-12)  # Cauchy's inequality makes h * b >= 1, apart from rounding
        low = minimum(1.0, h * (1.0 - sqrt(a / (a + 1.0))))
        low = maximum(low, 1e-12)
        theta = maximum((low - 1.0) / a, minimum(1.0 / low, (1.0 - b) / b))
        sigma = 1.0 + theta * a
        power = maximum(absolute(sigma), 1e-30) ** (-1.0 / max(n - 1, 1))
        ahead = minimum(1.0, 1.0 / b)
        positive = where(theta > 0, theta, 1.0)
        shrunk = where(theta > 0, ahead * minimum(power, 1.0 / positive), minimum(ahead * power, sigma))
        return maximum(shrunk, 1e-12), (1.0 - theta) / sigma
