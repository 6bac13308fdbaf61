"""Elementwise functions, reductions, rows, products and copies."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import pullback as pb
from pullback import nn
from pullback.autodiff.primitive import OPS
from pullback.nn import functional as F

from .values import FLOATS, SHORTEST, Case, between, floats, integers, with_gradients

DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", *FLOATS)


def elementwise(n: int) -> Iterator[Case]:
    yield "x, y", lambda: with_gradients(lambda x, y: pb.tanh(x) * y + pb.exp(-x * x), floats(n), floats(n, seed=1))
    across = floats(7, n // 7), floats(n // 7, seed=1)
    yield "a row and a matrix", lambda: with_gradients(lambda x, y: F.gelu(x) / (1 + y * y), *across)
    yield "a column and a matrix", lambda: with_gradients(lambda x, y: x * y, floats(n // 7, 7), floats(n // 7, 1, seed=1))
    yield "where", lambda: pb.where(floats(n) > 0, floats(n, seed=1), 0.0)
    yield "a transposed operand", lambda: with_gradients(lambda x: pb.exp(x.T) + 1, floats(n // 20 + 1, 20))
    for name in ("hardswish", "mish", "selu", "softshrink", "glu"):
        yield name, partial(with_gradients, getattr(F, name), floats(n // 6 + 1, 6))


def elementwise_ops(n: int) -> Iterator[Case]:
    """Calls every elementwise op that is registered, with the gradients of its operands."""
    for op in list(OPS.values()):
        if op.native and op.kind.name in ("unary", "binary", "compare", "select"):
            for dtype in _dtypes_of(op):
                yield f"{op.name} {dtype}", partial(_registered, op, dtype, min(n, 3000))


def _dtypes_of(op: Any) -> tuple[str, ...]:
    if op.takes == "float" or op.name in ("isfinite", "isinf", "isnan"):  # integers have no kernel for these three
        return FLOATS
    if op.takes == "integer":
        return ("int32", "uint64")
    bools = op.takes == "bits" or op.name.startswith(("equal", "greater", "less", "logical", "not_equal", "where"))
    return (*(() if op.takes == "bits" else FLOATS), "int32", "uint64", *(("bool",) if bools else ()))


def _registered(op: Any, dtype: str, n: int) -> list[Any]:
    """Runs an elementwise op on operands of one shape, on transposed ones, and on a matrix with a row.

    The cotangent of the transposed ones is transposed too.
    """
    low, high = op.facts.domain
    select = op.kind.name == "select"

    def operand(i: int, *shape: int) -> Any:
        if dtype == "bool" or (select and i == 0):
            return floats(*shape, seed=i) > 0
        if "float" in dtype:
            return between(low, high, *shape, seed=i, dtype=dtype)
        return integers(int(high) - max(int(np.ceil(low)), 0) + 1, *shape, seed=i, dtype=dtype)

    count = op.inputs if hasattr(op, "inputs") else len(op.names) - op.params
    out: list[Any] = []
    forms = [[operand(i, n) for i in range(count)], [operand(i, 5, n // 5 + 1).T for i in range(count)]]
    if count > 1:
        forms.append([*[operand(i, n // 5 + 1, 5) for i in range(count - 1)], operand(count - 1, 5)])
    for i, xs in enumerate(forms):
        run = (lambda *xs: op.issue(op, xs, ()).T) if i == 1 else (lambda *xs: op.issue(op, xs, ()))
        free = [x for i, x in enumerate(xs) if "float" in dtype and not (select and i == 0)]
        y = run(*xs)
        if op.pullback is None or not free or "float" not in str(y.dtype):
            out.append(y)
            continue
        fixed = xs[: len(xs) - len(free)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pb.ZeroGradientWarning)  # the gradients of sign, floor and the like are zero
            out += with_gradients(partial(run, *fixed), *free)
    return out


def reductions(n: int) -> Iterator[Case]:
    def shapes(name: str, dtype: str) -> list[Any]:
        x = floats(n // 50 + 1, 50)
        x = x > 0 if dtype == "bool" else pb.abs(x * 9).astype(dtype) if "int" in dtype else x.astype(dtype)
        x = 1 + x / 1000 if name == "prod" and "float" in dtype else x
        return [getattr(pb, name)(x, axis=axis) for axis in (0, 1, None)]

    yield "sum and max", lambda: with_gradients(lambda x: pb.sum(x, axis=0) * pb.max(x, axis=0), floats(n // 50 + 1, 50))
    for name in ("sum", "mean", "min", "max", "var", "prod"):
        yield f"{name} with gradients", partial(with_gradients, partial(getattr(pb, name), axis=1), 1 + 0.1 * floats(9, n // 9))
    for name in ("mean", "min", "max", "var", "argmax", "argmin", "prod", "sum", "all", "any"):
        for dtype in (*FLOATS, "int32", "uint64", "bool"):
            if not (name in ("mean", "var") and dtype in ("int32", "uint64", "bool")):
                yield f"{name} {dtype}", partial(shapes, name, dtype)
    yield "one long row", lambda: [pb.sum(floats(20 * n)), pb.max(floats(20 * n)), pb.argmax(floats(20 * n))]
    yield "many columns", lambda: [f(1 + floats(40, n) / 99, axis=0) for f in (pb.sum, pb.min, pb.prod, pb.argmin)]
    yield "a middle axis", lambda: [pb.sum(floats(7, n // 70 + 1, 10), axis=1), pb.mean(floats(7, n // 70 + 1, 10), axis=(0, 2))]


def rows(n: int) -> Iterator[Case]:
    longest = 9000 if n > SHORTEST else 70  # 9,000 elements are not held in registers
    for dtype, columns in (*itertools.product(FLOATS, (64, longest)), ("float32", 3), ("float32", 1000)):
        x = floats(max(2, n // columns), columns, dtype=dtype)
        w, b = (floats(columns, seed=i, dtype=dtype) for i in (1, 2))
        yield f"softmax {dtype} {columns}", partial(with_gradients, partial(F.softmax, axis=-1), x)
        yield f"log_softmax {dtype} {columns}", partial(with_gradients, partial(F.log_softmax, axis=-1), x)
        yield f"logsumexp {dtype} {columns}", partial(with_gradients, partial(pb.logsumexp, axis=-1), x)
        yield f"layer_norm {dtype} {columns}", partial(with_gradients, F.layer_norm, x, w, b)
        yield f"rms_norm {dtype} {columns}", partial(with_gradients, F.rms_norm, x, w)
        yield f"deviation {dtype} {columns}", partial(with_gradients, partial(pb.std, axis=-1), x)
        yield f"length {dtype} {columns}", partial(with_gradients, partial(pb.linalg.vector_norm, axis=-1), x)
    for dtype in FLOATS:
        many = floats(2100, 3, dtype=dtype), floats(3, seed=1, dtype=dtype), floats(3, seed=2, dtype=dtype)
        yield f"layer_norm of 2,100 rows {dtype}", partial(with_gradients, F.layer_norm, *many)
        yield f"rms_norm of 2,100 rows {dtype}", partial(with_gradients, F.rms_norm, *many[:2])
    yield "length of columns", partial(with_gradients, partial(pb.linalg.vector_norm, axis=0), floats(50, n // 50 + 1))
    yield "softmax of columns", partial(with_gradients, partial(F.softmax, axis=0), floats(50, n // 50 + 1))


def losses(n: int) -> Iterator[Case]:
    for dtype in FLOATS:
        for classes in (10, 700, 9000) if n > SHORTEST else (10, 70):
            x = floats(n // classes + 2, classes, dtype=dtype)
            labels = integers(classes, n // classes + 2)
            yield f"cross_entropy {dtype} {classes}", partial(with_gradients, partial(_cross_entropy, labels), x)
        x, target = floats(n // 9, 9, dtype=dtype), floats(n // 9, 9, seed=1, dtype=dtype)
        yield f"mse {dtype}", partial(with_gradients, nn.mse, x, target)
    labels = integers(10, n // 10 + 1)
    ignored = pb.where(labels == 3, -100, labels)
    for dtype in FLOATS:
        x = floats(1100, 10, dtype=dtype)  # more rows than one launch sums
        yield f"cross_entropy of 1,100 rows {dtype}", partial(with_gradients, partial(_cross_entropy, integers(10, 1100)), x)
    yield (
        "cross_entropy with ignored labels",
        partial(with_gradients, lambda x: nn.cross_entropy(x, ignored), floats(n // 10 + 1, 10)),
    )
    smooth = partial(nn.cross_entropy, label_smoothing=0.1)
    yield "cross_entropy with smooth labels", partial(with_gradients, lambda x: smooth(x, labels), floats(n // 10 + 1, 10))
    for name in ("huber", "l1", "bce_with_logits"):
        yield name, partial(with_gradients, getattr(nn, name), floats(n // 9, 9), between(0, 1, n // 9, 9, seed=1))


def _cross_entropy(labels: Any, x: Any) -> Any:
    return nn.cross_entropy(x, labels)


def products(n: int) -> Iterator[Case]:
    side = max(8, int(n**0.5))
    for dtype in ("float32", "float64"):
        a, b = floats(side, 70, dtype=dtype), floats(70, side + 3, seed=1, dtype=dtype)
        yield f"a @ b {dtype}", partial(with_gradients, pb.matmul, a, b)
        layer = floats(side, 33, dtype=dtype), floats(40, 33, seed=1, dtype=dtype), floats(40, seed=2, dtype=dtype)
        for activation in (None, "relu", "sigmoid", "tanh"):
            yield f"linear {dtype} {activation}", partial(with_gradients, partial(F.linear, activation=activation), *layer)
        yield (
            f"a batch {dtype}",
            partial(with_gradients, pb.matmul, floats(3, side, 20, dtype=dtype), floats(3, 20, 9, seed=1, dtype=dtype)),
        )
        yield (
            f"few rows {dtype}",
            partial(with_gradients, pb.matmul, floats(1, 300, dtype=dtype), floats(300, 2, seed=1, dtype=dtype)),
        )
        yield f"transposed {dtype}", partial(with_gradients, lambda a, b: a.T @ b.T, floats(70, side, dtype=dtype), b.T)
    yield (
        "integers",
        lambda: [integers(9, rows, 30, dtype="int32") @ integers(9, 30, rows, seed=1, dtype="int32") for rows in (side, 300)],
    )
    for dtype in ("float32", "float64", "float16", "int32", "uint64"):
        yield f"tiny {dtype}", partial(_tiny, dtype)
    yield "many small ones", lambda: with_gradients(pb.matmul, floats(n // 16, 4, 4), floats(n // 16, 4, 4, seed=1))
    yield "a long contraction", lambda: with_gradients(pb.matmul, floats(5, n), floats(n, 6, seed=1))
    yield "tall and wide", lambda: with_gradients(pb.matmul, floats(n // 8, 16), floats(16, 130, seed=1))


def _tiny(dtype: str) -> list[Any]:
    """Multiplies matrices of few elements, also with the three ways in which a factor may lie in memory."""
    a, b = pb.abs(9 * floats(3, 5)).astype(dtype), pb.abs(9 * floats(5, 2, seed=1)).astype(dtype)
    of_batch = [pb.abs(9 * floats(2000, 4, 3, seed=i)).astype(dtype) for i in range(2)]
    return [a @ b, b.T @ a.T, pb.stack([a, a]) @ b, a[0] @ b, a @ b[:, 0], of_batch[0] @ pb.matrix_transpose(of_batch[1])]


def large_products(n: int) -> Iterator[Case]:
    """Multiplies in the largest tiles, and products that are left to cuBLASLt if it is installed."""
    side = 2048 if n > SHORTEST else 80

    def product(precision: str | None, dtype: str, depth: int, side: int) -> list[Any]:
        a, b = floats(depth, side, dtype=dtype).T, floats(depth, side, seed=1, dtype=dtype)
        with pb.amp.autocast(precision) if precision else contextlib.nullcontext():
            return [a @ b]

    def layer(
        precision: str | None, dtype: str, rows: int, depth: int, columns: int, activation: str | None = "tanh"
    ) -> list[Any]:
        x, w, b = floats(rows, depth, dtype=dtype), floats(columns, depth, seed=1, dtype=dtype), floats(columns, dtype=dtype)
        with pb.amp.autocast(precision) if precision else contextlib.nullcontext():
            f = partial(F.linear, activation=activation)
            # a number near 0 that is rounded to the other sign changes the gradients of relu, but hardly its value
            return [f(x, w / depth**0.5, b)] if activation == "relu" else with_gradients(f, x, w / depth**0.5, b)

    # fewer multiplications than those from which on cuBLASLt is used: 2^27, 2^25 in tf32, and 2^24 in half precision
    for name, precision, dtype, depth in (
        ("float32", None, "float32", 9), ("tf32", "tf32", "float32", 8), ("rounded to bfloat16", "bfloat16", "float32", 3),
        ("rounded to float16", "float16", "float32", 3), ("bfloat16", None, "bfloat16", 3), ("float16", None, "float16", 3),
    ):
        yield f"{name}, {side} x {depth} x {side}", partial(product, precision, dtype, depth, side)
        yield f"{name}, {side // 2} x 8 x {side // 2}", partial(product, precision, dtype, 8, side // 2)
        for rows, inner in ((side // 2, 8), (304, 96), (96, 96)) if n > SHORTEST else ((48, 96),):
            for activation in ("relu", "tanh", None):
                words = f"linear {name}, {rows} x {inner} x {rows}, {activation}"
                yield words, partial(layer, precision, dtype, rows, inner, rows, activation)
    library = (("float64", 130, 260, 130), ("bfloat16", 270, 260, 270), ("float16", 270, 260, 270))
    for dtype, rows, depth, columns in library:
        yield f"linear {dtype}, {rows} x {depth} x {columns}", partial(layer, None, dtype, rows, depth, columns)
    if n > SHORTEST:
        yield "linear tf32, 16 x 1024 x 2048", partial(layer, "tf32", "float32", 16, 1024, 2048)
        yield "linear float32, 520 x 530 x 540", partial(layer, None, "float32", 520, 530, 540)
        yield "linear tf32, 520 x 530 x 540", partial(layer, "tf32", "float32", 520, 530, 540)


def rounded_products(n: int) -> Iterator[Case]:
    """Multiplies on tensor cores: tf32 has 10 bits of mantissa on a GPU and 23 elsewhere; the comparison allows for it."""
    side = max(16, int(n**0.5))

    def product(precision: str, depth: int) -> list[Any]:
        with pb.amp.autocast(precision):
            return with_gradients(pb.matmul, floats(side, depth), floats(depth, side, seed=1))

    def layer(precision: str) -> list[Any]:
        with pb.amp.autocast(precision):
            f = partial(F.linear, activation="relu")
            return with_gradients(f, floats(side, 48), floats(40, 48, seed=1), floats(40, seed=2))

    for precision in ("tf32", "bfloat16", "float16"):
        yield precision, partial(product, precision, 64)
        yield f"{precision}, a depth of 33", partial(product, precision, 33)
        yield f"linear {precision}", partial(layer, precision)
    for dtype in ("bfloat16", "float16"):
        yield (
            f"weights of {dtype}",
            partial(with_gradients, pb.matmul, floats(side, 64, dtype=dtype), floats(64, side, seed=1, dtype=dtype)),
        )
        weights = floats(side, 40, dtype=dtype), floats(24, 40, seed=1, dtype=dtype), floats(24, seed=2, dtype=dtype)
        yield f"a layer of {dtype}", partial(with_gradients, F.linear, *weights)


def _strided_casts(source: str, n: int) -> list[Any]:
    x = pb.abs(9 * floats(n // 20 + 1, 20)).astype(source).T
    return [x.astype(dtype) for dtype in ("float16", "float64", "int32", "uint64", "bool")]


def _odd_copies(dtype: str, n: int) -> list[Any]:
    """Copies and fills parts that do not begin at a multiple of 16 bytes: short ones, long ones, and every second element."""
    out = []
    for length in (37, 9000, 300_001) if n > SHORTEST else (37, 1000):
        x = pb.Parameter(pb.abs(9 * floats(length)).astype(dtype)) if "float" in dtype else pb.abs(9 * floats(length)).astype(dtype)
        odd = x[1:]
        out += [pb.copy(odd), pb.full((length,), 3, dtype=dtype), x.at[1:].set(2), x.at[::2].set(2), pb.zeros(length, dtype=dtype)]
    a = pb.abs(9 * floats(33, 35)).astype(dtype)
    return [*out, pb.copy(a.T), pb.concat([a[:, :3], a], axis=1), pb.copy(a.T[1:])]


def layouts(n: int) -> Iterator[Case]:
    def moved(dtype: str) -> list[Any]:
        x = (floats(n // 20 + 1, 20) * 9).astype(dtype)
        return [
            pb.copy(pb.permute_dims(x, (1, 0))), pb.concat([x, x], axis=1), pb.concat([x, x], axis=0), pb.copy(pb.flip(x, axis=0)),
            pb.copy(pb.broadcast_to(x[:1], (5, 20))), pb.stack([x, x]), pb.pad(x, ((1, 2), (0, 3))), pb.full_like(x, 3),
            pb.copy(pb.permute_dims(pb.reshape(x[:4], (4, 4, 5)), (0, 2, 1))), pb.roll(x, 3, axis=0), pb.repeat(x, 2, axis=1),
        ]

    for dtype in DTYPES:
        yield f"moved {dtype}", partial(moved, dtype)
    for source, target in itertools.product(DTYPES, DTYPES):
        yield f"{source} to {target}", partial(lambda a, b: between(0, 9, 77).astype(a).astype(b), source, target)
    for source in ("float32", "float64", "int64", "uint64", "bool"):
        yield f"strided casts of {source}", partial(_strided_casts, source, n)
    for dtype in ("uint8", "float16", "float32", "float64"):
        yield f"copies of {dtype} that begin anywhere", partial(_odd_copies, dtype, n)
    yield "triangles", lambda: [pb.tril(floats(33, 33)), pb.triu(floats(33, 33)), pb.eye(7)]
    yield "an assigned part", lambda: floats(n).at[3 : n // 2].set(7.0)
    yield "windows", lambda: with_gradients(lambda x: pb.sum(pb.unfold(x, 0, 5), axis=1), floats(n))
