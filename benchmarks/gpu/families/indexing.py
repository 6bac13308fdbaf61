"""Sorts, selections, sums at indices, running reductions, and random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pullback as pb

from .values import FLOATS, SHORTEST, Case, floats, integers, with_gradients

SORTED = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", *FLOATS)


def _numbers(dtype: str, *shape: int, seed: int = 0) -> Any:
    """Returns numbers of the dtype, many of which are equal in the small dtypes."""
    return floats(*shape, seed=seed, dtype=dtype) if "float" in dtype else integers(2**31, *shape, seed=seed).astype(dtype)


def radix_sort(n: int) -> Iterator[Case]:
    """Sorts arrays of several tiles, because the block of a tile waits for the counts of the preceding blocks."""
    yield "int32", lambda: pb.sort(integers(2**31, 8 * n, dtype="int32"))
    yield "rows of float32", lambda: pb.sort(floats(3, n))
    yield "positions of int64, descending", lambda: pb.argsort(integers(50, n), descending=True)


def sorts(n: int) -> Iterator[Case]:
    def both(dtype: str, *shape: int, axis: int = -1) -> list[Any]:
        x = _numbers(dtype, *shape)
        return [pb.sort(x, axis=axis), pb.argsort(x, axis=axis), pb.sort(x, axis=axis, descending=True)]

    for dtype in SORTED:
        yield f"{dtype}, one row", partial(both, dtype, 2 * n)
        yield f"{dtype}, short rows", partial(both, dtype, n // 30 + 1, 30)
        yield f"{dtype}, columns", partial(both, dtype, 700, 3, axis=0)
        yield f"{dtype}, long rows", partial(both, dtype, 2, 4500)
    yield "bool", lambda: [pb.sort(floats(n) > 0), pb.argsort(floats(3, n) > 0)]
    yield "with gradients", lambda: with_gradients(partial(pb.sort, axis=0), floats(n // 9 + 1, 9))
    yield "median and quantiles", lambda: [pb.median(floats(9, n // 9), axis=1), pb.quantile(floats(n), pb.tensor([0.1, 0.5]))]


def select(n: int) -> Iterator[Case]:
    def largest(dtype: str, k: int, *shape: int) -> list[Any]:
        x = _numbers(dtype, *shape)
        return [*pb.topk(x, k), *pb.topk(x, k, largest=False)]

    for dtype in SORTED:
        yield f"10 of {dtype}", partial(largest, dtype, 10, 4, n)
        yield f"10 of long rows of {dtype}", partial(largest, dtype, 10, 3, 4500)
    yield "300 of int64", partial(largest, "int64", min(n, 300), n)
    yield "many rows", partial(largest, "float32", 3, n // 20 + 1, 20)
    yield "with gradients", lambda: with_gradients(lambda x: pb.topk(x, 5)[0], floats(6, n // 6))


def scatter(n: int) -> Iterator[Case]:
    few, many = integers(n // 3 + 1, n), integers(7, n)

    def to_segments(name: str, ids: Any, segments: int, columns: int, dtype: str) -> list[Any]:
        f, x = getattr(pb, name), _numbers(dtype, n, columns)
        return with_gradients(lambda x: f(x, ids, segments), x) if "float" in dtype else [f(x, ids, segments)]

    def written(way: str, dtype: str, count: int, rows: Any) -> Any:
        x, y = _numbers(dtype, count, 3), _numbers(dtype, rows.size, 3, seed=1)
        return getattr(x.at[rows], way)(y)

    yield "take", lambda: with_gradients(lambda x: pb.take(x, few, axis=0), floats(n // 3 + 1, 4))
    yield "take of few rows", lambda: with_gradients(lambda x: pb.take(x, many, axis=0), floats(7, 33))
    yield "take of columns", lambda: with_gradients(lambda x: pb.take(x, integers(20, 40), axis=1), floats(n // 20 + 1, 20))
    for name in ("segment_sum", "segment_mean", "segment_max", "segment_min", "segment_softmax", "segment_logsumexp"):
        for segments, ids in ((n // 3 + 1, few), (7, many)):
            yield f"{name}, {segments} segments", partial(to_segments, name, ids, segments, 5, "float32")
    for dtype in ("float16", "bfloat16", "float64", "int32", "int64", "uint8"):
        for name in ("segment_sum", "segment_max"):
            yield f"{name} {dtype}", partial(to_segments, name, many, 7, 2, dtype)
    for way in ("add", "max", "min", "multiply"):
        yield f"at[…].{way}", partial(written, way, "float32", 50, integers(50, 30))
        yield f"at[…].{way}, {n} rows", partial(written, way, "float32", n // 3 + 1, few)
    once = pb.permute_dims(pb.flip(pb.arange(n), axis=0), (0,))
    for dtype in ("float32", "float16", "int64", "uint8"):
        yield f"at[…].set {dtype}", partial(written, "set", dtype, n, once)
    for dtype in ("float64", "int64", "uint64", "bool"):
        for count in (30, 300):
            yield f"{count} rows at[…] {dtype}", partial(_every_way, dtype, count, 50)
    targets = 1_100_000 if n > SHORTEST else 1000
    for dtype, columns in (("float32", 3), ("float32", 4), ("float64", 3), ("int64", 3), ("uint64", 3), ("bool", 3)):
        # a target that is too large to be written as a whole, and more indices than are ranked by counting
        yield (
            f"few rows of many {dtype} {columns}",
            partial(_every_way, dtype, 30, targets if columns == 4 else targets // 3 + 1, columns),
        )
        yield f"few rows {dtype} {columns}", partial(_every_way, dtype, 30, 50, columns)
        yield f"5,000 rows {dtype} {columns}", partial(_every_way, dtype, 5000, 700, columns)
        yield f"4,500 rows to two targets {dtype} {11 * columns}", partial(_every_way, dtype, 4500, 2, 11 * columns)
    for dtype in ("float32", "float64", "int64", "uint64"):
        yield f"along an axis {dtype}", partial(_along, dtype)
    for columns, dtype in ((1, "uint8"), (1, "float16"), (1, "float64"), (4, "float32")):
        yield f"at[…].set of a few {dtype} {columns}", partial(_set_few, dtype, columns)
    yield "at[…].set of 300 rows of 16 bytes", lambda: pb.zeros((400, 4)).at[pb.arange(300)].set(floats(300, 4))
    yield "no columns", lambda: pb.segment_sum(pb.zeros((9, 0)), integers(3, 9), 3)
    yield "at[…].set of a few", partial(written, "set", "float32", 50, pb.arange(20))
    yield "at[…].set twice", partial(written, "set", "float32", n // 3 + 1, few)


def _every_way(dtype: str, count: int, targets: int, columns: int = 3) -> list[Any]:
    x, y = (pb.abs(9 * floats(rows, columns, seed=rows)).astype(dtype) for rows in (targets, count))
    rows = integers(min(targets, 40), count)
    kinds = ("add", "max", "min")
    return [getattr(x.at[rows], way)(y)[:50] for way in kinds]


def _along(dtype: str) -> Any:
    """Adds at indices that each column has for itself: the gradient of take_along_axis."""
    x, rows = pb.abs(9 * floats(20, 7)).astype(dtype), integers(20, 9, 7)
    return (
        with_gradients(lambda x: pb.take_along_axis(x, rows, axis=0), x)
        if "float" in dtype
        else pb.take_along_axis(x, rows, axis=0)
    )


def _set_few(dtype: str, columns: int) -> Any:
    x, y = (pb.abs(9 * floats(rows, columns, seed=rows)).astype(dtype) for rows in (50, 20))
    return x.at[pb.arange(20)].set(y)


def indexing(n: int) -> Iterator[Case]:
    x, columns = floats(n // 8 + 1, 8), integers(8, n // 8 + 1, 3)
    yield "take_along_axis", lambda: with_gradients(lambda x: pb.take_along_axis(x, columns, axis=1), x)
    yield "take_along_axis, down", lambda: with_gradients(lambda x: pb.take_along_axis(x, integers(9, 30, 8), axis=0), x)
    for dtype in ("float32", "float64", "int32", "bfloat16", "uint8"):
        for classes in (7, 8):
            yield f"one_hot {dtype} {classes}", partial(pb.one_hot, columns[:9, 0] % 7, classes, dtype=dtype)
    yield "two arrays of indices", lambda: with_gradients(lambda x: x[integers(9, 20), integers(8, 20, seed=1)], x)
    for dtype in ("float32", "float64", "float16", "int32", "int64", "uint64", "bool"):
        yield f"searchsorted {dtype}", partial(_searched, dtype, n)


def _searched(dtype: str, n: int) -> list[Any]:
    x, sought = (pb.abs(9 * floats(*shape, seed=len(shape))).astype(dtype) for shape in ((n,), (10, 10)))
    x = pb.sort(x)
    return [pb.searchsorted(x, sought), pb.searchsorted(x, sought, side="right")]


def cumulative(n: int) -> Iterator[Case]:
    for dtype in ("float32", "float64", "bfloat16"):
        for axis, shape in ((1, (3, n)), (0, (n // 7 + 1, 7)), (1, (n // 40 + 1, 40))):
            run = partial(pb.cumulative_sum, axis=axis)
            yield f"cumulative_sum {dtype} {shape}", partial(with_gradients, run, floats(*shape, dtype=dtype))
    yield "cumulative_sum int32", lambda: pb.cumulative_sum(integers(9, 3, n, dtype="int32"), axis=1)
    yield "cumulative_prod", lambda: with_gradients(lambda x: pb.cumulative_prod(1 + 0.001 * x, axis=0), floats(n))
    for name in ("cummax", "cummin"):
        for axis in (0, 1):
            yield f"{name}, axis {axis}", partial(_extremes, name, axis, n)
    for dtype in ("float64", "int64", "uint64", "bool"):
        for shape, axis in (((3, 300), 1), ((300, 7), 0)):
            yield f"running extremes and products {dtype} {shape}", partial(_running, dtype, shape, axis)
    yield "logcumsumexp", lambda: pb.logcumsumexp(floats(5, n // 5), axis=1)


def _extremes(name: str, axis: int, n: int) -> list[Any]:
    return _all(getattr(pb, name)(floats(9, n // 9), axis=axis))


def _running(dtype: str, shape: tuple[int, ...], axis: int) -> list[Any]:
    x = pb.abs(2 * floats(*shape)).astype(dtype)
    extremes = [y for f in (pb.cummax, pb.cummin) for y in _all(f(x, axis=axis))]
    return [*extremes, pb.cumulative_prod(x, axis=axis), pb.cumulative_sum(x, axis=axis)]


def _all(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def random(n: int) -> Iterator[Case]:
    """Draws random numbers, which are the same on every device."""

    def drawn(name: str, *arguments: Any, **options: Any) -> list[Any]:
        pb.random.seed(5)
        draw = getattr(pb.random, name)
        return [draw(*arguments, **options) for _ in range(2)]

    def dropped(dtype: str, turned: bool) -> list[Any]:
        pb.random.seed(6)
        x = floats(n // 20 + 1, 20, dtype=dtype)
        return with_gradients(lambda x: pb.nn.functional.dropout(x.T if turned else x, 0.3), x)

    for dtype in FLOATS:
        for name in ("uniform", "normal", "truncated_normal"):
            yield f"{name} {dtype}", partial(drawn, name, (n,), dtype=dtype)
        yield f"dropout {dtype}", partial(dropped, dtype, False)
        yield f"dropout of a transposed {dtype}", partial(dropped, dtype, True)
    for dtype in ("int8", "uint8", "int32", "int64", "uint64"):
        yield f"randint {dtype}", partial(drawn, "randint", 0, 99, (n,), dtype=dtype)
    yield "bernoulli", partial(drawn, "bernoulli", (n,), 0.3)
    for count in (2, 33, 1000, n):
        yield f"permutation of {count}", partial(drawn, "permutation", count)
    yield "a shape of three axes", partial(drawn, "normal", (3, 5, n // 15))
