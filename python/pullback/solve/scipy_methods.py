"""The methods of `scipy.optimize.minimize`, with pullback's gradients and products with the Hessian, one item per iteration.

SciPy calls back; a generator is called. So SciPy runs in a second thread, and asks the first one for every value. The user's
function runs in the thread of the caller only, with its device, its modes and its profile, and one thread runs at a time.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, NamedTuple

import numpy as np

from ..errors import ArgumentError, DTypeError, PullbackError
from ..interop.wrong_calls import one_of
from ..tensors.creation import asarray
from ..tensors.tensor import Tensor
from ..transforms.tape import GradientTape
from .arguments import listed
from .descent import BOTTOMLESS, Iterate, Iterates, Stop
from .jacobians import host
from .objective import LossPoint, Objective

RECENT: Final = 8  # points that are kept, because SciPy's callbacks name a point that it has evaluated before


class Facts(NamedTuple):
    """What a method of SciPy takes. hessian: "" for none, "product" or "matrix". tolerances: the options among gtol and ftol."""

    gradient: bool = True
    hessian: str = ""
    bounds: bool = False
    constraints: bool = False
    tolerances: tuple[str, ...] = ()


SCIPY: Final[dict[str, Facts]] = {
    "Nelder-Mead": Facts(gradient=False, bounds=True),
    "Powell": Facts(gradient=False, bounds=True, tolerances=("ftol",)),
    "CG": Facts(tolerances=("gtol",)),
    "BFGS": Facts(tolerances=("gtol",)),
    "Newton-CG": Facts(hessian="product"),
    "L-BFGS-B": Facts(bounds=True, tolerances=("gtol", "ftol")),
    "TNC": Facts(bounds=True, tolerances=("gtol", "ftol")),
    "COBYLA": Facts(gradient=False, bounds=True, constraints=True),
    "COBYQA": Facts(gradient=False, bounds=True, constraints=True),
    "SLSQP": Facts(bounds=True, constraints=True, tolerances=("ftol",)),
    "trust-constr": Facts(hessian="product", bounds=True, constraints=True, tolerances=("gtol",)),
    "dogleg": Facts(hessian="matrix", tolerances=("gtol",)),
    "trust-ncg": Facts(hessian="product", tolerances=("gtol",)),
    "trust-exact": Facts(hessian="matrix", tolerances=("gtol",)),
    "trust-krylov": Facts(hessian="product", tolerances=("gtol",)),
}
BY_NAME: Final = {name.lower(): name for name in SCIPY}


def check_scipy_method(method: str, bounds: Any, constraints: Any) -> None:
    """Raises ArgumentError for a method that SciPy does not have, or that does not take bounds or constraints that are given."""
    name = BY_NAME.get(method.removeprefix("scipy:").lower(), "")
    if not name:
        one_of("minimize", "method", method, [f"scipy:{n}" for n in SCIPY])
    for what, given in (("bounds", bounds is not None), ("constraints", bool(listed(constraints)))):
        if given and not getattr(SCIPY[name], what):
            takes = ", ".join([f"scipy:{n}" for n, facts in SCIPY.items() if getattr(facts, what)])
            raise ArgumentError(f"minimize: scipy:{name} takes no {what}. Use {takes}.")


class ScipySolver:
    """One minimisation by SciPy.

    Args:
        options: the method's `options`.
        limits: gtol, ftol, maxiter and maxfun as far as the user gave them. They become options of those names.
    """

    def __init__(
        self, objective: Objective, method: str, options: dict[str, Any], limits: dict[str, Any], constraints: Any
    ) -> None:
        try:
            from scipy.optimize import minimize as run  # pyright: ignore[reportMissingTypeStubs]
        except ImportError:
            raise PullbackError(
                f"minimize: method={method!r} needs SciPy, which cannot be imported here. Install it (pip install scipy), or use a "
                f'method of pullback, such as "L-BFGS-B".'
            ) from None
        self.objective, self.name = objective, BY_NAME[method.removeprefix("scipy:").lower()]
        self.facts, self._run = SCIPY[self.name], run
        for option in ("gtol", "ftol"):
            if option in limits and option not in self.facts.tolerances:
                takes = f"It takes {', '.join(self.facts.tolerances)}. " if self.facts.tolerances else ""
                raise ArgumentError(
                    f"minimize: scipy:{self.name} has no {option}. {takes}SciPy's own tolerances of the method go into options=."
                )
        given = listed(constraints)
        objective.constraints = [] if given else None
        self.options, self.constraints = limits | options, [self._constraint(c) for c in given]
        if "maxfun" in self.options and self.name not in ("L-BFGS-B", "TNC"):
            key = "maxiter" if self.name == "COBYLA" else "maxfev"
            if self.name not in ("Nelder-Mead", "Powell", "COBYLA", "COBYQA"):
                raise ArgumentError(f"minimize: scipy:{self.name} has no limit of evaluations. Use maxiter=.")
            self.options[key] = self.options.pop("maxfun")
        self._recent: list[tuple[bytes, Any, LossPoint]] = []

    def reached(self, at: LossPoint) -> Stop | None:
        """Returns None: SciPy decides if the first point is a minimum."""
        self._keep(at)
        return None

    def steps(self, at: LossPoint) -> Iterates:
        """Yields one Iterate per iteration of SciPy, which begins again if the user changed arguments while it ran."""
        while True:
            done, changed = yield from self._one_run(at)
            at = self._at(done.x)
            if not changed:
                break
        stop = Stop(int(done.status), str(done.message), bool(done.success))
        yield Iterate(at, BOTTOMLESS if at.loss == -math.inf else stop, False)

    def _one_run(self, at: LossPoint) -> Generator[Iterate, bool, tuple[Any, bool]]:
        """Yields one Iterate per iteration. Returns SciPy's result, and True if the user changed arguments before it ended."""
        asked = conversation(lambda ask: self._minimize(at, ask))
        changed = False
        try:
            kind, x = next(asked)
            while True:
                answer: Any = None
                if kind == "iteration":
                    changed = (yield Iterate(self._at(x), None)) or changed
                elif kind == "value":
                    found = self._at(x)
                    answer = (found.loss, host(found.gradient)) if self.facts.gradient else found.loss
                else:
                    answer = kind(x)
                kind, x = asked.send(answer)
        except StopIteration as end:
            return end.value, changed
        finally:
            asked.close()

    def _minimize(self, at: LossPoint, ask: Callable[[Any, Any], Any]) -> Any:
        """Runs SciPy, in the second thread."""
        more: dict[str, Any] = {"jac": True} if self.facts.gradient else {}
        if self.facts.hessian == "product":
            more["hessp"] = lambda x, v: ask(self._product, (x.copy(), v.copy()))
        elif self.facts.hessian == "matrix":
            more["hess"] = lambda x: ask(self._matrix, x.copy())
        if self.objective.bounds is not None:
            low, high = [host(side) for side in self.objective.bounds]
            more["bounds"] = [(a if np.isfinite(a) else None, b if np.isfinite(b) else None) for a, b in zip(low, high)]
        if self.constraints:
            more["constraints"] = [c(ask) if callable(c) else c for c in self.constraints]

        def callback(xk: Any, state: Any = None) -> None:
            ask("iteration", np.array(xk, np.float64))

        x = host(at.x)
        value = lambda x: ask("value", np.array(x, np.float64))
        return self._run(value, x, method=self.name, callback=callback, options=self.options, **more)

    # ---- what the first thread computes

    def _tensor(self, x: Any) -> Tensor:
        unknowns = self.objective.unknowns
        return asarray(np.asarray(x, np.float64), dtype=unknowns.dtype, device=unknowns.device, copy=True)

    def _at(self, x: Any) -> LossPoint:
        key = x.tobytes()
        for known, given, at in self._recent:
            if known == key and given is self.objective.given:
                return at
        at = self.objective.evaluate(self._tensor(x))
        self._keep(at, key)
        return at

    def _keep(self, at: LossPoint, key: bytes | None = None) -> None:
        self._recent.insert(0, (host(at.x).tobytes() if key is None else key, self.objective.given, at))
        del self._recent[RECENT:]

    def _product(self, both: Any) -> Any:
        return host(self.objective.product(self._tensor(both[0]), self._tensor(both[1])))

    def _matrix(self, x: Any) -> Any:
        rows = [host(self.objective.product(self._tensor(x), self._tensor(row))) for row in np.eye(x.size)]
        return (np.array(rows) + np.array(rows).T) / 2

    def _constraint(self, given: Any) -> Any:
        """Returns a function that makes SciPy's form of a constraint, whose values the first thread computes."""
        nonlinear = hasattr(given, "fun")  # a NonlinearConstraint
        _check_constraint(given)
        if not isinstance(given, dict) and not nonlinear:
            return given  # a LinearConstraint, on the flat vector
        objective = self.objective
        fun = given["fun"] if isinstance(given, dict) else given.fun
        own = given.get("args") if isinstance(given, dict) else None
        args = objective.args if own is None else list(own) if isinstance(own, (tuple, list)) else [own]
        inner = Objective(fun, objective.unknowns, args, None, capture=False, residuals=True, constraint="fun of a constraint")
        assert objective.constraints is not None
        objective.constraints.append(inner)

        def value() -> Tensor:
            inner.args = objective.args if own is None else args  # the loop may have assigned those of f
            inner.args_changed()
            return inner.value(objective.unknowns.tree, inner.given)

        def values(x: Any) -> Any:
            objective.unknowns.place(self._tensor(x))
            return host(value())

        def rows(x: Any) -> Any:
            objective.unknowns.place(self._tensor(x))
            slots = objective.unknowns.slots
            tape = GradientTape(watch_parameters=False)
            tape.watch(slots)
            with tape:
                found = value()
            parts = [host(part).reshape(found.size, -1) for part in tape.jacobian(found, slots, unconnected="zero")]
            return np.concatenate(parts, axis=1)

        def made(ask: Callable[[Any, Any], Any]) -> Any:
            asked: dict[str, Any] = {"fun": lambda x: ask(values, np.array(x)), "jac": lambda x: ask(rows, np.array(x))}
            if not nonlinear:
                return {"type": given["type"], **asked}
            new: Any = copy.copy(given)
            new.fun, new.jac = asked["fun"], asked["jac"]
            return new

        return made


