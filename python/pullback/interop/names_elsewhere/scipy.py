"""Names of SciPy's optimize."""

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
