"""Sorts, selects and scatters arrays of random lengths, dtypes and values until the time is over, and compares with NumPy.

Each case is logged before its kernels are launched. If a kernel hangs, the last line of the log is its case.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

import numpy as np

import device

DTYPES = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")


def length(rng: np.random.Generator, most: int) -> int:
    """Returns a length between 1 and `most`, with a log-uniform distribution."""
    return int(np.exp(rng.uniform(0, np.log(most))))


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Returns numbers of the dtype, either from a wide range or from a few values, so that many are equal."""
    few = int(rng.choice([2, 17, 1000, 0]))
    if np.dtype(dtype).kind == "f":
        return (rng.integers(0, few, shape) if few else rng.standard_normal(shape)).astype(dtype)
    info = np.iinfo(dtype)
    high = min(few - 1, int(info.max)) if few else int(info.max)
    return rng.integers(0 if few else int(info.min), high, shape, dtype=dtype, endpoint=True)


def sort(rng: np.random.Generator, most: int, dtype: str) -> None:
    import pullback as pb

    rows = int(rng.choice([1, 1, 3, 40]))
    x = values(rng, (rows, length(rng, most // rows)), dtype)
    print(f"sort {x.shape} {dtype}", flush=True)
    t = pb.tensor(x)
    np.testing.assert_array_equal(pb.sort(t, axis=1).numpy(), np.sort(x, axis=1))
    np.testing.assert_array_equal(pb.argsort(t, axis=1).numpy(), np.argsort(x, axis=1, kind="stable"))


def select(rng: np.random.Generator, most: int, dtype: str) -> None:
    import pullback as pb

    x = values(rng, (int(rng.choice([1, 5])), length(rng, most // 5)), dtype)
    k = min(x.shape[1], length(rng, 2000))
    print(f"select {x.shape} {dtype} k={k}", flush=True)
    got = pb.topk(pb.tensor(x), k)[0].numpy()
    np.testing.assert_array_equal(np.sort(got, axis=1), np.sort(x, axis=1)[:, x.shape[1] - k :])


def scatter(rng: np.random.Generator, most: int, dtype: str) -> None:
    import pullback as pb

    n, targets, columns = length(rng, most // 4), length(rng, most // 4), int(rng.choice([1, 3, 4]))
    ids = rng.integers(0, targets, n)
    # small whole numbers, whose sums are exact
    x = rng.integers(-9, 10, (n, columns)).astype("int64" if np.dtype(dtype).kind != "f" else "float64")
    print(f"scatter {x.shape} {x.dtype} to {targets}", flush=True)
    wanted = np.zeros((targets, columns), x.dtype)
    np.add.at(wanted, ids, x)
    np.testing.assert_array_equal(pb.segment_sum(pb.tensor(x), pb.tensor(ids), targets).numpy(), wanted)


def main() -> None:
    options = device.arguments(__doc__)
    device.require_native(options.simulated)
    import pullback as pb

    rng = np.random.default_rng()
    most = 6000 if options.simulated else 1_500_000
    counts: Counter[str] = Counter()
    end = time.perf_counter() + options.seconds
    with pb.use_device("cuda"):
        while time.perf_counter() < end:
            for case in (sort, select, scatter):
                state = rng.bit_generator.state["state"]
                dtype = str(rng.choice(DTYPES))
                try:
                    case(rng, most, dtype)
                except Exception as error:
                    device.put(name=case.__name__, wrong=str(error)[:600], dtype=dtype, state=str(state))
                    sys.exit(1)
                counts[case.__name__] += 1
    device.put(name="soak", cases=dict(counts), seconds=options.seconds, longest=most)


if __name__ == "__main__":
    main()
