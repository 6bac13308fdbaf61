"""least_squares: minimizes a sum of squares, also robust and within bounds, to SciPy's conditions of convergence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..errors import ArgumentError, ShapeError
from ..interop.wrong_calls import one_of
from ..ops._shapes import flag
from ..ops.conversion import constant
from ..tensors.tensor import Tensor
from ..transforms.jacobian import Mode
from ..tree import map as mapped
from ..typing import ArrayLike
from .arguments import check_call, check_finite, check_function, check_order, check_start, count, not_negative, real_array
from .batched import solve_batch
from .implicit import of_least_squares
from .jacobians import MODES, Residuals, Unknowns, host, prepared, refuse_recording
from .losses import Loss
from .results import MESSAGES, LeastSquaresResult
from .steps import Model, counted

Array = np.ndarray[Any, Any]

EPS: Final = float(np.finfo(np.float64).eps)
SLOW: Final = 0.1  # the share of the step before that a step has at least if convergence is linear
NEWTON: Final = 3  # the most Newton steps at the end
TIGHT: Final = 1e-12  # from this ftol on, rounding of the cost may have ended the iteration before the gradient is small
MOST_SECOND: Final = 100  # the most unknowns whose Hessian is computed for these steps
ROUNDING: Final = 16.0  # a decrease of the cost below this multiple of its rounding error counts as none
SMALLEST: Final = 1e-290  # the smallest cost from which products of residuals and derivatives have all their digits
FACTOR: Final = 100.0  # the first radius is this multiple of |D x0|, or of 1 if x0 is 0 (MINPACK's)


@dataclass
class Tolerances:
    """The conditions of convergence. 0 stands for a condition that is not used."""

    ftol: float
    xtol: float
    gtol: float
    max_nfev: int


class Search:
    """The iteration of one problem: a trust region of scaled unknowns, whose radius grows and shrinks with the gain ratio."""

    def __init__(
        self, residuals: Any, x: Array, low: Array, high: Array, loss: Loss, scale: Array | None, stop: Tolerances
    ) -> None:
        self.residuals, self.x, self.low, self.high, self.loss, self.stop = residuals, x, low, high, loss, stop
        self.eps = residuals.eps
        self._fixed_scale = scale
        self.scale = np.ones_like(x) if scale is None else 1 / scale
        self.radius = -1.0
        self.r, self.j, self.cost = np.empty(0), np.empty((0, x.size)), np.inf
        self.gradient = np.zeros_like(x)
        self.optimality = np.inf
        self.promise = np.inf  # the decrease of the cost that the linear model promises for a change of one element
        self.sizes = [0.0, 0.0]  # of the last two steps that were accepted
        self.extent = np.abs(x)  # the largest size of each element so far, and the largest norm of each column of the Jacobian
        self.steepest = np.zeros_like(x)

    def linearize(self) -> Model | None:
        """Computes residuals, Jacobian and gradient at x. Returns the model, or None if a derivative is not finite."""
        self.r, self.j = self.residuals.both(self.x)
        self.cost = self.loss.cost(self.r)
        scaled = self.loss.scaled(np, self.r)
        self.gradient = self.j.T @ scaled.weighted
        if not np.isfinite(self.j).all():
            return None
        j = self.j if scaled.rows is None else self.j * scaled.rows[:, None]
        columns = np.linalg.norm(j, axis=0)
        squares = columns * columns
        if not np.isfinite(squares).all():
            return None
        self.steepest = np.maximum(self.steepest, columns)
        self.promise = _promise(self.gradient, squares, np.where(self.gradient > 0, self.x - self.low, self.high - self.x))
        if self._fixed_scale is None:
            first = self.radius < 0
            self.scale = np.where(columns > 0, columns, 1.0) if first else np.maximum(self.scale, columns)
        if self.radius < 0:
            factor = FACTOR if self.loss.linear else 1.0  # a long step may end in the flat tail of a robust loss
            self.radius = factor * (float(np.linalg.norm(self.scale * self.x)) or 1.0)
        towards = np.where(self.gradient > 0, self.x - self.low, self.high - self.x)
        self.optimality = float(np.max(np.abs(self.gradient) * np.where(np.isfinite(towards), towards, 1.0)))
        return Model(j, scaled.residuals)

    def held(self) -> Array:
        """Returns which elements are on a bound that the gradient presses them against."""
        return ((self.x <= self.low) & (self.gradient > 0)) | ((self.x >= self.high) & (self.gradient < 0))

    def run(self) -> int:
        """Iterates until a condition is met, and returns its number."""
        with np.errstate(all="ignore"):
            return self._run()

    def _run(self) -> int:
        status = self._iterate()
        return -4 if status > 0 and self._is_unseen() else status

    def _is_unseen(self) -> bool:
        """True if the squares of a column of the Jacobian are lost, so that its element of x does not move, although the residuals
        show it.
        """
        sizes = np.abs(self.j).max(axis=0, initial=0)
        shown = sizes * np.abs(self.x) > self.eps * np.abs(self.r).max(initial=0)
        return bool(((sizes * sizes < SMALLEST) & shown).any())

    def _iterate(self) -> int:
        model = self.linearize()
        while True:
            if model is None or not np.isfinite(self.cost):
                return -2
            if self._is_stationary():
                return -4 if self.cost < SMALLEST and self.r.any() else 1
            before = self._place()
            status = self._improve(model)
            if self.x is not before[0]:
                later = self.linearize()
                if later is None and self.residuals.nfev < self.stop.max_nfev:  # as a step to where the cost is not finite
                    self._go_back(before)
                    self.radius, status = 0.1 * min(self.radius, self.sizes[1]), 0
                else:
                    model = later
            if status == 0 and self.residuals.nfev >= self.stop.max_nfev:
                return 1 if model is not None and self._is_stationary() else 0
            if status:
                self._finish()
                return 1 if status < 0 and (self._is_stationary() or self._has_flattened()) else status

    def _is_stationary(self) -> bool:
        """True if no column of the Jacobian has a larger cosine with the residuals than gtol, or rounding of x hides the residuals.

        Neither depends on the units of the residuals and of x.
        """
        gtol = self.stop.gtol
        if self.optimality == 0 or self.promise < gtol * gtol * self.cost:
            return True
        return gtol > 0 and bool((np.abs(self.r) <= 2 * self.eps * (np.abs(self.j) @ np.abs(self.x))).all())

    def _has_flattened(self) -> bool:
        """True if the gradient would be small beside the steepest Jacobian so far, as on the way to a minimum at infinity."""
        size = self.stop.gtol * self.steepest * np.sqrt(2 * self.cost)
        return bool((np.abs(self.gradient) <= size).all())

    def _place(self) -> tuple[Any, ...]:
        return self.x, self.r, self.j, self.cost, self.gradient, self.optimality, self.promise

    def _go_back(self, place: tuple[Any, ...]) -> None:
        self.x, self.r, self.j, self.cost, self.gradient, self.optimality, self.promise = place

    def _improve(self, model: Model) -> int:
        """Tries steps until one lowers the cost. Returns the number of a condition that was met, or 0."""
        held = self.held()
        finite, walled = False, False
        # The sizes of the longest step whose gain is hidden, and of the shortest one that is too long.
        longest, rejected = 0.0, np.inf
        while self.residuals.nfev < self.stop.max_nfev:
            step = model.step(self.x, self.low, self.high, held, self.scale, self.radius)
            trial = np.clip(self.residuals.rounded(self.x + step.dx), self.low, self.high)
            trial = np.where(step.dx == self.high - self.x, self.high, np.where(step.dx == self.low - self.x, self.low, trial))
            if not np.isfinite(step.dx).all() or (step.predicted <= 0 and not step.dx.any()):
                return 3 if not step.dx.any() else -1
            cost = self.loss.cost(self.residuals(trial))
            finite, walled = finite or np.isfinite(cost), walled or not np.isfinite(cost)
            gained = self.cost - cost
            ratio = gained / step.predicted if step.predicted > 0 and np.isfinite(cost) else (-np.inf if gained < 0 else 0.0)
            status = self._status(step, gained, ratio)
            short = step.damping > 0 and self.promise > ROUNDING * self.eps * self.cost  # by the radius, not by the model
            hidden = short and self._is_hidden(step, gained)
            if not hidden or ratio >= 0.75:
                self._resize(step, ratio, gained)
            if gained > 0:
                self.x, self.cost, self.extent = trial, cost, np.maximum(self.extent, np.abs(trial))
                self.sizes = [self.sizes[1], step.size]
                return 0 if hidden or (short and (walled or status == 3)) else status
            if status and not hidden and not (short and walled):
                return status if finite else -2
            longest, rejected = (max(longest, step.size), rejected) if hidden else (longest, min(rejected, step.size))
            if (status and not hidden) or 2 * longest >= rejected:
                return -3 if finite else -2
            if longest:  # only a longer step tells a gain from rounding
                self.radius = min(4 * longest, float(np.sqrt(longest * rejected)))
        return 0

    def _resize(self, step: Any, ratio: float, gained: float) -> None:
        if ratio <= 0.25:
            shrink = 0.1
            if np.isfinite(gained):  # the minimum of the parabola along the step
                slope = float(self.gradient @ step.dx)
                denominator = -2 * (gained + slope)
                shrink = 0.5 if gained >= 0 else float(np.clip(slope / -denominator, 0.1, 0.5)) if denominator else 0.5
            self.radius = shrink * min(self.radius, 10 * step.size)
        elif ratio >= 0.75 or step.damping == 0:
            self.radius = max(self.radius if step.damping else 0.0, 2 * step.size)

    def _finish(self) -> None:
        """Takes Newton steps at the end if Gauss-Newton steps, which lack the curvature of the residuals, shrink slowly."""
        slow = self.sizes[1] > SLOW * self.sizes[0] or self.stop.ftol <= TIGHT
        if self.x.size > MOST_SECOND or not slow:
            return
        for _ in range(NEWTON):
            before = self._place()
            free = ~self.held() & (self.x > self.low) & (self.x < self.high)
            hessian = self.residuals.hessian(self.x, self.loss)[np.ix_(free, free)]
            if not free.any() or not np.isfinite(hessian).all() or (w := np.linalg.eigvalsh(hessian))[0] <= self.eps * w[-1]:
                return
            x = self.x.copy()
            n = int(free.sum())
            x[free] -= counted("solver_cholesky", lambda h=hessian, g=self.gradient[free]: np.linalg.solve(h, g), n**3 // 3, n)
            self.x = self.residuals.rounded(x)
            inside = bool(((self.x >= self.low) & (self.x <= self.high)).all())
            if (
                not inside
                or self.linearize() is None
                or self.optimality > 0.5 * before[5]
                or self.cost > before[3] * (1 + 8 * self.eps)
            ):
                self._go_back(before)
                return

    def _is_hidden(self, step: Any, gained: float) -> bool:
        """True if rounding of the cost hides what a step gains, and what the model predicts of it."""
        return abs(gained) <= self.eps * self.cost and step.predicted <= self.eps * self.cost

    def _status(self, step: Any, gained: float, ratio: float) -> int:
        """SciPy's conditions, and MINPACK's for a cost that rounding keeps from falling further."""
        ftol = self.stop.ftol
        near = self.promise <= max(4 * ftol, ROUNDING * self.eps) * self.cost  # which follows from the gain of a full step
        small_gain = ftol > 0 and ((gained < ftol * self.cost and ratio > 0.25 and near) or self._is_hidden(step, gained))
        length = float(np.linalg.norm(step.dx))
        xtol = self.stop.xtol  # in both norms: an element that the residuals do not show may be very large
        x, scaled = [xtol * np.linalg.norm(d * self.extent) + np.linalg.norm(d * self.x) for d in (1.0, self.scale)]
        small_step = length < xtol * x and step.size <= xtol * scaled
        tiny = bool((np.abs(step.dx) <= 0.5 * self.eps * np.abs(self.x)).all())  # no further step would change x
        return 4 if small_gain and small_step else 2 if small_gain else 3 if small_step or tiny else 0


def _promise(gradient: Array, squares: Array, room: Array) -> float:
    """Returns the largest decrease of the cost that the linear model predicts for a change of one element alone.

    It is the cost times the square of the largest cosine between the residuals and a column of the Jacobian, which MINPACK
    calls gnorm, or less where a bound leaves no room for the change.

    squares: of the norms of the columns. room: the distance to the bound to which each element goes.
    """
    slope = np.abs(gradient)
    change = np.minimum(np.where(squares > 0, slope / np.where(squares > 0, squares, 1.0), 0.0), room)
    return float(np.max(change * slope - 0.5 * squares * change * change))


# ---- the public function


def least_squares(
    residual_fn: Callable[..., Any],
    x0: Any,
    args: Sequence[Any] | Mapping[str, Any] | Tensor | float | None = (),
    bounds: Any = None,
    loss: str = "linear",
    f_scale: float = 1.0,
    batch: bool = False,
    ftol: float | None = 1e-8,
    xtol: float | None = 1e-8,
    gtol: float | None = 1e-8,
    max_nfev: int | None = None,
    x_scale: ArrayLike | str = "jac",
    mode: Mode = "auto",
    capture: bool = False,
) -> LeastSquaresResult:
    """Minimizes half the sum of squares of `residual_fn(x, *args)`, from x0 to convergence.

    Args:
        residual_fn: returns real tensors, alone or in nested lists, tuples, dicts; all their elements are the residuals. Their
            number must not depend on x.
        x0: a vector, or nested lists, tuples, dicts of tensors, in which residual_fn then receives x. The solver computes in
            their dtype. A list of Python numbers is a float64 vector.
        args: further arguments of residual_fn in a tuple or list, or a single one that is neither. Gradients flow through the
            result's x to the tensors among them.
        bounds: a pair (lower, upper), each a number, None, or like x0. No residual is computed outside of them, and an active
            bound is met exactly. With `batch`, a bound may have a row for each problem.
        loss, f_scale: a robust loss, "soft_l1", "huber", "cauchy" or "arctan", and the size of a residual at which it departs
            from the square. They are defined as in SciPy.
        batch: x0 and the tensors and arrays of args have a leading axis of independent problems, which are solved at once.
            residual_fn is written for one of them. Numbers in args, and lists of them, are the same for every problem.
        ftol, xtol, gtol: the conditions of convergence: a relative decrease of the cost, the relative length of a step, and the
            largest cosine between the residuals and a column of the Jacobian, as in MINPACK, less where a bound is near. None
            turns one off. None of them depends on the units of the residuals and of x.
        max_nfev: the most evaluations of residual_fn outside of Jacobians, by default 100 for each element of x.
        x_scale: the size of each element of x: numbers, or "jac" to scale by the columns of the Jacobian.
        mode: that of `pb.jacobian`: "auto", "forward" or "reverse".
        capture: record residual_fn and its Jacobian with `pb.capture`, which is faster if there are many iterations. The rules
            of captured functions then hold for residual_fn.

    A trust region bounds the steps, as in MINPACK (Moré 1978). Factorisations run on the host in float64. Derivatives by args
    are those of the solution (`solve/implicit.py`), so their memory does not depend on the number of iterations.

    Raises ShapeError, DTypeError, ArgumentError for what cannot be solved, and LinAlgError if a gradient is asked for
    at a solution that is no isolated minimum.
    """
    owner = "least_squares"
    refuse_recording(owner)
    one_of(owner, "mode", mode, MODES)
    check_order(owner, "residual_fn", residual_fn, "x0", x0)
    check_function(owner, "residual_fn", residual_fn, "residuals")
    batch, capture = flag(owner, "batch", batch), flag(owner, "capture", capture)
    unknowns = Unknowns(owner, x0, batch)
    rule = Loss(owner, loss, f_scale)
    low, high = unknowns.limits(bounds)
    stop = _tolerances(owner, ftol, xtol, gtol, max_nfev, unknowns.size)
    given = prepared(owner, args)
    check_call(owner, "residual_fn", residual_fn, "x", given, "in args=")
    if batch:
        return solve_batch(residual_fn, unknowns, given, (low, high), rule, stop, mode)
    x, scale = host(unknowns.vector), _scale(owner, x_scale, unknowns)
    _check_inside(owner, x, low, high)
    residuals = Residuals(residual_fn, unknowns, settled(given), mode, capture)
    check_start(owner, residuals(x))
    search = Search(residuals, x, low, high, rule, scale, stop)
    status = search.run()
    if not search.j.any() and search.residuals.njev == 1:
        residuals.refuse_unconnected(x)
    return _result(search, status, unknowns, residual_fn, given, rule)


def settled(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the arguments as constants, because the iterations are not differentiated."""
    return tuple(mapped(lambda x: constant(x) if type(x) is Tensor else x, args))


