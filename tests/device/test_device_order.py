"""Sorts, searches and random numbers of device "cuda" have the bits of the CPU, whichever kernel the shape selects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.ops.dropout import dropout

pytestmark = pytest.mark.skipif(not pb.cuda.is_available(), reason=f"no device cuda: {pb.cuda.why_not()}")

# Rows for one thread, a warp, a block and several blocks, with sizes just above and below the limits.
SHAPES = [(1,), (9,), (3, 0), (2, 33), (33, 2), (300, 7), (2, 2049), (4096,), (4097,), (3, 5000), (5000, 2), (20001,)]
DTYPES = ("bool", "int8", "uint16", "float16", "bfloat16", "int32", "float32", "uint64", "float64")


def same(f: Callable[..., Any], *arrays: Any) -> None:
    """Asserts that f gives the same bits on GPU tensors as on CPU tensors."""
    with pb.use_device("cpu"):
        wanted = f(*[pb.tensor(a) for a in arrays])
    with pb.use_device("cuda"):
        got = f(*[pb.tensor(a) for a in arrays])
    assert got.device == "cuda"
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    assert got.numpy().tobytes() == wanted.numpy().tobytes()


def values(shape: tuple[int, ...], dtype: str, kind: str) -> Any:
    """Returns numbers of the dtype: all different, few different ones, or with every special value."""
    rng, wanted = np.random.default_rng(3), pb.tensor(0).astype(dtype).numpy().dtype
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if wanted.kind in "iu":
        limits = np.iinfo(wanted)
        low, high = (limits.min, limits.max) if kind == "different" else (0, 5)
        return rng.integers(low, high, shape, wanted, endpoint=True)
    x = rng.standard_normal(shape)
    if kind == "few":
        x = np.copysign(np.abs(np.round(x)), rng.standard_normal(shape))
    elif kind == "special":
        x = np.where(rng.random(shape) < 0.3, rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], shape), x)
    return x.astype(wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sorts(shape: tuple[int, ...], dtype: str) -> None:
    axis = int(np.argmax(shape))
    for kind in ("different", "few", "special") if "float" in dtype else ("different", "few"):
        x = values(shape, dtype, kind)
        for descending in (False, True):
            same(lambda x, d=descending: pb.sort(x, axis=axis, descending=d), x)
            same(lambda x, d=descending: pb.argsort(x, axis=axis, descending=d), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 5, 500, 4000])
def test_the_first_of_long_rows(k: int, dtype: str) -> None:
    for kind in ("different", "few", "special") if "float" in dtype else ("different", "few"):
        x = values((2, 9001), dtype, kind)
        same(lambda x: pb.topk(x, k).indices, x)
        same(lambda x: pb.topk(x, k, axis=0, largest=False).indices, np.ascontiguousarray(x.T))


def test_the_first_of_equals() -> None:
    same(lambda x: pb.topk(x, 300).indices, np.zeros((1, 70001), np.float32))


def test_strided_rows() -> None:
    x = values((60, 5002), "float32", "few")
    for view in (lambda x: x.T, lambda x: x[::-2, ::-1], lambda x: x[:40, 1::50]):
        for axis in (0, 1):
            same(lambda x, v=view, a=axis: pb.argsort(v(x)[:5000, :70], axis=a), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 1023])
def test_searches(count: int, dtype: str) -> None:
    x, sought = np.sort(values((count,), dtype, "few")), values((7, 50), dtype, "few")
    for side in ("left", "right"):
        same(lambda x, v, s=side: pb.searchsorted(x, v.T[::-1], side=s), x, sought)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (5, 7), (1025,), (4099,)], ids=str)
def test_random_numbers(shape: tuple[int, ...]) -> None:
    def draws(make: Callable[[pb.random.Generator], Any]) -> None:
        same(lambda: make(pb.random.Generator(2**63 + 5)))

    for dtype in ("float16", "bfloat16", "float32", "float64"):
        draws(lambda g, d=dtype: g.uniform(shape, -1.0, 3.0, dtype=d))
        draws(lambda g, d=dtype: g.normal(shape, 1.0, 3.0, dtype=d))
        draws(lambda g, d=dtype: g.truncated_normal(shape, 1.0, 3.0, dtype=d))
    for dtype in ("int8", "uint16", "int32", "int64", "uint64"):
        draws(lambda g, d=dtype: g.randint(0, 100, shape, dtype=d))
    draws(lambda g: g.bernoulli(shape, 0.3))


@pytest.mark.parametrize("count", [0, 1, 2, 255, 4097, 200001])
def test_permutations(count: int) -> None:  # of 200001 keys, some have equal upper halves
    same(lambda: pb.random.Generator(1).permutation(count))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dropout(dtype: str) -> None:
    x = values((33, 71), dtype, "different")
    for view in (lambda x: x, lambda x: x.T, lambda x: x[::-1], lambda x: x[:, 1::2], lambda x: pb.broadcast_to(x[:, :1], (33, 9))):
        same(lambda x, v=view: dropout(v(x), 0.3, generator=pb.random.Generator(4)), x)


def test_a_generator_resumes_where_it_was() -> None:
    with pb.use_device("cuda"):
        first = pb.random.Generator(9)
        for _ in range(300):  # more than the number of states that are uploaded at once
            first.uniform((1,))
        second = pb.random.Generator(0)
        second.load_state_dict(first.state_dict())
        assert [first.uniform((2,)).tolist() for _ in range(3)] == [second.uniform((2,)).tolist() for _ in range(3)]
