"""Reads and writes at every kind of index: what they give, their gradients, and that they cost what is selected."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import FLOATS, INTEGERS, host
from pullback.ops import selection

SHAPE = (4, 5, 3)
ROWS, PLANES = np.array([[0, -2], [3, 1]]), np.array([2, -3])
KEYS: dict[str, Any] = {
    "one": 1, "last": -1, "element": (3, -4, 2), "row": (2, 4), "column": (slice(None), 3), "channel": (..., -1),
    "all": slice(None),
    "dots": ..., "nothing": (), "new": None, "new_and_one": (None, 2), "column_new": (slice(None), None, -2, None),
    "new_first": (None, ..., 1),
    "some": slice(1, 3), "steps": slice(None, None, 2), "back": slice(None, None, -1), "back_from": slice(-2, 0, -2),
    "none": slice(3, 1),
    "block": (slice(1, 3), slice(2, None, 2)), "ends": (1, ..., 2), "middle": (slice(None), slice(4, 1, -1)),
    "empty": (2, slice(5, 9)),
    "array": ROWS, "array_later": (slice(None), ROWS), "array_and_one": (ROWS, 2), "one_and_array": (1, ROWS),
    "apart": (ROWS, slice(1, 4), 2),
    "apart_later": (ROWS, slice(None), PLANES), "two": (ROWS, PLANES), "new_between": (ROWS, None, PLANES),
    "array_and_steps": (PLANES, ..., slice(0, 3, 2)),
    "unsigned": (np.array([3, 0], "uint8"), 1), "true": (True, 1), "false": False,
    "mask": np.arange(4) % 2 == 0, "masks": (np.arange(4) > 1, ROWS[0] * 0 + 1),
    "mask_of_two": np.arange(20).reshape(4, 5) % 3 == 0,
    "mask_later": (slice(1, 3), np.arange(5) % 2 == 0), "mask_and_one": (np.arange(4) > 0, 2),
    "whole_mask": np.arange(60).reshape(SHAPE) % 7 == 0,
    "listed_mask": [True, False, True, True],
}
WRITES: dict[str, Any] = {"set": None, "add": np.add, "max": np.maximum, "min": np.minimum}


@pytest.fixture(params=["small", "large"], autouse=True)
def size(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors as small as these take the way of large ones, too."""
    if request.param == "large":
        monkeypatch.setattr(selection, "_SMALL", -1)


def values(key: Any, dtype: str) -> tuple[Any, Any]:
    """Returns a tensor's values in random order, and others of the shape of the selection."""
    rng = np.random.default_rng(0)
    a = rng.permutation(60).reshape(SHAPE).astype(dtype)
    return a, rng.integers(0, 60, a[key].shape).astype(dtype)


@pytest.mark.parametrize("name", KEYS)
def test_reads_are_those_of_numpy(name: str) -> None:
    a, _ = values(KEYS[name], "float32")
    np.testing.assert_array_equal(host(pb.tensor(a)[KEYS[name]]), a[KEYS[name]])
    np.testing.assert_array_equal(host(pb.tensor(a).at[KEYS[name]].get()), a[KEYS[name]])


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("way", WRITES)
@pytest.mark.parametrize("name", KEYS)
def test_writes_are_those_of_numpy(name: str, way: str, dtype: str) -> None:
    key = KEYS[name]
    a, v = values(key, dtype)
    written = getattr(pb.tensor(a).at[key], way)(pb.tensor(v))
    if WRITES[way] is None:
        a[key] = v
    else:
        WRITES[way].at(a, key, v)
    assert written.dtype == dtype
    np.testing.assert_array_equal(host(written), a)


