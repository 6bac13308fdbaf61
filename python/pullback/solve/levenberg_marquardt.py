"""LevenbergMarquardt: steps of the Levenberg-Marquardt method on Parameters.

Sources: Levenberg (1944), Marquardt (1963); Nielsen, "Damping parameter in Marquardt's method" (1999), for the damping; Transtrum &
Sethna, "Improvements to the Levenberg-Marquardt algorithm" (2012), for the geodesic acceleration; Kanzow, Yamashita & Fukushima,
"Levenberg-Marquardt methods with strong local convergence properties for solving nonlinear equations with convex constraints"
(2004), for the projection of steps on bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np

from ..autodiff.kept import Heard
from ..duck import has
from ..errors import ArgumentError, DeviceError, DTypeError, LinAlgError, PullbackError
from ..interop.unknown_names import attach_hints
from ..interop.wrong_calls import one_of
from ..ops._shapes import flag
from ..ops.conversion import copy
from ..ops.elementwise import maximum, minimum, sqrt
from ..ops.reduce import sum
from ..ops.shape import reshape
from ..tensors import devices, dtypes
from ..tensors.creation import asarray
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..tree import in_order
from .arguments import check_call, check_function, count, positive
from .dampened import linear_model
from .jacobians import Unknowns, host
from .linear import LinearModel
from .losses import Loss
from .normal import Launches
from .results import StepInfo

Solver = Literal["auto", "cholesky", "qr", "cg"]
SOLVERS: Final = ("auto", "cholesky", "qr", "cg")
SETTABLE: Final = ("damping", "solver", "trials", "geodesic", "per_example", "capture")
LEAST: Final = 1e-15  # the smallest and the largest damping, relative to the largest diagonal element of JᵀJ
MOST: Final = 1e15
ACCELERATION: Final = 0.75  # the largest acceleration, relative to the step, that is used (Transtrum & Sethna)


@attach_hints
class LevenbergMarquardt:
    """Steps of the Levenberg-Marquardt method, which minimize half a sum of squared residuals of Parameters.

    Args:
        params: Parameters in a list or a dict, or a Module.
        damping: the first damping, relative to the largest diagonal element of JᵀJ. It falls after steps as good as the linear
            model predicts, and rises after others (`lm.damping`).
        solver: "cholesky" factorises JᵀJ + damping I, or JJᵀ + damping I if there are fewer residuals than Parameters; "qr" the
            Jacobian itself, which is more exact and takes longer; "cg" takes products with J and Jᵀ only. "auto" takes
            "cholesky", "qr" where rounding would spoil it, and "cg" for more than 4,096 unknowns and residuals.
        loss, f_scale: a robust loss, as in `least_squares`.
        bounds: a pair (lower, upper), each a number, None, or a list with one entry for each Parameter. Parameters never
            leave them.
        geodesic: adds the second-order correction of the step, which follows a curved valley.
        scaling: "none", or "columns", which measures a step by the largest norms of the Jacobian's columns so far. Then the
            result does not depend on the units of the Parameters.
        trials: the most dampings that one step tries.
        per_example: residual_fn is written for one example, and the arguments of `step` have a leading axis of examples. Then the
            Jacobian costs about as much as a gradient of each example, because a residual depends on one example only.
        capture: record the residuals and their Jacobian with `pb.capture`. Pass the same function at each step, and pass batches
            as arguments.

    The attributes `damping`, `solver`, `trials`, `geodesic`, `per_example` and `capture` may be set between steps.

    A step computes one Jacobian. In rows, the memory is that of one square matrix and one block of rows. Raises ArgumentError,
    DTypeError, ShapeError, DeviceError.
    """

    def __init__(
        self, params: Any, damping: float = 1e-3, solver: Solver = "auto", *, loss: str = "linear", f_scale: float = 1.0,
        bounds: Any = None, geodesic: bool = False, scaling: Literal["none", "columns"] = "none", trials: int = 4,
        per_example: bool = False, capture: bool = False,
    ) -> None:
        owner = "LevenbergMarquardt"
        self.parameters = _parameters(owner, params)
        one_of(owner, "scaling", scaling, ("none", "columns"))
        self.solver, self.damping, self.trials = solver, damping, trials
        self.geodesic, self.per_example, self.capture = geodesic, per_example, capture
        self.loss, self.scaled = Loss(owner, loss, f_scale), scaling == "columns"
        self._growth = 2.0
        self._relative = True  # the damping is still relative: no step has been taken
        self._unknowns = Unknowns(owner, list(self.parameters))
        self.dtype = np.dtype(np.float64 if any([p.dtype == np.float64 for p in self.parameters]) else np.float32)
        self.device = self.parameters[0].device
        self.count = self._unknowns.size
        self.launches = Launches(self.device, self.dtype)
        low, high = self._unknowns.limits(bounds)
        self.limits = None if bounds is None else [asarray(x.astype(self.dtype), device=self.device) for x in (low, high)]
        self._refuse_outside(low, high)
        self.columns: Any = None  # the largest column norms so far
        self.steepest = 0.0  # the largest norm of a gradient so far, which conjugate gradients compare with
        self.recorded: Any = None  # the last residual function, with its recordings
        self._called: Any = None  # the last residual function, with the number of its arguments
        self._made = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SETTABLE:
            value = _checked(name, value)
            if name in ("per_example", "capture"):
                self.recorded = None  # the recordings depend on both
        elif "_made" in vars(self) and name[:1] != "_" and name not in ("columns", "steepest", "recorded"):
            settable = ", ".join(SETTABLE[:-1])
            raise PullbackError(
                f"LevenbergMarquardt.{name} cannot be set: {settable} and {SETTABLE[-1]} can, all else is as it was made. Make a "
                f"new LevenbergMarquardt, whose first damping is then relative again."
            )
        object.__setattr__(self, name, value)

    def _refuse_outside(self, low: Any, high: Any) -> None:
        x = host(self._unknowns.vector)
        outside = (x < low) | (x > high)
        if outside.any():
            i = int(np.argmax(outside))
            raise ArgumentError(
                f"LevenbergMarquardt: the Parameters are outside the bounds: element {i} is {x[i]:g}, with the bounds {low[i]:g} "
                f"and {high[i]:g}. Assign values inside them first."
            )

    # ---- a step

    def step(self, residual_fn: Callable[..., Any], *args: Any) -> StepInfo:
        """Takes one step on the residuals `residual_fn(*args)`, and returns a report.

        residual_fn uses the Parameters, and returns real tensors, alone or in nested lists, tuples, dicts. A step that does not
        lower the cost is tried again with more damping, up to `trials` times; if none does, the Parameters are as before, bit for
        bit, and the next step begins with that damping. The arguments may differ from step to step, as with mini-batches.

        The residuals are computed several times in a step. Running statistics, such as those of nn.BatchNorm1d, are moved once, by
        the first evaluation; other state that residual_fn changes is changed by each.

        Raises ArgumentError for residuals that are not finite, UnconnectedError if they do not depend on the Parameters, and
        LinAlgError if no damping makes the system solvable.
        """
        check_function("LevenbergMarquardt", "residual_fn", residual_fn, "residuals")
        if self.per_example and not args:
            raise ArgumentError("LevenbergMarquardt: per_example=True needs a batch of examples: lm.step(residual_fn, x, y).")
        if self._called != (residual_fn, len(args)):
            check_call("LevenbergMarquardt", "residual_fn", residual_fn, "", args, "after residual_fn in step")
            self._called = (residual_fn, len(args))
        with Heard(()), devices.working(self.device):
            model = linear_model(self, residual_fn, args)
            if not bool(model.gradient.any()):
                model.refuse_unconnected()
            if self._relative:
                self._relative = False
                self._set_damping(model, self.damping * model.largest)
            before = [copy(p) for p in self.parameters]
            try:
                return self._trials(model, before)
            except BaseException:  # also Ctrl-C inside a trial
                self._restore(before)
                raise

    def _trials(self, model: LinearModel, before: list[Tensor]) -> StepInfo:
        ratio, failure, count = -math.inf, None, 0
        rounding = float(np.finfo(self.dtype).eps) * model.cost
        for count in range(1, self.trials + 1):
            used = self.damping
            try:
                delta = model.step(used)
            except np.linalg.LinAlgError as error:
                failure = error
                self._raise_damping(model)
                continue
            predicted, cost = self._moved(model, before, delta)
            gained = model.cost - cost
            if gained > 0:  # where nothing was predicted, the model is not at fault
                ratio = gained / predicted if predicted > 0 else math.inf
                self._lower_damping(model, ratio)
                return StepInfo(cost, True, self.damping, ratio, count, model.cost, model.solver)
            ratio = gained / predicted if predicted > 0 and math.isfinite(gained) else -math.inf
            self._restore(before)
            if (abs(predicted) > rounding or abs(gained) > rounding) and self._moves(model, before, delta):
                self._raise_damping(model)
            elif predicted == 0 or self.damping <= model.largest:  # the gradient is zero, up to rounding
                break
            else:  # the damping is so large that nothing moves
                self._growth = 2.0
                self._set_damping(model, model.largest)
        if failure is not None and ratio == -math.inf and self.damping >= MOST * model.largest:
            raise LinAlgError(
                f"LevenbergMarquardt: the system of the step is singular; {model.tried} with dampings up to {self.damping:.1e} "
                f"gave no step. Is an element of the Jacobian NaN or infinite, or all of it 0?"
            ) from failure
        return StepInfo(model.cost, False, self.damping, ratio, count, model.cost, model.solver)

    def _moved(self, model: LinearModel, before: list[Tensor], delta: Any) -> tuple[float, float]:
        """Assigns the Parameters plus the step, clipped to the bounds. Returns the predicted decrease of the cost, and the cost."""
        change = asarray(delta, device=self.device)
        if self.limits is not None:
            start = model.joined(before)
            change = minimum(maximum(start + change, self.limits[0]), self.limits[1]) - start
        predicted = model.predicted(change.array)
        if self.geodesic:
            change = self._accelerated(model, delta, change)
        place = 0
        for p, old in zip(self.parameters, before):
            value = old + reshape(change[place : place + p.size], p.shape)
            if self.limits is not None:
                low, high = [reshape(limit[place : place + p.size], p.shape) for limit in self.limits]
                value = minimum(maximum(value, low), high)
            p.assign(value)
            place += p.size
        return predicted, self.loss.cost(host(model.residuals()))

    def _accelerated(self, model: LinearModel, delta: Any, change: Tensor) -> Tensor:
        """Adds half the acceleration of a geodesic to the step, unless it is large beside the step."""
        second = asarray(model.acceleration(delta), device=self.device)
        small = 4 * float(sqrt(sum(second * second))) <= ACCELERATION * float(sqrt(sum(change * change)))
        return change + second if small else change

    def _restore(self, before: list[Tensor]) -> None:
        for p, old in zip(self.parameters, before):
            p.assign(old)

    def _moves(self, model: LinearModel, before: list[Tensor], delta: Any) -> bool:
        """True if a step changes an element of the Parameters by more than its rounding."""
        x, eps = host(model.joined(before)), float(np.finfo(self.dtype).eps)
        return bool((np.abs(host(asarray(delta))) > 4 * eps * np.abs(x)).any())

    # ---- the damping

    def _lower_damping(self, model: LinearModel, ratio: float) -> None:
        self._set_damping(model, self.damping * max(0.1, 1 - (2 * ratio - 1) ** 3))
        self._growth = 2.0

    def _raise_damping(self, model: LinearModel) -> None:
        self._set_damping(model, self.damping * self._growth)
        self._growth = min(2 * self._growth, 1e3)

    def _set_damping(self, model: LinearModel, damping: float) -> None:
        limits = np.finfo(self.dtype)
        least, most = max(LEAST * model.largest, float(limits.tiny)), min(MOST * model.largest, float(limits.max) / 4)
        self.damping = min(max(damping, least), most)

    def __repr__(self) -> str:
        return f"LevenbergMarquardt({len(self.parameters)} Parameters, damping={self.damping:.3g}, solver={self.solver!r})"


def _checked(name: str, value: Any) -> Any:
    """Returns a value for an attribute in SETTABLE. Raises ArgumentError or DTypeError for what it cannot have."""
    owner = "LevenbergMarquardt"
    if name == "solver":
        one_of(owner, name, value, SOLVERS)
        return value
    if name == "damping":
        return positive(owner, name, value)
    return count(owner, name, value, 1, ": how many dampings a step tries") if name == "trials" else flag(owner, name, value)


def _parameters(owner: str, params: Any) -> list[Parameter]:
    """Returns the trainable Parameters, each once. Raises ArgumentError, DTypeError, DeviceError."""
    given = params.parameters() if has(params, "parameters") and not isinstance(params, Tensor) else params
    leaves = in_order(list(given) if not isinstance(given, (dict, list, tuple, Tensor)) and hasattr(given, "__iter__") else given)
    for p in leaves:
        if not isinstance(p, Parameter):
            raise DTypeError(
                f"{owner}: params has a {type(p).__name__}; only a pb.Parameter can be updated in place. Make it with "
                f"pb.Parameter(value), or use pb.solve.least_squares, which takes and returns plain tensors."
            )
    found = list({id(p): p for p in leaves if p.trainable}.values())
    if not found:
        raise ArgumentError(f"{owner}: params has no trainable Parameter to update. Give a Module, or a list of Parameters.")
    for p in found:
        if not dtypes.is_float(p.dtype):
            raise DTypeError(f"{owner}: {p.label()} has dtype {p.dtype}; only floating-point Parameters can be trained.")
        if p.device != found[0].device:
            raise DeviceError(
                f"{owner}: {found[0].label()} is on {found[0].device}, {p.label()} on {p.device}. Move them to one device."
            )
    return found


__all__ = ["LevenbergMarquardt"]
