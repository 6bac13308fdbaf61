"""Products too large for the closest caches: their blocks, panels and slices, and equal bits for any number of threads.

BLAS computes products of which one factor is a vector or has few rows.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from test_small_networks import amid_nan, check_product, compose

import pullback as pb
from conftest import environment, host
from pullback.nn.functional import linear

pytestmark = pytest.mark.usefixtures("on_cpu", "native")
# (m, k, n) around the sizes of what is packed at a time: 64 or 128 rows, 32 columns, 1024 of k, 2048 columns; half of k in
# float64.
SHAPES = (
    (513, 512, 513), (512, 513, 512), (511, 784, 1009), (128, 1025, 640), (129, 1500, 384), (200, 400, 2048), (191, 390, 2065),
    (700, 384, 800), (577, 2048, 144), (128, 4100, 128), (135, 1024, 497), (128, 400, 4200), (1999, 385, 131), (600, 383, 300),
)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("left", "right"), list(itertools.product([False, True], repeat=2)))
def test_large_products_around_the_edges_of_blocks(dtype: str, left: bool, right: bool) -> None:
    rng = np.random.default_rng(0)
    for m, k, n in SHAPES:
        a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
        check_product(pb.asarray(amid_nan(a, left)) @ pb.asarray(amid_nan(b, right)), a, b, dtype)


def test_large_products_of_strided_and_half_precision_operands() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((1030, 1200)).astype("float32"), rng.standard_normal((2, 400, 1030)).astype("float32")
    check_product(pb.asarray(a)[::2, ::-3] @ pb.asarray(b)[1, :, ::2], a[::2, ::-3], b[1, :, ::2], "float32")
    x, w = a.astype("float16"), b[0].astype("float16")
    check_product(pb.asarray(x[:, :400]) @ pb.asarray(w), x[:, :400], w, "float16")


def test_infinities_and_nan_stay_in_their_rows_and_columns() -> None:
    a, b = np.ones((600, 515), "float32"), np.ones((515, 603), "float32")
    a[599, 514], b[0, 602] = np.nan, np.inf
    y = host(pb.asarray(a) @ pb.asarray(b))
    assert np.isnan(y[599]).all()
    assert np.isinf(y[:599, 602]).all()
    assert (y[:599, :602] == 515).all()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("activation", [None, "relu", "tanh", "sigmoid"])
def test_large_layers_and_their_gradients(activation: str | None, biased: bool) -> None:
    rng = np.random.default_rng(2)
    for m, k, n in ((513, 400, 500), (2100, 1100, 600)):
        arrays = [rng.standard_normal(shape) / 16 for shape in ((m, k), (n, k), (n,))][: 3 if biased else 2]
        g, results = rng.standard_normal((m, n)), []
        for to in ("float32", "float64"):
            x = [pb.asarray(array.astype("float32").astype(to)) for array in arrays]
            with pb.GradientTape() as tape:
                tape.watch(x)
                y = linear(*x, activation=activation) if to == "float32" else compose(activation, *x)
            results.append([y, *tape.gradient(y, x, output_gradients=pb.asarray(g.astype(to)))])
        for got, wanted in zip(*results, strict=True):
            got, wanted = host(got).astype(np.float64), host(wanted)
            # If rounding decides the sign of relu's input, the gradient may be there or be 0.
            assert np.linalg.norm(got - wanted) <= (1e-3 if activation == "relu" else 1e-5) * np.linalg.norm(wanted)


PROGRAM = """
import hashlib, numpy as np, pullback as pb
from pullback.nn.functional import linear
rng, digest = np.random.default_rng(0), hashlib.sha256()
for dtype in ("float32", "float64"):
    few = ((8, 2000, 700), (1, 3000, 900), (3000, 999, 1))
    for m, k, n in ((512, 784, 1024), (577, 1300, 500), (130, 600, 2300), (1300, 400, 450), *few):
        x, w, b = (pb.tensor(rng.standard_normal(shape).astype(dtype)) for shape in ((m, k), (n, k), (n,)))
        with pb.GradientTape() as tape:
            tape.watch([x, w, b])
            y = linear(x, w, b, activation="tanh")
        for result in (y, x @ w.T, *tape.gradient(y, [x, w], output_gradients=y)):
            digest.update(result.numpy().tobytes())
print(digest.hexdigest())
"""


def digest(threads: int) -> Any:
    command = [sys.executable, "-c", PROGRAM]
    variables = environment(PULLBACK_NUM_THREADS=str(threads), PULLBACK_DEVICE="cpu")
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout


def test_any_number_of_threads_gives_the_same_bits() -> None:
    assert len({digest(threads) for threads in (1, 2, 3, 16)}) == 1