@pytest.mark.parametrize(
    ("way", "dtype"), [("set", "bool"), *[(way, dtype) for way in (*WRITES, "multiply") for dtype in (*INTEGERS, *FLOATS)]]
)
@pytest.mark.parametrize("name", ["one", "column", "block", "back"])
def test_all_dtypes(name: str, way: str, dtype: str) -> None:
    key = KEYS[name]
    a, v = [x % 7 for x in values(key, "int64")]
    written = getattr(pb.tensor(a).astype(dtype).at[key], way)(pb.tensor(v).astype(dtype))
    if way == "set":
        a[key] = v
    else:
        a[key] = {**WRITES, "multiply": np.multiply}[way](a[key], v)
    assert written.dtype == dtype
    np.testing.assert_array_equal(host(written.astype("float64")), (a != 0) if dtype == "bool" else a)


@pytest.mark.parametrize("way", [*WRITES, "multiply"])
@pytest.mark.parametrize("name", KEYS)
def test_gradients_are_the_differences(name: str, way: str) -> None:
    key = KEYS[name]
    a, v = values(key, "float64")
    v = v + 0.5  # so that no value is that of an element
    weights = np.sin(1 + np.arange(60.0)).reshape(SHAPE)

    def f(a: Any, v: Any) -> Any:
        return pb.sum(getattr(pb.asarray(a).at[key], way)(v) * weights)

    slopes = pb.grad(f, argnums=(0, 1))(pb.asarray(a), pb.asarray(v))
    rng = np.random.default_rng(1)
    da, dv = rng.standard_normal(a.shape), rng.standard_normal(v.shape)
    difference = (f(a + 1e-3 * da, v + 1e-3 * dv) - f(a - 1e-3 * da, v - 1e-3 * dv)).item() / 2e-3
    slope = np.sum(host(slopes[0]) * da) + np.sum(host(slopes[1]) * dv)
    np.testing.assert_allclose(slope, difference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("way", ["max", "min"])
def test_gradients_are_shared_by_all_that_attain_an_extreme_and_pass_a_nan_elsewhere(way: str) -> None:
    x, v = pb.asarray([2.0, np.nan, 5.0, 7.0]), pb.asarray([2.0, 2.0, 5.0])
    a, b = pb.grad(lambda x, v: pb.sum(getattr(x.at[[0, 0, 2]], way)(v) * [6.0, 1.0, 4.0, 3.0]), argnums=(0, 1))(x, v)
    np.testing.assert_allclose(host(a), [2, 1, 2, 3])
    np.testing.assert_allclose(host(b), [2, 2, 2])


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (4, "index 4 is out of bounds for axis 0 with size 4"),
        ((slice(None), -6), "index -6 is out of bounds for axis 1 with size 5"),
        ((ROWS, 5), "index 5 is out of bounds for axis 1 with size 5"),
        ((1, ROWS + 4, 0), "is out of bounds for axis 1 with size 5"),
        ((0, 0, 0, 0), "too many indices"), ((2, np.ones(4, bool)), "boolean index did not match"),
    ],
)
def test_a_wrong_index_is_refused(key: Any, words: str) -> None:
    with pytest.raises(IndexError, match=words):
        pb.zeros(SHAPE).at[key].set(1.0)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.at[3].set(1), lambda x: x.at[:, 3].add(1), lambda x: x.at[5:9, ::2].max(1), lambda x: x.at[-1, 2].min(1),
        lambda x: x.at[3:5].multiply(2), lambda x: x.at[np.arange(9), 3].set(1), lambda x: x[np.arange(9), 3],
        lambda x: pb.reshape(x, (-1,)).at[7].set(1), lambda x: x[::-1, 0:2][np.arange(9), 1],
    ],
)
def test_no_positions_of_all_elements_are_written_down(write: Any, size: None) -> None:
    """They are eight times as large as these numbers, and took 10 to 40 times as long as a copy."""
    x = pb.zeros((1024, 1024), dtype="int8")
    write(x)
    tracemalloc.start()
    try:
        write(x)
        assert tracemalloc.get_traced_memory()[1] < 4 * x.size
    finally:
        tracemalloc.stop()
