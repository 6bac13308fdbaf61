"""Convolutions, pools, norms of channels, recurrent layers and attention, with their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pullback as pb
from pullback import nn
from pullback.nn import functional as F

from .values import FLOATS, SHORTEST, Case, floats, given, integers, with_gradients, with_tangents


def _images(n: int) -> tuple[int, int]:
    """Returns a number of images and the length of their sides, for a length of arrays."""
    return (12, 21) if n > 5000 else (2, 9)


def conv(n: int) -> Iterator[Case]:
    """Convolves with strides, dilation and groups, with a group for each channel, and over contractions of 9 to 630 products."""
    count, side = _images(n)
    forms: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
        ("3 x 3", (count, 3, side, side), (17, 3, 3, 3), {"padding": 1}),
        ("strides, dilation, groups", (count, 6, side, side + 2), (9, 2, 3, 2),
         {"stride": (2, 3), "padding": (1, 2), "dilation": (1, 2), "groups": 3}),
        ("by channel", (count, 33, side, side), (33, 1, 3, 3), {"padding": 1, "groups": 33}),
        ("by channel, stride 2", (count, 8, side, side), (16, 1, 3, 3), {"padding": 1, "stride": 2, "groups": 8}),
        ("1 x 1", (count, 20, side, side), (40, 20, 1, 1), {}),
        ("70 channels", (3, 70, 7, 5), (20, 70, 3, 3), {"padding": 1}),
        ("the whole image", (count, 5, 6, 6), (7, 5, 6, 6), {}),
        ("1,080 products", (2, 120, 5, 5), (6, 120, 3, 3), {}),  # more than a slice of a contraction
        ("1,156 pixels", (4, 3, 17, 17), (5, 3, 3, 3), {"padding": 1}),  # likewise, of the gradient of the weight
    )
    for name, x, w, options in forms:
        for dtype in FLOATS if name in ("3 x 3", "strides, dilation, groups", "by channel", "1,080 products") else ("float32",):
            operands = floats(*x, dtype=dtype), floats(*w, seed=1, dtype=dtype), floats(w[0], seed=2, dtype=dtype)
            yield f"conv2d {dtype}, {name}", partial(with_gradients, partial(F.conv2d, **options), *operands)
    length = max(30, n // 40)
    for name, w, options in (("stride 2", (8, 4, 5), {"stride": 2}), ("dilation 3", (8, 2, 4), {"dilation": 3, "groups": 2})):
        operands = floats(count, 4, length), floats(*w, seed=1), floats(8, seed=2)
        yield f"conv1d, {name}", partial(with_gradients, partial(F.conv1d, **options), *operands)
    yield "conv2d, tangent", lambda: with_tangents(partial(F.conv2d, padding=1), floats(2, 3, 8, 8), floats(4, 3, 3, 3, seed=1))
    yield (
        "conv2d, second derivative",
        lambda: pb.hvp(
            lambda w: pb.sum(F.conv2d(floats(2, 3, 8, 8), w, padding=1) ** 3),
            floats(4, 3, 3, 3, seed=1),
            floats(4, 3, 3, 3, seed=2),
        ),
    )


def conv_transpose(n: int) -> Iterator[Case]:
    count, side = _images(n)
    for dtype in FLOATS:
        operands = (
            floats(count, 6, side, side, dtype=dtype),
            floats(6, 4, 3, 3, seed=1, dtype=dtype),
            floats(4, seed=2, dtype=dtype),
        )
        options = {"stride": 2, "padding": 1, "output_padding": 1}
        yield f"conv_transpose2d {dtype}", partial(with_gradients, partial(F.conv_transpose2d, **options), *operands)
    operands = floats(count, 6, side, side), floats(6, 2, 3, 2, seed=1), floats(4, seed=2)
    grouped = partial(F.conv_transpose2d, stride=(1, 2), groups=2, dilation=(2, 1))
    yield "conv_transpose2d, groups and dilation", partial(with_gradients, grouped, *operands)
    operands = floats(count, 4, max(20, n // 80)), floats(4, 5, 4, seed=1), floats(5, seed=2)
    yield "conv_transpose1d", partial(with_gradients, partial(F.conv_transpose1d, stride=3), *operands)


def pools(n: int) -> Iterator[Case]:
    count, side = _images(n)
    for dtype in FLOATS:
        x = floats(count, 3, side, side + 1, dtype=dtype)
        yield f"max_pool2d {dtype}", partial(with_gradients, partial(F.max_pool2d, kernel_size=3, stride=2, padding=1), x)
        yield f"avg_pool2d {dtype}", partial(with_gradients, partial(F.avg_pool2d, kernel_size=3, stride=2, padding=1), x)
        yield f"adaptive_avg_pool2d {dtype}", partial(with_gradients, partial(F.adaptive_avg_pool2d, output_size=(5, 4)), x)
    x = floats(count, 3, side, side)
    yield "max_pool2d, positions", lambda: list(F.max_pool2d(x, 3, dilation=2, ceil_mode=True, return_indices=True))
    yield (
        "avg_pool2d, without the padding",
        partial(with_gradients, partial(F.avg_pool2d, kernel_size=(2, 3), padding=1, count_include_pad=False, ceil_mode=True), x),
    )
    row = floats(count, 4, max(30, n // 40))
    yield "max_pool1d", partial(with_gradients, partial(F.max_pool1d, kernel_size=4, stride=3), row)
    yield "avg_pool1d", partial(with_gradients, partial(F.avg_pool1d, kernel_size=3), row)
    yield "max_pool2d, tangent", lambda: with_tangents(partial(F.max_pool2d, kernel_size=2), x)
    yield "max_pool2d of equal elements", lambda: with_gradients(partial(F.max_pool2d, kernel_size=2), pb.zeros((2, 2, 8, 8)))


def channel_norms(n: int) -> Iterator[Case]:
    """Norms of channels in training, with the running values that batch norm and instance norm write."""
    count, side = _images(n)
    for dtype in FLOATS:
        x, w, b = floats(count, 6, side, side, dtype=dtype), floats(6, seed=1, dtype=dtype), floats(6, seed=2, dtype=dtype)
        batch = partial(F.batch_norm, training=True)
        yield f"batch_norm {dtype}", partial(with_gradients, lambda x, w, b, f=batch: f(x, None, None, w, b), x, w, b)
        yield f"group_norm {dtype}", partial(with_gradients, lambda x, w, b: F.group_norm(x, 3, w, b), x, w, b)
        yield f"instance_norm {dtype}", partial(with_gradients, lambda x, w, b: F.instance_norm(x, weight=w, bias=b), x, w, b)
        yield f"running values {dtype}", partial(_running, dtype, count, side, 0.1)
    yield "running values, means of all batches", partial(_running, "float32", count, side, None)
    yield "batch norm of rows", lambda: _trained_norm(nn.BatchNorm1d(7), floats(max(8, n // 70), 7))
    yield (
        "instance norm with running values",
        lambda: _trained_norm(nn.InstanceNorm2d(3, affine=True, track_running_stats=True), floats(count, 3, side, side)),
    )
    for dtype in FLOATS:  # 18,000 numbers, which are not held in registers
        long = floats(2, 2, 9000, dtype=dtype), floats(2, seed=1, dtype=dtype), floats(2, seed=2, dtype=dtype)
        yield f"long rows {dtype}", partial(with_gradients, lambda x, w, b: F.group_norm(x, 1, w, b), *long)
    yield "batch norm, tangent", lambda: with_tangents(lambda x: F.batch_norm(x, None, None, training=True), floats(4, 3, 5, 5))


def _running(dtype: str, count: int, side: int, momentum: float | None) -> list[Any]:
    return _trained_norm(nn.BatchNorm2d(6, momentum=momentum, dtype=dtype), floats(count, 6, side, side, dtype=dtype))


def _trained_norm(norm: Any, x: Any) -> list[Any]:
    """Returns the norm's results and gradients on two batches, its running values, and its result in evaluation."""
    given(norm)
    out = [*with_gradients(norm, x), *with_gradients(norm, 2 * x + 1)]
    out += [pb.copy(value) for value in norm.state_dict().values()]
    return [*out, norm.eval()(x)]