def _check_constraint(constraint: Any) -> None:
    """Raises DTypeError for an object that is no constraint of SciPy, and ArgumentError for a dict that lacks an entry."""
    if isinstance(constraint, dict):
        if "fun" not in constraint or constraint.get("type") not in ("eq", "ineq"):
            raise ArgumentError(
                f'minimize: a constraint is {constraint!r}; it needs "type" ("eq", or "ineq" for what must not be negative) and '
                f'"fun".'
            )
    elif not hasattr(constraint, "fun") and not hasattr(constraint, "lb"):
        raise DTypeError(
            f"minimize: constraints has a {type(constraint).__name__}. Give SciPy's constraints: {{'type': 'ineq', 'fun': c}} for "
            f"c(x) >= 0, or a NonlinearConstraint or LinearConstraint of scipy.optimize."
        )


class Ended(BaseException):
    """Raised in the second thread if the first one asks for no more."""


def conversation(run: Callable[[Callable[[Any, Any], Any]], Any]) -> Generator[tuple[Any, Any], Any, Any]:
    """Runs run(ask) in a second thread. Yields what it asks, as (kind, x), and receives the answer. Returns what run returns."""
    questions: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
    answers: SimpleQueue[Any] = SimpleQueue()

    def ask(kind: Any, x: Any) -> Any:
        questions.put((kind, x))
        answer = answers.get()
        if answer is Ended:
            raise Ended
        return answer

    def work() -> None:
        try:
            questions.put((None, run(ask)))
        except BaseException as error:
            questions.put((Ended, error))

    thread = Thread(target=work, name="pullback-scipy", daemon=True)
    thread.start()
    try:
        while True:
            kind, x = questions.get()
            if kind is None:
                return x
            if kind is Ended:
                raise x
            answers.put((yield kind, x))
    finally:
        answers.put(Ended)
        thread.join()
