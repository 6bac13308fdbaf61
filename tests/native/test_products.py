"""Products on a GPU: every dtype and layout, shapes that leave tiles partly empty, and shapes for which a library is used."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import FLOATS, INTEGERS, ROOT, dtype_of, environment, host, simulated
from pullback.nn.functional import linear

SHAPES = (
    ((5, 7), (7, 3)), ((33, 129), (129, 65)), ((1, 200), (200, 1)), ((2, 3, 17, 9), (9, 20)), ((2, 1, 6, 8), (3, 8, 5)),
    ((40, 3, 4), (40, 4, 2)), ((3, 0), (0, 5)), ((0, 4), (4, 5)), ((17, 700), (700, 20)),
)
LAYOUTS = ("dense", "transposed", "strided", "reversed")
ROUNDING = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-15}


@pytest.fixture(autouse=True)
def on_cuda() -> Any:
    if not pb.cuda.is_available():
        pytest.skip(str(pb.cuda.why_not()))
    with pb.use_device("cuda"):
        yield


def draw(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if dtype in FLOATS:
        return rng.standard_normal(shape).astype(dtype_of(dtype))
    return rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype_of(dtype))


def laid(x: Any, layout: str) -> Any:
    """Returns the elements of x in a different memory layout."""
    if layout == "transposed":
        return pb.asarray(np.ascontiguousarray(np.swapaxes(x, -1, -2))).mT
    if layout == "strided":
        wide = np.zeros((*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1]), x.dtype)
        wide[..., ::2, ::3] = x
        return pb.asarray(wide)[..., ::2, ::3]
    if layout == "reversed":
        return pb.asarray(np.ascontiguousarray(x[..., ::-1, ::-1]))[..., ::-1, ::-1]
    return pb.asarray(x)


def check(got: Any, a: Any, b: Any, dtype: str) -> None:
    y = host(got)
    if dtype not in FLOATS:
        assert np.array_equal(y, np.matmul(a, b))
        return
    a, b = a.astype(np.float64), b.astype(np.float64)
    error, scale = np.abs(y.astype(np.float64) - a @ b), np.abs(a) @ np.abs(b)
    assert np.all(error <= ROUNDING[dtype] * scale)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
def test_every_layout(dtype: str) -> None:
    for (left, right), (p, q) in itertools.product(SHAPES, zip(LAYOUTS, LAYOUTS[1:] + LAYOUTS[:1])):
        a, b = draw(left, dtype, 1), draw(right, dtype, 2)
        check(laid(a, p) @ laid(b, q), a, b, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_sizes_for_every_tile(dtype: str) -> None:
    for m, k, n in ((64, 784, 128), (300, 40, 310), (1400, 12, 1300), (20, 5000, 30)):
        a, b = draw((m, k), dtype, 3), draw((k, n), dtype, 4)
        check(pb.asarray(a) @ pb.asarray(b), a, b, dtype)
        check(laid(a, "transposed") @ laid(b, "transposed"), a, b, dtype)


@pytest.mark.parametrize("activation", [None, "relu", "tanh", "sigmoid"])
def test_the_gradients_of_a_layer(activation: str | None) -> None:
    for rows, inputs, outputs in ((64, 784, 128), (700, 20, 33), (1, 5, 3)):
        drawn = [draw(shape, "float64", 5) / 8 for shape in ((rows, inputs), (outputs, inputs), (outputs,))]
        found = []
        for dtype in (np.float64, np.float32):
            x, w, b = (pb.asarray(v.astype(dtype)) for v in drawn)
            with pb.GradientTape() as tape:
                for t in (x, w, b):
                    tape.watch(t)
                y = linear(x, w, b, activation=activation)
                loss = (y * y).sum()
            found.append([host(g) for g in tape.gradient(loss, [x, w, b])])
        for have, want in zip(found[1], found[0]):
            assert np.linalg.norm(have - want) <= 1e-5 * np.linalg.norm(want)


@pytest.mark.skipif(not simulated(), reason="on a real GPU the library is real, too")
def test_what_is_asked_of_a_library() -> None:
    script = ROOT / "tests" / "library_stand_in.py"
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment(CUDASIM_SEED="0"), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert os.path.basename(script) in done.stdout