def recurrent(n: int) -> Iterator[Case]:
    """Runs recurrent layers with their gradients: rows that share a product, hidden sizes of one block of terms and of several."""
    steps, rows = (40, 17) if n > 5000 else (6, 3)
    for kind in ("RNN", "GRU", "LSTM"):
        for dtype in FLOATS:
            yield f"{kind} {dtype}", partial(_recurrent, kind, dtype, steps, rows, 9, 20, {})
        yield (
            f"{kind}, two layers in both directions",
            partial(_recurrent, kind, "float32", 5, rows, 7, 12, {"num_layers": 2, "bidirectional": True}),
        )
        yield f"{kind}, 270 hidden units", partial(_recurrent, kind, "float32", 4, 5, 6, 270, {})
        yield f"{kind}, one row", partial(_recurrent, kind, "float32", steps, 1, 3, 33, {"bias": False})
    for dtype in FLOATS:
        yield f"RNN of relu {dtype}", partial(_recurrent, "RNN", dtype, 5, rows, 7, 12, {"nonlinearity": "relu"})


def _recurrent(kind: str, dtype: str, steps: int, rows: int, width: int, hidden: int, options: dict[str, Any]) -> list[Any]:
    """Returns a layer's results with the gradients by its input, its first states and its weights."""
    model = given(getattr(nn, kind)(width, hidden, dtype=dtype, **options), 0.8 / hidden**0.5)
    x, parameters = floats(steps, rows, width, dtype=dtype), list(model.parameters())
    layers = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    first = [floats(layers, rows, hidden, seed=30 + i, dtype=dtype) for i in range(1 + (kind == "LSTM"))]
    with pb.GradientTape() as tape:
        tape.watch([x, *first])
        y, states = model(x, tuple(first) if kind == "LSTM" else first[0])
        states = list(states) if isinstance(states, tuple) else [states]
        loss = sum([pb.sum(s * floats(*s.shape, seed=9, dtype=dtype)) for s in (y, *states)])
    return [y, *states, *tape.gradient(loss, [x, *first, *parameters])]


