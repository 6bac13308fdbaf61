"""Rows whose elements are equal have the variance 0, exactly, and every norm of them is 0, over the whole range of each dtype."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from conftest import FLOATS
from pullback.nn import functional as F

LIMITS = {name: ml_dtypes.finfo(name) for name in FLOATS}
FUNCTIONS: dict[str, Any] = {
    "var": lambda x: pb.var(x, axis=1),
    "var of columns": lambda x: pb.var(x.T, axis=0),
    "std": lambda x: pb.std(x, axis=1, correction=1),
    "nanvar": lambda x: pb.nanvar(x, axis=1),
    "layer_norm": lambda x: F.layer_norm(x, axis=1),
    "group_norm": lambda x: F.group_norm(pb.reshape(x, (1, *x.shape)), x.shape[0]),
    "instance_norm": lambda x: F.instance_norm(pb.reshape(x, (1, *x.shape))),
    "batch_norm": lambda x: F.batch_norm(x.T, None, None, training=True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [2, 3, 48, 1000, 5001])
def test_equal_elements_have_no_spread(n: int, dtype: str, name: str) -> None:
    largest, least = float(LIMITS[dtype].max), float(LIMITS[dtype].smallest_subnormal)
    values = [largest, -largest, largest / 3, least, 5 * least, 12345.6789, 0.1, -1 / 3]
    x = pb.tensor(np.repeat(np.array(values)[:, None], n, axis=1)).astype(dtype)
    f = FUNCTIONS[name]
    for function in (f, pb.capture(f)):
        np.testing.assert_array_equal(function(x).astype("float64").numpy(), 0.0)
    gradient = pb.grad(lambda x: pb.sum(f(x)))(x).astype("float64").numpy()
    assert np.isfinite(gradient).all()
    if "var" in name or name == "std":
        np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.parametrize("n", [1000, 48])
@pytest.mark.parametrize("value", [123456.789, 1.7e9])
def test_the_mean_of_times_and_prices_is_off_by_half_an_ulp_at_most(value: float, n: int) -> None:
    ulp = float(np.spacing(np.float32(value)))
    x = np.float32(value) + np.float32(ulp) * np.random.default_rng(n).integers(0, 64, (3, n)).astype(np.float32)
    spread = x.astype(np.float64) - x.mean(axis=1, keepdims=True, dtype=np.float64)
    variance = (spread**2).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(pb.var(pb.tensor(x), axis=1, keepdims=True).numpy(), variance, rtol=1e-5, atol=(0.6 * ulp) ** 2)
    off = np.abs(F.layer_norm(pb.tensor(x)).numpy() - spread / np.sqrt(variance + 1e-5))
    assert (off < 0.6 * ulp / np.sqrt(variance)).all()


def test_the_variance_of_opposite_large_numbers_is_infinite() -> None:
    for dtype in ("float32", "float64"):
        large = float(LIMITS[dtype].max) * 0.9
        assert float(pb.var(pb.tensor([large, -large], dtype=dtype))) == np.inf
        assert float(pb.nanvar(pb.tensor([large, -large, np.nan], dtype=dtype))) == np.inf


@pytest.mark.parametrize("f", [pb.var, pb.std, lambda x: F.layer_norm(x, axis=(0, 1))])
def test_derivatives_of_spreads(f: Any) -> None:
    x = pb.tensor(np.random.default_rng(0).standard_normal((3, 4)) + 7)
    weights = pb.tensor(np.random.default_rng(1).standard_normal((3, 4)))
    pb.check_gradients(lambda x: pb.sum(f(x) * weights), (x,), order=2)


def test_the_second_derivative_of_the_variance_of_equal_elements() -> None:
    hessian = pb.hessian(pb.var)(pb.full((4,), 12345.6789, dtype="float64")).numpy()
    np.testing.assert_allclose(hessian, (np.eye(4) - 1 / 4) / 2, rtol=1e-15)


@pytest.mark.parametrize("axis", [None, 0, 1, 2, (0, 2), (1, 0), ()])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("correction", [0, 1, 2.5])
def test_variances_over_axes_are_numpys(axis: Any, keepdims: bool, correction: float) -> None:
    x = np.random.default_rng(2).standard_normal((5, 4, 6))
    batch = pb.tensor(np.stack([x, x * 2]))
    for mine, theirs in ((pb.var, np.var), (pb.std, np.std)):
        if axis == () and correction:
            continue  # one element less the correction is not positive
        wanted = theirs(x, axis=axis, ddof=correction, keepdims=keepdims)
        got = pb.vmap(lambda x, f=mine: f(x, axis=axis, correction=correction, keepdims=keepdims))(batch).numpy()
        np.testing.assert_allclose(got[0], wanted, rtol=1e-12)
        np.testing.assert_allclose(mine(batch[0], axis=axis, correction=correction, keepdims=keepdims).numpy(), wanted, rtol=1e-12)
