"""The constraints of optim.constraints as functions, against formulas in float64."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import same
from conftest import host
from formulas import simplex
from pullback.optim import constraints as c

UNTYPED: Any = c  # for wrong arguments
SHAPE = (6, 5)
ALL = {
    "nonnegative": c.NonNegative(),
    "box": c.Box(-0.2, 0.3),
    "max norm": c.MaxNorm(0.7, axis=1),
    "max norm of all": c.MaxNorm(0.7, axis=None),
    "unit norm": c.UnitNorm(axis=0),
    "unit norm of all": c.UnitNorm(axis=(0, 1)),
    "simplex": c.Simplex(axis=-1),
    "simplex of all": c.Simplex(axis=None),
    "function": lambda w: pb.tanh(w),
}
EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def nearest(constraint: Any, x: Any) -> Any:
    """Returns what a constraint makes of an array, in float64."""
    x = np.asarray(x, np.float64)
    if hasattr(constraint, "bounds"):
        return np.clip(x, *constraint.bounds)
    axis: Any = getattr(constraint, "axis", None)
    axis = tuple(range(x.ndim)) if axis is None else axis
    if isinstance(constraint, c.Simplex):
        return simplex(x.ravel()).reshape(x.shape) if isinstance(axis, tuple) else np.apply_along_axis(simplex, axis, x)
    norm = np.sqrt((x**2).sum(axis=axis, keepdims=True))
    if isinstance(constraint, c.MaxNorm):
        return x * np.minimum(1, constraint.c / norm)
    return x / norm if isinstance(constraint, c.UnitNorm) else np.tanh(x)


def numbers(seed: int, shape: Any = SHAPE, dtype: Any = "float32") -> Any:
    return pb.tensor(np.random.default_rng(seed).standard_normal(shape), dtype=dtype)


# ---- the constraints as functions


@pytest.mark.parametrize("dtype", list(EPS))
@pytest.mark.parametrize("name", [name for name in ALL if name != "function"])
def test_a_constraint_returns_the_nearest_value_that_satisfies_it(name: str, dtype: str) -> None:
    for seed in range(5):
        x = numbers(seed, dtype=dtype) * (1 + 3 * seed)
        y = ALL[name](x)
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
        np.testing.assert_allclose(host(y).astype(float), nearest(ALL[name], host(x)), rtol=8 * EPS[dtype], atol=4 * EPS[dtype])


@pytest.mark.parametrize("dtype", list(EPS))
@pytest.mark.parametrize("length", [1, 2, 7, 300, 20_000])
def test_no_rounding_makes_a_norm_larger_than_the_bound(dtype: str, length: int) -> None:
    x = numbers(length, (4, length), dtype) * 3
    for bound in (0.7, 1.0, 1 / 3):
        y = c.MaxNorm(bound, axis=1)(x)
        assert (np.linalg.norm(host(y).astype(float), axis=1) <= bound).all()
        same(c.MaxNorm(bound, axis=1)(y), y)  # It has a norm that is small enough now.
    simple = host(c.Simplex(axis=1)(x)).astype(float)
    assert (simple >= 0).all()
    np.testing.assert_allclose(simple.sum(axis=1), 1, rtol=4 * EPS[dtype] * (1 if dtype in ("float32", "float64") else length))


def test_a_vector_within_the_bound_keeps_its_bits() -> None:
    x = numbers(0) * 0.1
    same(c.MaxNorm(1.0, axis=0)(x), x)


def test_norms_of_large_and_small_weights_are_right() -> None:
    x = pb.tensor([[3e38, 1e38], [3e-38, 4e-38], [3e30, 4e-30]], dtype="float32")
    wanted = np.array([[3, 1] / np.sqrt(10), [0.6, 0.8], [1.0, 0.0]])
    np.testing.assert_allclose(host(c.UnitNorm(axis=1)(x)), wanted, rtol=1e-6)
    scaled = host(c.MaxNorm(1.0, axis=1)(x))
    np.testing.assert_allclose(scaled[[0, 2]], wanted[[0, 2]], rtol=1e-6)
    same(pb.tensor(scaled[1]), x[1])


def test_zeros_and_numbers_that_are_not_finite() -> None:
    nan, inf = math.nan, math.inf
    x = pb.tensor([[0.0, 0.0], [nan, 1.0], [inf, 1.0], [0.3, -0.4]], dtype="float32")
    bad = [[nan, nan], [nan, nan]]
    np.testing.assert_array_equal(host(c.MaxNorm(1, axis=1)(x)), np.array([[0, 0], *bad, [0.3, -0.4]], np.float32))
    np.testing.assert_allclose(host(c.UnitNorm(axis=1)(x)), np.array([[0, 0], *bad, [0.6, -0.8]]), rtol=1e-6)
    np.testing.assert_allclose(host(c.Simplex(axis=1)(x)), np.array([[0.5, 0.5], *bad, [0.85, 0.15]]), rtol=1e-6)
    np.testing.assert_array_equal(host(c.NonNegative()(x)), np.array([[0, 0], [nan, 1], [inf, 1], [0.3, 0]], np.float32))
    np.testing.assert_array_equal(host(c.Box(-0.1, inf)(x)), np.array([[0, 0], [nan, 1], [inf, 1], [0.3, -0.1]], np.float32))
    assert c.UnitNorm(None)(pb.tensor(-3.0)).item() == -1.0
    for constraint in (c.MaxNorm(1, 0), c.UnitNorm(0), c.Simplex(0), c.Simplex(None), c.NonNegative()):
        assert constraint(pb.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: UNTYPED.Box(1, 0), r"Box: no number is between lo=1.0 and hi=0.0"),
        (lambda: UNTYPED.Box(math.nan, 0), r"Box: lo=nan; it must be a number"),
        (
            lambda: UNTYPED.Box(0, [1.0, 2.0]),
            r"Box: hi=\[1.0, 2.0\]; it must be a number. For bounds of each weight give a function",
        ),
        (lambda: UNTYPED.Box(np.zeros(3), 1), r"Box: lo=array.*pb\.clip\(w, lo, hi\)"),
        (lambda: UNTYPED.Box("0", 1), r"Box: lo='0'; it must be a number\."),
        (lambda: UNTYPED.Box(math.inf, math.inf), r"Box: no number is between"),
        (lambda: UNTYPED.MaxNorm(0, axis=0), r"MaxNorm: c=0.0; the largest norm must be a positive finite number"),
        (lambda: UNTYPED.MaxNorm(-1, axis=0), r"MaxNorm: c=-1.0"),
        (lambda: UNTYPED.MaxNorm(math.inf, axis=0), r"MaxNorm: c=inf"),
        (lambda: UNTYPED.MaxNorm(True, axis=0), r"MaxNorm: c=True; it must be a number"),
        (lambda: UNTYPED.UnitNorm(axis=0.5), r"UnitNorm: axis=0.5; give a number, a tuple of numbers, or None"),
        (lambda: UNTYPED.UnitNorm(axis=()), r"UnitNorm: axis=\(\); give a number"),
        (lambda: UNTYPED.Simplex(axis=(0, 1)), r"Simplex: axis=\(0, 1\); give one axis, or None"),
        (lambda: pb.Parameter([1.0], constraint=c.UnitNorm(axis=1)), r"UnitNorm\(axis=1\): a value of shape \(1,\) has no axis 1"),
        (lambda: pb.Parameter(pb.ones(SHAPE), constraint=c.MaxNorm(1, (0, -2))), r"an axis of shape \(6, 5\) is given twice"),
        (
            lambda: pb.Parameter([1.0], constraint=UNTYPED.NonNegative),
            r"is not a function of the value.*constraint=NonNegative\(\)",
        ),
        (
            lambda: pb.Parameter([1.0], name="w", constraint=UNTYPED.__name__),
            r'constraint of Parameter "w": \'.*\' is not a function',
        ),
    ],
)
def test_wrong_constraints_are_refused_in_words(make: Any, words: str) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        make()


def test_a_constraint_is_a_value() -> None:
    for name, one in ALL.items():
        if name != "function":
            assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
            assert hash(copy.copy(one)) == hash(one)
    assert c.Box(0, 1) == UNTYPED.Box(np.float32(0), pb.tensor(1.0)) != c.Box(0, 2)
    assert c.UnitNorm([0, 1]) == c.UnitNorm((0, 1)) != c.UnitNorm(0)
    assert repr(c.MaxNorm(2, axis=0)) == "MaxNorm(c=2.0, axis=0)"
    assert repr(c.NonNegative()) == "NonNegative()"
    p = pb.Parameter(pb.ones(SHAPE), constraint=c.Box(0, 1))
    assert copy.deepcopy(p).constraint == pickle.loads(pickle.dumps(p)).constraint == p.constraint
