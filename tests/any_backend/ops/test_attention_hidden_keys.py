"""A key that no query sees contributes nothing to the result and to derivatives, even if it or its value is infinite or NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import dtype_of
from pullback import nn
from pullback.nn.functional import scaled_dot_product_attention as attend

KEYS, SEEN = 40, 33  # the numbers of keys, and of those that are no padding
BOUNDS = {"float64": 1e-13, "float32": 1e-5, "float16": 1e-2}


def operands(dtype: str, heads: int = 4, groups: int = 2, queries: int = 19) -> list[Any]:
    """Returns the query, the key, the value and a cotangent. The numbers of padded keys are infinite or NaN."""
    rng = np.random.default_rng(0)
    q, g = [rng.standard_normal((2, heads, queries, 5)) for _ in range(2)]
    k, v = [rng.standard_normal((2, groups, KEYS, 5)) for _ in range(2)]
    for x in (k, v):
        x[:, :, SEEN:] = np.resize([np.nan, 1.0, np.inf, -np.inf, 0.0, np.nan, np.nan], x[:, :, SEEN:].shape)
    return [x.astype(dtype_of(dtype)) for x in (q, k, v, g)]


def masks(dtype: str) -> dict[str, Any]:
    sees = np.arange(KEYS) < SEEN
    pairs = sees & (np.random.default_rng(1).random((2, 1, 19, KEYS)) < 0.5)
    return {"bools": sees, "floats": np.where(sees, 0.5, -np.inf).astype(dtype_of(dtype)), "pairs": pairs}


def derivatives(q: Any, k: Any, v: Any, g: Any, mask: Any, causal: bool) -> list[Any]:
    """Returns the result, the gradients and the tangent in the direction of the cotangent, of ones and of twos."""
    xs = [pb.tensor(x) for x in (q, k, v)]

    def f(*a: Any) -> Any:
        return attend(*a, mask, is_causal=causal, enable_gqa=True)

    with pb.GradientTape() as tape:
        tape.watch(xs)
        y = f(*xs)
    gradients = tape.gradient(y, xs, output_gradients=pb.tensor(g))
    directions = [pb.tensor(g), pb.ones_like(xs[1]), 2 * pb.ones_like(xs[2])]
    return [x.numpy() for x in (y, *gradients, pb.jvp(f, xs, directions)[1])]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["bools", "floats", "pairs"])
@pytest.mark.parametrize("dtype", [*BOUNDS])
def test_padding_may_hold_any_numbers(kind: str, causal: bool, dtype: str) -> None:
    q, k, v, g = operands(dtype)
    mask = masks(dtype)[kind]
    found = derivatives(q, k, v, g, mask, causal)
    wanted = derivatives(q, k[:, :, :SEEN], v[:, :, :SEEN], g, mask[..., :SEEN], causal)
    for a, b in zip(found, wanted):
        cut = a[:, :, :SEEN] if a.shape[2] == KEYS else a
        np.testing.assert_allclose(cut.astype(np.float64), b.astype(np.float64), atol=BOUNDS[dtype])
        assert a.shape[2] != KEYS or not a[:, :, SEEN:].any()


@pytest.mark.parametrize("keys", [7, 600])
def test_long_rows_leave_out_what_they_do_not_see(keys: int) -> None:
    rng = np.random.default_rng(0)
    q, k, v, g = [rng.standard_normal((1, 1, n, 3)) for n in (20, keys, keys, 20)]
    sees = np.arange(keys) % 3 != 1
    wanted = derivatives(q, k[:, :, sees], v[:, :, sees], g, None, False)
    k[:, :, ~sees] = v[:, :, ~sees] = np.nan
    for a, b in zip(derivatives(q, k, v, g, sees, False), wanted):
        np.testing.assert_allclose(a[:, :, sees] if a.shape[2] == keys else a, b, atol=1e-13)


def test_what_a_query_sees_reaches_it() -> None:
    q, k, v, g = operands("float64")
    seen = np.arange(KEYS) < SEEN + 1
    for x in derivatives(q, k, v, g, seen, False)[:2]:
        assert np.isnan(x).any()
    v[:, :, SEEN:] = np.inf
    k[:, :, SEEN:] = 1.0
    assert (attend(q, k, v, seen, enable_gqa=True).numpy() == np.inf).all()


def test_a_query_of_nan_does_not_reach_keys_that_it_does_not_see() -> None:
    if pb.backends.why_not("cpu"):
        pytest.skip("the definition leaves out whole keys only, and not pairs")
    rng = np.random.default_rng(0)
    q, k, v, g = [rng.standard_normal((1, 1, 6, 3)) for _ in range(4)]
    q[0, 0, 1] = np.nan
    _, gq, gk, gv, t = derivatives(q, k, v, g, None, True)
    for x in (gk, gv):
        assert np.isnan(x[0, 0, :2]).all()
        assert np.isfinite(x[0, 0, 2:]).all()
    for x in (gq, t):
        assert np.isnan(x[0, 0, 1]).all()
        assert np.isfinite(np.delete(x[0, 0], 1, axis=0)).all()


def test_second_derivatives_and_weights_leave_out_padding() -> None:
    q, k, v, _ = [pb.tensor(x) for x in operands("float64")]
    mask = masks("float64")["pairs"]

    def slope(*xs: Any) -> Any:
        return sum(
            [(gx * gx).sum() for gx in pb.grad(lambda *a: pb.sin(attend(*a, mask, enable_gqa=True)).sum(), argnums=(0, 1, 2))(*xs)]
        )

    found = pb.grad(slope, argnums=(0, 1, 2))(q, k, v)
    assert all([np.isfinite(x.numpy()).all() for x in found])
    assert not any([x.numpy()[:, :, SEEN:].any() for x in found[1:]])
    layer = nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True, dtype="float64")
    x = np.random.default_rng(0).standard_normal((2, 5, 6))
    x[:, 3:] = np.nan
    hidden = np.broadcast_to(np.arange(5) >= 3, (2, 5))
    y, weights = layer(x[:, :3], x, x, key_padding_mask=hidden)
    assert np.isfinite(y.numpy()).all()
    assert not weights.numpy()[..., 3:].any()
    assert np.isfinite(layer(x[:, :3], x, x, key_padding_mask=hidden, need_weights=False)[0].numpy()).all()
