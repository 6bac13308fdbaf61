"""The loop of the methods that search along a line: direction, line search, memory."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from ..ops.linalg import vecdot
from ..ops.movement import concat, stack
from ..tensors.tensor import Tensor
from .line_search import Wolfe, more_thuente
from .objective import LossPoint, Objective

State = tuple[Tensor, ...]
LONGEST = 1e20  # the longest step without bounds, in units of the first one
NOISE = 10.0  # the rounding of a loss, in units of its last place
PATIENCE = 10  # the number of steps in a row that neither lower the loss by more than rounding nor the gradient
STEEP = 1e-3  # a step that lowers the loss by a larger share tells that no minimum is near, however small the gradient is


class Rule(Protocol):
    """What a method remembers of its steps, and the direction that follows from it."""

    wolfe: ClassVar[Wolfe]
    stops_flat: ClassVar[bool]

    def first_step(self, norm: float) -> float: ...
    def start(self, x: Tensor) -> State: ...
    def remember(self, s: Tensor, y: Tensor, g: Tensor, state: State) -> State: ...
    def direction(self, x: Tensor, g: Tensor, state: State) -> Tensor: ...


class Stop(NamedTuple):
    """Why a minimisation ends: the status of the result, in words, and True if it converged."""

    status: int
    message: str
    success: bool


class Iterate(NamedTuple):
    """A new point, and why the method would stop there, or None. counts: False if the point is no new one."""

    at: LossPoint
    stop: Stop | None
    counts: bool = True


@dataclass
class Tolerances:
    """A minimisation ends where no element of the gradient is larger than gtol, or the loss falls by less than ftol.

    Attributes:
        steps: how many steps in a row must lower the loss by so little. One is L-BFGS-B's number, which is right in float64. In
            float32 ftol is near the rounding of the loss, so that one short step tells little.
        relative: gtol is relative to the largest gradient so far, or to 1 if that is smaller, and the last step must not have
            lowered the loss by much. Otherwise a function times 1e-8, or one that falls for ever, would have minima everywhere.
        slow: how many of the last steps lowered the loss by less than ftol.
        first, steepest: the loss at the start, and the largest grad_norm since then.
    """

    gtol: float
    ftol: float
    steps: int = 1
    relative: bool = False
    slow: int = 0
    first: float = 0.0
    steepest: float = 0.0

    def begin(self, at: LossPoint) -> None:
        """Forgets the points of another function."""
        self.slow, self.first, self.steepest = 0, at.loss, at.grad_norm

    def reached(self, before: LossPoint | None, at: LossPoint) -> Stop | None:
        """Receives the points before and after a step. Returns a Stop if the minimisation ends there."""
        if before is None:
            self.begin(at)
        self.steepest = max(self.steepest, at.grad_norm)
        fall = 0.0 if before is None else before.loss - at.loss
        size = max(abs(at.loss if before is None else before.loss), abs(at.loss), min(1.0, self.first - at.loss))
        gtol = self.gtol * min(1.0, self.steepest) if self.relative else self.gtol
        if at.grad_norm == 0.0 or (at.grad_norm <= gtol and not (self.relative and fall > STEEP * size)):
            return Stop(0, f"converged: no element of the gradient, within the bounds, is larger than gtol={gtol:g}", True)
        falls = before is None or fall > self.ftol * size
        self.slow = 0 if falls or self.ftol <= 0 else self.slow + 1
        if self.slow < self.steps:
            return None
        return Stop(0, f"converged: the loss fell by no more than ftol={self.ftol:g}, relative to its size or its whole fall", True)

    def stalled(self, at: LossPoint, hidden: bool) -> Stop:
        """Returns the end where no lower loss was found. hidden: slopes promise a minimum so near that rounding hides it."""
        if not (self.relative and hidden and at.grad_norm <= self.gtol):
            return STALLED
        what = f"converged: rounding of f hides what is left, and no element of the gradient is larger than gtol={self.gtol:g}"
        return Stop(0, what, True)


STALLED = Stop(
    2,
    "the line search found no lower loss along the steepest descent. Either the rounding of f hides what is left to gain (use "
    "float64, or a larger gtol), or the gradient is wrong (pb.check_gradients)",
    False,
)
OUT_OF_RANGE = Stop(
    2,
    "the gradient is so small or so large that its square is 0 or infinite in its dtype. Multiply f by a constant, or use float64",
    False,
)
BOTTOMLESS = Stop(3, "f has no lower bound: a longer step leads to the loss -inf", False)
Iterates = Generator[Iterate, bool, None]


class Descent:
    """Minimises by line searches along the directions of a rule."""

    def __init__(self, objective: Objective, rule: Rule, tolerances: Tolerances) -> None:
        self.objective, self.rule, self.tolerances = objective, rule, tolerances
        self._hidden = self._bottomless = self._out_of_range = self._short = False  # what the last line searches met
        self._nearest = math.inf  # the least distance along a line at which the slopes of two points promise a minimum

    def reached(self, at: LossPoint) -> Stop | None:
        """Returns a Stop if the minimisation ends where it begins."""
        return self.tolerances.reached(None, at)

    def steps(self, at: LossPoint) -> Iterates:
        """Yields one Iterate per iteration, and receives True if the user has changed arguments since."""
        rule = self.rule
        state, before, fresh = rule.start(at.x), None, True
        idle, least = 0, at.grad_norm
        while True:
            found = self._search(at, before, state, fresh)
            if found is None and not fresh:  # forgets all steps, and tries the steepest descent
                state, before, fresh = rule.start(at.x), None, True
                found = self._search(at, None, state, fresh)
            if found is None or idle >= PATIENCE or self._bottomless:
                at = found[0] if self._bottomless and found is not None else at
                self.objective.unknowns.place(at.x)
                yield Iterate(at, self._end(at), False)
                return
            before, (at, state), fresh = at, found, False
            falls = before.loss - at.loss > NOISE * self.objective.epsilon * abs(at.loss)
            self._hidden, self._nearest = self._hidden and not falls, math.inf if falls else self._nearest
            idle, least = (0 if falls or at.grad_norm < least else idle + 1), min(least, at.grad_norm)
            stop = self.tolerances.reached(before, at)
            if (yield Iterate(at, None if self._short and at.grad_norm > 0.0 else stop)):
                # the last step was taken on the old function, so it is remembered with the old gradients
                old = (at.x, at.gradient, before.x, before.gradient)
                state = self.objective.call("remember", self._remembered, *old, *state, of_f=False)
                at, before = self.objective.evaluate(at.x), None
                self.objective.check_start(at, changed=True)
                self.tolerances.begin(at)
                idle, least = 0, at.grad_norm

    def _end(self, at: LossPoint) -> Stop:
        """Returns why no further step is taken."""
        if self._bottomless:
            return BOTTOMLESS
        if self._out_of_range:
            return OUT_OF_RANGE
        near = self._nearest < math.inf and self._nearest <= math.sqrt(self.objective.epsilon) * self.objective.length(at.x)
        return self.tolerances.stalled(at, self._hidden or near)

    def _remembered(self, x: Tensor, g: Tensor, x_before: Tensor, g_before: Tensor, *state: Tensor) -> State:
        return self.rule.remember(x - x_before, g - g_before, g_before, state)

    def _turn(self, x: Tensor, g: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Returns the direction and (its slope, its squared length, the longest step along it)."""
        d = self.rule.direction(x, g, state)
        return d, stack([vecdot(g, d), vecdot(d, d), self.objective.furthest(x, d)])

    # ---- three captured functions: the first only turns, the second remembers and turns, the third also takes the first step

    def _first(self, x: Tensor, g: Tensor, *state: Tensor) -> Any:
        return state, *self._turn(x, g, state)

    def _next(self, x: Tensor, g: Tensor, x_before: Tensor, g_before: Tensor, *state: Tensor) -> Any:
        state = self._remembered(x, g, x_before, g_before, *state)
        return state, *self._turn(x, g, state)

    def _stepped(self, x: Tensor, g: Tensor, x_before: Tensor, g_before: Tensor, one: Tensor, *more: Tensor) -> Any:
        count = len(more) - len(self.objective.given)
        state = self._remembered(x, g, x_before, g_before, *more[:count])
        d, report = self._turn(x, g, state)
        t, gradient, reached = self.objective.trial(x, d, one, *more[count:])
        return state, d, concat([report, reached]), t, gradient

    def _search(self, at: LossPoint, before: LossPoint | None, state: State, fresh: bool) -> tuple[LossPoint, State] | None:
        """Returns the point that a line search finds, and the state of the rule there; None if there is no lower one."""
        objective, tried = self.objective, None
        t = g = at.x
        if before is None:
            state, d, report = objective.call("first", self._first, at.x, at.gradient, *state, of_f=False)
        elif objective.eager:
            old = (at.x, at.gradient, before.x, before.gradient)
            state, d, report = objective.call("next", self._next, *old, *state, of_f=False)
        else:
            old = (at.x, at.gradient, before.x, before.gradient, objective.one)
            state, d, report, t, g = objective.call("stepped", self._stepped, *old, *state, *objective.given)
        slope, square, furthest, *reached = report.numpy().tolist()
        if reached:
            tried = objective.point(t, g, reached)
        self._out_of_range = square in (0.0, math.inf) and at.grad_norm > 0.0
        if not (slope < 0.0 and square > 0.0):  # also for a NaN
            return None
        first = self.rule.first_step(square**0.5) if fresh else 1.0
        found = self._along(at, d, (slope, square), first, min(furthest, LONGEST * first), tried)
        return None if found is None else (found, state)

    def _along(
        self, at: LossPoint, d: Tensor, facts: tuple[float, float], first: float, furthest: float, tried: LossPoint | None
    ) -> LossPoint | None:
        """Returns the point that the line search finds along d; None if there is no lower one.

        facts: the slope along d, and its squared length. tried: the point of the step 1.
        """
        slope, square = facts
        noise = NOISE * self.objective.epsilon * abs(at.loss)
        search = more_thuente(at.loss, slope, first, max(furthest, first), self.rule.wolfe, noise)
        best, last, step = at, at, next(search)
        self._bottomless = False
        try:
            while True:
                last, tried = tried or self.objective.evaluate(at.x, d, step), None
                if last.slope >= 0.5 * slope:
                    self._hidden = self._hidden or abs(last.loss - at.loss) <= noise
                    self._nearest = min(self._nearest, step * square**0.5 * slope / (slope - last.slope))
                self._bottomless = self._bottomless or last.loss == -math.inf
                best = last if last.loss < best.loss and math.isfinite(last.loss) and math.isfinite(last.grad_norm) else best
                step = search.send((last.loss, last.slope))
        except StopIteration as end:
            best = last if end.value == "found" else best
            # True if the longest step was too short to tell anything: the loss falls there as it does at the beginning
            self._short = end.value != "found" and best is last and last.slope <= self.rule.wolfe.slope * slope
        if best is not last:
            self.objective.unknowns.place(best.x)
        return None if best is at else best
