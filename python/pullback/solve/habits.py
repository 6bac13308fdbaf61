"""Answers keywords of SciPy's solvers that the solvers here do not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..interop.unknown_names import unexpected

EXACT: Final = "derivatives are always computed from the function itself, exactly. Leave it out."
CLOSURE: Final = "bind further arguments with a lambda, or give them in args="
ITERATE: Final = "iterate over pb.solve.minimize(...), which yields one item per iteration."
HABITS: Final[dict[str, dict[str, str]]] = {
    "least_squares": {
        **dict.fromkeys(("jac", "diff_step", "jac_sparsity", "Dfun", "epsfcn"), EXACT),
        "method": "there is one method, a trust region that takes bounds and robust losses. Leave it out.",
        **dict.fromkeys(("tr_solver", "tr_options"), "the systems are factorised by QR or Cholesky. Leave it out."),
        "kwargs": CLOSURE + ".",
        "tol": "give ftol=, xtol= and gtol=.",
        "maxfev": "it is max_nfev= here.",
        "max_iter": "it is max_nfev= here.",
        "verbose": "nothing is printed; the result has nfev, njev, status and message.",
        "callback": "for one step at a time, use pb.solve.LevenbergMarquardt.",
        "p0": "it is x0= here.",
        "sigma": "divide the residuals by sigma in the function.",
        **dict.fromkeys(("xdata", "ydata"), "the function returns residuals, such as model(x, t) - y; give t and y in args=."),
    },
    "minimize": {
        **dict.fromkeys(("jac", "hess", "hessp", "finite_diff_rel_step", "eps"), EXACT),
        "tol": "give gtol=, the largest element of the gradient, and ftol=.",
        "callback": ITERATE,
        "x0": "the start is the second argument, params=.",
        "fun": "the function is the first argument, f=.",
        "max_nfev": "it is maxfun= here.",
        "disp": "nothing is printed; " + ITERATE,
        "maxcor": "it is memory= here.",
        "history_size": "it is memory= here.",
        "lr": "a line search finds the length of each step. Leave it out.",
        "line_search_fn": "a line search of More and Thuente is always used. Leave it out.",
    },
    "root": {
        **dict.fromkeys(("jac", "fprime", "fprime2", "eps", "epsfcn"), EXACT),
        "tol": "give xtol=, the relative length of the last step, and ftol=, the length of f(x) that counts as zero.",
        "callback": "nothing is called between iterations.",
        "options": "give xtol=, ftol= and max_nfev=.",
        "maxfev": "it is max_nfev= here.",
        "maxiter": "it is max_nfev= here.",
        "bracket": "a start x0 replaces the bracket.",
        "fun": "the function is the first argument, f=.",
        "full_output": "the result always has all fields.",
    },
}  # fmt: skip


def refuse_habits(owner: str, unknown: Mapping[str, Any]) -> None:
    """Raises TypeError for keywords that the calling solver does not have."""
    for name in unknown:
        hint = HABITS[owner].get(name)
        if hint is not None:
            raise TypeError(f"{owner}() got an unexpected keyword argument {name!r}: {hint}")
        raise unexpected(unknown, depth=2)
