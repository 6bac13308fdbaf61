"""L-BFGS: the direction by the two-loop recursion over the last steps (Nocedal 1980), as tensors on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ..ops.elementwise import where
from ..ops.linalg import vecdot
from ..ops.movement import concat
from ..ops.shape import expand_dims
from ..tensors.creation import ones, zeros
from ..tensors.tensor import Tensor
from .line_search import Wolfe

if TYPE_CHECKING:
    from .objective import Objective

State = tuple[Tensor, ...]


class LBFGS:
    """The rule of L-BFGS: what it remembers, how a step changes that, and the direction.

    The memory has a fixed size from the beginning, so that every iteration is the same list of launches. An empty place has zeros.

    Args:
        memory: the number of steps that are remembered.
    """

    wolfe: ClassVar[Wolfe] = Wolfe(1e-3, 0.9, 0.1)
    stops_flat: ClassVar[bool] = True  # ends, as L-BFGS-B does, where the loss hardly falls any more

    def __init__(self, objective: Objective, memory: int) -> None:
        self.objective, self.memory = objective, memory
        self.bounds: Any = objective.bounds

    def first_step(self, norm: float) -> float:
        """Returns the first step along a direction of this Euclidean norm that no remembered step has scaled."""
        return 1.0 / norm

    def start(self, x: Tensor) -> State:
        """Returns an empty memory: steps, changes of the gradient, 1 / (s . y), and the scale of the identity."""
        m, n = self.memory, x.shape[0]
        kind: dict[str, Any] = {"dtype": x.dtype, "device": x.device}
        return zeros((m, n), **kind), zeros((m, n), **kind), zeros((m,), **kind), ones((), **kind)

    def remember(self, s: Tensor, y: Tensor, g: Tensor, state: State) -> State:
        """Returns the memory with a step s that changed the gradient by y. g: the gradient before the step.

        A step is forgotten unless the curvature along it is positive by more than rounding.
        """
        steps, changes, inverse, scale = state
        sy, yy = vecdot(s, y), vecdot(y, y)
        good = sy > self.objective.epsilon * vecdot(-g, s)
        steps = where(good, concat([steps[1:], expand_dims(s, axis=0)]), steps)
        changes = where(good, concat([changes[1:], expand_dims(y, axis=0)]), changes)
        sy = where(good, sy, 1.0)
        inverse = where(good, concat([inverse[1:], expand_dims(1.0 / sy, axis=0)]), inverse)
        return steps, changes, inverse, where(good, sy / where(good, yy, 1.0), scale)

    def direction(self, x: Tensor, g: Tensor, state: State) -> Tensor:
        """Returns the direction at x, where the gradient is g."""
        steps, changes, inverse, scale = state
        q, weights = g, [inverse[0]] * self.memory
        for i in reversed(range(self.memory)):
            weights[i] = inverse[i] * vecdot(steps[i], q)
            q = q - weights[i] * changes[i]
        q = scale * q
        for i in range(self.memory):
            q = q + (weights[i] - inverse[i] * vecdot(changes[i], q)) * steps[i]
        return -q
