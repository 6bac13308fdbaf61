"""Sums of many updates of one target are as exact as sums of few, in every op that adds at indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn

TARGETS = 7


def _gradient(f: Callable[[Any], Any], x: Any, g: Any) -> Any:
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x, output_gradients=g)


def _embedding(u: Any, ids: Any) -> Any:
    layer = nn.Embedding(TARGETS, u.shape[1])
    with pb.GradientTape() as tape:
        y = layer(ids)
    return tape.gradient(y, layer.weight, output_gradients=u)


def _along(u: Any, ids: Any) -> Any:
    columns = pb.broadcast_to(pb.reshape(ids, (-1, 1)), u.shape)
    return _gradient(lambda x: pb.take_along_axis(x, columns, axis=0), pb.zeros((TARGETS, u.shape[1]), dtype=u.dtype), u)


def _along_rows(u: Any, ids: Any) -> Any:
    rows = pb.broadcast_to(ids, (u.shape[1], len(ids)))
    x = pb.zeros((u.shape[1], TARGETS), dtype=u.dtype)
    return pb.transpose(_gradient(lambda x: pb.take_along_axis(x, rows, axis=1), x, pb.transpose(u)))


def _zeros(u: Any) -> Any:
    return pb.zeros((TARGETS, u.shape[1]), dtype=u.dtype)


# Each adds the rows of u into TARGETS rows.
ADDITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "segment_sum": lambda u, ids: pb.segment_sum(u, ids, TARGETS),
    "at.add": lambda u, ids: _zeros(u).at[ids].add(u),
    "at.add on axis 1": lambda u, ids: pb.transpose(pb.transpose(_zeros(u)).at[:, ids].add(pb.transpose(u))),
    "negative ids": lambda u, ids: _zeros(u).at[ids - TARGETS].add(u),
    "gradient of take": lambda u, ids: _gradient(lambda x: pb.take(x, ids, axis=0), _zeros(u), u),
    "gradient of x[ids]": lambda u, ids: _gradient(lambda x: x[ids], _zeros(u), u),
    "gradient of take_along_axis, columns": _along,
    "gradient of take_along_axis, rows": _along_rows,
    "gradient of an embedding": _embedding,
    "captured": lambda u, ids: pb.capture(lambda v, k: pb.segment_sum(v, k, TARGETS))(u, ids),
    "vmap": lambda u, ids: pb.transpose(pb.vmap(lambda v: pb.segment_sum(v, ids, TARGETS))(pb.transpose(u))),
    "vmap over ids": lambda u, ids: pb.vmap(lambda v, k: pb.segment_sum(v, k, TARGETS))(pb.stack([u, u]), pb.stack([ids, ids]))[1],
}


def _ids(kind: str, n: int) -> Any:
    rng = np.random.default_rng(0)
    return {
        "one": np.full(n, 3),
        "random": rng.integers(0, TARGETS, n),
        "skewed": np.minimum(rng.zipf(2.0, n) - 1, TARGETS - 1),
        "sorted": np.sort(rng.integers(0, TARGETS, n)),
    }[kind]


def _values(kind: str, shape: tuple[int, int]) -> Any:
    rng = np.random.default_rng(1)
    return (np.full(shape, 0.1) if kind == "constant" else rng.random(shape)).astype(np.float32)


def _sums(u: Any, ids: Any) -> Any:
    y = np.zeros((TARGETS, u.shape[1]))
    np.add.at(y, ids, u.astype(np.float64))
    return y


@pytest.mark.parametrize("ids", ["one", "random", "skewed", "sorted"])
@pytest.mark.parametrize("name", ADDITIONS)
@pytest.mark.parametrize("values", ["constant", "random"])
@pytest.mark.parametrize("columns", [1, 3, 20])
def test_sums_are_exact(name: str, ids: str, values: str, columns: int) -> None:
    n = 120_000 // columns
    u, k = _values(values, (n, columns)), _ids(ids, n)
    y = host(ADDITIONS[name](pb.asarray(u), pb.asarray(k)))
    assert y.dtype == np.float32
    # The worst of 300 blocks of 32 equal numbers is 5e-7 off.
    np.testing.assert_allclose(y, _sums(u, k), rtol=6e-7, atol=0)


def test_a_million_numbers() -> None:
    x, ids = pb.full((1_000_000,), 0.1), pb.zeros((1_000_000,), dtype="int64")
    assert abs(float(pb.segment_sum(x, ids, 1)[0]) / 100_000 - 1) < 6e-7
    assert abs(float(pb.segment_mean(x, ids, 1)[0]) / 0.1 - 1) < 6e-7


@pytest.mark.parametrize("name", [name for name in ADDITIONS if "embedding" not in name])
def test_half_precision(name: str) -> None:
    u, k = _values("random", (30_000, 3)).astype(np.float16), _ids("skewed", 30_000)
    y = host(ADDITIONS[name](pb.asarray(u), pb.asarray(k)))
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, _sums(u, k).astype(np.float16), rtol=1e-3, atol=0)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 63, 64, 65, 96, 97, 1000])
def test_the_value_before_counts_in_the_first_block(count: int) -> None:
    rng = np.random.default_rng(count)
    u, ids = rng.standard_normal((count, 2)).astype(np.float32), np.full(count, 1)
    before = rng.standard_normal((3, 2)).astype(np.float32)
    blocks = [np.add.accumulate(u[i : i + 32], axis=0)[-1].astype(np.float64) for i in range(32, count, 32)]
    first = np.add.accumulate(np.concatenate([before[1:2], u[:32]]), axis=0)[-1]
    wanted = before.copy()
    wanted[1] = np.add.accumulate(np.stack([first.astype(np.float64), *blocks]), axis=0)[-1]
    y = host(pb.asarray(before).at[pb.asarray(ids)].add(pb.asarray(u)))
    exact = [0, 2] if count > 256 else [0, 1, 2]  # a GPU adds up chunks of 256 first
    assert y[exact].tobytes() == wanted[exact].tobytes()
    np.testing.assert_allclose(y, wanted, rtol=1e-6)


def test_infinities_and_nan_stay() -> None:
    u = np.ones((100, 3), np.float32)
    u[70] = np.inf, np.nan, 1
    u[90, 0] = -np.inf
    y = host(pb.segment_sum(pb.asarray(u), pb.asarray(np.zeros(100, int)), 1))
    assert np.isnan(y[0, :2]).all()
    assert y[0, 2] == 100


@pytest.mark.parametrize("columns", [1, 5])
def test_the_gradient_of_a_long_sum_is_a_gather(columns: int) -> None:
    u, k = pb.asarray(_values("random", (5000, columns))), pb.asarray(_ids("skewed", 5000))
    g = pb.asarray(np.arange(TARGETS * columns, dtype=np.float32).reshape(TARGETS, columns))
    y = _gradient(lambda v: pb.segment_sum(v, k, TARGETS), u, g)
    assert np.array_equal(host(y), host(g)[host(k)])
