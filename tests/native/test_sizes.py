"""Kernels at the lengths where their code path changes: vectors, lanes, blocks, tiles, shares of threads, non-temporal stores.

Together with `make sanitize` these tests find a kernel that reads or writes one element too far.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal as same
from test_ops import both_pullbacks

import pullback as pb
from conftest import BACKENDS, ELEMENTWISE, FLOATS, INTEGERS, assert_ulps, condition, draw, dtype_of, exact, ops, rng_for, takes
from pullback.autodiff.primitive import OPS, Op
from pullback.backends import native as backend
from pullback.launch.refusal import BadIndex
from pullback.tensors import dtypes
from update_rules import RULES

pytestmark = pytest.mark.usefixtures("native")

NATIVE = BACKENDS[0]
LENGTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 257, 1023, 1024, 1025, 2047, 2500)
FEW, EVERY = (1, 2, 9, 17, 64, 129, 1025), (*FLOATS, *INTEGERS, "bool")
BFLOAT16 = dtypes.bfloat16()  # kernels recognize bfloat16 from its first use on
FAR = 16 << 20  # bytes, from which on copies use non-temporal stores


def agrees(name: str, inputs: Any, params: Any = (), ulp: float | None = None) -> None:
    """Asserts that the kernel's result is that of the definition in float64."""
    op = OPS[name]
    what = f"{name} of {[(x.dtype.name, x.shape, x.strides) for x in inputs if hasattr(x, 'shape')]}, {params}"
    got = NATIVE.run(op, inputs, params)
    assert_ulps(got, exact(op, inputs, params), ulp or op.facts.ulp, scale=condition(op, inputs, params), what=what)


def numbers(rng: Any, dtype: Any, *shape: int) -> Any:
    """Returns numbers that every dtype can represent and whose sums stay small."""
    dtype = dtype_of(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -3, 4, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def placed(x: Any) -> Iterator[Any]:
    """Yields x in different memory layouts. In the last one, the last element of x is the last element of its memory."""
    yield x
    if x.ndim and x.size:
        wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1] - 1), x.dtype)
        wide[..., ::2] = x
        yield wide[..., ::2]
        yield np.ascontiguousarray(x.T).T if x.ndim > 1 else np.ascontiguousarray(x[::-1])[::-1]


# ---- elementwise


@pytest.mark.parametrize("op", ops(*ELEMENTWISE), ids=str)
def test_elementwise_ops_at_the_length_of_a_block(op: Op) -> None:
    rng = rng_for(op)
    for dtype, shape in product(takes(op), [(1025,), (3, 1030), (257, 3)]):
        inputs = [draw(op, dtype_of(dtype), shape, rng) for _ in range(1 if op.kind.name == "unary" else 2)]
        if op.kind.name == "select":
            inputs = [rng.random(shape) < 0.5, *inputs]
        plain = NATIVE.run(op, inputs, ())
        for k, views in enumerate(zip(*[placed(x) for x in inputs])):
            mixed = [view if i == 0 or k == 2 else x for i, (view, x) in enumerate(zip(views, inputs))]
            same(NATIVE.run(op, mixed, ()), plain)


