"""Runs what could hang or race on random shapes, dtypes and values until the time is over, and compares with NumPy or the CPU.

Blocks of a sort wait for each other, blocks of a reduction draw tickets, and updates at indices meet. Convolutions, attention,
recurrent layers and updates of weights divide their work by the shape. Each case is logged before its kernels are launched. If a
kernel hangs, the last line of the log is its case.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import device

DTYPES = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")


def length(rng: np.random.Generator, most: int, least: int = 1) -> int:
    """Returns a length between `least` and `most`, with a log-uniform distribution."""
    return min(most, int(np.exp(rng.uniform(np.log(least), np.log(most + 1)))))


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Returns numbers of the dtype, either from a wide range or from a few values, so that many are equal."""
    few = int(rng.choice([2, 17, 1000, 0]))
    if np.dtype(dtype).kind == "f":
        return (rng.integers(0, few, shape) if few else rng.standard_normal(shape)).astype(dtype)
    info = np.iinfo(dtype)
    high = min(few - 1, int(info.max)) if few else int(info.max)
    return rng.integers(0 if few else int(info.min), high, shape, dtype=dtype, endpoint=True)


# ---- compared with NumPy


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


def reduce(rng: np.random.Generator, most: int, dtype: str) -> None:
    """Sums whole numbers, whose sums are exact, along one of two axes, and finds their extremes."""
    import pullback as pb

    rows = length(rng, most)
    x, axis = rng.integers(-9, 10, (rows, length(rng, max(1, most // rows)))), int(rng.integers(2))
    x = x.astype("float64" if np.dtype(dtype).kind == "f" else "int64")
    print(f"reduce {x.shape} {x.dtype} along {axis}", flush=True)
    t = pb.tensor(x)
    np.testing.assert_array_equal(pb.sum(t, axis=axis).numpy(), x.sum(axis=axis))
    np.testing.assert_array_equal(pb.argmax(t, axis=axis).numpy(), x.argmax(axis=axis))
    np.testing.assert_array_equal(pb.cumulative_sum(t, axis=axis).numpy(), x.cumsum(axis=axis))


# ---- compared with the CPU


def on_both(run: Callable[..., list[Any]], *arrays: Any) -> None:
    """Runs on the device and on the CPU. Raises AssertionError if a result differs by more than its dtype allows."""
    from families.comparison import allowed_for, as_line, compared

    import pullback as pb

    there = [np.asarray(x.numpy()) for x in run(*[pb.tensor(x, device="cuda") for x in arrays])]
    with pb.use_device("cpu"):
        here = [np.asarray(x.numpy()) for x in run(*[pb.tensor(x, device="cpu") for x in arrays])]
    for place, (got, wanted) in enumerate(zip(there, here)):
        if found := compared(got, wanted, allowed_for(wanted.dtype)):
            raise AssertionError(as_line(str([list(x.shape) for x in arrays]), place, found))


def floating(rng: np.random.Generator) -> str:
    return str(rng.choice(["float32", "float32", "float64"]))


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    return rng.standard_normal(shape).astype(dtype)


def conv(rng: np.random.Generator, most: int, _: str) -> None:
    from families.values import with_gradients

    from pullback.nn import functional as F

    groups = int(rng.choice([1, 1, 2, 5]))
    channels, out = groups * length(rng, 20), groups * length(rng, 20)
    kernel, dilation = (tuple(rng.integers(1, top, 2).tolist()) for top in (5, 3))
    side = tuple([d * (k - 1) + length(rng, 30) for k, d in zip(kernel, dilation)])
    stride, padding = tuple(rng.integers(1, 4, 2).tolist()), tuple(rng.integers(0, 3, 2).tolist())
    count = min(length(rng, 60), max(1, 50 * most // (channels * out * side[0] * side[1] * kernel[0] * kernel[1])))
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    x, w, dtype = (count, channels, *side), (out, channels // groups, *kernel), floating(rng)
    print(f"conv {x} {w} {dtype} {options}", flush=True)
    arrays = [normal(rng, shape, dtype) for shape in (x, w, (out,))]
    on_both(lambda *xs: with_gradients(lambda x, w, b: F.conv2d(x, w, b, **options), *xs), *arrays)


def attention(rng: np.random.Generator, most: int, _: str) -> None:
    from families.values import with_gradients, with_tangents

    from pullback.nn import functional as F

    groups, shared, batch = length(rng, 3), length(rng, 3), length(rng, 4)
    keys, causal, dtype = length(rng, 1024), bool(rng.random() < 0.5), floating(rng)
    queries = min(length(rng, 300), max(1, most // keys))
    width, out = length(rng, 128), length(rng, 128)
    shapes = (batch, groups * shared, queries, width), (batch, groups, keys, width), (batch, groups, keys, out)
    print(f"attention {shapes} causal={causal} {dtype}", flush=True)
    arrays = [normal(rng, shape, dtype) for shape in shapes]

    def run(*xs: Any) -> list[Any]:
        f = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        return [*with_gradients(f, *xs), *with_tangents(f, *xs)]

    on_both(run, *arrays)


def recurrent(rng: np.random.Generator, most: int, _: str) -> None:
    from families.values import with_gradients

    from pullback.ops import recurrent as layers

    name, dtype = str(rng.choice(["rnn", "gru", "lstm"])), floating(rng)
    gates, states = {"rnn": (1, 1), "gru": (3, 1), "lstm": (4, 2)}[name]
    steps, rows, hidden = length(rng, 40), length(rng, 60), length(rng, 300)
    steps = min(steps, max(1, 20 * most // (rows * hidden * hidden * gates)))
    options = [bool(rng.random() < 0.5) for _ in range(2 if name == "rnn" else 1)]
    print(f"recurrent {name} {steps} x {rows} x {hidden} {dtype} {options}", flush=True)
    x, weight = normal(rng, (steps, rows, gates * hidden), dtype), normal(rng, (gates * hidden, hidden), dtype) / hidden**0.5
    arrays = [
        x,
        *[normal(rng, (rows, hidden), dtype) for _ in range(states)],
        weight.astype(dtype),
        normal(rng, (gates * hidden,), dtype),
    ]
    on_both(lambda *xs: with_gradients(lambda *xs: getattr(layers, name)(*xs, *options), *xs), *arrays)


def update(rng: np.random.Generator, most: int, _: str) -> None:
    import pullback as pb
    from pullback import optim

    dtype, count = floating(rng), length(rng, 40)
    make = [optim.Adam, optim.SGD, optim.LAMB, optim.RMSprop][int(rng.integers(4))]
    options = [{}, {"clip_norm": 1.0}, {"clip_adaptive": 0.01}, {"clip_norm": 0.1, "ema": 0.9}][int(rng.integers(4))]
    shapes = [(length(rng, 50), length(rng, max(1, most // 50 // count))) for _ in range(count)]
    print(f"update {make.__name__} {options} {dtype} {shapes}", flush=True)
    arrays = [normal(rng, shape, dtype) for shape in 2 * shapes]

    def run(*xs: Any) -> list[Any]:
        parameters = [pb.Parameter(x) for x in xs[:count]]
        opt = make(parameters, lr=0.1, **options)
        for _ in range(2):
            opt.step(list(xs[count:]))
        return [pb.copy(p) for p in parameters]

    on_both(run, *arrays)


CASES = (sort, select, scatter, reduce, conv, attention, recurrent, update)


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
            for case in CASES:
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
