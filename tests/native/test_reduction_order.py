"""Reductions combine terms in the order of csrc/families/order.h, which depends on the number of terms alone."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from conftest import environment, host

pytestmark = pytest.mark.usefixtures("native")

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
LENGTHS = [1, 2, 3, 7, 8, 9, 31, 63, 64, 65, 100, 255, 256, 257, 511, 512, 513, 1000, 4096, 65_537, 300_001]
WIDTHS = [1, 2, 3, 10, 16, 17, 64, 300]
MOST = 700_000  # elements of an operand


def half_below(n: int) -> int:
    return 1 << (n - 1).bit_length() - 1


def in_order(combine: Callable[..., Any], x: Any) -> Any:
    """Combines the rows of x by the rules of order.h, one step after another."""
    blocks = []
    for begin in range(0, len(x), 256):
        block = x[begin : begin + 256]
        while len(block) > 1:
            half = half_below(len(block))
            upper = block[half:]
            block = np.concatenate([combine(block[: len(upper)], upper), block[len(upper) : half]])
        blocks.append(block[0])
    while len(blocks) > 1:
        pairs = [combine(*blocks[k : k + 2]) for k in range(0, len(blocks) - 1, 2)]
        blocks = pairs + blocks[2 * len(pairs) :]
    return blocks[0]


def wanted(x: Any) -> dict[str, Any]:
    """Returns the reductions of x over its first axis. Half precision is computed in float32 and rounded once."""
    wide = x if x.dtype == np.float64 else x.astype(np.float32)
    total = in_order(np.add, wide)
    results = {"sum": total, "prod": in_order(np.multiply, wide), "mean": total / wide.dtype.type(len(x))}
    return {name: np.asarray(result).astype(x.dtype) for name, result in results.items()}


def values(shape: tuple[int, ...], dtype: Any) -> Any:
    """Returns numbers of both signs near 1, so that products neither overflow nor become denormal."""
    rng = np.random.default_rng(sum(shape))
    return (np.exp(rng.standard_normal(shape) / 256) * rng.choice([-1, 1], shape)).astype(dtype)


def layouts(x: Any) -> Iterator[Any]:
    yield x
    yield np.asfortranarray(x)
    wide = np.zeros((2 * x.shape[0], x.shape[1] + 3), x.dtype)
    wide[::2, 2:-1] = x
    yield wide[::2, 2:-1]
    yield x[::-1, ::-1].copy()[::-1, ::-1]


def same_bits(got: Any, expected: Any) -> bool:
    got = host(got)
    return got.dtype == expected.dtype and got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_the_order_depends_on_the_length_alone(dtype: Any, width: int) -> None:
    wrong = []
    for n in LENGTHS:
        if n * width > MOST:
            continue
        x = values((n, width), dtype)
        for name, expected in wanted(x).items():
            reduce = getattr(pb, name)
            for k, layout in enumerate(layouts(x)):
                got = {
                    "down the columns": reduce(pb.tensor(layout), axis=0),
                    "along the rows": reduce(pb.tensor(layout).mT, axis=1),
                    "one column alone": pb.stack([reduce(pb.tensor(layout)[:, j]) for j in {0, width - 1}]),
                }
                ends = expected[list({0, width - 1})]
                wrong += [
                    (name, n, k, where)
                    for where, result in got.items()
                    if not same_bits(result, ends if result.shape != expected.shape else expected)
                ]
    assert not wrong


@pytest.mark.parametrize("shape", [(5, 40, 3), (3, 300, 10), (2, 7, 1000), (70, 2, 33), (2, 3, 700)], ids=str)
def test_rows_that_span_several_axes(shape: tuple[int, ...]) -> None:
    x = values(shape, np.float32)
    for kept in range(3):
        rows = np.moveaxis(x, kept, -1).reshape(-1, shape[kept])
        axes = tuple([d for d in range(3) if d != kept])
        assert same_bits(pb.sum(pb.tensor(x), axis=axes), wanted(rows)["sum"])
    assert same_bits(pb.sum(pb.tensor(x)), wanted(x.reshape(-1))["sum"])
    assert same_bits(pb.sum(pb.tensor(x.T).mT), wanted(np.swapaxes(x.T, -1, -2).reshape(-1))["sum"])


@pytest.mark.parametrize("n", [3, 40, 257, 1000, 5000])
def test_vmap_gives_what_one_example_gives(n: int) -> None:
    x = values((6, n, 4), np.float32)
    for reduce in (pb.sum, pb.prod, pb.mean):
        for axis in (0, 1, None):
            together = host(pb.vmap(lambda one: reduce(one, axis=axis))(pb.tensor(x)))  # noqa: B023
            for k in range(len(x)):
                assert same_bits(reduce(pb.tensor(x[k]), axis=axis), together[k])


@pytest.mark.parametrize("width", [1, 3, 40])
def test_a_missing_term_is_not_replaced_by_zero(width: int) -> None:
    for n in (1, 2, 3, 17, 200, 257, 600):
        x = np.full((n, width), -0.0, np.float32)
        assert same_bits(pb.sum(pb.tensor(x), axis=0), x[0])
        assert same_bits(pb.sum(pb.tensor(x.T), axis=1), x[0])


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("rows", [1, 5])
def test_rows_are_summed_in_the_same_order(rows: int) -> None:
    for n in (1, 2, 20, 33, 100, 256, 257, 700, 5000):
        x = values((n, rows), np.float32)
        scale = 1 / np.sqrt(in_order(np.add, x * x) / np.float32(n) + np.float32(1e-6))
        assert same_bits(pb.nn.functional.rms_norm(pb.tensor(x.T), eps=1e-6), np.ascontiguousarray((x * scale).T))


def digest() -> str:
    found = hashlib.sha256()
    for shape in [(300_001,), (1, 70_000), (70_000, 3), (9000, 130), (600, 3000), (40_000, 10), (50, 600, 20)]:
        for dtype in (np.float32, np.float16):
            x = pb.tensor(values(shape, dtype))
            for axis in (None, *range(len(shape))):
                found.update(host(pb.sum(x, axis=axis)).tobytes())
    return found.hexdigest()


def test_any_number_of_threads_gives_the_same_bits() -> None:
    folder = Path(__file__).parent
    wanted = digest()
    for threads in (1, 2, 4):
        env = environment(PULLBACK_NUM_THREADS=str(threads))
        env["PYTHONPATH"] += f":{folder}:{folder.parent}"
        code = "import test_reduction_order; print(test_reduction_order.digest())"
        ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert ran.stdout.strip() == wanted, ran.stderr


def test_a_million_terms_keep_their_digits() -> None:
    """The error of a sum grows with the logarithm of the number of its terms: they pass through 20 additions each."""
    x = np.random.default_rng(0).random(10**6, np.float32)
    exact = math.fsum(x)
    assert abs(pb.sum(pb.tensor(x)).item() - exact) <= 2**-24 * exact
