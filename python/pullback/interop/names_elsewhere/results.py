"""Names of the fields of results, and of what solvers return, in SciPy, NumPy and PyTorch."""

from __future__ import annotations

from typing import Final

RUN: Final = "call .result() first: pb.solve.minimize(f, x0).result() runs to the end, and its result has it."
HESSIAN: Final = "it is not kept: pb.hessian(f)(result.x) computes it."
BY_HAND: Final = "training is a loop of info = lm.step(residual_fn, *args), which computes derivatives by itself."


def _called(name: str, *others: str) -> dict[str, str]:
    return dict.fromkeys(others, f"it is .{name} here.")


NAMES: Final[dict[str, dict[str, str]]] = {
    "SVDResult": {
        **dict.fromkeys(("V", "v"), "write .Vh.mT: the rows of Vh are the columns of V."), **_called("U", "u"),
        **_called("S", "s", "sigma", "singular_values", "D"), **_called("Vh", "vh", "Vt", "vt", "VT", "VH", "Vt_", "V_T"),
    },
    "EighResult": {
        **_called("eigenvalues", "L", "w", "e", "values", "eigvals", "lambdas", "D"),
        **_called("eigenvectors", "V", "v", "Q", "vectors", "eigvecs"),
    },
    "QRResult": {**_called("Q", "q"), **_called("R", "r")},
    "SlogdetResult": {
        **_called("logabsdet", "logdet", "log_abs_determinant", "log_abs_det"), **_called("sign", "sgn", "signdet"),
        "det": "write .sign * pb.exp(s.logabsdet) for a result s, or call pb.linalg.det(t).",
    },
    "LstsqResult": {
        **_called("solution", "x", "X", "coef", "coef_"), **_called("singular_values", "s", "sv"),
        **_called("residuals", "resid", "residues", "resids", "residual"),
    },
    "LeastSquaresResult": {
        **_called("x", "params", "popt", "xopt", "solution"), **_called("fun", "residuals", "fvec", "resid"),
        **_called("cost", "loss", "chi2"), **_called("nfev", "nit", "iterations"),
        **_called("optimality", "grad_norm", "gradient_norm"),
        **dict.fromkeys(("cov", "pcov", "cov_x", "hess_inv"),
                        "for residuals of size s write s**2 * pb.linalg.inv(j.mT @ j) with j = .jac."),
        "hess": "write j.mT @ j with j = .jac, its approximation without the curvature of the residuals.",
        "converged": "it is .success here.",
    },
    "RootResult": {
        **_called("x", "root", "params", "solution"), **_called("success", "converged"), **_called("jac", "fjac"),
        **_called("nfev", "nit", "iterations", "function_calls"), "flag": "it is .status here.",
    },
    "MinimizeResult": {
        **_called("x", "params", "xopt", "solution"), **_called("fun", "loss", "fopt", "cost", "value"), **_called("jac", "grad"),
        **_called("grad_norm", "optimality"), "hess": HESSIAN, "hess_inv": HESSIAN, **_called("success", "converged"),
        **_called("nit", "iterations"), "result": "this is the result.",
        **dict.fromkeys(("maxcv", "constr_violation", "v", "multipliers"), "pb.solve.augmented_lagrangian returns them."),
    },
    "ConstrainedResult": {
        **_called("x", "params", "xopt", "solution"), **_called("fun", "loss", "fopt", "cost", "value"),
        **_called("maxcv", "constr_violation", "violation"), **_called("grad_norm", "optimality"),
        **dict.fromkeys(("multipliers", "lambda_", "v", "mu", "duals"), "they are .eq and .ineq here, a tensor for each function."),
        "jac": "the gradient of f is pb.grad(f)(result.x); that of the Lagrangian has the largest element .grad_norm.",
        "result": "this is the result.",
    },
    "Minimization": {
        **dict.fromkeys(("run", "solve", "minimize", "step", "fit"), "call .result(), or loop over it."),
        **dict.fromkeys(
            ("x", "fun", "jac", "grad_norm", "nit", "nfev", "njev", "nhev", "status", "message", "success", "hess_inv", "loss"), RUN
        ),
    },
    "Iteration": {
        **_called("loss", "fun", "cost", "value"), **_called("jac", "grad", "gradient"), **_called("x", "params"),
        **dict.fromkeys(("success", "status", "message"), "the result has it, after the last iteration: run.result()."),
    },
    "StepInfo": {
        **_called("cost", "loss", "fun", "value"), **_called("accepted", "success"), **_called("gain_ratio", "ratio", "rho"),
        **_called("damping", "lambda_", "lam", "mu"), "x": "the Parameters hold the point.",
    },
    "LevenbergMarquardt": {
        **dict.fromkeys(("minimize", "fit", "optimize", "run", "train", "backward", "zero_grad"), BY_HAND),
        **dict.fromkeys(("lr", "learning_rate"), "there is none: .damping decides about the length of a step."),
        **_called("damping", "lambda_", "lam", "mu"), **_called("parameters", "params", "param_groups"),
        **dict.fromkeys(("state_dict", "load_state_dict"), "save the Parameters, and lm.damping for the next step."),
        "result": "pb.solve.least_squares runs to convergence and returns a result.",
    },
}  # fmt: skip
