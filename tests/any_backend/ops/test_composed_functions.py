"""Functions that are composed of ops: values, derivatives in both modes, batches, dtypes, and costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from composed_functions import CASES
from conftest import dtype_of, host

NAMES = pytest.mark.parametrize("name", CASES)
pytestmark = [
    pytest.mark.filterwarnings("ignore::pullback.ZeroGradientWarning"),
    pytest.mark.filterwarnings("ignore:.*(NaN|divide by zero|invalid value).*:RuntimeWarning"),
]


def tensors(arrays: Any, dtype: Any = np.float64) -> list[Any]:
    return [pb.tensor(x.astype(dtype)) for x in arrays]


@NAMES
def test_values_are_numpys_or_scipys(name: str) -> None:
    ours, theirs, arrays = CASES[name]
    y, wanted = ours(*tensors(arrays)), theirs(*arrays)
    assert (y.shape, y.dtype) == (np.shape(wanted), pb.float64)
    np.testing.assert_allclose(host(y), wanted, rtol=1e-11, atol=1e-14)


@NAMES
def test_derivatives_are_those_of_finite_differences_twice(name: str) -> None:
    ours, _, arrays = CASES[name]
    assert pb.check_gradients(filled(ours, arrays), [np.where(np.isnan(x), 0.5, x) for x in arrays], order=2) < 1e-6


def filled(f: Any, arrays: Any) -> Any:
    """Returns f with NaN put back where the arrays have NaN: finite differences need numbers."""
    return lambda *xs: f(*[pb.where(pb.tensor(np.isnan(a)), np.nan, x) if np.isnan(a).any() else x for x, a in zip(xs, arrays)])


@NAMES
def test_elements_that_are_nan_get_no_gradient_and_the_others_a_finite_one(name: str) -> None:
    ours, _, arrays = CASES[name]
    xs = tensors(arrays)
    for x, g in zip(arrays, pb.grad(lambda *xs: pb.sum(ours(*xs)), argnums=tuple(range(len(xs))))(*xs)):
        assert np.isfinite(host(g)).all()
        assert not host(g)[np.isnan(x)].any()


@NAMES
def test_forward_mode_agrees_with_reverse_mode(name: str) -> None:
    ours, _, arrays = CASES[name]
    xs, rng = tensors(arrays), np.random.default_rng(3)
    ways = [pb.tensor(rng.standard_normal(x.shape)) for x in arrays]
    y, tangent = pb.jvp(ours, tuple(xs), tuple(ways))
    g = pb.tensor(rng.standard_normal(y.shape))
    _, pullback = pb.vjp(ours, *xs)
    backward = sum([float(pb.sum(t * gx)) for t, gx in zip(ways, pullback(g))])
    assert float(pb.sum(g * tangent)) == pytest.approx(backward, rel=1e-10, abs=1e-12)


@NAMES
def test_vmap_is_a_loop(name: str) -> None:
    ours, _, arrays = CASES[name]
    examples = [[np.roll(x, k, -1) for x in arrays] for k in range(3)]
    got = pb.vmap(ours)(*tensors([np.stack(xs) for xs in zip(*examples)]))
    np.testing.assert_allclose(host(got), np.stack([host(ours(*tensors(xs))) for xs in examples]), rtol=1e-12, atol=1e-14)


@NAMES
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_dtypes_stay_and_are_rounded_from_the_same_value(name: str, dtype: str) -> None:
    ours, _, arrays = CASES[name]
    narrow = [x.astype(dtype_of(dtype)) for x in arrays]
    y, wanted = ours(*[pb.tensor(x) for x in narrow]), host(ours(*tensors(narrow)))
    assert (y.shape, y.dtype) == (wanted.shape, dtype_of(dtype))
    eps = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-22}[dtype]
    np.testing.assert_allclose(host(y).astype(np.float64), wanted, rtol=16 * eps, atol=16 * eps * np.abs(wanted).max())


@NAMES
def test_every_launch_has_a_known_cost(name: str) -> None:
    ours, _, arrays = CASES[name]
    xs = tensors(arrays)
    with pb.profile(strict=True) as prof:
        pb.grad(lambda *xs: pb.sum(ours(*xs)), argnums=tuple(range(len(xs))))(*xs)
    assert prof.coverage == 1
    counted = pb.flops(lambda *xs: pb.sum(ours(*xs)), *xs)
    assert prof.forward.flops == counted.forward.flops
