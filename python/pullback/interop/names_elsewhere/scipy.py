"""Names of SciPy's optimize and linalg, and keyword arguments and options of solvers."""

from __future__ import annotations

from typing import Final

from .sentences import CHOLESKY_SOLVE, FACTORS, LU, OF_SYMMETRIC

FIT: Final = "fit by pb.solve.least_squares(lambda p, t, y: model(t, p) - y, p0, args=(t, y)); its jac gives the covariance."
CONSTRAINTS: Final = (
    "a constraint is a function: pb.solve.augmented_lagrangian(f, x0, ineq=[c], eq=[h]) keeps c(x) >= 0 and h(x) == 0. SciPy's own "
    'are for pb.solve.minimize(f, x0, "scipy:SLSQP", constraints=c).'
)
ABSENT: Final = "it is not here. SciPy's own takes a function of NumPy arrays: lambda x: float(f(pb.asarray(x)))."
RANGES: Final = (
    "take u, s, vh = pb.linalg.svd(t): the first columns of u span the range, and the rows of vh for singular values of 0 the null "
    "space."
)
WHOLE: Final = "make the whole matrix, and call pb.linalg.{}."
MADE: Final = "SciPy's makes an array, which pb.asarray turns into a tensor."
SCALAR: Final = "a function of one number is minimised by pb.solve.minimize(f, 1.0)."

NAMES: Final[dict[str, dict[str, str]]] = {
    "pullback.solve": {
        "curve_fit": FIT, "leastsq": "pb.solve.least_squares",
        **dict.fromkeys(("fsolve", "root_scalar", "newton", "brentq", "bisect", "newton_krylov"), "pb.solve.root"),
        **dict.fromkeys(("fmin_l_bfgs_b", "fmin_bfgs", "fmin_cg", "fmin_ncg", "fmin"), "pb.solve.minimize"),
        **dict.fromkeys(("minimize_scalar", "fminbound"), SCALAR),
        "fmin_slsqp": 'it is a method of pb.solve.minimize: method="scipy:SLSQP".',
        "Bounds": "bounds are a pair (lower, upper), or scipy.optimize.Bounds.",
        "NonlinearConstraint": CONSTRAINTS, "LinearConstraint": CONSTRAINTS,
        "OptimizeResult": "results have its names, and are mappings: result.x, result.fun, result.success.",
        **dict.fromkeys(("linprog", "milp", "differential_evolution", "basinhopping", "dual_annealing", "shgo", "brute"), ABSENT),
        "LM": "pb.solve.LevenbergMarquardt", "LBFGS": "pb.solve.minimize", "BFGS": "pb.solve.minimize",
        "check_grad": "pb.check_gradients", "approx_fprime": "pb.grad(f)", "lsq_linear": "pb.solve.least_squares", "nnls":
        "it is pb.solve.least_squares(lambda x: a @ x - b, x0, bounds=(0, None)) here.",
    },
    "pullback.linalg": {
        "cho_factor": "pb.linalg.cholesky", "cho_solve": CHOLESKY_SOLVE, "orth": RANGES, "null_space": RANGES,
        **dict.fromkeys(("logm", "sqrtm", "cosm", "sinm", "tanm", "signm", "funm", "fractional_matrix_power"), OF_SYMMETRIC),
        "polar": "write u, s, vh = pb.linalg.svd(t, full_matrices=False); the unitary factor is u @ vh.",
        **dict.fromkeys(("schur", "hessenberg", "qz", "ldl", "ldl_factor_ex", "ldl_solve"), FACTORS), "lu_factor_ex": LU,
        **dict.fromkeys(("eig_banded", "eigh_tridiagonal"), WHOLE.format("eigh(t)")),
        **dict.fromkeys(("eigvals_banded", "eigvalsh_tridiagonal"), WHOLE.format("eigvalsh(t)")),
        "pinvh": "pb.linalg.pinv", "issymmetric": "pb.all(t == t.mT)", "ishermitian": "pb.all(t == t.mT)",
        **dict.fromkeys(("solve_banded", "solveh_banded", "solve_toeplitz", "solve_circulant"), WHOLE.format("solve(a, b)")),
        **dict.fromkeys(("toeplitz", "circulant", "hankel", "hilbert", "companion", "dft"), MADE),
    },
}  # fmt: skip

