"""Minimisation under general constraints by an augmented Lagrangian, whose smooth problems L-BFGS-B solves.

Sources: Hestenes 1969, Powell 1969, Rockafellar 1973; the rule for the penalty is that of Andreani, Birgin, Martinez and Schuverdt
2007.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..autodiff.listeners import listeners
from ..errors import ArgumentError, DTypeError
from ..interop.unknown_names import attach_hints
from ..ops._shapes import flag
from ..ops.elementwise import maximum
from ..ops.movement import concat, stack
from ..ops.reduce import sum as total
from ..tensors.creation import asarray, zeros
from ..tensors.tensor import Tensor
from .arguments import check_finite, check_order, count, given_arguments, positive
from .bounds import read_bounds
from .constrained import without_derivatives
from .descent import STALLED, Descent, Tolerances
from .jacobians import host
from .lbfgs import LBFGS
from .lbfgsb import LBFGSB
from .objective import LossPoint, Objective, unrecorded
from .results import Result
from .unknowns import Unknowns

Functions = Callable[..., Any] | Iterable[Callable[..., Any]]


@attach_hints
@dataclass(eq=False, repr=False)
class ConstrainedResult(Result):
    """The result of a minimisation under constraints.

    Attributes:
        x: the point, in the structure of the parameters.
        fun: the value of f there. It is a number, or a tensor under a tape. A derivative of x, fun, eq or ineq is a TapeError.
        grad_norm: the largest absolute element of the Lagrangian's gradient, without what points out of the bounds.
        maxcv: the largest violation of a constraint.
        eq, ineq: the Lagrange multipliers, one flat tensor for each function in `eq` and `ineq`. The gradient of f is the sum of
            the multipliers of `ineq` times their gradients, minus that of `eq`.
        penalty: the last penalty.
        nit, nfev: the number of smooth problems, and of evaluations of f with the constraints.
        status, message, success: 0, 1 after `maxiter`, or 2 if no progress was possible; in words; True if it converged.
    """

    x: Any
    fun: Any
    grad_norm: float
    maxcv: float
    eq: list[Tensor]
    ineq: list[Tensor]
    penalty: float
    nit: int
    nfev: int
    status: int
    message: str
    success: bool


def augmented_lagrangian(
    f: Callable[..., Any],
    params: Any,
    ineq: Functions | None = (),
    eq: Functions | None = (),
    bounds: Any = None,
    args: Mapping[str, Any] | Sequence[Any] | Tensor | float | None = None,
    *,
    tol: float | None = None,
    penalty: float = 10.0,
    maxiter: int = 50,
    maxfun: int = 15_000,
    capture: bool = True,
) -> ConstrainedResult:
    """Minimises f under inequality and equality constraints, and returns the result. Parameters that were given hold the point.

    Args:
        f, params, bounds, args, capture: as in `minimize`. Bounds hold exactly.
        ineq: one function or a list of functions, called as f is or without args, whose values must not be negative. A value may be
            any tensor. SciPy's {"type": "ineq", "fun": c} is ineq=[c].
        eq: one function or a list of functions, whose values must be zero.
        tol: ends where no constraint is violated by more, and no element of the Lagrangian's gradient is larger (1e-8 in float64
            and 1e-4 in float32).
        penalty: the first weight of the squared violations. It grows tenfold whenever the violation falls by less than half.
        maxiter, maxfun: the most smooth problems, and the most evaluations.

    Raises: as `minimize`, and TapeError where a derivative of the result is asked for.

    Example:
        >>> result = pb.solve.augmented_lagrangian(f, x0, ineq=[lambda x: pb.prod(x) - 25], eq=[lambda x: pb.sum(x * x) - 40])
    """
    owner = "augmented_lagrangian"
    check_order(owner, "f", f, "params", params)
    unknowns = Unknowns(params, owner)
    limits = read_bounds(bounds, unknowns, owner)
    tol = (1e-8 if unknowns.dtype.itemsize == 8 else 1e-4) if tol is None else positive(owner, "tol", tol, ", or None")
    penalty, capture = positive(owner, "penalty", penalty), flag(owner, "capture", capture)
    maxiter, maxfun = count(owner, "maxiter", maxiter, 1), count(owner, "maxfun", maxfun, 1)
    functions = [_listed(eq, "eq"), _listed(ineq, "ineq")]
    with unrecorded(owner):
        lagrangian = _Lagrangian(f, functions, unknowns, given_arguments(args), limits, penalty, capture)
        found = lagrangian.solve(tol, maxiter, maxfun)
    return found if not listeners.differentiates else lagrangian.watched(found)


def _listed(functions: Any, name: str) -> list[Callable[..., Any]]:
    """Returns the functions of one kind of constraints as a list. Raises DTypeError for what is no function."""
    found: list[Any] = [] if functions is None else [functions] if _is_single(functions) else [*functions]
    for function in found:
        if not callable(function):
            raise DTypeError(f"augmented_lagrangian: {name} has a {type(function).__name__}. {_instead(function)}")
    return found


def _is_single(functions: Any) -> bool:
    return callable(functions) or isinstance(functions, (Mapping, str)) or not isinstance(functions, Iterable)


def _instead(given: Any) -> str:
    """Returns what to give in place of a constraint that is no function, such as one of SciPy's."""
    if isinstance(given, dict) and "fun" in given:
        return (
            'A constraint is its function alone here: give that of {"type": "ineq", "fun": c} as ineq=[c], and that of '
            '"type": "eq" as eq=[c].'
        )
    if hasattr(given, "lb") and hasattr(given, "ub"):  # scipy.optimize.NonlinearConstraint or LinearConstraint
        return (
            "A constraint is a function here, whose values must not be negative, or must be zero: give lb <= c(x) <= ub as "
            "ineq=[lambda x: c(x) - lb, lambda x: ub - c(x)], and c(x) == lb as eq=[lambda x: c(x) - lb]."
        )
    return "Give one function of the parameters, or a list of functions."


