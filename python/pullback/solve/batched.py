"""Many independent problems of least squares at once, each with its own damping and its own end.

All work is done by pullback's ops on blocks of problems that fit the cache. A problem that has ended leaves its block, so that it
costs nothing more. The method is that of Levenberg and Marquardt with the damping of Nielsen (1999) and scaled unknowns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..autodiff.kept import Heard
from ..errors import ArgumentError, ShapeError
from ..launch import door
from ..ops.by_name import in_dtype
from ..ops.elementwise import abs as absolute, isfinite, maximum, minimum, sqrt, where
from ..ops.gather import take
from ..ops.linalg import matmul
from ..ops.movement import concat, stack
from ..ops.reduce import all as every, max as largest, sum
from ..ops.shape import expand_dims, matrix_transpose, reshape
from ..ops.solves import inverse_transposed
from ..tensors import dtypes
from ..tensors.creation import asarray, full, ones_like, zeros_like
from ..tensors.ranges import eye
from ..tensors.tensor import Tensor
from ..transforms.jacobian import Mode, jacobian
from ..transforms.vmap import vmap
from ..tree import flatten, unflatten
from .implicit import of_least_squares
from .jacobians import TensorNamespace, Unknowns, flat, host
from .losses import Loss
from .results import MESSAGES, LeastSquaresResult

Array = np.ndarray[Any, Any]

BLOCK_ELEMENTS: Final = 2**18  # elements of the Jacobians of a block
UNROLLED: Final = 8  # the most unknowns whose Cholesky factors are computed element by element, for all problems at once
FIRST_DAMPING: Final = 1e-3
CAREFUL_DAMPING: Final = 1.0  # the first one with a robust loss, in whose flat tail a long step may end
MOST_DAMPING: Final = 1e30
LARGE_DAMPING: Final = 0.1  # from here on a step is much shorter than the full one, because the scaled diagonal of JᵀJ is 1
ROUNDING: Final = 16.0  # a decrease of the cost below this multiple of its rounding error counts as none
MOST_GROWTH: Final = 16.0  # of the damping at once, so that it does not jump over good steps


class Batch:
    """The problems: their function, arguments, bounds and loss."""

    def __init__(
        self, f: Callable[..., Any], unknowns: Unknowns, args: tuple[Any, ...], limits: tuple[Array, Array], loss: Loss, mode: Mode
    ) -> None:
        self.unknowns, self.loss = unknowns, loss
        self.leaves, self.spec = flatten(args)
        self.tensors = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]
        for i in self.tensors:
            if not self.leaves[i].ndim or self.leaves[i].shape[0] != unknowns.count:
                whole = ", ".join([str(leaf.shape) for leaf in unknowns.leaves])
                raise ShapeError(
                    f"least_squares: with batch=True the leading axis of x0, of shape {whole}, is that of {unknowns.count} "
                    f"problems, so the tensors of args need one of the same length, and one has shape {self.leaves[i].shape}. Use "
                    f"what is equal for all problems inside the function, without passing it."
                )

        def values(x: Tensor, *args: Any) -> Tensor:
            return flat("least_squares", f(unknowns.tree(x), *args))

        self.values = vmap(values)
        self.derivative = vmap(jacobian(lambda x, *args: (values(x, *args),) * 2, mode=mode, has_aux=True))
        self.dtype = unknowns.vector.dtype
        self.eps = float(dtypes.finfo(self.dtype).eps)
        bounded = np.isfinite(limits[0]).any() or np.isfinite(limits[1]).any()
        self.limits = [asarray(x.astype(self.dtype), device=unknowns.device) for x in limits] if bounded else []

    def some(self, places: Any) -> list[Tensor]:
        """Returns the tensors of args for some problems, given as a slice or as a tensor of indices."""
        found = [self.leaves[i] for i in self.tensors]
        return [t[places] if isinstance(places, slice) else take(t, places, axis=0) for t in found]

    def filled(self, tensors: list[Tensor]) -> tuple[Any, ...]:
        full_leaves = list(self.leaves)
        for i, t in zip(self.tensors, tensors):
            full_leaves[i] = t
        return unflatten(self.spec, full_leaves)

    def costs(self, rho: Tensor) -> Tensor:
        return 0.5 * sum(in_dtype(rho, self.dtype), axis=-1)


GOES_ON: Final = 9  # the status of a problem that has not ended
ROWS: Final = ("x", "damping", "growth", "scale", "walled", "extent")  # and the tensors in `limits`


class ProblemBlock:
    """Some problems that have not ended. The attributes in ROWS have a row for each of them."""

    def __init__(self, batch: Batch, start: int, stop: int, x: Tensor, tolerances: Any) -> None:
        self.batch, self.stop = batch, tolerances
        self.x = x[start:stop]
        first = FIRST_DAMPING if batch.loss.linear else CAREFUL_DAMPING
        count = stop - start
        like: dict[str, Any] = {"dtype": batch.dtype, "device": x.device}
        self.damping, self.growth = full((count,), first, **like), full((count,), 2.0, **like)
        self.scale = full((count, batch.unknowns.size), 0.0, **like)
        self.walled = full((count,), False, device=x.device)  # True if a longer step from x led to a cost that is not finite
        self.extent = absolute(self.x)  # the largest size of each element so far
        self.first = True
        self.args = batch.some(slice(start, stop))
        self.limits = [side[start:stop] for side in batch.limits]
        self.index = np.arange(start, stop)

    def keep(self, rows: Array) -> None:
        """Drops all problems but these."""
        places = asarray(rows, device=self.x.device)
        for name in ROWS:
            setattr(self, name, take(getattr(self, name), places, axis=0))
        self.args = [take(t, places, axis=0) for t in self.args]
        self.limits = [take(t, places, axis=0) for t in self.limits]
        self.index = self.index[rows]

    def iterate(self) -> Array:
        """Tries one step of each problem. Returns the status of each, GOES_ON if it has none."""
        batch, args = self.batch, self.batch.filled(self.args)
        j, r = batch.derivative(self.x, *args)
        before = door.enter(door.SOLVER)
        try:
            model = _Model(self, j, r)
            delta = model.step()
            trial = self.x + delta
            if self.limits:
                trial = minimum(maximum(trial, self.limits[0]), self.limits[1])
                delta = trial - self.x
            door.enter(before)
            cost = batch.costs(batch.loss.values(TensorNamespace, batch.values(trial, *args)))
            door.enter(door.SOLVER)
            return self._decide(model, trial, delta, cost)
        finally:
            door.enter(before)

    def _decide(self, model: _Model, trial: Tensor, delta: Tensor, cost: Tensor) -> Array:
        gained = model.cost - cost
        predicted = model.predicted(delta)
        self.walled = self.walled | ~isfinite(cost)
        good = isfinite(cost) & every(isfinite(delta), axis=-1) & (predicted > 0)
        ratio = where(good, gained / where(good, predicted, 1.0), -1.0)
        accepted = good & (gained > 0)
        swing = 2 * ratio - 1
        lower = self.damping * maximum(1 - swing * swing * swing, 0.1)
        length = _norms(delta)
        scaled = _norms(delta * self.scale)
        stop, eps = self.stop, self.batch.eps
        hidden = (absolute(gained) <= eps * model.cost) & (predicted <= eps * model.cost)
        short = model.promise > ROUNDING * eps * model.cost  # if the gain is hidden, then by the damping
        near = model.promise <= max(4 * stop.ftol, ROUNDING * eps) * model.cost
        gain = good & (((gained < stop.ftol * model.cost) & (ratio > 0.25) & near) | (hidden & ~short))
        sizes = [stop.xtol * _norms(d * self.extent) + _norms(d * self.x) for d in (1.0, self.scale)]
        step = (length < stop.xtol * sizes[0]) & (scaled <= stop.xtol * sizes[1])
        cut = self.walled | (accepted & (self.damping > LARGE_DAMPING))
        step = step & isfinite(length) & ~(short & cut)
        lost = self.damping > MOST_DAMPING
        gradient = self._is_stationary(model)
        vanished = (gradient | gain | step) & model.unseen
        if self.first:
            vanished = vanished | (gradient & model.vanished)
        flags = stack([gradient, gain, step, lost, ~model.finite, vanished])
        self.first = False
        self.x = where(expand_dims(accepted & ~gradient, axis=-1), trial, self.x)
        self.extent = maximum(self.extent, absolute(self.x))
        longer = where(good & hidden, 0.5 * self.damping, where(accepted, lower, self.damping * self.growth))
        self.damping = maximum(longer, 1e-12)
        self.walled = self.walled & ~accepted
        self.growth = where(accepted, 2.0, minimum(2 * self.growth, MOST_GROWTH))
        return _statuses(*(host(flags) != 0))

    def _is_stationary(self, model: _Model) -> Tensor:
        """Returns which problems are at a minimum by `gtol`. See `least_squares.py`."""
        gtol = self.stop.gtol
        found = (model.optimality == 0) | (model.promise < gtol * gtol * model.cost)
        if not gtol or self.stop.xtol:  # which tells, too, where rounding of x hides the residuals
            return found
        return found | every(absolute(model.r) <= 2 * self.batch.eps * _times(absolute(model.j), absolute(self.x)), axis=-1)


def _statuses(gradient: Array, gain: Array, step: Array, lost: Array, bad: Array, vanished: Array) -> Array:
    """Returns the status of each problem, GOES_ON if it has none, given which conditions hold."""
    status = np.full(len(gain), GOES_ON)
    status[gain], status[step], status[gain & step] = 2, 3, 4
    status[lost], status[gradient], status[bad], status[vanished] = -3, 1, -2, -4
    return status


class _Model:
    """The linear models of the problems of a block, and their damped steps."""

    def __init__(self, block: ProblemBlock, j: Tensor, r: Tensor) -> None:
        batch = block.batch
        self.block, self.j, self.r = block, j, r
        scaled = batch.loss.scaled(TensorNamespace, r)
        self.cost = batch.costs(scaled.rho)
        rows = j if scaled.rows is None else j * expand_dims(scaled.rows, axis=-1)
        self.gradient = _times(matrix_transpose(j), scaled.weighted)
        self.square = matmul(matrix_transpose(rows), rows)
        n = batch.unknowns.size
        diagonal = stack([self.square[:, i, i] for i in range(n)], axis=-1)
        self.finite = every(isfinite(diagonal), axis=-1) & isfinite(self.cost)
        block.scale = maximum(block.scale, sqrt(where(isfinite(diagonal), diagonal, 0.0)))
        least = float(dtypes.finfo(batch.dtype).smallest_normal)
        tiny = least / batch.eps  # smaller squares have lost digits
        sizes = largest(absolute(j), axis=1)
        lost = (sizes > 0) & (diagonal < tiny)
        # An element whose squares are 0 does not move, although the residuals show it.
        shown = sizes * absolute(block.x) > batch.eps * largest(absolute(r), axis=-1, keepdims=True)
        self.unseen = largest(lost & shown & (diagonal < least), axis=-1)
        self.vanished = ((largest(absolute(r), axis=-1) > 0) & (self.cost < tiny)) | largest(lost, axis=-1)
        self.unit = 1 / where(block.scale > 0, block.scale, 1.0)
        slope, room = absolute(self.gradient), self._room()
        self.optimality = largest(slope if room is None else slope * where(isfinite(room), room, 1.0), axis=-1)
        change = slope / where(diagonal > 0, diagonal, 1.0)
        change = change if room is None else minimum(change, room)
        self.promise = largest(change * slope - 0.5 * diagonal * change * change, axis=-1)  # as in least_squares.py

    def _room(self) -> Tensor | None:
        """Returns the distances to the bounds that the gradient presses against, or None without bounds."""
        limits, g, x = self.block.limits, self.gradient, self.block.x
        self.free: Tensor | None = None
        if not limits:
            return None
        low, high = limits
        held = ((x <= low) & (g > 0)) | ((x >= high) & (g < 0))
        self.free = where(held, zeros_like(x), ones_like(x))
        return where(g > 0, x - low, high - x)

    def step(self) -> Tensor:
        """Returns the steps, NaN where a system could not be solved."""
        block, n = self.block, self.unit.shape[-1]
        unit = self.unit if self.free is None else self.unit * self.free
        a = self.square * expand_dims(unit, axis=-1) * expand_dims(unit, axis=-2)
        if n <= UNROLLED:
            p = _solved_by_elements(a, block.damping, -self.gradient * unit)
        else:
            damped = a + expand_dims(expand_dims(block.damping, axis=-1), axis=-1) * eye(n, dtype=a.dtype, device=a.device)
            good = expand_dims(expand_dims(self.finite, axis=-1), axis=-1)
            safe = where(good, damped, eye(n, dtype=a.dtype, device=a.device))
            p = _times(inverse_transposed(safe), -self.gradient * unit)
        return p * unit

    def predicted(self, delta: Tensor) -> Tensor:
        """Returns the decreases of the cost by the linear models."""
        return -sum(delta * (self.gradient + 0.5 * _times(self.square, delta)), axis=-1)


def _norms(v: Tensor) -> Tensor:
    return sqrt(sum(v * v, axis=-1))


def _times(a: Tensor, v: Tensor) -> Tensor:
    """Returns the products of matrices (b, n, m) and vectors (b, m)."""
    return reshape(matmul(a, expand_dims(v, axis=-1)), (a.shape[0], a.shape[1]))


def _solved_by_elements(a: Tensor, damping: Tensor, b: Tensor) -> Tensor:
    """Returns the solutions of (a + damping I) p = b by Cholesky factors, of which each element is one op for all problems."""
    n = b.shape[-1]
    columns: list[list[Tensor]] = [[] for _ in range(n)]  # row i of L, up to the diagonal, whose inverse is stored
    for i in range(n):
        for k in range(i + 1):
            s = a[:, i, k] + damping if i == k else a[:, i, k]
            for left, right in zip(columns[i][:k], columns[k][:k]):
                s = s - left * right
            columns[i].append(1 / sqrt(s) if i == k else s * columns[k][k])
    y: list[Tensor] = []
    for i in range(n):
        s = b[:, i]
        for k in range(i):
            s = s - columns[i][k] * y[k]
        y.append(s * columns[i][i])
    for i in reversed(range(n)):
        s = y[i]
        for k in range(i + 1, n):
            s = s - columns[k][i] * y[k]
        y[i] = s * columns[i][i]
    return stack(y, axis=-1)


# ---- the whole batch


def solve_batch(
    f: Callable[..., Any], unknowns: Unknowns, args: tuple[Any, ...], limits: tuple[Array, Array], loss: Loss, stop: Any, mode: Mode
) -> LeastSquaresResult:
    """Solves all problems. See `least_squares`."""
    if not unknowns.count:
        return _nothing(unknowns)
    with Heard(()):
        batch = Batch(f, unknowns, args, limits, loss, mode)
        start = unknowns.vector
        x = host(start)
        _check_inside(x, *limits)
        m = batch.values(start[:1], *batch.filled(batch.some(slice(0, 1)))).size
        if not m:
            raise ArgumentError("least_squares: the function returned no residuals: an array of length 0.")
        size = max(64, BLOCK_ELEMENTS // (m * unknowns.size))
        status, nfev = np.zeros(unknowns.count, int), np.zeros(unknowns.count, int)
        for begin in range(0, unknowns.count, size):
            _run(ProblemBlock(batch, begin, min(begin + size, unknowns.count), start, stop), x, status, nfev, stop.max_nfev)
        vector = asarray(x.astype(batch.dtype), device=unknowns.device)
        parts = [_final(batch, vector, slice(begin, begin + size)) for begin in range(0, unknowns.count, size)]
        r, j, gradient, cost = [concat([part[k] for part in parts]) if len(parts) > 1 else parts[0][k] for k in range(4)]
    return _result(batch, f, args, vector, (r, j, gradient, cost), status, nfev, limits)


def _nothing(unknowns: Unknowns) -> LeastSquaresResult:
    """Returns the result for no problems, whose number of residuals is unknown."""
    none, n = np.zeros(0), unknowns.size
    like: dict[str, Any] = {"dtype": unknowns.vector.dtype, "device": unknowns.device}
    counts = np.zeros(0, int)
    return LeastSquaresResult(
        x=unknowns.tree(unknowns.vector, (0,)), cost=full((0,), 0.0, **like), fun=full((0, 0), 0.0, **like),
        jac=full((0, 0, n), 0.0, **like), grad=full((0, n), 0.0, **like), optimality=none, active_mask=np.zeros((0, n), int),
        nfev=counts, njev=counts, status=counts, message=[], success=counts > 0,
    )


def _run(block: ProblemBlock, x: Array, status: Array, nfev: Array, most: int) -> None:
    nfev[block.index] = 1  # with the first Jacobian
    for k in range(2, most + 1):
        found = block.iterate()
        nfev[block.index] = k
        ended = found != GOES_ON
        if k == most:
            found, ended = np.where(ended, found, 0), np.ones_like(ended)
        if ended.any():
            x[block.index[ended]] = host(block.x)[ended]
            status[block.index[ended]] = found[ended]
            if ended.all():
                return
            block.keep(np.flatnonzero(~ended))


def _check_inside(x: Array, low: Array, high: Array) -> None:
    outside = (x < low) | (x > high)
    if outside.any():
        problem, i = map(int, np.argwhere(outside)[0])
        raise ArgumentError(
            f"least_squares: x0 of problem {problem} is outside the bounds: element {i} is {x[problem, i]:g}, with the bounds "
            f"{low[problem, i]:g} and {high[problem, i]:g}. Start inside them: pb.clip(x0, lower, upper)."
        )


def _final(batch: Batch, x: Tensor, rows: slice) -> tuple[Tensor, ...]:
    """Returns residuals, Jacobians, gradients and costs at the solutions."""
    j, r = batch.derivative(x[rows], *batch.filled(batch.some(rows)))
    scaled = batch.loss.scaled(TensorNamespace, r)
    return r, j, _times(matrix_transpose(j), scaled.weighted), batch.costs(scaled.rho)


def _result(
    batch: Batch, f: Any, args: tuple[Any, ...], vector: Tensor, found: tuple[Tensor, ...], status: Array, nfev: Array,
    limits: tuple[Array, Array],
) -> LeastSquaresResult:
    r, j, gradient, cost = found
    x, g = host(vector), host(gradient)
    mask = np.where(x <= limits[0], -1, np.where(x >= limits[1], 1, 0))
    room = np.where(g > 0, x - limits[0], limits[1] - x)
    with np.errstate(all="ignore"):
        optimality = np.max(np.abs(g) * np.where(np.isfinite(room), room, 1.0), axis=-1)
    open_, why = np.flatnonzero(status <= 0), ""
    if open_.size:
        first = MESSAGES[int(status[open_[0]])].rstrip(".")
        why = f"{open_.size} of {status.size} problems did not converge. The first is number {open_[0]}: {first}"
    solution, values = of_least_squares(f, batch.unknowns, vector, args, batch.loss, mask == 0, batch=True, unsolved=why)
    r, cost = values or (r, cost)
    solved = batch.unknowns.tree(solution, (batch.unknowns.count,))
    return LeastSquaresResult(
        x=solved, cost=cost, fun=r, jac=j, grad=gradient, optimality=optimality, active_mask=mask,
        nfev=nfev, njev=nfev, status=status, message=[MESSAGES[int(k)] for k in status], success=status > 0,
    )
