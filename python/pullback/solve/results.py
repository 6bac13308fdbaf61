"""What the solvers of this package return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from ..interop.unknown_names import attach_hints
from ..tensors.tensor import Tensor

MESSAGES: Final = {
    -4: "The squares of the residuals, or of their derivatives, are below the smallest number of their dtype. Multiply the "
    "residuals or x by a constant, or compute in float64.",
    -3: "No step was found that lowers the cost by more than its rounding error, although the gradient is not small: longer steps "
    "lead to residuals that are infinite or NaN. Start elsewhere, or compute in float64.",
    -2: "The residuals, their squares or their derivatives became infinite or NaN at every step that was tried.",
    -1: "The system of the step is singular: no damping gave a step.",
    0: "The maximum number of function evaluations is exceeded.",
    1: "`gtol` termination condition is satisfied.",
    2: "`ftol` termination condition is satisfied.",
    3: "`xtol` termination condition is satisfied.",
    4: "Both `ftol` and `xtol` termination conditions are satisfied.",
}


class Result(Mapping[str, Any]):
    """A result whose entries are attributes, and also keys as in SciPy."""

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter([field.name for field in fields(self)])  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(fields(self))  # type: ignore[arg-type]

    def __contains__(self, key: object) -> bool:
        return key in list(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        width = max([len(name) for name in self])
        return "\n".join([f"{name:>{width}}: {value!r}" for name, value in self.items()])


@attach_hints
@dataclass(eq=False, repr=False)
class LeastSquaresResult(Result):
    """The result of `least_squares`. With `batch=True` each entry has a leading axis of problems, and messages are a list.

    Attributes:
        x: the solution, in the structure of x0. Gradients flow through it to the arguments.
        cost: half the sum of rho of the squared residuals. It is a number, or a tensor if gradients flow through it.
        fun: the residuals at the solution, as one vector. Gradients flow through x, cost and fun, and not through the rest.
        jac: their Jacobian: a row for each residual, a column for each element of x.
        grad: the gradient of the cost.
        optimality: the largest element of the gradient, of which each is scaled by the distance to the bound that it points to.
        active_mask: -1 where the lower bound holds x, 1 where the upper one does, 0 elsewhere.
        nfev: how often residuals were computed, without those that belong to a Jacobian.
        njev: how often a Jacobian was computed.
        status: the reason for the end, a key of MESSAGES.
        message: the reason in words.
        success: True if a condition of convergence was met (status > 0).
    """

    x: Any
    cost: Any
    fun: Tensor
    jac: Tensor
    grad: Tensor
    optimality: Any
    active_mask: Any
    nfev: Any
    njev: Any
    status: Any
    message: Any
    success: Any


@attach_hints
@dataclass(eq=False, repr=False)
class RootResult(Result):
    """The result of `root`.

    Attributes:
        x: the root, in the structure of x0. Gradients flow through it to the arguments.
        fun: the values of the function at x, as one vector.
        jac: its Jacobian there.
        nfev, njev: how often the function and its Jacobian were computed.
        status: 1 if it converged.
        message: the reason for the end in words.
        success: True if it converged.
    """

    x: Any
    fun: Tensor
    jac: Tensor
    nfev: int
    njev: int
    status: int
    message: str
    success: bool


@attach_hints
@dataclass
class StepInfo:
    """What a step of `LevenbergMarquardt` did.

    Attributes:
        cost: half the sum of rho of the squared residuals after the step; the cost before it if the step was rejected.
        accepted: False if the Parameters are unchanged, because no trial lowered the cost.
        damping: the damping for the next step.
        gain_ratio: the decrease of the cost, divided by the decrease that the linear model predicted, of the last trial. It is inf
            if the cost fell where none was predicted, and -inf if the cost is not finite or did not fall as none was predicted.
        trials: how many steps were tried, each with another damping.
        previous_cost: the cost before the step.
        solver: the factorisation of the last trial: "cholesky", "dual cholesky", "qr" or "cg".
    """

    cost: float
    accepted: bool
    damping: float
    gain_ratio: float
    trials: int
    previous_cost: float
    solver: str
