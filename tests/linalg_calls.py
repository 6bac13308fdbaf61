"""Random calls of the kernels on small matrices, like those of random_calls.py."""

from __future__ import annotations

from typing import Any

import numpy as np

import pullback as pb
from conftest import FLOATS, dtype_of
from random_calls import Call, laid_out, shape_of, tensor, with_gradients

# The counting build has no LAPACK, whose work nothing counts.
BY_LAPACK = {"det", "slogdet", "cofactors", "qr", "eigh", "eigvalsh", "svd", "svdvals", "pinv"}


def matrices(rng: Any) -> tuple[Any, Any]:
    """Returns square matrices with a dominant diagonal, and right-hand sides."""
    n, columns = [int(rng.integers(1, rng.choice([5, most]))) for most in (33, 40)]
    batch, dtype = shape_of(rng, int(rng.integers(0, 3)), 5), rng.choice(FLOATS)
    a = rng.uniform(-0.5, 0.5, (*batch, n, n)) / n + np.eye(n)
    return laid_out(rng, a.astype(dtype_of(dtype))), tensor(rng, (*batch, n, columns), dtype)


def cholesky(rng: Any) -> None:
    with_gradients(rng, pb.linalg.cholesky, matrices(rng)[0])


def solve(rng: Any) -> None:
    a, b = matrices(rng)
    way = rng.integers(0, 3)
    if way == 0:
        with_gradients(rng, pb.linalg.solve, a, b)
    elif way == 1:
        with_gradients(rng, lambda a: pb.linalg.solve(a, b), a)
    else:
        with_gradients(rng, lambda b: pb.linalg.solve(a, b), b)


def solve_triangular(rng: Any) -> None:
    upper, unit = [bool(rng.random() < 0.5) for _ in range(2)]
    with_gradients(rng, lambda a, b: pb.linalg.solve_triangular(a, b, upper=upper, unitriangular=unit), *matrices(rng))


LINALG: dict[str, Call] = {
    "cholesky": cholesky, "solve": solve, "solve_triangular": solve_triangular,
}