def linear_recurrence(n: int) -> Iterator[Case]:
    for dtype in FLOATS:
        for shape, axis in (((50, n // 50 + 1), 0), ((n // 50 + 1, 50), 1), ((3, 40, 5), 1), ((2, max(100, n // 4)), 1)):
            for reverse in (False, True):
                a, b = 0.5 * floats(*shape, dtype=dtype), floats(*shape, seed=1, dtype=dtype)
                run = partial(pb.linear_recurrence, axis=axis, reverse=reverse)
                yield f"{dtype} {shape}, axis {axis}, reverse {reverse}", partial(with_gradients, run, a, b)
    yield (
        "a first state",
        lambda: with_gradients(
            lambda a, b, y: pb.linear_recurrence(a, b, initial=y), 0.5 * floats(20, 9), floats(20, 9, seed=1), floats(9, seed=2)
        ),
    )
    yield "MinGRU", partial(linear_layer, "MinGRU", 30, 4, 6, 10)


def linear_layer(kind: str, steps: int, rows: int, width: int, hidden: int) -> list[Any]:
    pb.random.seed(4)
    model = getattr(nn, kind)(width, hidden)
    x = floats(steps, rows, width)
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = model(x)
        y = y[0] if isinstance(y, tuple) else y
        loss = pb.sum(y * floats(*y.shape, seed=9))
    return [y, *tape.gradient(loss, [x, *model.parameters()])]


def attention(n: int) -> Iterator[Case]:
    """Runs attention with gradients and tangents: causal, with masks, with heads that share keys, and with the most keys."""
    rows = 65 if n > 5000 else 17
    # name, heads, groups of keys, queries, keys, width, width of values, options
    forms: tuple[tuple[str, int, int, int, int, int, int, dict[str, Any]], ...] = (
        ("plain", 2, 2, rows, rows + 3, 16, 16, {}),
        ("causal", 2, 2, rows, rows, 16, 8, {"is_causal": True}),
        ("shared keys", 4, 2, rows, rows, 5, 9, {"is_causal": True, "enable_gqa": True}),
        ("1,024 keys", 1, 1, 33, 1024, 8, 8, {}),
        ("1,024 keys, causal, shared", 2, 1, 1024 if n > SHORTEST else 40, 1024, 8, 8, {"is_causal": True, "enable_gqa": True}),
        ("widths of 128", 2, 1, 33, 70, 128, 128, {"enable_gqa": True}),
        ("one key", 1, 1, 5, 1, 1, 1, {}),
        ("280 queries of a key", 2, 1, 140, 20, 8, 8, {"enable_gqa": True}),  # more than a block of the sum over queries
    )
    for name, heads, groups, queries, keys, width, out, options in forms:
        for dtype in FLOATS if name in ("causal", "shared keys", "1,024 keys", "280 queries of a key") else ("float32",):
            shapes = (2, heads, queries, width), (2, groups, keys, width), (2, groups, keys, out)
            operands = [floats(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes)]
            f = partial(F.scaled_dot_product_attention, **options)
            yield f"{dtype}, {name}", partial(with_gradients, f, *operands)
            yield f"{dtype}, {name}, tangent", partial(with_tangents, f, *operands)
    yield from _masked(rows)
    yield "a layer with rotary positions", lambda: _attention_layer(nn.MultiHeadAttention(32, 4, 2, causal=True, rotary=True))
    yield "a layer with norms of queries", lambda: _attention_layer(nn.MultiHeadAttention(32, 4, qk_norm=True))


def _masked(rows: int) -> Iterator[Case]:
    q, k, v = (floats(2, 4, rows, 16, seed=i) for i in range(3))
    seen = integers(4, rows, rows, seed=5) > 0
    added = floats(2, 1, rows, rows, seed=6)
    hidden = pb.where(seen, added[:1], -math.inf)  # some queries see no key
    for name, mask in (("bools", seen), ("numbers", added), ("minus infinity", hidden)):
        f = partial(F.scaled_dot_product_attention, attn_mask=mask)
        yield f"a mask of {name}", partial(with_gradients, f, q, k, v)
        yield f"a mask of {name}, tangent", partial(with_tangents, f, q, k, v)
    nothing = partial(F.scaled_dot_product_attention, attn_mask=pb.arange(rows)[:, None] > 2 + 0 * pb.arange(rows))
    yield "queries without keys", partial(with_gradients, nothing, q, k, v)
    yield "the gradient of a mask", lambda: with_gradients(lambda m: F.scaled_dot_product_attention(q, k, v, m), added)


def _attention_layer(model: Any) -> list[Any]:
    model, x = given(model, 0.2), floats(2, 9, 32)
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = model(x)
        loss = pb.sum(y * floats(*y.shape, seed=9))
    return [y, *tape.gradient(loss, [x, *model.parameters()])]
