"""Arguments with which tests and benchmarks call an op that its declaration alone does not tell how to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Example = Callable[[Any, Any], tuple[tuple[Any, ...], tuple[Any, ...]]]


def normal(*shapes: Any, params: tuple[Any, ...] = ()) -> Example:
    """One array of normally distributed numbers (small integers, coin flips) per shape; arrays (indices) as they are."""
    return lambda rng, dtype: (tuple([draw(rng, np.dtype(dtype), shape) for shape in shapes]), params)


def distinct(*shapes: Any, params: tuple[Any, ...] = ()) -> Example:
    """As normal, with numbers that all differ by a half or more: for ops with a kink where two are equal."""

    def example(rng: Any, dtype: Any) -> Any:
        sizes = [0 if isinstance(shape, np.ndarray) else int(np.prod(shape)) for shape in shapes]
        pool = rng.permutation(sum(sizes)) / 2 - (0 if np.dtype(dtype).kind in "ub" else sum(sizes) / 4)
        parts = np.split(pool, np.cumsum(sizes)[:-1])
        arrays = [s if isinstance(s, np.ndarray) else part.reshape(s).astype(dtype) for part, s in zip(parts, shapes)]
        return tuple(arrays), params

    return example


def draw(rng: Any, dtype: Any, shape: Any) -> Any:
    if isinstance(shape, np.ndarray):
        return shape
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -4, 5, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)
