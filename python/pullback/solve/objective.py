"""The function that a minimiser calls: from a flat point to the loss, its gradient, and a few numbers that the host reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..autodiff.batching import Batch, Batched
from ..autodiff.kept import Heard
from ..autodiff.listeners import listeners
from ..autodiff.tape import Tape
from ..errors import ArgumentError, CaptureError, DTypeError, PullbackError, ShapeError, UnconnectedError, VmapError
from ..launch import door
from ..ops.conversion import copy
from ..ops.elementwise import abs as absolute, clip, where
from ..ops.linalg import vecdot
from ..ops.matrices import vector_norm
from ..ops.movement import concat, stack
from ..ops.reduce import max as largest, min as smallest, sum as total
from ..ops.shape import reshape
from ..replays.capture import capture
from ..tensors.creation import asarray, full, zeros, zeros_like
from ..tensors.operand import converted, own
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..transforms.jvp import jvp
from ..transforms.vjp import value_and_grad
from ..tree import flatten, unflatten
from .arguments import check_finite, check_function, fits, signature_of
from .constrained import without_derivatives
from .implicit import of_minimum
from .jacobians import host
from .stationary import Point
from .unknowns import Unknowns


class LossPoint(NamedTuple):
    """A point: the flat vector, the loss, the flat gradient, the slope along the step to it, and the norm of the gradient."""

    x: Tensor
    loss: float
    gradient: Tensor
    slope: float
    grad_norm: float


class Objective:
    """A user's function of unknowns and arguments.

    Args:
        f: called with the unknowns and the arguments, or with the arguments alone if it takes no more (see `_calls`).
        args: a dict of keyword arguments, or a list of positional ones. The user may change it between iterations.
        bounds: the flat lower and upper bounds, or None.
        capture: False runs f eagerly on each call. The vector algebra of a method is captured even then.
        residuals: f returns residuals, and the loss is half the sum of their squares.
        constraint: what f is called if it is a constraint, which may leave the arguments out, as SciPy's constraints do.
    """

    def __init__(
        self, f: Callable[..., Any], unknowns: Unknowns, args: Any, bounds: Any, *, capture: bool = True, residuals: bool = False,
        constraint: str = "",
    ) -> None:
        self.f, self.unknowns, self.args, self.what = f, unknowns, args, unknowns.what
        self.name, self._constraint = constraint or "f", bool(constraint)
        check_function(self.what, self.name, f, "the values of the constraint" if constraint else "the loss")
        self.residuals, self.eager = residuals, not capture
        self.nfev = self.njev = self.nhev = 0
        self.bounds = None if bounds is None else [asarray(side, dtype=unknowns.dtype, device=unknowns.device) for side in bounds]
        self._takes_params = self._takes_args = True
        self.constraints: list[Objective] | None = None  # the constraints that are functions; None if there are no constraints
        self._spec: Any = None
        self._functions: dict[Any, Callable[..., Any]] = {}
        self._fixed: tuple[list[Any], Any] = ([], None)  # the arguments that are no tensors, and the structure
        self.zero, self.one = self.scalar(0.0), self.scalar(1.0)
        self.epsilon = float(np.finfo(unknowns.dtype).eps)
        self._read_args()

    def scalar(self, value: float) -> Tensor:
        return full((), value, dtype=self.unknowns.dtype, device=self.unknowns.device)

    # ---- the arguments, which the user changes between iterations

    def _read_args(self) -> None:
        """Takes the values of `args`. Numbers with a fraction and arrays become tensors, so that a change needs no recording."""
        self._leaves, spec = flatten(self.args)
        if spec != self._spec:
            self._takes_params, self._takes_args = self._calls()
            self._spec = spec
        self._seen = [_seen(x) for x in self._leaves]
        self._tensors = [self._tensor(x) for x in self._leaves]
        self.given = tuple([x for x in self._tensors if x is not None])
        fixed = [x for x, t in zip(self._leaves, self._tensors) if t is None]
        before, former = self._fixed
        if former != spec or len(before) != len(fixed) or not all([_equal(a, b) for a, b in zip(before, fixed)]):
            self._functions.clear()
        self._fixed = (fixed, spec)

    def _tensor(self, x: Any) -> Tensor | None:
        if isinstance(x, (Parameter, bool, int, str)):
            return None
        if isinstance(x, Batched):
            raise _in_vmap(self.what)
        if isinstance(x, Tensor):
            return x
        if isinstance(x, (float, np.floating)):
            return self.scalar(float(x))
        if isinstance(x, np.ndarray) and x.dtype.kind in "fiub":
            return asarray(x, device=self.unknowns.device, copy=True)
        return None

    def tensors_of(self, args: Any) -> list[Any]:
        """Returns the leaves of arguments of the same structure that are tensors here, for `value`."""
        return [x for x, t in zip(flatten(args)[0], self._tensors) if t is not None]

    def args_changed(self) -> bool:
        """True, and the new values hold from now on, if the user has changed an argument since it was last read."""
        leaves, spec = flatten(self.args)
        if spec == self._spec and len(leaves) == len(self._seen) and all([_is_seen(x, s) for x, s in zip(leaves, self._seen)]):
            return False
        self._read_args()
        return True

    # ---- calling the user's function

    def value(self, tree: Any, leaves: Sequence[Any]) -> Tensor:
        """Returns the loss, or the flat residuals, at this tree of unknowns. leaves: of the arguments that are tensors."""
        given = iter(leaves)
        return self._value(tree, [x if t is None else next(given) for x, t in zip(self._leaves, self._tensors)])

    def sources(self) -> tuple[Any, ...]:
        """Returns the arguments by which a derivative may be asked for: tensors as `given` has them, and Parameters."""
        return tuple([x if t is None else t for x, t in zip(self._leaves, self._tensors) if _is_source(x, t)])

    def value_from(self, tree: Any, sources: Sequence[Any]) -> Tensor:
        """Returns `value` with new sources."""
        new = iter(sources)
        return self._value(tree, [next(new) if _is_source(x, t) else x for x, t in zip(self._leaves, self._tensors)])

    def _value(self, tree: Any, leaves: Sequence[Any]) -> Tensor:
        """Does what `value` does, with all leaves of the arguments."""
        args = unflatten(self._spec, leaves)
        first = (tree,) if self._takes_params else ()
        before = door.enter(door.FORWARD)
        try:
            if not self._takes_args:
                result = self.f(*first)
            else:
                result = self.f(*first, **args) if isinstance(args, dict) else self.f(*first, *args)
            return self._flat_residuals(result) if self.residuals else self._scalar(result)
        finally:
            door.enter(before)

    def _scalar(self, result: Any) -> Tensor:
        if result is None or isinstance(result, (tuple, list, dict, str)):
            found = "None" if result is None else f"a {type(result).__name__}"
            raise DTypeError(f"{self.what}: {self.name} returned {found}, and must return the loss, one number as a tensor.")
        loss = converted(self.what, f"the value of {self.name}", result, own)
        if loss.size != 1:
            raise ShapeError(
                f"{self.what}: f returned shape {loss.shape}, and only a scalar can be minimised. Sum it (pb.sum), or use "
                f'method="Gauss-Newton-CG" or pb.solve.least_squares for residuals.'
            )
        return reshape(loss, ()) if loss.ndim else loss

    def _flat_residuals(self, result: Any) -> Tensor:
        parts = [reshape(converted(self.what, f"the value of {self.name}", x, own), (-1,)) for x in flatten(result)[0]]
        if not parts:
            kind = "values of the constraint" if self._constraint else "residuals"
            raise DTypeError(f"{self.what}: {self.name} returned {result!r} and no {kind}. Return a tensor of them.")
        if self._constraint and any([part.dtype.kind == "b" for part in parts]):
            raise DTypeError(
                f"{self.what}: {self.name} returned a bool, as a comparison does. Return the value that must be zero, or must not "
                f"be negative: x[0] - 1 for x[0] == 1 or x[0] >= 1."
            )
        return parts[0] if len(parts) == 1 else concat(parts)

    def _loss(self, value: Tensor) -> Tensor:
        return 0.5 * total(value * value) if self.residuals else value

    def loss_and_gradient(self, x: Tensor, leaves: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Returns the loss and the flat gradient at x, which the Parameters then hold."""
        unknowns = self.unknowns
        unknowns.place(x)
        tape = Tape(watch_parameters=False)
        tape.watch(unknowns.slots)
        with tape:
            loss = self._loss(self.value(unknowns.tree, leaves))
        gradients = tape.gradient(loss, unknowns.slots, unconnected="none")
        if all([g is None for g in gradients]):
            raise UnconnectedError(
                f"{self.what}: the value of f does not depend on the parameters, or not through tensors. Compute it from them with "
                f"functions of pb; where an op has no derivative, use pb.custom_gradient."
            )
        gradients = [zeros_like(x) if g is None else g for x, g in zip(unknowns.slots, gradients)]
        return (loss if loss.storage is None else copy(loss)), unknowns.flat(gradients)

    def trial(self, x: Tensor, d: Tensor, step: Tensor, *leaves: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the point x + step * d, its gradient, and (loss, slope along d, largest absolute gradient that is free)."""
        t = x + step * d
        t = t if self.bounds is None else self.inside(x, t)
        loss, g = self.loss_and_gradient(t, leaves)
        return t, g, stack([loss.astype(t.dtype), vecdot(g, d), largest(absolute(self.free_gradient(t, g)))])

    def inside(self, x: Tensor, t: Tensor) -> Tensor:
        """Returns t within the bounds. An element that misses its bound only by the rounding of a step from x lies on it."""
        assert self.bounds is not None
        low, high = self.bounds
        rounding = 2.0 * self.epsilon * (absolute(x) + absolute(t))
        return where(t - low <= rounding, low, where(high - t <= rounding, high, t))

    def free_gradient(self, x: Tensor, g: Tensor) -> Tensor:
        """Returns the negative of the step that the gradient would make within the bounds: zero where x is a minimum."""
        return g if self.bounds is None else x - clip(x - g, self.bounds[0], self.bounds[1])

    def furthest(self, x: Tensor, d: Tensor) -> Tensor:
        """Returns the longest step along d that stays within the bounds."""
        if self.bounds is None:
            return full((), math.inf, dtype=x.dtype, device=x.device)
        room = where(d > 0, self.bounds[1] - x, self.bounds[0] - x)
        return smallest(where(d == 0, math.inf, room / where(d == 0, 1.0, d)))

    def curvature(self, x: Tensor, v: Tensor, *leaves: Any) -> Tensor:
        """Returns the product of the Hessian at x with a direction, or of the Gauss-Newton matrix if f returns residuals."""
        unknowns = self.unknowns
        unknowns.place(x)
        slots, directions = unknowns.slots, unknowns.parts(v)
        if not self.residuals:

            def gradient(*_: Any) -> Any:
                tape = Tape(watch_parameters=False)
                tape.watch(slots)
                with tape:
                    loss = self.value(unknowns.tree, leaves)
                return tape.gradient(loss, slots, unconnected="zero")

            return unknowns.flat(jvp(gradient, slots, directions)[1])
        tape = Tape(watch_parameters=False)
        tape.watch(slots)
        with tape:
            residuals = self.value(unknowns.tree, leaves)
        pushed = jvp(lambda *_: self.value(unknowns.tree, leaves), slots, directions)[1]
        return unknowns.flat(tape.gradient(residuals, slots, output_gradients=pushed, unconnected="zero"))

    # ---- captured calls

    def call(self, key: Any, function: Callable[..., Any], *given: Any, of_f: bool = True) -> Any:
        """Returns function(*given), captured if it can be. of_f: it calls the user's function, which gets the arguments.

        Captured functions take tensors only, so each key has one recording until an argument that is no tensor changes.
        """
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = function if of_f and self.eager else capture(function)
        before = door.enter(door.SOLVER)
        try:
            return found(*given)
        except CaptureError:
            if not of_f or self.eager or found is function:
                raise
            self.eager = True  # f reads values on the host, or has an op without a native kernel
            self._functions.clear()
        finally:
            door.enter(before)
        return self.call(key, function, *given)

    def evaluate(self, x: Tensor, d: Tensor | None = None, step: float = 0.0) -> LossPoint:
        """Returns the point x + step * d. It is counted, and reads three numbers from the device."""
        direction = d if d is not None else zeros((self.unknowns.size,), dtype=x.dtype, device=x.device)
        alpha = self.one if step == 1.0 else self.zero if step == 0.0 else self.scalar(step)
        t, g, report = self.call("trial", self.trial, x, direction, alpha, *self.given)
        return self.point(t, g, report.numpy().tolist())

    def point(self, t: Tensor, g: Tensor, report: Sequence[float]) -> LossPoint:
        """Returns the point of a trial from what the host read, and counts the evaluation."""
        self.nfev += 1
        self.njev += 1
        return LossPoint(t, report[0], g, report[1], report[2])

    def length(self, x: Tensor) -> float:
        """Returns the Euclidean norm of a flat vector."""
        return float(self.call("length", vector_norm, x, of_f=False).item())

    def product(self, x: Tensor, v: Tensor) -> Tensor:
        """Returns the product of the Hessian, or of the Gauss-Newton matrix, with a direction."""
        self.nhev += 1
        return self.call("curvature", self.curvature, x, v, *self.given)

    @property
    def takes_unknowns(self) -> bool:
        """False if f reads the unknowns itself, or takes a module of them, so that it cannot be called at other values."""
        return self._takes_params and not self.unknowns.is_module

    def dependent(self, at: LossPoint, gtol: float, unsolved: str) -> tuple[Tensor, ...] | None:
        """Returns the minimum x, the loss and the gradient there as values that depend on the tensors in `args`.

        They are for tapes and forward mode, and depend on Parameters in `args`, too. Under constraints, to ask for a derivative of
        them raises TapeError. Returns None if f does not take the unknowns. gtol, unsolved: as in a `Point`.
        """
        if not self.takes_unknowns:
            return None
        if self.constraints is not None:
            return without_derivatives((at.x, self.scalar(at.loss), at.gradient), at.x, [self, *self.constraints])
        low, high = (-np.inf, np.inf) if self.bounds is None else [host(side) for side in self.bounds]
        point = Point(host(at.x), host(at.gradient), low, high, gtol, unsolved)
        sources = self.sources()

        def loss(z: Tensor, *sources: Any) -> Tensor:
            return self._loss(self.value_from(self.unknowns.structured(z), sources))

        z = of_minimum(self.what, loss, at.x, sources, point.judge)
        return z, *value_and_grad(loss)(z, *sources)

    def check_start(self, at: LossPoint, changed: bool = False) -> None:
        """Raises ArgumentError if the loss or the gradient is not finite where the minimisation begins.

        changed: it goes on from there, with arguments that the loop has changed.
        """
        where = "with the args that the loop has changed" if changed else "at the start"
        if not math.isfinite(at.loss):
            check_finite(self.what, "params", at.x.numpy())
            remedy = "Give args with which f is finite at the present point" if changed else "Begin where f is finite"
            raise ArgumentError(
                f"{self.what}: the loss is {at.loss} {where}. {remedy}, or change f (a log or root of a negative number?); "
                f"pb.debug_nans() finds the op."
            )
        if not math.isfinite(at.grad_norm):
            wrong = [i for i, g in enumerate(at.gradient.numpy().tolist()) if not math.isfinite(g)]
            remedy = "Give other args" if changed else "Begin elsewhere"
            raise ArgumentError(
                f"{self.what}: the gradient of element {wrong[0] if wrong else 0} is not finite {where}, though the loss is. "
                f"{remedy}, or find the op by pb.debug_nans()."
            )

    def _calls(self) -> tuple[bool, bool]:
        """Returns two flags: f takes the parameters, which it otherwise reads itself, and f takes the arguments.

        Raises ArgumentError if f takes neither way the arguments that there are.
        """
        args, unknowns = self.args, self.unknowns
        positional, named = ((), args) if isinstance(args, dict) else (tuple(args), {})
        tree = unknowns.tree
        ways: list[tuple[tuple[Any, ...], bool]] = [((tree,), True)]
        if unknowns.shared:
            ways.append(((), True))
        if self._constraint:  # f(x) could take a positional argument for its x, but not one that has a name
            ways.insert(len(ways) if named else 1, ((tree,), False))
        for first, takes_args in ways:
            if fits(self.f, (*first, *(positional if takes_args else ())), named if takes_args else {}):
                return bool(first), takes_args
        given = ", ".join(map(str, args)) or "nothing" if isinstance(args, dict) else f"{len(args)} of them"
        also = " nor the arguments alone" * unknowns.shared + " nor the parameters alone" * self._constraint
        takes = f"takes neither (params, arguments){also}" if also else "does not take (params, arguments)"
        raise ArgumentError(
            f"{self.what}: {self.name}{signature_of(self.f)} {takes}; args has {given}. Give in args= what "
            f"{'f and the constraints take' if self._constraint else 'f takes'} after the parameters."
        )


def unrecorded(what: str) -> Any:
    """Makes tapes and other listeners of this thread receive nothing. Returns the state for `listeners.restore`."""
    if any([isinstance(listener, Batch) and not listener.directions for listener in listeners.stack]):
        raise _in_vmap(what)
    return Heard(())


def _in_vmap(what: str) -> VmapError:
    return VmapError(f"{what}: cannot run under vmap, because each example needs iterations of its own. Loop over the examples.")


def _is_source(x: Any, tensor: Tensor | None) -> bool:
    return tensor is not None or isinstance(x, Parameter)


def _seen(x: Any) -> Any:
    """Returns what tells later if an argument has changed: versions of Parameters, and copies of arrays that can change."""
    return (x, x.version) if isinstance(x, Parameter) else (x.copy(), None) if isinstance(x, np.ndarray) else (x, None)


def _is_seen(x: Any, seen: Any) -> bool:
    before, version = seen
    if isinstance(x, Parameter):
        return x is before and x.version == version
    return _equal(before, x)


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if type(a) is not type(b) or isinstance(a, Tensor):
        return False
    try:
        return bool(a == b)
    except (PullbackError, ValueError, TypeError):
        return False