EXACT: Final = "derivatives are always computed from the function itself, exactly. Leave it out."
OF_LAGRANGIAN: Final = (
    'give the function of each constraint: {"type": "ineq", "fun": c} is ineq=[c], and {"type": "eq", "fun": h} is eq=[h].'
)
ONE_STEP: Final = (
    "each call of step takes one step, and you decide when to end, by info.cost and info.accepted. pb.solve.least_squares runs to "
    "convergence."
)
SIDES: Final = dict.fromkeys(("lower", "upper", "lb", "ub"), "it is bounds=(lower, upper) here.")
FUNCTION: Final = dict.fromkeys(("fun", "func"), "the function is the first argument, f=.")
MAXFUN: Final = dict.fromkeys(("max_nfev", "maxfev"), "it is maxfun= here.")
ITERATE: Final = "iterate over pb.solve.minimize(...), which yields one item per iteration."
# Keyword arguments, by the function that does not have them.
KEYWORDS_OF: Final[dict[str, dict[str, str]]] = {
    "least_squares": {
        **SIDES,
        **dict.fromkeys(("jac", "diff_step", "jac_sparsity", "Dfun", "epsfcn"), EXACT),
        "method": "there is one method, a trust region that takes bounds and robust losses. Leave it out.",
        **dict.fromkeys(("tr_solver", "tr_options"), "the systems are factorised by QR or Cholesky. Leave it out."),
        "kwargs": "bind further arguments with a lambda, or give them in args=.",
        "tol": "give ftol=, xtol= and gtol=.",
        **dict.fromkeys(("maxfev", "max_iter", "maxiter", "maxfun"), "it is max_nfev= here."),
        "constraints": CONSTRAINTS,
        "verbose": "nothing is printed; the result has nfev, njev, status and message.",
        "callback": "for one step at a time, use pb.solve.LevenbergMarquardt.",
        "p0": "it is x0= here.", "params": "the start is the second argument, x0=.",
        **dict.fromkeys(("fun", "func", "f"), "the function is the first argument, residual_fn=."),
        "sigma": "divide the residuals by sigma in the function.",
        **dict.fromkeys(("xdata", "ydata"), "the function returns residuals, such as model(x, t) - y; give t and y in args=."),
    },
    "minimize": {
        **SIDES,
        **dict.fromkeys(("jac", "hess", "hessp", "finite_diff_rel_step", "eps"), EXACT),
        "tol": "give gtol=, the largest element of the gradient, and ftol=.",
        "callback": ITERATE,
        "x0": "the start is the second argument, params=.",
        **FUNCTION,
        **MAXFUN,
        **dict.fromkeys(("max_iter", "nit"), "it is maxiter= here."),
        **dict.fromkeys(("ineq", "eq"), "constraints are arguments of pb.solve.augmented_lagrangian(f, x0, ineq=[c], eq=[h])."),
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
        **dict.fromkeys(("maxiter", "maxfun"), "it is max_nfev= here."),
        "gtol": "give xtol= or ftol=.", "bounds": "roots have no bounds: pb.solve.least_squares(f, x0, bounds=(lower, upper)) has.",
        "params": "the start is the second argument, x0=.",
        "bracket": "a start x0 replaces the bracket.",
        **FUNCTION,
        "full_output": "the result always has all fields.",
    },
    "augmented_lagrangian": {
        **SIDES,
        **dict.fromkeys(("constraints", "cons", "constraint"), OF_LAGRANGIAN),
        **dict.fromkeys(("ineqs", "inequalities", "f_ieqcons", "ieqcons", "g"), "it is ineq= here, of values that are 0 or more."),
        **dict.fromkeys(("eqs", "equalities", "f_eqcons", "eqcons", "h"), "it is eq= here, of values that are 0."),
        **dict.fromkeys(("jac", "hess", "hessp", "eps"), EXACT),
        "method": 'the inner problems are solved by "L-BFGS-B". Leave it out; SciPy\'s methods are in pb.solve.minimize.',
        "options": "give tol=, penalty=, maxiter= and maxfun=.",
        **dict.fromkeys(("gtol", "ftol", "xtol", "catol"), "it is tol= here, for the constraints and for the gradient."),
        **dict.fromkeys(("rho", "mu", "rho0", "mu0", "penalty_factor", "initial_penalty"), "it is penalty= here."),
        "callback": "nothing is called between its problems; the result has the multipliers, the penalty and the counts.",
        "disp": "nothing is printed; the result has nit, nfev, status and message.",
        "x0": "the start is the second argument, params=.",
        **FUNCTION,
        **MAXFUN,
        "max_iter": "it is maxiter= here.",
    },
    "LevenbergMarquardt": {
        **SIDES,
        **dict.fromkeys(("lr", "learning_rate"), "the damping finds the length of each step. Leave it out, or give damping=."),
        **dict.fromkeys((
            "lambda_", "lam", "lambd", "lambda0", "mu", "mu0", "tau", "damp", "damping_factor", "initial_damping", "init_damping",
            "damping_parameter",
        ), "it is damping= here, relative to the largest diagonal element of J^T J in the first step."),
        **dict.fromkeys(("min_damping", "max_damping", "damping_min", "damping_max"), "the damping stays between 1e-15 and 1e15."),
        **dict.fromkeys((
            "damping_up", "damping_down", "up", "down", "factor", "adaptive", "strategy", "damping_strategy", "lambda_up",
            "lambda_down",
        ), "the damping rises and falls by Nielsen's rule; lm.damping can be set before a step."),
        **dict.fromkeys(("method", "linear_solver", "decomposition"), 'it is solver= here: "auto", "cholesky", "qr" or "cg".'),
        **dict.fromkeys(("maxiter", "max_iter", "max_nfev", "maxfev", "maxfun", "iterations", "steps"), ONE_STEP),
        **dict.fromkeys(("tol", "gtol", "ftol", "xtol"), ONE_STEP),
        **dict.fromkeys(("attempts", "max_attempts", "reject", "max_trials", "retries"), "it is trials= here."),
        **dict.fromkeys(("jac", "diff_step"), EXACT), "x_scale": 'it is scaling="columns" here, for x_scale="jac".',
        **dict.fromkeys(("args", "fun", "residual_fn", "f"), "they are arguments of each step: lm.step(residual_fn, *args)."),
        **dict.fromkeys(("batch", "vectorize"), "per_example=True is for a function of one example of a batch."),
        **dict.fromkeys(("weight_decay", "momentum", "betas"), "add residuals for it: [r, 0.1 * net.weight] pulls a weight to 0."),
    },
}  # fmt: skip

