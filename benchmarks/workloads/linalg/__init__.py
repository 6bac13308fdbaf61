"""Cholesky factors and linear systems, in each library."""

import numpy as np

DTYPES = ("float32", "float64")
BATCHED = {f"{name} of 1,000 x (16 x 16), {dtype}": (name, dtype) for name in ("cholesky", "solve") for dtype in DTYPES}
LARGE = {f"cholesky of 1,024 x 1,024, {dtype}": dtype for dtype in DTYPES}


def positive(dtype, *shape):
    """Returns positive definite matrices."""
    x = np.random.default_rng(0).standard_normal(shape)
    return (x @ x.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)


def right_sides(dtype):
    return np.random.default_rng(1).standard_normal((1000, 16, 1)).astype(dtype)
