"""A reduction has equal bits on the CPU and on a GPU, because the order of its combinations depends on its length alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from conftest import host

pytestmark = pytest.mark.skipif(not pb.cuda.is_available(), reason=f"no device cuda: {pb.cuda.why_not()}")

DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int8, np.int32, np.uint16, np.int64, np.uint64, np.bool_)
# Lengths around the number of rows of a thread and of a block, and long enough for several runs of blocks; widths around the number
# of columns of a team.
SHAPES = [
    (1,), (15,), (17,), (64,), (255,), (257,), (513,), (1000,), (9001,), (65_537,), (1_050_000,), (7, 0), (0, 7), (40, 10), (9, 17),
    (30, 65), (8, 1024), (3, 9000), (20, 8000), (100, 3), (70_000, 2), (5000, 7), (300, 64), (700, 16), (600, 33), (4500, 40),
    (9000, 130), (40_000, 33), (4, 300, 70), (5, 16, 8, 12), (2, 3, 4, 5, 6),
]


def layouts(x: Any) -> Iterator[Any]:
    yield x
    yield x[..., ::-1]
    yield np.ascontiguousarray(x.T).T
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), x.dtype)
    wide[..., 1::2] = x
    yield wide[..., 1::2]


def values(shape: tuple[int, ...], dtype: Any) -> Any:
    rng = np.random.default_rng(5)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    return (rng.standard_normal(shape) > 0) if dtype is np.bool_ else rng.standard_normal(shape).astype(dtype)


def bits(x: Any) -> bytes:
    """Returns the bits of the numbers, in which all NaNs are equal: the mean of no numbers has another sign on a GPU."""
    return (x if x.dtype.kind in "iub" else np.where(x != x, x.dtype.type(np.nan), x)).tobytes()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_reductions(dtype: Any, shape: tuple[int, ...]) -> None:
    x = values(shape, dtype)
    every = x.size < 5000
    floating = np.dtype(dtype).kind not in "iub"
    axes = [a for n in range(1, x.ndim + 1) for a in combinations(range(x.ndim), n)]
    for array in layouts(x) if every or dtype in (np.float32, np.float16) else [x]:
        here, there = pb.tensor(array, device="cpu"), pb.tensor(array, device="cuda")
        for name in ("sum", "prod", "mean", "max", "min", "any", "all") if every else ("sum", "mean", "max"):
            if name == "mean" and not floating:
                continue
            for axis in axes:
                if name in ("max", "min") and 0 in [shape[d] for d in axis]:
                    continue
                wanted, got = (host(getattr(pb, name)(t, axis=axis)) for t in (here, there))
                assert got.dtype == wanted.dtype
                assert bits(got) == bits(wanted), f"{name} over {axis}"


@pytest.mark.parametrize(("shape", "axis"), [((1030, 513, 17), 1), ((3, 2_000_000), 1), ((150_000, 33), 0)], ids=str)
def test_teams_that_reduce_several_blocks(shape: tuple[int, ...], axis: int) -> None:
    """There are so many blocks of rows that each team of threads reduces several."""
    x = values(shape, np.float32)
    here, there = (host(pb.sum(pb.tensor(x, device=device), axis=axis)) for device in ("cpu", "cuda"))
    assert here.tobytes() == there.tobytes()


@pytest.mark.parametrize("shape", [(1025,), (9, 9000), (5000, 7), (300, 64), (70_000,)], ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.bool_], ids=lambda d: np.dtype(d).name)
def test_positions_of_extremes(dtype: Any, shape: tuple[int, ...]) -> None:
    x = np.round(np.random.default_rng(6).standard_normal(shape) * 3).astype(dtype)  # many elements are equal
    for nan in (False, True) if np.dtype(dtype).kind == "f" else (False,):
        if nan:
            x[np.random.default_rng(7).random(shape) < 0.001] = np.nan
        for array in layouts(x):
            t = pb.tensor(array, device="cuda")
            for axis in range(x.ndim):
                np.testing.assert_array_equal(host(pb.argmax(t, axis=axis)), np.argmax(array, axis=axis))
                np.testing.assert_array_equal(host(pb.argmin(t, axis=axis)), np.argmin(array, axis=axis))


@pytest.mark.parametrize("shape", [(16,), (257,), (70_000,), (40, 10), (9, 3000), (700, 8), (300, 64), (4, 300, 7)], ids=str)
def test_running_sums(shape: tuple[int, ...]) -> None:
    """Integer sums must be equal.

    If there are few lines, each is cut into chunks, so floats may be rounded differently than in a loop.
    """
    for dtype in (np.int32, np.uint8, np.bool_, np.float32):
        for array in layouts(values(shape, dtype)):
            here, there = pb.tensor(array, device="cpu"), pb.tensor(array, device="cuda")
            for axis in range(len(shape)):
                for name in ("cumulative_sum", "cumulative_prod") if dtype is not np.float32 else ("cumulative_sum",):
                    wanted, got = (host(getattr(pb, name)(t, axis=axis)) for t in (here, there))
                    if dtype is not np.float32:
                        np.testing.assert_array_equal(got, wanted)
                    else:
                        exact = np.cumsum(array.astype(np.float64), axis=axis)
                        scale = np.cumsum(np.abs(array.astype(np.float64)), axis=axis)
                        assert (np.abs(got - exact) <= 4 * np.finfo(np.float32).eps * scale).all()