ONE_ROOT: Final = 'Its method is not here. "hybrid" is Newton\'s method with a trust region behind it.'
# Values of options that have other names here, or none: by the function and the argument.
OPTIONS: Final[dict[str, dict[str, str]]] = {
    "minimize.method": {
        "lm": "pb.solve.least_squares has a trust region for sums of squares, and pb.solve.LevenbergMarquardt takes single steps.",
        "newton": 'Did you mean "Newton-CG"?',
        **dict.fromkeys(("SGD", "sgd", "adam", "Adam"), "Rules that take one gradient per step are in pb.optim."),
    },
    "root.method": {
        "hybr": 'It is "hybrid" here.', "lm": "It is pb.solve.least_squares here.",
        **dict.fromkeys(("broyden1", "broyden2", "anderson", "linearmixing", "diagbroyden", "excitingmixing", "krylov", "df-sane"),
                        ONE_ROOT),
    },
    "LevenbergMarquardt.solver": {
        **dict.fromkeys(("lu", "inv", "exact", "direct", "dense"), '"cholesky" and "qr" factorise a matrix; "cg" forms none.'),
        **dict.fromkeys(("svd", "lstsq"), '"qr" loses the fewest digits.'),
        **dict.fromkeys(("lsmr", "lsqr", "iterative"), 'It is "cg" here.'),
    },
    "LevenbergMarquardt.scaling": {"jac": 'It is "columns" here.', "auto": 'It is "columns" here.'},
    "qr.mode": {
        "economic": 'It is "reduced" here.', "full": 'It is "complete" here.',
        "r": 'Take R of the result: pb.linalg.qr(x).R.',
        **dict.fromkeys(("raw", "economic_raw"), "Householder vectors are not here."),
    },
    "vector_norm.ord": {
        "fro": "The Frobenius norm of a matrix is matrix_norm(x), or norm(x).",
        "nuc": "The nuclear norm of a matrix is matrix_norm(x, ord=\"nuc\").",
        "inf": "Give the number: float(\"inf\"), or pb.inf.", "-inf": "Give the number: -pb.inf.",
        "euclidean": "It is 2 here.", "max": "It is pb.inf here.",
    },
    "norm.ord": {
        **dict.fromkeys(("frobenius", "euclidean"), 'It is "fro" here, for matrices.'), "inf": "Give the number: pb.inf.",
        "-inf": "Give the number: -pb.inf.",
        **dict.fromkeys(("fro", "nuc"), "This norm is one of matrices, and the norm of a vector was asked for."),
    },
    "matrix_norm.ord": {
        "frobenius": 'It is "fro" here.', "nuclear": 'It is "nuc" here.', "trace": 'It is "nuc" here.', "spectral": "It is 2 here.",
        "inf": "Give the number: pb.inf.", "-inf": "Give the number: -pb.inf.", "euclidean": 'It is "fro" here.',
    },
}  # fmt: skip