@pytest.mark.parametrize("n", [70_001, 400_003])
def test_elementwise_ops_shared_by_threads(n: int) -> None:
    rng = np.random.default_rng(n)
    for dtype in ("float32", "float64", "float16", "int8"):
        a, b = numbers(rng, dtype, n), numbers(rng, dtype, n)
        for left, right in ((a, b), (a, b[:1]), (a[::-1], b), (a[: n // 3 * 3].reshape(-1, 3), b[:3])):
            agrees("add", (left, right))
        agrees("where", (a > b, a, b))
        agrees("less", (a, b))


# ---- reductions


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int64", "uint32", "bool"])
@pytest.mark.parametrize("op", ops("reduce"), ids=str)
def test_reductions_of_any_length(op: Op, dtype: str) -> None:
    dtype, rng = dtype if dtype in takes(op) else "float32", rng_for(op)
    for n in LENGTHS:
        for shape, axes in (((n,), (0,)), ((5, n), (1,)), ((n, 3), (0,)), ((n, 70), (0,)), ((2, n, 3), (1,)), ((n, 2, 3), (0, 2))):
            x = numbers(rng, dtype, *shape)
            if op.name == "prod":
                x = np.sign(x) if dtype != "bool" else x
            if "axes" not in op.names and len(axes) > 1:
                continue
            for view in placed(x):
                agrees(op.name, (view,), (axes if "axes" in op.names else axes[0], n % 2 == 0)[: op.params])


@pytest.mark.parametrize("name", ["sum", "max", "mean", "any", "argmax"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((200_001,), 0), ((3, 70_001), 1), ((70_001, 3), 0), ((70_001, 3), 1), ((130, 1100), 0), ((2, 300, 257), 1), ((4000, 65), 0)],
)
def test_reductions_shared_by_threads(name: str, shape: Any, axis: int) -> None:
    rng = np.random.default_rng(0)
    for dtype in ("float32", "float64", "float16", *(["int16"] if name != "mean" else [])):
        for view in placed(numbers(rng, dtype, *shape)):
            agrees(name, (view,), (axis if name == "argmax" else (axis,), False))


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_running_reductions_of_any_length(name: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[name]
    for n, backwards in product((*FEW, 600), (False, True)):
        for shape, axis in (((n,), 0), ((9, n), 1), ((n, 9), 0), ((2, n, 3), 1), ((3, 600), 0)):
            x = numbers(rng, dtype, *shape)
            if name == "prod":
                x = np.where(x > 0, np.ones_like(x), np.zeros_like(x))
            wide = x.astype(np.float64) if x.dtype.kind in "fV" else x
            turned = np.flip(wide, axis) if backwards else wide
            kind = np.bool_ if name in ("max", "min") and dtype == "bool" else None
            wanted = ufunc.accumulate(turned.astype(np.int64) if x.dtype.kind == "b" and kind is None else turned, axis=axis)
            wanted = np.flip(wanted, axis) if backwards else wanted
            for view in placed(x):
                got = getattr(backend.module, f"cumulative_{name}")(view, axis, backwards)
                scale = np.abs(wide.astype(np.float64)).sum(axis=axis, keepdims=True) if name == "sum" else 0.0
                assert_ulps(got, wanted, 2, scale=scale, what=f"{name} {dtype} {view.shape}, {view.strides}, {axis}, {backwards}")


# ---- rows


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "layer_norm", "rms_norm"])
def test_rows_of_any_length_and_their_pullbacks(name: str, dtype: str) -> None:
    rng, op = np.random.default_rng(2), OPS[name]
    weights = {"layer_norm": 2, "rms_norm": 1}.get(name, 0)
    params = (1e-3,) if weights else ()
    for n, rows in product((*LENGTHS, 5, 10_000), (1, 3)):
        rest = [numbers(rng, dtype, n) for _ in range(weights)]
        for view in placed(numbers(rng, dtype, rows, n)):
            agrees(name, (view, *rest), params, ulp=64 if dtype == "float64" else 8)  # the definition rounds as well
        pullbacks_agree(op, (view, *rest), params)
    for rows in (65, 130, 9000 // 17):
        pullbacks_agree(op, (numbers(rng, dtype, rows, 17), *[numbers(rng, dtype, 17) for _ in rest]), params)


def pullbacks_agree(op: Op, inputs: Any, params: Any) -> None:
    tolerance = {8: 1e-10, 4: 2e-4, 2: 4e-2}[inputs[0].itemsize]
    for i, fused, defined, g in both_pullbacks(op, inputs, params, rng_for(op)):
        wanted, what = defined.astype(np.float64), f"{op}, rule {i}, {inputs[0].dtype} {inputs[0].shape}"
        size = max(1.0, float(np.abs(wanted).max(initial=0.0)), float(np.abs(g.astype(np.float64)).max(initial=0.0)))
        np.testing.assert_allclose(fused.astype(np.float64), wanted, rtol=0, atol=tolerance * size, err_msg=what)


@pytest.mark.parametrize("label", ["int64", "int32", "uint8"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_cross_entropy_of_any_number_of_classes(dtype: str, label: str) -> None:
    rng = np.random.default_rng(3)
    for classes, rows in product((*FEW, 5, 10_000), (1, 3, 70)):
        labels = rng.integers(0, min(classes, 254), rows).astype(label)
        for smoothing, ignored in ((0.0, 254), (0.1, int(labels[0]))):
            for view in placed(numbers(rng, dtype, rows, classes)):
                agrees("cross_entropy", (view, labels), (ignored, smoothing), ulp=64 if dtype == "float64" else 8)
            pullbacks_agree(OPS["cross_entropy"], (view, labels), (ignored, smoothing))


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_rows_past_the_caches(name: str) -> None:
    x = np.random.default_rng(4).standard_normal((4 * FAR // 4 // 1001 + 1, 1001)).astype(np.float32)
    rest = (np.ones(1001, np.float32), np.zeros(1001, np.float32)) if name == "layer_norm" else ()
    kernel, more = getattr(backend.module, name), (1e-5,) if rest else ()
    y = kernel(x, *rest, *more)
    for part in (slice(0, 3), slice(-3, None)):
        np.testing.assert_allclose(y[part], kernel(x[part], *rest, *more), rtol=1e-6)
    pulled = getattr(backend.module, f"{name}_pullback")
    gx = pulled(x, x, rest[0], 1e-5)[0] if rest else pulled(x, y)
    few = pulled(x[-3:], x[-3:], rest[0], 1e-5)[0] if rest else pulled(x[-3:], y[-3:])
    np.testing.assert_allclose(gx[-3:], few, rtol=1e-5, atol=1e-6)


# ---- products


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "uint8", "bool"])
def test_products_of_any_size(dtype: str) -> None:
    rng = np.random.default_rng(5)
    for m, k, n in product((1, 2, 7, 16, 17, 65), (1, 3, 16, 33, 130), (1, 2, 15, 17, 64)):
        a, b = numbers(rng, dtype, m, k), numbers(rng, dtype, k, n)
        for left, right in zip(placed(a), placed(b)):
            agrees("matmul", (left, right), ulp=16)
        for left, right in ((a, np.asfortranarray(b)), (np.asfortranarray(a), b)):
            agrees("matmul", (left, right), ulp=16)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_batches_of_products(dtype: str) -> None:
    rng = np.random.default_rng(6)
    for lead, other in (((33,), ()), ((3, 5), (5,)), ((4, 1), (3,)), ((), (7,)), ((300,), (300,))):
        for m, k, n in ((1, 9, 5), (4, 4, 4), (17, 3, 20)):
            a, b = numbers(rng, dtype, *lead, m, k), numbers(rng, dtype, *other, k, n)
            turned = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)
            for left, right in ((a, b), (a, turned), (a[::-1] if lead else a, b[..., ::-1])):
                agrees("matmul", (left, right), ulp=16)
    for m, k, n in ((200, 170, 190), (8, 170, 3000), (3000, 170, 8)):
        agrees("matmul", (numbers(rng, dtype, m, k), numbers(rng, dtype, k, n)), ulp=16)


@pytest.mark.parametrize("dtype", FLOATS)
def test_linear_layers_of_any_size_and_their_pullbacks(dtype: str) -> None:
    rng = np.random.default_rng(7)
    cases = [*product((1, 3, 17, 64), (1, 5, 33), (1, 2, 17, 70)), (1100, 7, 1030), (2, 1030, 3)]
    for (rows, into, out), activation in product(cases, range(4)):
        if (activation and (rows, into) == (3, 5)) or (activation % 2 and rows > 1000):
            continue
        op = OPS["linear_activated" if activation else "linear"]
        x, w, b = numbers(rng, dtype, rows, into), numbers(rng, dtype, out, into), numbers(rng, dtype, out)
        for view, weight in zip(placed(x), placed(w)):
            agrees(op.name, (view, weight, b), (activation,), ulp=64)
        if activation != 1:  # relu's kink: products that round differently may fall on different sides of 0
            pullbacks_agree(op, (x, w, b), (activation,))
            images = numbers(rng, dtype, into, 3, rows, 2).T  # axes that cannot be collapsed into rows
            pullbacks_agree(op, (images, w, b), (activation,))


# ---- indices, order, copies


def indices(rng: Any, kind: str, length: int, *shape: int) -> Any:
    return rng.integers(0, min(length, np.iinfo(kind).max + 1), shape).astype(kind)


@pytest.mark.parametrize("kind", INTEGERS)
def test_gathers_of_any_size(kind: str) -> None:
    rng = np.random.default_rng(8)
    for dtype, (length, count, width) in product(EVERY, [(1, 1, 1), (5, 17, 1), (100, 1025, 3), (100, 20, 130), (9, 2100, 8)]):
        x = numbers(rng, dtype, length, width)
        for view in placed(x):
            agrees("take", (view, indices(rng, kind, length, count)), (0, True))
            agrees("take", (view.T, indices(rng, kind, length, count // 2, 2)), (1, False))
            agrees("take_along_axis", (view, indices(rng, kind, length, count, width)), (0,))
            agrees("take_along_axis", (view.T, indices(rng, kind, length, width, count)), (1,))


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8"])
@pytest.mark.parametrize("dtype", EVERY)
def test_scatters_of_any_size(dtype: str, kind: str) -> None:
    rng = np.random.default_rng(9)
    for length, count, width in [(1, 1, 1), (5, 17, 1), (100, 1025, 3), (9, 20, 33), (120, 2100, 16), (60, 20_000, 1)]:
        at, x, updates = indices(rng, kind, length, count), numbers(rng, dtype, length, width), numbers(rng, dtype, count, width)
        if dtype in FLOATS:  # whole numbers, so that neither the order of the additions nor the precision of the sum matters
            updates = (rng.random((count, width)) < 0.05).astype(updates.dtype)
        for view in placed(updates):
            agrees("scatter_add", (view, at), ((length, width), 0))
            agrees("segment_sum", (view, at), (length,))
            agrees("segment_max", (view, at), (length + 1,))
            agrees("segment_min", (view, at), (length,))
            for name in ("index_set", "index_add", "index_max", "index_min"):
                agrees(name, (x, view, at), (0,))
            agrees("index_set", (x.T, view.T, at), (1,))
            agrees("along_axis_add", (view, indices(rng, kind, length, count, width)), ((length, width), 0))
            agrees("along_axis_add", (view.T, indices(rng, kind, length, width, count)), ((width, length), 1))


@pytest.mark.parametrize("index", [-6, 5, 2**31, -(2**63), 2**63 - 1])
def test_kernels_refuse_an_index_out_of_range(index: int) -> None:
    x, m, n = np.arange(5.0), backend.module, 3000
    at = np.zeros(n, np.int64)
    at[-2] = index
    w, logits, float32 = np.ones(n), np.ones((n, 5)), np.dtype(np.float32)
    for name, args in {
        "take": (x, at, 0, True), "take_along_axis": (x, at, 0), "index_set": (x, w, at, 0), "index_add": (x, w, at, 0),
        "scatter_add": (w, at, (5,), 0), "along_axis_add": (w, at, (5,), 0), "segment_sum": (w, at, 5),
        "one_hot": (at, 5, float32), "cross_entropy": (logits, at, -100, 0.0),
    }.items():
        with pytest.raises(BadIndex):
            getattr(m, name)(*args)


@pytest.mark.parametrize("dtype", EVERY)
def test_searches_and_positions_of_any_size(dtype: str) -> None:
    rng, m = np.random.default_rng(10), backend.module
    for n in (0, *LENGTHS, 70_000):
        x, values = numbers(rng, dtype, n), numbers(rng, dtype, 37)
        ordered = np.sort(x)
        for right in (False, True):
            for view in placed(values):
                same(m.searchsorted(ordered, view, right), ordered.searchsorted(values, "right" if right else "left"))
        for view in placed(x):
            same(m.nonzero_flat(view), np.flatnonzero(x))
        same(m.nonzero_flat(np.ones(n, bool)), np.arange(n))
        same(m.one_hot(np.arange(n) % 7, 7, x.dtype), np.eye(7)[np.arange(n) % 7].astype(x.dtype))


@pytest.mark.parametrize("dtype", EVERY)
def test_sorts_of_any_length(dtype: str) -> None:
    rng = np.random.default_rng(11)
    for n in (*LENGTHS, 24, 48, 96, 191, 192, 193, 5000):
        for shape, axis in (((n,), 0), ((3, n), 1), ((n, 3), 0)):
            x = numbers(rng, dtype, *shape)
            if dtype in FLOATS and n > 2:
                x[(0, *[0] * (len(shape) - 1))] = np.nan
            for view, descending in zip(placed(x), (False, True, n % 2 == 0)):
                agrees("sort", (view,), (axis, descending, True))
                agrees("argsort", (view,), (axis, descending, True))
                for k in {0, 1, n // 2, n}:
                    agrees("topk_indices", (view,), (k, axis, descending))


@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "float64"])
def test_copies_of_any_size(dtype: str) -> None:
    rng = np.random.default_rng(12)
    for shape in [(1,), (33,), (31, 33), (32, 64), (65, 100), (3, 31, 33), (2, 3, 1025), (1025, 3), (700, 500), (5, 300, 129)]:
        x = numbers(rng, dtype, *shape)
        views = [*placed(x), x[::-1], x[..., ::-1], np.broadcast_to(x[:1], x.shape), x.swapaxes(0, -1)]
        for view in views:
            same(backend.module.copy(view), view)
            same(backend.module.pad(view, (1,) * x.ndim, (2,) * x.ndim, 1.0), np.pad(view, (1, 2), constant_values=1))
            for axis in range(view.ndim):
                same(backend.module.concat([view, view, view], axis), np.concatenate([view] * 3, axis))


@pytest.mark.parametrize("to", EVERY)
@pytest.mark.parametrize("dtype", EVERY)
def test_casts_of_any_size(dtype: str, to: str) -> None:
    rng = np.random.default_rng(13)
    for shape in ((17,), (1025,), (3, 1030), (70, 33)):
        x = np.abs(numbers(rng, dtype, *shape)) if dtype != "bool" else numbers(rng, dtype, *shape)
        for view in placed(x):
            with np.errstate(all="ignore"):
                same(backend.module.cast(view, dtype_of(to)), view.astype(dtype_of(to)))


@pytest.mark.parametrize("shape", [(2**45,), (2**61 + 2**20,), (2**40, 2**40)])
def test_an_array_that_no_memory_holds_is_an_error(shape: Any) -> None:
    with pytest.raises((MemoryError, ValueError)):  # NumPy's error, since the number of bytes may exceed 64 bits
        backend.module.fill(shape, np.dtype(np.float64), 1.0)


def test_copies_past_the_caches() -> None:
    rng = np.random.default_rng(14)
    for size in (FAR // 4, FAR // 4 + 5):
        x = rng.standard_normal(size).astype(np.float32)
        same(backend.module.copy(x), x)
        same(backend.module.cast(x, np.dtype(np.float64)), x.astype(np.float64))
        same(backend.module.cast(x, BFLOAT16), x.astype(BFLOAT16))
    rows = rng.standard_normal((FAR // 4 // 1000 + 1, 1003)).astype(np.float32)
    same(backend.module.copy(rows[:, :1001]), rows[:, :1001])
    same(backend.module.copy(rows.T), rows.T)
    same(backend.module.cast(rows[:, ::2], np.dtype(np.float64)), rows[:, ::2].astype(np.float64))
    same(backend.module.fill((FAR // 4 + 1,), np.dtype(np.float32), 2.5), np.full(FAR // 4 + 1, 2.5, np.float32))


# ---- random numbers, updates


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 63, 65, 1023, 1025, 16 * 1024 + 1, 40_001])
def test_draws_of_any_number_are_the_definitions(n: int) -> None:
    state = np.array([7, n], np.uint64)
    for dtype in FLOATS:
        agrees("uniform", (state,), ((n,), dtype_of(dtype), -1.0, 2.0), ulp=2)
        for name, params in {"normal": (0.5, 2.0), "truncated_normal": (0.0, 1.0, -2.0, 2.0)}.items():
            got = NATIVE.run(OPS[name], (state,), ((n,), dtype_of(dtype), *params)).astype(np.float64)
            wanted = exact(OPS[name], (state,), ((n,), np.dtype(np.float64 if dtype == "float64" else np.float32), *params))
            tolerance = {"float64": 1e-9, "float32": 2e-5}.get(dtype, 5e-2)
            np.testing.assert_allclose(got, wanted.astype(np.float64), rtol=tolerance, atol=tolerance)
        for view in placed(np.ones((n,), dtype_of(dtype))):
            agrees("dropout", (view, state), (0.3,), ulp=1)
    for dtype in INTEGERS:
        agrees("randint", (state,), ((n,), np.dtype(dtype), 0, 100))
    agrees("bernoulli", (state,), ((n,), 0.3))
    agrees("permutation", (state,), (n,))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", RULES)
def test_updates_of_any_size_are_those_of_float64(name: str, dtype: str) -> None:
    rng = np.random.default_rng(15)
    sizes = (1, 7, 15, 16, 17, 63, 65, 255, 257, 1025, 70_001)
    values, gradients = ([numbers(rng, dtype, n) for n in sizes] for _ in range(2))
    results = []
    for kind in (dtype, "float64"):
        parameters = [pb.Parameter(v.astype(dtype_of(kind))) for v in values]
        cls, options = RULES[name]
        opt = cls(parameters, **{**options, "lr": 1e-2}, clip_norm=1.0)
        for _ in range(2):
            opt.step([pb.tensor(g.astype(dtype_of(kind))[::-1]) for g in gradients])
        results.append([p.numpy().astype(np.float64) for p in parameters])
    for got, wanted in zip(*results):
        np.testing.assert_allclose(got, wanted, rtol=0, atol={"float64": 1e-12, "float32": 1e-5}.get(dtype, 4e-2))
