"""root: solves f(x) = 0 for as many equations as unknowns, by Newton's method with a line search, and a trust region behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from ..errors import ArgumentError, ShapeError
from ..interop.wrong_calls import one_of
from ..ops._shapes import flag
from ..tensors.tensor import Tensor
from ..transforms.jacobian import Mode
from .arguments import check_call, check_finite, check_function, check_order, check_start, count, is_number, not_negative
from .implicit import implicit
from .jacobians import MODES, Residuals, Unknowns, host, prepared, refuse_recording
from .least_squares import Search, Tolerances, settled
from .losses import Loss
from .results import RootResult
from .steps import counted

Array = np.ndarray[Any, Any]

ENOUGH: Final = 1e-4  # the share of the predicted decrease that the line search asks for (Armijo's rule)
SHORTEST: Final = 1e-8  # the shortest step of the line search, relative to Newton's
MESSAGES: Final = {
    1: "The solution converged.",
    0: "The maximum number of function evaluations is exceeded.",
    -1: "The Jacobian is singular at x; a solution by LU was tried.",
    -2: "No step along Newton's direction decreases |f(x)|.",
    -3: "A trust region ended at a point that is a local minimum of |f(x)| and no root.",
}


def root(
    f: Callable[..., Any],
    x0: Any,
    args: Sequence[Any] | Mapping[str, Any] | Tensor | float | None = (),
    method: Literal["hybrid", "newton"] = "hybrid",
    xtol: float = 1e-10,
    max_nfev: int | None = None,
    mode: Mode = "auto",
    capture: bool = False,
    ftol: float | None = None,
) -> RootResult:
    """Finds an x with f(x, *args) = 0, from x0.

    Args:
        f: returns as many numbers as x has, as tensors, alone or in nested lists, tuples, dicts.
        x0, args, mode, capture: as in `least_squares`.
        method: "newton" is Newton's method with a line search, which ends where the Jacobian is singular. "hybrid" continues from
            there with a trust region, as Powell's method does.
        xtol: the relative length of the last step.
        ftol: the length of f(x) that counts as zero. By default it is eps² times the length of f(x0) or 1, whichever is smaller,
            for the eps of x0's dtype. It ends the slow convergence to a root of higher order, such as that of x⁴.
        max_nfev: the most evaluations of f outside of Jacobians, by default 100 for each element of x.

    Gradients and tangents flow through the result's x to the tensors in args, by the implicit function theorem. A result without
    convergence says so in `success`. Raises ShapeError, DTypeError, ArgumentError for what cannot be solved, and
    LinAlgError if a gradient is asked for where the Jacobian is singular.
    """
    owner = "root"
    refuse_recording(owner)
    check_order(owner, "f", f, "x0", x0)
    check_function(owner, "f", f, "residuals")
    unknowns = Unknowns(owner, x0)
    one_of(owner, "method", method, ("hybrid", "newton"))
    one_of(owner, "mode", mode, MODES)
    if not is_number(xtol) or not 0 < xtol < 1:
        raise ArgumentError(f"{owner}: xtol={xtol!r} must be a number between 0 and 1.")
    ftol = None if ftol is None else not_negative(owner, "ftol", ftol, ", or None")
    most = 100 * unknowns.size if max_nfev is None else count(owner, "max_nfev", max_nfev, 1, ", or None")
    given = prepared(owner, args)
    check_call(owner, "f", f, "x", given, "in args=")
    residuals = Residuals(f, unknowns, settled(given), mode, flag(owner, "capture", capture))
    x = host(unknowns.vector)
    check_finite(owner, "x0", x)
    values = residuals(x)
    if values.size != x.size:
        raise ShapeError(
            f"{owner}: the function returned {values.size} numbers for {x.size} unknowns; they must be equal. Use "
            f"pb.solve.least_squares for more equations than unknowns, or fewer."
        )
    check_start(owner, values)
    zero = residuals.eps**2 * min(1.0, float(np.linalg.norm(values))) if ftol is None else ftol
    x, values, status = _newton(residuals, x, values, xtol, zero, most)
    if status < 0 and method == "hybrid":
        x, status = _trust_region(residuals, x, values, xtol, zero, most)
    values, j = residuals.both(x)
    if status < 0 and not j.any():
        residuals.refuse_unconnected(x)
    return _result(unknowns, residuals, x, values, j, status, given)


def _newton(residuals: Residuals, x: Array, values: Array, xtol: float, zero: float, most: int) -> tuple[Array, Array, int]:
    """Returns x, f(x), and 1 if it converged, otherwise the reason for the end."""
    n = x.size
    while residuals.nfev < most:
        if np.linalg.norm(values) <= zero:
            return x, values, 1
        _, j = residuals.both(x)
        try:
            step = -counted("solver_lu", lambda j=j, values=values: np.linalg.solve(j, values), n**3 // 3 + n * n, n)
        except np.linalg.LinAlgError:
            return x, values, -1
        if not np.isfinite(step).all():
            return x, values, -1
        share, size = 1.0, float(values @ values)
        while share >= SHORTEST and residuals.nfev < most:
            trial = residuals.rounded(x + share * step)
            found = residuals(trial)
            reached = float(found @ found) if np.isfinite(found).all() else np.inf
            if reached <= (1 - 2 * ENOUGH * share) * size:
                break
            if share == 1 and np.linalg.norm(step) <= max(xtol, 8 * residuals.eps) * np.linalg.norm(x):
                return x, values, 1  # rounding keeps |f| from falling further
            share *= (
                0.5 if not np.isfinite(reached) else float(np.clip(share * size / (reached + (2 * share - 1) * size), 0.1, 0.5))
            )
        else:
            return x, values, -2 if residuals.nfev < most else 0
        x, values = trial, found
        if share == 1 and np.linalg.norm(step) <= xtol * np.linalg.norm(x):
            return x, values, 1
    return x, values, 0


def _trust_region(residuals: Residuals, x: Array, start: Array, xtol: float, zero: float, most: int) -> tuple[Array, int]:
    low, high = np.full(x.size, -np.inf), np.full(x.size, np.inf)
    search = Search(residuals, x, low, high, Loss("root", "linear", 1.0), None, Tolerances(0.0, xtol, 0.0, most))
    status = search.run()
    small = 100 * residuals.eps * (np.abs(search.j) @ np.abs(search.x))  # of each equation, because their units may differ
    if status > 0:  # an end for another reason is no root, however much larger f(x0) was
        small += residuals.eps**0.75 * np.abs(start)
    if (np.abs(search.r) <= small).all() or np.linalg.norm(search.r) <= zero:
        return search.x, 1
    return search.x, 0 if status == 0 else -3


def _result(
    unknowns: Unknowns, residuals: Residuals, x: Array, values: Array, j: Array, status: int, args: tuple[Any, ...]
) -> RootResult:
    why = "" if status > 0 else f"{MESSAGES[status].rstrip('.')}, and the length of f(x) is {np.linalg.norm(values):.2g}"
    solution = implicit("root", residuals.tensor(x), residuals.values, args, matrix_name="the Jacobian of f", unsolved=why)
    return RootResult(
        x=unknowns.tree(solution), fun=residuals.tensor(values), jac=residuals.tensor(j), nfev=residuals.nfev, njev=residuals.njev,
        status=status, message=MESSAGES[status], success=status > 0,
    )


__all__ = ["root"]
