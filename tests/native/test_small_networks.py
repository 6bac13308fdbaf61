"""Kernels of small networks: products without BLAS, short rows side by side in lanes, and the memory that must not change."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import FLOATS, dtype_of, environment, host, normal
from pullback import nn
from pullback.nn.functional import linear

pytestmark = pytest.mark.usefixtures("on_cpu", "native")
ROUNDING = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 6e-8, "float64": 1.2e-16}
LARGER = ((100, 2, 16), (100, 16, 16), (100, 16, 2), (64, 128, 10), (10, 64, 128), (33, 70, 65), (2, 300, 40), (129, 40, 2))


def amid_nan(x: Any, transposed: bool) -> Any:
    """Returns x as a part of a larger array of NaN, so that a read outside x shows in the result."""
    rows, columns = x.shape[::-1] if transposed else x.shape
    wide = np.full((rows + 1, columns + 3), np.nan, x.dtype)
    inner = wide[:rows, 1 : columns + 1]
    inner[...] = x.T if transposed else x
    return inner.T if transposed else inner


def check_product(got: Any, a: Any, b: Any, dtype: str) -> None:
    a, b = a.astype(np.float64), b.astype(np.float64)
    bound = ROUNDING[dtype] * (np.abs(a) @ np.abs(b)) * (2 + (a.shape[-1] if dtype != "float32" else a.shape[-1] / 4))
    assert (np.abs(host(got).astype(np.float64) - a @ b) <= bound).all(), (a.shape, b.shape)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("left", "right"), list(itertools.product([False, True], repeat=2)))
def test_small_products_of_every_shape_and_layout(dtype: str, left: bool, right: bool) -> None:
    rng = np.random.default_rng(0)
    for m, k, n in (*itertools.product(range(1, 21), repeat=3), *LARGER):
        a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
        check_product(pb.asarray(amid_nan(a, left)) @ pb.asarray(amid_nan(b, right)), a, b, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_small_products_of_every_dtype_and_stride(dtype: str) -> None:
    for m, k, n in ((5, 3, 7), (17, 16, 2), (3, 20, 33), *LARGER[:3]):
        a, b = normal(2 * m, 3 * k).astype(dtype_of(dtype)), normal(3, k, 2 * n).astype(dtype_of(dtype))
        check_product(pb.asarray(a)[::2, ::-3] @ pb.asarray(b)[1, :, ::2], a[::2, ::-3], b[1, :, ::2], dtype)


def test_infinities_and_nan_stay_in_their_rows() -> None:
    a, b = normal(20, 5).astype("float32"), normal(5, 3).astype("float32")
    a[3, 2], a[7, 1] = np.nan, np.inf
    y = host(pb.asarray(a) @ pb.asarray(b))
    assert np.isnan(y[3]).all()
    assert np.isinf(y[7]).all()
    assert np.isfinite(np.delete(y, [3, 7], axis=0)).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("activation", [None, "relu", "tanh", "sigmoid"])
def test_small_layers_and_their_gradients(dtype: str, activation: str | None) -> None:
    for (m, k, n), biased in itertools.product((*LARGER, (1, 1, 1), (3, 5, 4), (70, 3, 1)), (False, True)):
        arrays = [normal(m, k), normal(n, k), normal(n)][: 3 if biased else 2]
        g = normal(m, n).astype(dtype_of(dtype))
        results = []
        for to in (dtype, "float64"):
            x = [pb.asarray(array.astype(dtype_of(dtype)).astype(dtype_of(to))) for array in arrays]
            with pb.GradientTape() as tape:
                tape.watch(x)
                y = linear(*x, activation=activation) if to == dtype else compose(activation, *x)
            results.append([y, *tape.gradient(y, x, output_gradients=pb.asarray(g.astype(dtype_of(to))))])
        for got, wanted in zip(*results, strict=True):
            scale = np.abs(host(wanted)).max() + 1
            np.testing.assert_allclose(host(got).astype(np.float64), host(wanted), atol=(40 + k) * ROUNDING[dtype] * scale, rtol=0)


def compose(activation: str | None, x: Any, w: Any, *bias: Any) -> Any:
    y = x @ w.T
    for b in bias:
        y = y + b
    return {None: lambda z: z, "relu": pb.relu, "tanh": pb.tanh, "sigmoid": pb.sigmoid}[activation](y)


# ---- short rows


def wild_rows(rows: int, classes: int, dtype: str) -> Any:
    x = (10 * normal(rows, classes)).astype(dtype_of(dtype))
    for row, value in enumerate((np.nan, np.inf, -np.inf)):
        x[row * 2 % rows, row % classes] = value
    x[5 % rows] = -np.inf
    return x


def of_rows(x: Any, labels: Any, smoothing: float) -> list[Any]:
    """Returns the results of all row ops on x, with their gradients."""
    results = []
    loss = lambda t: nn.cross_entropy(t, labels, label_smoothing=smoothing, reduction="none", ignore_index=-7)
    losses = [loss] if x.shape[-1] > 1 else []  # one class is refused
    for f in (pb.softmax, pb.log_softmax, lambda t: pb.logsumexp(t, axis=-1, keepdims=True), *losses):
        t = pb.asarray(x)
        with pb.GradientTape() as tape:
            tape.watch(t)
            y = f(t)
            total = pb.sum(y * pb.asarray(np.cos(np.arange(y.shape[-1] if y.ndim > 1 else 1)).astype(x.dtype)))
        results += [host(y), host(tape.gradient(total, t))]
    for f in losses:  # one kernel computes the loss and its gradient
        with pb.GradientTape() as tape:
            t = pb.asarray(x)
            tape.watch(t)
            y = pb.sum(f(t))
        results.append(host(tape.gradient(y, t)))
    return results


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_rows_side_by_side_have_the_bits_of_a_row_alone(dtype: str, smoothing: float) -> None:
    for rows, classes in itertools.product((3, 8, 21, 40), (1, 2, 3, 7, 10, 16, 17, 32, 33)):
        x = wild_rows(rows, classes, dtype)
        labels = np.random.default_rng(rows).integers(0, classes, rows)
        labels[::5] = -7
        together = of_rows(x, labels, smoothing)
        alone = [of_rows(x[k : k + 1], labels[k : k + 1], smoothing) for k in range(rows)]
        for got, *wanted in zip(together, *alone, strict=True):
            joined = np.concatenate(wanted)
            np.testing.assert_array_equal(got.astype(np.float64), joined.astype(np.float64), err_msg=f"{rows, classes}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cross_entropy_of_few_classes_is_that_of_float64(dtype: str) -> None:
    for rows, classes in itertools.product((5, 100), (2, 3, 10)):
        x, labels = 5 * normal(rows, classes), np.random.default_rng(1).integers(0, classes, rows)
        t = pb.asarray(np.repeat(x.astype(dtype), 2, axis=1))[:, ::2]
        with pb.GradientTape() as tape:
            tape.watch(t)
            loss = nn.cross_entropy(t, labels, reduction="none")
        x = x.astype(dtype).astype(np.float64)
        top = x.max(axis=1, keepdims=True)
        p = np.exp(x - top) / np.exp(x - top).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(host(loss), -np.log(p[np.arange(rows), labels]), rtol=0, atol=200 * ROUNDING[dtype])
        np.testing.assert_allclose(
            host(tape.gradient(loss, t, output_gradients=pb.ones(rows, dtype=dtype))),
            p - np.eye(classes)[labels],
            rtol=0,
            atol=40 * ROUNDING[dtype],
        )


@pytest.mark.parametrize("wrong", [2, -1, 2**40])
def test_the_first_label_out_of_range_is_named(wrong: int) -> None:
    labels = np.zeros(100, np.int64)
    labels[41], labels[60] = wrong, 99
    with pytest.raises(IndexError, match=str(wrong)):
        nn.cross_entropy(pb.asarray(normal(100, 2)), labels)


PROGRAM = """
import hashlib, numpy as np, pullback as pb
from pullback import nn
from pullback.nn.functional import linear
rng, digest = np.random.default_rng(0), hashlib.sha256()
for dtype in ("float32", "float64"):
    for m, k, n in ((100, 2, 16), (100, 16, 16), (100, 16, 2), (64, 128, 10), (64, 128, 128), (5000, 3, 2)):
        x, w, b = (pb.tensor(rng.standard_normal(shape).astype(dtype)) for shape in ((m, k), (n, k), (n,)))
        with pb.GradientTape() as tape:
            tape.watch([x, w])
            y = linear(x, w, b, activation="relu")
            loss = nn.cross_entropy(y, rng.integers(0, n, m), reduction="sum") + pb.sum(pb.softmax(y) ** 2) + pb.sum(x @ w.T)
        for result in (y, *tape.gradient(loss, [x, w])):
            digest.update(result.numpy().tobytes())
print(digest.hexdigest())
"""


def test_one_thread_and_two_give_the_same_bits() -> None:
    digests = set()
    for threads in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment(PULLBACK_NUM_THREADS=threads),
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1
