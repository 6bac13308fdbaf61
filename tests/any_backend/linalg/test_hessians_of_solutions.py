"""Second derivatives of lstsq, pinv and solve where right-hand sides or residuals are zero, against 60 digits."""

from __future__ import annotations

import itertools
from typing import Any, Final

import mpmath
import numpy as np
import pytest

import pullback as pb

RIGHT: Final = ("any", "zero", "in the range", "beside the range")
SHAPES: Final = ((3, 2), (2, 3), (2, 2), (2, 1))
CASES: Final = [
    *itertools.product(("solution", "residuals"), SHAPES, RIGHT),
    *[("pinv", shape, "any") for shape in SHAPES],
    *[("solve", (2, 2), right) for right in RIGHT],
]


def inverse(a: Any) -> Any:
    """Returns the pseudo-inverse of a matrix of full rank."""
    return mpmath.inverse(a.T * a) * a.T if a.rows >= a.cols else a.T * mpmath.inverse(a * a.T)


def exact(kind: str, a: Any, b: Any, w: Any) -> Any:
    if kind == "pinv":
        y = inverse(a)
    else:
        x = inverse(a) * b
        y = x if kind == "solution" else b - a * x
    return sum([y[i, j] * (y[i, j] if kind == "residuals" else w[i, j]) for i in range(y.rows) for j in range(y.cols)])


def exact_hessian(kind: str, a: Any, b: Any, w: Any) -> Any:
    """Returns the second differences, by a step of 1e-18."""
    with mpmath.workdps(60):
        step, z = mpmath.mpf(10) ** -18, np.concatenate([a.ravel(), b.ravel()])
        found = np.zeros((z.size, z.size))
        for i, j in itertools.combinations_with_replacement(range(z.size), 2):
            total = mpmath.mpf(0)
            for up, right in itertools.product((1, -1), repeat=2):
                at = [mpmath.mpf(float(v)) for v in z]
                at[i] += up * step
                at[j] += right * step
                rows = [at[k : k + a.shape[1]] for k in range(0, a.size, a.shape[1])]
                total += up * right * exact(kind, mpmath.matrix(rows), mpmath.matrix([[v] for v in at[a.size :]]), w)
            found[i, j] = found[j, i] = float(total / (4 * step * step))
    return found


def value(kind: str, a: Any, b: Any, w: Any) -> Any:
    w = pb.tensor(w, dtype=a.dtype)
    if kind == "solve":
        return pb.sum(pb.linalg.solve(a, b) * w)
    if kind == "pinv":
        return pb.sum(pb.linalg.pinv(a) * w) + 0 * pb.sum(b)
    fit = pb.linalg.lstsq(a, b)
    return pb.sum(fit.solution * w) if kind == "solution" else pb.sum(fit.residuals)


@pytest.mark.parametrize(("kind", "shape", "right"), CASES)
def test_a_second_derivative_is_exact_where_right_hand_sides_or_residuals_are_zero(
    kind: str, shape: tuple[int, int], right: str
) -> None:
    m, n = shape
    rng = np.random.default_rng(m * 10 + n)
    a, b, w = rng.normal(size=shape), rng.normal(size=(m, 1)), rng.normal(size=(n, m if kind == "pinv" else 1))
    inside = a @ np.linalg.pinv(a) @ b
    b = {"any": b, "zero": 0 * b, "in the range": inside, "beside the range": b - inside}[right]
    hessian = exact_hessian("solution" if kind == "solve" else kind, a, b, w)
    size = np.abs(hessian).max() if m > n or kind != "residuals" else 1.0  # without residuals, 0
    for dtype, bound in (("float64", 1e-13), ("float32", 2e-5)):
        z = pb.tensor(np.concatenate([a.ravel(), b.ravel()]), dtype=dtype)

        def flat(z: Any) -> Any:
            return value(kind, pb.reshape(z[: m * n], shape), pb.reshape(z[m * n :], (m, 1)), w)

        columns = [pb.jvp(pb.grad(flat), (z,), (e,))[1] for e in pb.eye(z.size, dtype=dtype)]
        for y in (pb.hessian(flat)(z), pb.jacobian(pb.grad(flat))(z), pb.stack(columns)):
            assert np.abs(y.astype("float64").numpy() - hessian).max() <= bound * size
