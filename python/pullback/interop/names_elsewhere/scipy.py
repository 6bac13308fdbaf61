"""Names of SciPy's optimize, and keyword arguments of its solvers."""

from __future__ import annotations

from typing import Final

FIT: Final = "fit by pb.solve.least_squares(lambda p, t, y: model(t, p) - y, p0, args=(t, y)); its jac gives the covariance."
SCALAR: Final = "a function of one number is minimised by pb.solve.minimize(f, 1.0)."

NAMES: Final[dict[str, dict[str, str]]] = {
    "pullback.solve": {
        "curve_fit": FIT, "leastsq": "pb.solve.least_squares",
        **dict.fromkeys(("fsolve", "root_scalar", "newton", "brentq", "bisect", "newton_krylov"), "pb.solve.root"),
        **dict.fromkeys(("fmin_l_bfgs_b", "fmin_bfgs", "fmin_cg", "fmin_ncg", "fmin"), "pb.solve.minimize"),
        **dict.fromkeys(("minimize_scalar", "fminbound"), SCALAR),
        "fmin_slsqp": 'it is a method of pb.solve.minimize: method="scipy:SLSQP".',
        "Bounds": "bounds are a pair (lower, upper), or scipy.optimize.Bounds.",
    },
}  # fmt: skip

EXACT: Final = "derivatives are always computed from the function itself, exactly. Leave it out."
ITERATE: Final = "iterate over pb.solve.minimize(...), which yields one item per iteration."
# Keyword arguments, by the function that does not have them.
KEYWORDS_OF: Final[dict[str, dict[str, str]]] = {
    "least_squares": {
        **dict.fromkeys(("jac", "diff_step", "jac_sparsity", "Dfun", "epsfcn"), EXACT),
        "method": "there is one method, a trust region that takes bounds and robust losses. Leave it out.",
        **dict.fromkeys(("tr_solver", "tr_options"), "the systems are factorised by QR or Cholesky. Leave it out."),
        "kwargs": "bind further arguments with a lambda, or give them in args=.",
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