def _check_inside(owner: str, x: Array, low: Array, high: Array) -> None:
    """Raises ArgumentError if x0 violates a bound or is not finite."""
    check_finite(owner, "x0", x)
    outside = (x < low) | (x > high)
    if outside.any():
        i = int(np.argmax(outside))
        raise ArgumentError(
            f"{owner}: x0 is outside the bounds: element {i} is {x[i]:g}, with the bounds {low[i]:g} and {high[i]:g}. Start inside "
            f"them: pb.clip(x0, lower, upper)."
        )


def _tolerances(owner: str, ftol: Any, xtol: Any, gtol: Any, max_nfev: Any, size: int) -> Tolerances:
    found = []
    for name, value in (("ftol", ftol), ("xtol", xtol), ("gtol", gtol)):
        found.append(0.0 if value is None else not_negative(owner, name, value, ", or None to turn the condition off"))
    if max(found) < EPS:
        raise ArgumentError(f"{owner}: at least one of ftol, xtol, gtol must be {EPS:.1e} or more, or nothing ends the search.")
    more = ", or None for 100 for each element of x"
    most = 100 * size if max_nfev is None else count(owner, "max_nfev", max_nfev, 1, more)
    return Tolerances(found[0], found[1], found[2], most)


def _scale(owner: str, x_scale: Any, unknowns: Unknowns) -> Array | None:
    if isinstance(x_scale, str):
        if x_scale != "jac":
            raise ArgumentError(f'{owner}: x_scale={x_scale!r} must be "jac", or the positive sizes of the elements of x.')
        return None
    numbers = real_array(owner, "x_scale", x_scale)
    try:
        found = np.broadcast_to(numbers, (unknowns.size,))
    except ValueError:
        raise ShapeError(f"{owner}: x_scale of shape {numbers.shape} does not fit the {unknowns.size} elements of x0.") from None
    if not (np.isfinite(found).all() and (found > 0).all()):
        raise ArgumentError(f"{owner}: x_scale has an element that is not a positive finite number.")
    return found


def _result(search: Search, status: int, unknowns: Unknowns, f: Any, args: tuple[Any, ...], loss: Loss) -> LeastSquaresResult:
    x = search.x
    mask = np.where(x <= search.low, -1, np.where(x >= search.high, 1, 0))
    vector = search.residuals.tensor(x)
    why = "" if status > 0 else f"{MESSAGES[status].rstrip('.')}, and the optimality is {search.optimality:.2g}"
    solution, values = of_least_squares(f, unknowns, vector, args, loss, free=mask == 0, unsolved=why)

    placed = search.residuals.tensor
    fun, cost = values or (placed(search.r), search.cost)
    end = ", so no step can be found from here" if search.r.any() else ", where all residuals are zero, too"
    flat = "" if search.j.any() else f" The Jacobian is zero at x{end}."
    return LeastSquaresResult(
        x=unknowns.tree(solution), cost=cost, fun=fun, jac=placed(search.j), grad=placed(search.gradient),
        optimality=search.optimality, active_mask=mask, nfev=search.residuals.nfev, njev=search.residuals.njev, status=status,
        message=MESSAGES[status] + flat, success=status > 0,
    )


__all__ = ["least_squares"]
