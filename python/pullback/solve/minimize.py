"""`pb.solve.minimize`: a minimisation as an iterator, one item per iteration, and as one call."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from ..autodiff.listeners import listeners
from ..errors import ArgumentError, DTypeError, PullbackError
from ..interop.unknown_names import attach_hints
from ..interop.wrong_calls import one_of
from ..ops._shapes import flag
from ..ops.conversion import copy
from ..tensors.tensor import Tensor
from .arguments import check_order, count, given_arguments, listed, not_negative
from .bounds import read_bounds
from .descent import Descent, Stop, Tolerances
from .jacobians import refuse_recording
from .lbfgs import LBFGS
from .lbfgsb import LBFGSB
from .objective import LossPoint, Objective, unrecorded
from .quasi_newton import BFGS, SSBFGS, SSBroyden
from .results import Result
from .scipy_methods import BY_NAME, SCIPY, ScipySolver, check_scipy_method
from .trust_region import TrustRegion
from .unknowns import Unknowns

RULES: Final[dict[str, type[Any]]] = {
    "L-BFGS": LBFGS, "L-BFGS-B": LBFGSB, "BFGS": BFGS, "SSBFGS": SSBFGS, "SSBroyden": SSBroyden,
}
METHODS: Final = (*RULES, "Newton-CG", "Gauss-Newton-CG")
UNLIMITED: Final = 2**62
GTOL: Final = 1e-5


@attach_hints
class Iteration:
    """The state of a minimisation after an iteration.

    Attributes:
        loss: the value of f.
        grad_norm: the largest absolute element of the gradient; with bounds, of the part of it that does not point out of them.
        nit, nfev: the number of iterations and of evaluations of f so far.
        args: the arguments of f, which the loop may change. The new ones hold from the next iteration on.
    """

    def __init__(self, at: LossPoint, nit: int, objective: Objective) -> None:
        vars(self).update(loss=at.loss, grad_norm=at.grad_norm, nit=nit, nfev=objective.nfev, _at=at, _objective=objective)

    loss: float
    grad_norm: float
    nit: int
    nfev: int
    _at: LossPoint
    _objective: Objective

    @property
    def args(self) -> Any:
        """The arguments of f: the dict, or a list. Both may be changed in place, and assigned."""
        return self._objective.args

    def __setattr__(self, name: str, value: Any) -> None:
        _set_args(self, name, value)

    @cached_property
    def x(self) -> Any:
        """The point, in the structure of the parameters. The Parameters that were given hold it, too."""
        return self._objective.unknowns.structured(self._at.x)

    @cached_property
    def jac(self) -> Any:
        """The gradient, in the structure of the parameters."""
        return self._objective.unknowns.structured(self._at.gradient)

    def __repr__(self) -> str:
        return f"Iteration({self.nit}: loss={self.loss:.6g}, grad_norm={self.grad_norm:.3g}, nfev={self.nfev})"


@attach_hints
@dataclass(eq=False, repr=False)
class MinimizeResult(Result):
    """The result of a minimisation, with the names of `scipy.optimize.OptimizeResult`.

    Attributes:
        x: the point, in the structure of the parameters. Gradients flow through x, fun and jac to the tensors and Parameters in
            `args`, if f takes the parameters and there are no constraints (see `minimize`).
        jac: the gradient there, in the structure of the parameters.
        fun: the loss there. It is a number, or a tensor if gradients flow through it.
        grad_norm: the largest absolute element of the gradient, without what points out of the bounds.
        nit, nfev, njev, nhev: the number of iterations, and of evaluations of f, of its gradient and of products with the Hessian.
        status: 0 if it converged, 1 after `maxiter` or `maxfun`, 2 if it stalled before, 3 if f has no lower bound.
        message, success: the status in words, and True if it converged.
    """

    x: Any
    fun: Any
    jac: Any
    grad_norm: float
    nit: int
    nfev: int
    njev: int
    nhev: int
    status: int
    message: str
    success: bool


@attach_hints
class Minimization:
    """A minimisation that `minimize` has prepared. Iterating over it yields one Iteration after each iteration."""

    def __init__(self, objective: Objective, solver: Any, limits: tuple[int, int], gtol: float) -> None:
        self._objective, self._solver, self._limits, self._gtol = objective, solver, limits, gtol
        self._result: MinimizeResult | None = None
        self._run = self._iterations()

    @property
    def args(self) -> Any:
        """The arguments of f, as in an Iteration."""
        return self._objective.args

    def __setattr__(self, name: str, value: Any) -> None:
        if name[:1] == "_":
            object.__setattr__(self, name, value)
        else:
            _set_args(self, name, value)

    def __repr__(self) -> str:
        objective = self._objective
        done = "ended" if self._result is not None else f"after {objective.nfev} evaluations" if objective.nfev else "not begun"
        return f"<a minimisation of {objective.unknowns.size} unknowns, {done}: .result() runs it to the end, a loop step by step>"

    def __iter__(self) -> Minimization:
        return self

    def __next__(self) -> Iteration:
        with unrecorded("minimize"):
            return next(self._run)

    def close(self) -> None:
        """Ends the minimisation. The Parameters keep the point of the last iteration."""
        self._run.close()

    def result(self) -> MinimizeResult:
        """Runs to the end and returns the result. After iterations it continues from their last point.

        Raises PullbackError if the minimisation was closed or ended by an exception before.
        """
        for _ in self:
            pass
        if self._result is None:
            raise PullbackError("minimize: there is no result, because the minimisation was ended. Call minimize again to go on.")
        if not listeners.stack:
            return self._result
        done, structured = self._result, self._objective.unknowns.structured
        why = "" if done.success else f"{done.message.rstrip('.')}, and grad_norm is {done.grad_norm:.2g}"
        found = self._objective.dependent(self._end, self._gtol, why)
        return done if found is None else replace(done, x=structured(found[0]), fun=found[1], jac=structured(found[2]))

    def _iterations(self) -> Generator[Iteration, None, None]:
        objective, unknowns = self._objective, self._objective.unknowns
        held, nit = unknowns.flat([copy(x) for x in unknowns.slots]), 0
        try:
            at = objective.evaluate(held)
            objective.check_start(at)
            held, stop = at.x, self._ended(nit) or self._solver.reached(at)
            steps = self._solver.steps(at)
            step = next(steps) if stop is None else None
            while step is not None:
                at, held, nit = step.at, step.at.x, nit + step.counts
                stop = step.stop or self._ended(nit)
                if not step.counts:
                    break
                yield Iteration(at, nit, objective)
                changed = objective.args_changed()
                if stop is not None and not (changed and stop.success):
                    break
                step = steps.send(changed)
            steps.close()
            self._result = self._made(at, nit, stop)
        finally:
            unknowns.place(held)

    def _ended(self, nit: int) -> Stop | None:
        """Returns the reason if no iteration may follow."""
        (maxiter, maxfun), nfev = self._limits, self._objective.nfev
        if nit < maxiter and nfev < maxfun:
            return None
        which = f"maxiter={maxiter}" if nit >= maxiter else f"maxfun={maxfun}"
        return Stop(1, f"stopped by {which}, after {nit} iterations and {nfev} evaluations", False)

    def _made(self, at: LossPoint, nit: int, stop: Any) -> MinimizeResult:
        o = self._objective
        self._end = at
        x, jac = o.unknowns.structured(at.x), o.unknowns.structured(at.gradient)
        return MinimizeResult(x, at.loss, jac, at.grad_norm, nit, o.nfev, o.njev, o.nhev, *stop)


def _set_args(owner: Any, name: str, value: Any) -> None:
    """Implements `__setattr__` of what `minimize` gives. Raises AttributeError for all names but args."""
    if name != "args":
        text = f"{type(owner).__name__}.{name} cannot be set: only .args can. Call minimize again to begin at another point."
        raise AttributeError(text, name=name, obj=None)
    owner._objective.args = given_arguments(value)


def minimize(
    f: Callable[..., Any],
    params: Any,
    method: str = "L-BFGS-B",
    bounds: Any = None,
    args: Mapping[str, Any] | Sequence[Any] | Tensor | float | None = None,
    *,
    gtol: float | None = None,
    ftol: float | None = None,
    maxiter: int | None = None,
    maxfun: int | None = None,
    memory: int = 10,
    capture: bool = True,
    options: Mapping[str, Any] | None = None,
    constraints: Any = (),
) -> Minimization:
    """Minimises a scalar function of parameters. Iterate over the result, or call its `result()`.

    Args:
        f: returns the loss, a scalar tensor. It is called as f(params, **args), or as f(**args) if it takes no more, and then
            reads the Parameters itself. With "Gauss-Newton-CG" it returns residuals, half the sum of whose squares is minimised.
        params: a Module, Parameters or tensors, alone or in nested lists, tuples and dicts; float32 or float64. Parameters hold the
            point after each iteration. Tensors do not change; the point is `.x`.
        method: "L-BFGS", "L-BFGS-B" (bounds), "BFGS", "SSBFGS", "SSBroyden" (self-scaled, for physics-informed networks),
            "Newton-CG" (trust region), "Gauss-Newton-CG", or "scipy:NAME" for a method of scipy.optimize.minimize.
        bounds: (lower, upper), each a number, None, an array or the structure of the parameters; or a pair (min, max) for each
            element of one vector, also as an array with a row for each. Two pairs of numbers for two unknowns would be either
            and are refused: give (np.array(lower), np.array(upper)). For "L-BFGS-B" and methods of SciPy that take bounds.
        args: more arguments of f: a dict of keyword arguments, a list or tuple of positional ones, or a single one that is neither.
            What the loop changes in `.args` of an iteration holds from the next iteration on. Floats arrive in f as tensors, and
            integers as they are.
        gtol: ends where no element of the gradient is larger. It is absolute: for 1e-12 * f, 1e-12 of the gtol for f is the same.
            None: 1e-5, or 1e-5 of the largest gradient so far if that is below 1, so that the units of f do not matter, and only
            if the last step lowered the loss by little.
        ftol: ends where the loss falls by less, relative to its size or to its whole fall, at most 1 (for L-BFGS and L-BFGS-B
            2.2e-9 in float64 and 1e-6 in float32; 0, which never ends, for the others, and for every method if gtol is given).
        maxiter, maxfun: the most iterations and evaluations (15,000 each).
        memory: the number of steps that L-BFGS and L-BFGS-B remember.
        capture: False runs f eagerly. f is captured otherwise, unless it does what a recording cannot repeat.
        options, constraints: for SciPy's methods, as in scipy.optimize.minimize. A constraint's "fun" is called as f is, and its
            derivative is ours. It gets the args of f, or "args" of the constraint, or none if it takes the parameters alone.

    The iterations are not recorded by tapes. If f takes the parameters, gradients flow through `result().x` to the tensors in args
    by the implicit function theorem, so that their memory does not depend on the number of iterations; give a small gtol. Gradients
    flow through its fun and jac, too. A ConvergenceWarning tells of a derivative where the minimisation has not converged, or ended
    far from the minimum. Under `constraints`, a derivative is a TapeError, which says what to do.

    Raises: ArgumentError, ShapeError or DTypeError for bounds that cross or do not fit, for a loss that is no scalar or is not
    finite at the start, for parameters that are not float32 or float64, and for unknown methods.

    Example:
        >>> for step in pb.solve.minimize(loss, model, args={"penalty": 1.0}):
        ...     step.args["penalty"] *= 1.1
    """
    refuse_recording("minimize")
    _check_name(method)
    check_order("minimize", "f", f, "params", params)
    unknowns = Unknowns(params, "minimize")
    limits = read_bounds(bounds, unknowns, "minimize")
    _check_numbers(gtol, ftol, memory, maxiter, maxfun)
    _check(method, limits, options, constraints)
    capture, given = flag("minimize", "capture", capture), given_arguments(args)
    objective = Objective(f, unknowns, given, limits, capture=capture, residuals=method == "Gauss-Newton-CG")
    small = GTOL if gtol is None else gtol
    if method not in METHODS:
        whole = gtol is not None and {"gtol", "ftol"} <= {*SCIPY[BY_NAME[method[6:].lower()]].tolerances}
        more = {"gtol": gtol, "ftol": 0.0 if whole and ftol is None else ftol, "maxiter": maxiter, "maxfun": maxfun}
        solver = ScipySolver(objective, method, dict(options or {}), {k: x for k, x in more.items() if x is not None}, constraints)
        return Minimization(objective, solver, (UNLIMITED, UNLIMITED), small)
    rule: Any = LBFGS if method == "L-BFGS-B" and limits is None else RULES.get(method)
    double = unknowns.dtype.itemsize == 8
    flat = 0.0 if rule is None or not rule.stops_flat or gtol is not None else 2.2e-9 if double else 1e-6
    tolerances = Tolerances(small, flat if ftol is None else ftol, 1 if double else 4, relative=gtol is None)
    solver = TrustRegion(objective, tolerances) if rule is None else Descent(objective, rule(objective, memory), tolerances)
    return Minimization(objective, solver, (15_000 if maxiter is None else maxiter, 15_000 if maxfun is None else maxfun), small)


def _check_numbers(gtol: Any, ftol: Any, memory: Any, maxiter: Any, maxfun: Any) -> None:
    """Raises ArgumentError for a tolerance or a limit that is no number, or too small."""
    for name, value in (("gtol", gtol), ("ftol", ftol)):
        if value is not None:
            not_negative("minimize", name, value, ", or None for the default")
    count("minimize", "memory", memory, 1)
    for name, value, least in (("maxiter", maxiter, 0), ("maxfun", maxfun, 1)):
        if value is not None:
            count("minimize", name, value, least, ", or None for the default")


def _check_name(method: Any) -> None:
    """Raises ArgumentError for a method that does not exist."""
    if not str(method).startswith("scipy:"):
        one_of("minimize", "method", method, METHODS, "'scipy:NAME'", {name: f"scipy:{name}" for name in SCIPY})


def _check(method: Any, bounds: Any, options: Any, constraints: Any) -> None:
    """Raises ArgumentError for a method that does not take one of the other arguments."""
    if options is not None and not isinstance(options, Mapping):
        raise DTypeError(f"minimize: options is a {type(options).__name__}. Give a dict of the options of a method of SciPy.")
    if isinstance(method, str) and method.startswith("scipy:"):
        return check_scipy_method(method, bounds, constraints)
    if bounds is not None and method != "L-BFGS-B":
        takes = [f"scipy:{name}" for name, facts in SCIPY.items() if facts.bounds]
        raise ArgumentError(f'minimize: {method} takes no bounds. Use "L-BFGS-B", or {", ".join(map(repr, takes))}.')
    if options or listed(constraints):
        name = "options" if options else "constraints"
        raise ArgumentError(
            f"minimize: {name} is for methods of SciPy. Use gtol, ftol, maxiter, maxfun and memory, and for constraints "
            f'pb.solve.augmented_lagrangian or method="scipy:SLSQP".'
        )
    return None