class _Lagrangian:
    """f plus the multipliers and the penalty of its constraints."""

    def __init__(
        self, f: Any, functions: list[Any], unknowns: Unknowns, args: Any, limits: Any, penalty: float, capture: bool
    ) -> None:
        self.unknowns, self.limits = unknowns, limits
        self.loss = Objective(f, unknowns, args, None, capture=False)

        def part(c: Any, name: str) -> Objective:
            return Objective(c, unknowns, args, None, capture=False, residuals=True, constraint=name)

        self.parts = [
            [part(c, f"{name}[{i}]" if len(group) > 1 else name) for i, c in enumerate(group)]
            for name, group in zip(("eq", "ineq"), functions)
        ]
        tree, given = unknowns.tree, self.loss.given
        found = [[part.value(tree, given) for part in group] for group in self.parts]
        self.sizes = [[x.size for x in group] for group in found]
        kind: dict[str, Any] = {"dtype": unknowns.dtype, "device": unknowns.device}
        self.multipliers = [zeros((sum(sizes),), **kind) for sizes in self.sizes]
        self.penalty = penalty
        held = {"args": args, "eq": self.multipliers[0], "ineq": self.multipliers[1], "penalty": penalty}
        self.objective = Objective(self._value, unknowns, held, limits, capture=capture)

    def _constraints(self, group: int, tree: Any, leaves: Any) -> Tensor:
        parts = [part.value(tree, leaves) for part in self.parts[group]]
        return parts[0] if len(parts) == 1 else concat(parts)

    def _value(self, tree: Any, args: Any, eq: Tensor, ineq: Tensor, penalty: Any) -> Tensor:
        leaves = self.loss.tensors_of(args)
        value = self.loss.value(tree, leaves)
        if eq.size:
            h = self._constraints(0, tree, leaves)
            value = value + total(eq * h) + (0.5 * penalty) * total(h * h)
        if ineq.size:
            left = maximum(ineq - penalty * self._constraints(1, tree, leaves), 0.0)
            value = value + (0.5 / penalty) * (total(left * left) - total(ineq * ineq))
        return value

    def solve(self, tol: float, maxiter: int, maxfun: int) -> ConstrainedResult:
        objective, unknowns = self.objective, self.unknowns
        at = objective.evaluate(unknowns.flat([x.astype(x.dtype) for x in unknowns.slots]))
        if not math.isfinite(at.loss):
            self._check_constraints(at)
        objective.check_start(at)
        violation, goal, stop, nit, maxcv = math.inf, max(tol, 1e-2 * min(1.0, at.grad_norm)), (1, ""), 0, math.inf
        while nit < maxiter:
            nit += 1
            at, stalled = self._inner(at, goal, maxfun)
            before, (violation, maxcv) = violation, self._update()
            if max(maxcv, violation) <= tol and (at.grad_norm <= tol or (stalled and goal <= tol)):
                stop = 0, "converged: no constraint is violated, and the Lagrangian is stationary, within tol"
                break
            if objective.nfev >= maxfun:
                break
            if violation > 0.5 * before:
                self.penalty *= 10.0
            if self.penalty > 1e14:
                stop = 2, f"no progress: the constraints are still violated by {maxcv:.3g}. Are they feasible near this point?"
                break
            goal = max(tol, 0.1 * goal)
            objective.args |= {"eq": self.multipliers[0], "ineq": self.multipliers[1], "penalty": self.penalty}
            objective.args_changed()
            at = objective.evaluate(at.x)
        message = stop[1] or f"stopped after {nit} smooth problems and {objective.nfev} evaluations, by maxiter or maxfun"
        return self._made(at, maxcv, nit, stop[0], message)

    def _check_constraints(self, at: LossPoint) -> None:
        """Raises ArgumentError if a constraint is not finite at the start."""
        check_finite(self.objective.what, "params", host(at.x))
        for part in [*self.parts[0], *self.parts[1]]:
            values = host(part.value(self.unknowns.tree, self.loss.given))
            wrong = values[~np.isfinite(values)]
            if wrong.size:
                raise ArgumentError(
                    f"augmented_lagrangian: the constraint {part.name} is {wrong[0]} at the start. Begin where it is finite, or "
                    f"change it (a log or root of a negative number?); pb.debug_nans() finds the op."
                )

    def _inner(self, at: LossPoint, gtol: float, maxfun: int) -> tuple[LossPoint, bool]:
        """Minimises the Lagrangian with fixed multipliers. Returns the point, and True if rounding ended it."""
        objective = self.objective
        rule: Any = (LBFGS if self.limits is None else LBFGSB)(objective, 5)
        solver = Descent(objective, rule, Tolerances(gtol, 0.0))
        if solver.reached(at) is not None:
            return at, False
        steps = solver.steps(at)
        step = next(steps)
        while step.stop is None and objective.nfev < maxfun:
            step = steps.send(False)
        steps.close()
        objective.unknowns.place(step.at.x)
        return step.at, step.stop is STALLED

    def _update(self) -> tuple[float, float]:
        """Updates the multipliers. Returns the largest violation of a constraint or of its complementarity, and of a constraint."""
        tree, leaves, penalty = self.unknowns.tree, self.loss.given, self.penalty
        numbers = [asarray(0.0, dtype=self.unknowns.dtype, device=self.unknowns.device)] * 2
        worst, violated = [*numbers], [*numbers]
        eq, ineq = self.multipliers
        if eq.size:
            h = self._constraints(0, tree, leaves)
            self.multipliers[0] = eq + penalty * h
            worst[0] = violated[0] = abs(h).max()
        if ineq.size:
            c = self._constraints(1, tree, leaves)
            self.multipliers[1] = maximum(ineq - penalty * c, 0.0)
            worst[1] = abs(-maximum(-c, -ineq / penalty)).max()
            violated[1] = maximum(-c, 0.0).max()
        read = stack([*worst, *violated]).numpy().tolist()
        return max(read[:2]), max(read[2:])

    def watched(self, found: ConstrainedResult) -> ConstrainedResult:
        """Returns the result for tapes and forward mode: to ask for a derivative of it raises TapeError."""
        parts, unknowns = [self.loss, *self.parts[0], *self.parts[1]], self.unknowns
        if not self.loss.takes_unknowns:
            return found
        values = (self._end, self.loss.scalar(found.fun), *found.eq, *found.ineq)
        x, fun, *multipliers = without_derivatives(values, self._end, parts)
        split = len(found.eq)
        return replace(found, x=unknowns.structured(x), fun=fun, eq=multipliers[:split], ineq=multipliers[split:])

    def _made(self, at: LossPoint, maxcv: float, nit: int, status: int, message: str) -> ConstrainedResult:
        fun = float(self.loss.value(self.unknowns.tree, self.loss.given).item())
        eq, ineq = [
            [values[end - size : end] for end, size in zip(np.cumsum(sizes).tolist(), sizes)]
            for values, sizes in zip(self.multipliers, self.sizes)
        ]
        self._end = at.x
        x = self.unknowns.structured(at.x)
        nfev = self.objective.nfev
        return ConstrainedResult(x, fun, at.grad_norm, maxcv, eq, ineq, self.penalty, nit, nfev, status, message, status == 0)
