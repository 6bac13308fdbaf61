"""The calls whose bits tests/same_bits.py compares: every op, on lengths that reach lanes, packs, blocks of sums and threads.

`cases(op)` yields them. All numbers come from fixed seeds, so every process has equal ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from conftest import FLOATS, INTEGERS, draw, dtype_of, example, rng_for, simulated, takes
from pullback.autodiff.primitive import Op
from pullback.ops._counts import ACTIVATIONS
from pullback.ops.declare import normal

LONG: Final = os.environ.get("PULLBACK_SAME_BITS") == "long"
SLOW: Final = simulated() and not LONG  # the simulated device leaves out the slowest cases
ROWS: Final = 257
SHARED: Final = 70_001  # elements that several threads share
LENGTHS: Final = (*range(1, 71), 255, 256, 257, 300, 511, 513, 1000, 5000) if LONG else (1, 5, 17, 33, 64, 70, 255, 257, 1000)
SPECIAL: Final = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-40, -1e-40, 1e30, 88.9, -104.5, 1e-7, 6e4)
STATE: Final = np.array([7, 1], np.uint64)  # the seed and the serial of a random generator


class Case(NamedTuple):
    """One call of an op.

    Attributes:
        words: the dtype and the size.
        rows: the inputs that have, along their first axis, one row for each row of the result; empty if rows are not independent.
        light: True if the call is cheap enough to be repeated in every way, such as captured and vectorized.
    """

    words: str
    inputs: tuple[Any, ...]
    params: tuple[Any, ...] = ()
    rows: tuple[int, ...] = ()
    light: bool = True


def cases(op: Op) -> Iterator[Case]:
    """Yields the cases of an op: its example in every dtype, and those of its maker."""
    if op.names[0] != "state":
        for dtype in takes(op):
            yield Case(f"{dtype} example", *example(op, dtype_of(dtype)))
    maker = MAKERS.get(op.name) or BY_KIND.get(op.kind.name)
    for case in maker(op, rng_for(op)) if maker else ():
        if case.light or not SLOW or case.words.startswith("float32 "):
            yield case


def dtypes_of(op: Op) -> Iterator[tuple[str, bool]]:
    """Yields the dtypes of an op, and True for those that get all sizes, because their kernels differ the most."""
    full = ("float32", "float16") if "float32" in takes(op) else ("int32",)
    for dtype in takes(op):
        yield dtype, LONG or dtype in full


# ---- elements


def special(rng: Any, x: Any) -> Any:
    """Returns floats with every special value among them. Integers are returned unchanged."""
    if x.dtype.kind in "fV":
        with np.errstate(all="ignore"):
            x = np.where(rng.random(x.shape) < 0.2, rng.choice(SPECIAL, x.shape).astype(x.dtype), x)
    return x


def elementwise(op: Op, rng: Any) -> Iterator[Case]:
    """Yields rows of three elements with special values, the same broadcast, and more elements than one thread takes."""
    count = {"unary": 1, "binary": 2, "select": 3}[op.kind.name]

    def operands(dtype: str, *shapes: tuple[int, ...]) -> tuple[Any, ...]:
        xs = [special(rng, draw(op, dtype_of(dtype), shape, rng)) for shape in shapes]
        return (rng.random(shapes[0]) < 0.5, *xs[1:]) if op.kind.name == "select" else tuple(xs)

    for dtype, full in dtypes_of(op):
        yield Case(f"{dtype} {ROWS} x 3", operands(dtype, *[(ROWS, 3)] * count), rows=tuple(range(count)))
        if count > 1:
            yield Case(f"{dtype} {ROWS} x 3 and 3", operands(dtype, *[(ROWS, 3)] * (count - 1), (3,)), rows=tuple(range(count - 1)))
        if full and count > 1:
            yield Case(f"{dtype} 33 and 70 x 1", operands(dtype, *[(33,)] * (count - 1), (70, 1)))
        if full:
            yield Case(f"{dtype} {SHARED}", operands(dtype, *[(SHARED,)] * count), light=False)


# ---- reductions, rows


def reductions(op: Op, rng: Any) -> Iterator[Case]:
    """Yields sums of every length along rows, columns and both, and one that threads share."""

    def along(*axes: int) -> tuple[Any, ...]:
        """Returns the params of the op: its axes or its only axis, and keepdims if it has that."""
        return (axes if "axes" in op.names else axes[0], False)[: op.params]

    def x(dtype: str, *shape: int) -> tuple[Any, ...]:
        return (draw(op, dtype_of(dtype), shape, rng),)

    for dtype, full in dtypes_of(op):
        for n in LENGTHS if full else (70, 257):
            yield Case(f"{dtype} rows of {n}", x(dtype, 5, n), along(1))
            yield Case(f"{dtype} columns of {n}", x(dtype, n, 5), along(0))
        if not full:
            continue
        yield Case(f"{dtype} {ROWS} x 70", x(dtype, ROWS, 70), along(1), rows=(0,))
        yield Case(f"{dtype} {ROWS} x 300", x(dtype, ROWS, 300), along(1), rows=(0,))
        yield Case(f"{dtype} {ROWS} x 7 x 5", x(dtype, ROWS, 7, 5), along(1), rows=(0,))
        yield Case(f"{dtype} special", (special(rng, *x(dtype, 40, 33)),), along(1))
        for words, shape, axis in (("rows of", (3, SHARED), 1), ("columns of", (SHARED, 3), 0), ("columns of", (300, 301), 0)):
            yield Case(f"{dtype} {words} {shape[axis]}, {shape[1 - axis]}", x(dtype, *shape), along(axis), light=False)
        if "axes" in op.names:
            yield Case(f"{dtype} both axes of 70 x 33", x(dtype, 70, 33), along(0, 1))
            yield Case(f"{dtype} first and last axis of 17 x 5 x 30", x(dtype, 17, 5, 30), along(0, 2))


def row_ops(op: Op, rng: Any) -> Iterator[Case]:
    """Yields rows of every length for softmax, the norms and cross entropy, whose second input may be one label per row."""
    _, params = example(op, np.float32)
    labelled = op.name in ("cross_entropy", "cross_entropy_total")
    vectors = 0 if labelled else len(op.names) - op.params - 1  # the weight and the bias of a norm

    def inputs(dtype: str, rows: int, n: int) -> tuple[Any, ...]:
        made, _ = normal((rows, n), *[(n,)] * vectors)(rng, dtype_of(dtype))
        return (*made, rng.integers(0, n, rows)) if labelled else made

    own = () if op.name == "cross_entropy_total" else (0, 1) if labelled else (0,)
    for dtype, full in dtypes_of(op):
        if dtype not in FLOATS:
            continue
        for n in LENGTHS if full else (10, 257):
            yield Case(f"{dtype} 5 x {n}", inputs(dtype, 5, n), params)
        for n in (3, 10, 70, 300) if full else (10,):
            yield Case(f"{dtype} {ROWS} x {n}", inputs(dtype, ROWS, n), params, rows=own)
        if full:
            yield Case(f"{dtype} 700 x 101", inputs(dtype, 700, 101), params, light=False)
            yield Case(f"{dtype} 3 x {SHARED}", inputs(dtype, 3, SHARED), params, light=False)


# ---- products

PRODUCTS: Final = (
    (1, 1, 1), (1, 300, 1), (3, 70, 5), (17, 256, 33), (16, 16, 16), (100, 2, 16), (64, 257, 10), (1, 1000, 130), (130, 300, 1),
    (4, 5000, 3), (33, 1000, 17),
)
HEAVY: Final = ((130, 520, 130), (2, 20_001, 2), *[(130, 1000, 130), (300, 300, 64), (2, SHARED, 2)] * LONG)


def sizes(rng: Any) -> Iterator[tuple[int, int, int]]:
    """Yields (m, k, n): fixed ones, and random ones in a long run."""
    yield from PRODUCTS
    for _ in range(60 * LONG):
        m, n = rng.integers(1, 131, 2).tolist()
        yield m, int(rng.choice([1, 2, 7, 16, 31, 64, 70, 255, 256, 257, 300, 513, 1000])), n


def products(op: Op, rng: Any) -> Iterator[Case]:
    for dtype, full in dtypes_of(op):
        if dtype not in FLOATS:
            yield Case(f"{dtype} 3 x 70 x 5", normal((3, 70), (70, 5))(rng, dtype_of(dtype))[0])
            continue
        for m, k, n in sizes(rng) if full else PRODUCTS[:4]:
            yield Case(f"{dtype} {m} x {k} x {n}", normal((m, k), (k, n))(rng, dtype_of(dtype))[0])
        for k, n in ((16, 2), (300, 10), *[(70, 130)] * LONG) if full else ((300, 10),):
            yield Case(f"{dtype} {ROWS} x {k} x {n}", normal((ROWS, k), (k, n))(rng, dtype_of(dtype))[0], rows=(0,))
        if full:
            yield Case(f"{dtype} 5 times 3 x 70 x 4", normal((5, 3, 70), (5, 70, 4))(rng, dtype_of(dtype))[0], rows=(0, 1))
            yield Case(f"{dtype} 17 x 300 and 300", normal((17, 300), (300,))(rng, dtype_of(dtype))[0], rows=(0,))
            for m, k, n in HEAVY:
                yield Case(f"{dtype} {m} x {k} x {n}", normal((m, k), (k, n))(rng, dtype_of(dtype))[0], light=False)


def layers(op: Op, rng: Any) -> Iterator[Case]:
    numbers = range(1, len(ACTIVATIONS)) if op.name == "linear_activated" else (0,)

    def case(dtype: str, m: int, k: int, n: int, number: int, **more: Any) -> Case:
        inputs, _ = normal((m, k), (n, k), (n,))(rng, dtype_of(dtype))
        return Case(f"{dtype} {m} x {k} x {n}{', ' if number else ''}{ACTIVATIONS[number] or ''}", inputs, (number,), **more)

    for dtype, full in dtypes_of(op):
        if dtype not in FLOATS:
            continue
        for i, (m, k, n) in enumerate(sizes(rng) if full else PRODUCTS[:4]):
            yield case(dtype, m, k, n, numbers[i % len(numbers)])
        for i, (k, n) in enumerate(((2, 16), (300, 10), (70, 130)) if full else ((300, 10),)):
            yield case(dtype, ROWS, k, n, numbers[i % len(numbers)], rows=(0,))
        for m, k, n in HEAVY if full else ():
            yield case(dtype, m, k, n, numbers[-1], light=False)


def recurrent(op: Op, rng: Any) -> Iterator[Case]:
    """Yields layers whose products have one block of terms or several, in both directions, with rows that threads share."""
    gates, states = {"rnn": (1, 1), "gru": (3, 1), "lstm": (4, 2)}[op.name]
    for dtype, full in dtypes_of(op):
        for steps, rows, hidden in ((3, 5, 7), (9, 17, 33), (4, 40, 70), *[(2, 9, 300), (12, 3, 130)] * full):
            shapes = ((steps, rows, gates * hidden), *[(rows, hidden)] * states, (gates * hidden, hidden), (gates * hidden,))
            inputs, _ = normal(*shapes)(rng, dtype_of(dtype))
            inputs = (*inputs[:-2], (inputs[-2] / dtype_of(dtype).type(hidden**0.5)).astype(dtype_of(dtype)), inputs[-1])
            params = (rows % 2 == 0, *[False] * (op.name == "rnn"))
            yield Case(f"{dtype} {steps} x {rows} x {hidden}", inputs, params, light=hidden < 100)


def attentions(op: Op, rng: Any) -> Iterator[Case]:
    """Yields heads whose rows and contractions have one block of terms or several, with every form of mask."""
    shapes = ((2, 4, 2, 17, 33, 5, 9), (1, 2, 1, 150, 270, 16, 8), *[(1, 1, 1, 40, 600, 3, 4), (2, 2, 2, 33, 20, 100, 70)])
    for dtype, full in dtypes_of(op):
        for i, (batch, heads, groups, queries, keys, width, out) in enumerate(shapes if full else shapes[:1]):
            mask = (rng.random((queries, keys)) < 0.8)[None, None] if i % 2 else (batch, heads, 1, keys)
            given = (batch, heads, queries, width), (batch, groups, keys, width), (batch, groups, keys, out), mask
            inputs, _ = normal(*given)(rng, dtype_of(dtype))
            yield Case(f"{dtype} {heads} x {queries} x {keys} x {width}", inputs, (i % 3 == 0, width**-0.5), light=queries < 100)


# x, weight, and stride, padding, dilation and groups. The contractions have 9 to 630 terms, those of the weights 6 to 17,484.
CONVOLUTIONS: Final = (
    ((2, 1, 5, 6), (3, 1, 3, 3), ((1, 1), (0, 0), (1, 1), 1)),
    ((3, 70, 7, 5), (20, 70, 3, 3), ((1, 1), (1, 1), (1, 1), 1)),
    ((2, 6, 17, 19), (9, 2, 3, 2), ((2, 3), (1, 2), (1, 2), 3)),
    ((3, 33, 12, 13), (33, 1, 3, 3), ((1, 1), (1, 1), (1, 1), 33)),
    ((12, 3, 31, 47), (17, 3, 2, 2), ((1, 1), (1, 0), (1, 1), 1)),
    ((35, 5, 8, 7), (20, 5, 5, 4), ((1, 1), (0, 0), (1, 1), 1)),
)


def convolutions(op: Op, rng: Any) -> Iterator[Case]:
    """Yields contractions with and without several blocks, with strides, and with a group for each channel."""
    for dtype, full in dtypes_of(op):
        for x, w, (stride, padding, dilation, groups) in CONVOLUTIONS if full and dtype in FLOATS else CONVOLUTIONS[:1]:
            ends = zip(x[2:], w[2:], stride, padding, dilation)
            y = (x[0], w[0], *[(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in ends])
            shapes, size = {
                "convolution": ((x, w, w[:1]), y[2:]), "convolution_input": ((y, w), x[2:]), "convolution_weight": ((x, y), w[2:]),
            }[op.name]
            inputs, _ = normal(*shapes)(rng, dtype_of(dtype))
            rows = () if op.name == "convolution_weight" else (0,)
            yield Case(f"{dtype} {x} and {w}", inputs, (stride, padding, dilation, groups, size), rows=rows)


def channels(op: Op, rng: Any) -> Iterator[Case]:
    """Yields rows of groups of channels, and of channels over the batch, on lengths that reach the blocks of sums."""
    for dtype, full in dtypes_of(op):
        for n, c, s in ((3, 4, 5), (2, 4, 300), (70, 4, 1), (5, 2, 1000), (300, 6, 3)) if full else ((3, 4, 5),):
            for groups in sorted({0, 2, c}):
                if (c // groups if groups else n) * s > 1:
                    inputs, _ = normal((n, c, s), (c,), (c,))(rng, dtype_of(dtype))
                    yield Case(f"{dtype} {n} x {c} x {s} in {groups}", inputs, (1e-5, groups), rows=(0,) if groups else ())


def pools(op: Op, rng: Any) -> Iterator[Case]:
    """Yields planes with windows that overlap, leave gaps, reach into the padding and are nearly equal parts."""
    maxima = op.name.startswith("max")
    windows = ((3, 2, 1, 2, 1, 0, *((1, 2) if maxima else (1, 0))), (2, 2, 3, 2, 0, 1, *((1, 1) if maxima else (0, 0))))
    for dtype, full in dtypes_of(op):
        for window in windows if maxima else (*windows, (0, 0, 0, 0, 0, 0, 2, 0)):
            for h, w in ((5, 6), (17, 70), (40, 33)) if full else ((9, 10),):
                counts = (3, 4) if window[6] == 2 and not maxima else tuple(
                    [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in
                     zip((h, w), window[:2], window[2:4], window[4:6], window[6:] if maxima else (1, 1))]
                )
                planes, lengths = ((*counts,), (h, w)) if op.name == "avg_unpool" else ((h, w), counts)
                x = draw(op, dtype_of(dtype), (5, 3, *planes), rng)
                yield Case(f"{dtype} {h} x {w}, {window}", (special(rng, x) if maxima else x,), (window, lengths), rows=(0,))


# ---- indices, scans, sorts, random numbers: arguments for n elements along the first axis

Sized = Callable[[Any, Any, int], tuple[tuple[Any, ...], tuple[Any, ...]]]


def repeated(rng: Any, n: int, most: int = 16) -> Any:
    """Returns n indices, many of them equal."""
    return rng.integers(0, min(n, most), n)


def permuted(rng: Any, n: int, shape: tuple[int, ...]) -> Any:
    return np.argsort(rng.random((n, *shape[1:])), axis=0)[: shape[0]]


def written(rng: Any, dtype: Any, n: int) -> Any:
    """Writes n rows to 16 places. index_set, which allows no two writes to one place, writes n rows in another order."""
    return normal((16, 3), (n, 3), rng.integers(0, 16, n), params=(0,))(rng, dtype)


def set_once(rng: Any, dtype: Any, n: int) -> Any:
    return normal((n, 3), (n, 3), rng.permutation(n), params=(0,))(rng, dtype)


def segments(rng: Any, dtype: Any, n: int) -> Any:
    return normal((n, 3), repeated(rng, n), params=(16,))(rng, dtype)


def searched(rng: Any, dtype: Any, n: int) -> Any:
    (x, sought), _ = normal((n,), (7, 3))(rng, dtype)
    return (np.sort(x), sought), (True,)


def along(*params: Any) -> Sized:
    return lambda rng, dtype, n: normal((n, 3), params=params)(rng, dtype)


def drawn(*params: Any, count: bool = False) -> Sized:
    """Returns the arguments of a draw: the state of a generator, the shape, the dtype if it takes one, and its other params."""
    return lambda rng, dtype, n: ((STATE,), (n,) if count else ((n,), *[dtype if p is None else p for p in params]))


SIZED: Final[dict[str, Sized]] = {
    "cumulative_sum": along(0, False),
    "cumulative_prod": along(0, False),
    "linear_recurrence": lambda rng, dtype, n: normal((n, 3), (n, 3), params=(0, False, False))(rng, dtype),
    "sort": along(0, True, True),
    "argsort": along(0, False, True),
    "topk_indices": lambda rng, dtype, n: normal((n, 3), params=(max(1, n // 3), 0, True))(rng, dtype),
    "searchsorted": searched,
    "take": lambda rng, dtype, n: normal((n, 3), repeated(rng, n), params=(0, True))(rng, dtype),
    "scatter_add": lambda rng, dtype, n: normal((n, 3), repeated(rng, n), params=((16, 3), 0))(rng, dtype),
    "take_along_axis": lambda rng, dtype, n: normal((n, 3), permuted(rng, n, (n, 3)), params=(0,))(rng, dtype),
    "along_axis_add": lambda rng, dtype, n: normal((n, 3), rng.integers(0, 16, (n, 3)), params=((16, 3), 0))(rng, dtype),
    "one_hot": lambda rng, dtype, n: ((repeated(rng, n),), (16, dtype)),
    "index_add": written, "index_max": written, "index_min": written, "index_set": set_once,
    "segment_sum": segments, "segment_max": segments, "segment_min": segments,
    "dropout": lambda rng, dtype, n: normal((n, 3), STATE, params=(0.3,))(rng, dtype),
    "concat": lambda rng, dtype, n: normal((n, 3), (5, 3), params=(0, (n, 5)))(rng, dtype),
    "pad": lambda rng, dtype, n: normal((n, 3), params=((1, 0), (0, 2), 1))(rng, dtype),
    "copy": along(),
    "cast": lambda rng, dtype, n: normal((n, 3), params=(np.dtype(np.float32),))(rng, dtype),
    "truncate": lambda rng, dtype, n: normal((n, 3), params=(np.dtype(np.int8),))(rng, dtype),
    "uniform": drawn(None, -1.0, 3.0), "normal": drawn(None, 1.0, 3.0), "truncated_normal": drawn(None, 0.0, 1.0, -2.0, 2.0),
    "bernoulli": drawn(0.3), "randint": drawn(np.dtype(np.int32), -5, 100), "permutation": drawn(count=True),
}


def sized(op: Op, rng: Any) -> Iterator[Case]:
    dtypes = FLOATS if op.takes == "float" or op.names[0] == "state" else (*FLOATS, *INTEGERS)
    for dtype in dtypes:
        full = LONG or dtype == "float32"
        for n in (*LENGTHS[-4:], SHARED) if full else (70, 257):
            yield Case(f"{dtype} {n}", *SIZED[op.name](rng, dtype_of(dtype), n), light=n < SHARED)


# ---- the makers of each op's cases

BY_KIND: Final[dict[str, Callable[[Op, Any], Iterator[Case]]]] = {
    "unary": elementwise, "binary": elementwise, "select": elementwise, "reduce": reductions, "rows": row_ops,
}


MAKERS: Final = {
    **dict.fromkeys(("layer_norm", "rms_norm", "cross_entropy", "cross_entropy_total"), row_ops),
    **dict.fromkeys(SIZED, sized),
    "matmul": products, "linear": layers, "linear_activated": layers, **dict.fromkeys(("rnn", "lstm", "gru"), recurrent),
    **dict.fromkeys(("convolution", "convolution_input", "convolution_weight"), convolutions),
    **dict.fromkeys(("max_pool", "max_pool_indices", "avg_pool", "avg_unpool"), pools),
    "channel_norm": channels, "attention": attentions,
}
