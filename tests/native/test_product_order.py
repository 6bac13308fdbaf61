"""Products of floats in the mode "everywhere": on every device, sums are combined in the order of csrc/families/order.h."""

from __future__ import annotations

import ctypes
import ctypes.util
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import FLOATS, dtype_of, host
from pullback.backends import native
from pullback.nn.functional import linear
from summation_order import by_neighbours, fma, product

pytestmark = pytest.mark.skipif(pb.config.why_not() is not None, reason=str(pb.config.why_not()))

# Lengths of a contraction around the borders of blocks, of the pieces of a tile's steps, and of slices of four blocks.
DEPTHS = (0, 1, 2, 64, 255, 256, 257, 511, 512, 513, 784, 1024, 1025, 2049, 5000)
SIDES = ((1, 1), (2, 3), (3, 65), (10, 16), (16, 130), (17, 10), (33, 33), (64, 64), (65, 1), (130, 17))
ACTIVATIONS = (None, "relu", "tanh", "sigmoid")


@pytest.fixture(autouse=True, params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Any:
    if request.param == "cuda" and not pb.cuda.is_available():
        pytest.skip(f"no device cuda: {pb.cuda.why_not()}")
    before = pb.config.reproducible
    pb.config.reproducible = "everywhere"
    with pb.use_device(request.param):
        yield request.param
    pb.config.reproducible = before


def draw(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype_of(dtype))


def layer(rows: int, k: int, n: int, dtype: str) -> list[Any]:
    """Returns an input x, a weight, a bias, and a cotangent of the output."""
    return [draw(shape, dtype, seed) for seed, shape in enumerate(((rows, k), (n, k), (n,), (rows, n)), 13)]


def wide(x: Any) -> Any:
    """Returns x in the dtype in which the kernels compute."""
    return x if x.dtype == np.float64 else x.astype(np.float32)


def equal(got: Any, wanted: Any, about: str = "") -> None:
    got = host(got)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    assert got.tobytes() == wanted.tobytes(), f"{about}: {np.count_nonzero(got != wanted)} of {got.size} differ"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_tests_own_multiply_add_rounds_once(dtype: str) -> None:
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    exact, number = (library.fmaf, ctypes.c_float) if dtype == "float32" else (library.fma, ctypes.c_double)
    exact.restype, exact.argtypes = number, [number] * 3
    a, b, c = draw((3, 3000), dtype, 0)
    for addend in (c, -(a * b), c * (2.0 ** np.arange(-50, 50).repeat(30)).astype(dtype)):
        equal(fma(a, b, addend), np.array([exact(*xyz) for xyz in zip(a, b, addend)], dtype))
    near = np.full(3, 1 + (2.0**-12 if dtype == "float32" else 2.0**-27), dtype)  # the square lies halfway between two numbers
    tiny = np.array([0, 2.0**-60, -(2.0**-60)] if dtype == "float32" else [0, 2.0**-120, -(2.0**-120)], dtype)
    equal(fma(near, near, tiny), np.array([exact(*xyz) for xyz in zip(near, near, tiny)], dtype))


@pytest.mark.parametrize("k", DEPTHS)
def test_shapes(k: int) -> None:
    """An element depends on its row and its column alone: the products of fewer rows and columns are parts of the largest."""
    a, b = draw((130, k), "float32", 1), draw((k, 130), "float32", 2)
    wanted = product(a, b)
    for m, n in SIDES:
        equal(pb.asarray(a[:m]) @ pb.asarray(b[:, :n]), wanted[:m, :n], f"{m} {n}")
        left, right = pb.asarray(np.ascontiguousarray(a[:m].T)).mT, pb.asarray(np.ascontiguousarray(b[:, :n].T)).mT
        equal(left @ right, wanted[:m, :n], f"{m} {n}, transposed")


def test_large_tiles_and_many_slices() -> None:
    """Shapes for which the estimate of time chooses larger tiles, and slices whose sums are added in two rounds."""
    for m, k, n in ((512, 1024, 1024), (1400, 8, 1300), (260, 600, 700), (20, 13000, 20)):
        a, b = draw((m, k), "float32", 3), draw((k, n), "float32", 4)
        rows, columns = slice(m % 7, None, m // 12), slice(n % 7, None, n // 12)
        equal(host(pb.asarray(a) @ pb.asarray(b))[rows, columns], product(a[rows], b[:, columns]), f"{m} {k} {n}")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("k", [16, 257, 784, 1025])
def test_dtypes(dtype: str, k: int) -> None:
    """Half precision is multiplied in float32, and only the result is rounded."""
    for m, n in ((3, 10), (40, 33)):
        a, b = draw((m, k), dtype, 5), draw((k, n), dtype, 6)
        wanted = product(wide(a), wide(b)).astype(a.dtype)
        equal(pb.asarray(a) @ pb.asarray(b), wanted)
        equal(pb.asarray(np.ascontiguousarray(a.T)).mT @ pb.asarray(np.ascontiguousarray(b.T)).mT, wanted)


def test_layouts() -> None:
    a, b = draw((2, 3, 17, 600), "float32", 7), draw((3, 600, 20), "float32", 8)
    wanted = product(a, b)
    equal(pb.asarray(a) @ pb.asarray(b), wanted)
    strided, reverse = np.zeros((2, 3, 34, 1800), a.dtype), b[..., ::-1, ::-1].copy()
    strided[..., ::2, ::3] = a
    equal(pb.asarray(strided)[..., ::2, ::3] @ pb.asarray(b), wanted)
    equal(pb.asarray(a) @ pb.asarray(reverse)[..., ::-1, ::-1], wanted)
    equal(pb.asarray(a[1, 2]) @ pb.asarray(b[2]), wanted[1, 2])
    equal(pb.asarray(a[1, 2, 5]) @ pb.asarray(b[2]), wanted[1, 2, 5])
    shared = pb.asarray(a) @ pb.asarray(b[0])  # b is the same for all, so that the kernels multiply one tall matrix
    equal(shared, product(a, b[0]))


def test_many_small_matrices() -> None:
    """One thread computes an element if the matrices are very small."""
    a, b = draw((50, 4, 60), "float32", 9), draw((50, 60, 3), "float32", 10)
    wanted = product(a, b)
    equal(pb.asarray(a) @ pb.asarray(b), wanted)
    equal(pb.asarray(a[7]) @ pb.asarray(b[7]), wanted[7])


def test_a_sum_of_zeros_is_positive() -> None:
    a, b = np.full((3, 300), -0.0, np.float32), np.ones((300, 5), np.float32)
    equal(pb.asarray(a) @ pb.asarray(b), np.zeros((3, 5), np.float32))
    assert not np.signbit(host(linear(pb.asarray(a), pb.asarray(b.T.copy()), pb.asarray(-np.zeros(5, np.float32))))).any()


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_rounded_factors(precision: str) -> None:
    a, b = draw((33, 700), "float32", 11), draw((700, 20), "float32", 12)
    rounded = [x.astype(dtype_of(precision)).astype(np.float32) for x in (a, b)]
    with pb.amp.autocast(precision):
        equal(pb.asarray(a) @ pb.asarray(b), product(*rounded))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_layers(dtype: str, activation: str | None) -> None:
    """The bias is added to the whole sum, and the activation is that of the elementwise op. Rows do not depend on the batch."""
    for rows, k, n in ((65, 784, 33), (3, 100, 130)):
        x, w, b, _ = layer(rows, k, n, dtype)
        z = product(wide(x), wide(w).T) + wide(b)
        wanted = host(getattr(pb, activation)(pb.asarray(z)) if activation else z).astype(x.dtype)
        y = linear(pb.asarray(x), pb.asarray(w), pb.asarray(b), activation=activation)
        equal(y, wanted)
        equal(linear(pb.asarray(x[2]), pb.asarray(w), pb.asarray(b), activation=activation), wanted[2])


def gradients(x: Any, w: Any, b: Any, activation: str | None, g: Any) -> list[Any]:
    x, w, b = pb.asarray(x), pb.asarray(w), pb.asarray(b)
    with pb.GradientTape() as tape:
        for t in (x, w, b):
            tape.watch(t)
        y = linear(x, w, b, activation=activation)
    return [y, *tape.gradient(y, [x, w, b], output_gradients=pb.asarray(g))]


def wanted_gradients(x: Any, w: Any, y: Any, activation: str | None, g: Any, rounded: Any = wide) -> list[Any]:
    """Returns the gradients of x, w and b. The pullback of g is not rounded to half precision."""
    gz, y = pb.asarray(wide(g)), pb.asarray(wide(host(y)))
    gz = host(getattr(native.module, f"{activation}_pullback")(gz.array, y.array) if activation else gz)
    factor = rounded(gz)
    found = product(factor, rounded(w)), product(factor.T, rounded(x)), product(np.ones((1, len(gz)), gz.dtype), gz)[0]
    return [v.astype(x.dtype) for v in found]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_pullback_of_layers(dtype: str, activation: str | None) -> None:
    for rows, k, n in ((64, 40, 33), (300, 20, 10), (1100, 5, 17)):
        x, w, b, g = layer(rows, k, n, dtype)
        w = w / 8
        y, *found = gradients(x, w, b, activation, g)
        for name, got, wanted in zip("xwb", found, wanted_gradients(x, w, y, activation, g)):
            equal(got, wanted, f"gradient of {name}, {rows} rows")


@pytest.mark.parametrize("activation", [None, "tanh"])
def test_the_pullback_of_a_large_layer(activation: str | None) -> None:
    """A GPU pulls the cotangents back, and sums them, in a launch of their own."""
    x, w, b, g = layer(1100, 300, 210, "float32")
    w = w / 8
    y, *found = gradients(x, w, b, activation, g)
    for name, got, wanted in zip("xwb", found, wanted_gradients(x, w, y, activation, g)):
        equal(got, wanted, f"gradient of {name}")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_the_pullback_of_layers_with_rounded_factors(precision: str) -> None:
    """The gradient of the bias is the sum of what the products round."""
    x, w, b, g = layer(700, 20, 40, "float32")
    with pb.amp.autocast(precision):
        y, *found = gradients(x, w, b, "tanh", g)

    def rounded(v: Any) -> Any:
        return v.astype(dtype_of(precision)).astype(np.float32)

    for name, got, wanted in zip("xwb", found, wanted_gradients(x, w, y, "tanh", g, rounded)):
        equal(got, wanted, f"gradient of {name}")


@pytest.mark.parametrize("rows", [1, 255, 257, 700, 2304, 5000])
def test_column_sums_before_tensor_cores(rows: int) -> None:
    """Before products that round their factors, a separate launch sums the columns. It keeps to the order in every mode."""
    pb.config.reproducible = "machine"
    x, w, b, g = layer(rows, 3, 70, "float32")
    with pb.amp.autocast("bfloat16"):
        *_, gb = gradients(x, w, b, None, g)
    equal(gb, product(np.ones((1, rows), np.float32), g)[0])


def test_a_replay_adds_a_product_to_what_is_there() -> None:
    """The gradients of a weight that is used twice are summed by the second product."""
    w = pb.asarray(draw((20, 15), "float32", 28))

    def step(x: Any, y: Any) -> Any:
        with pb.GradientTape() as tape:
            tape.watch(w)
            loss = (linear(x, w) * 2.0).sum() + (linear(y, w) * 3.0).sum()
        return tape.gradient(loss, w)

    x, y = draw((700, 15), "float32", 29), draw((900, 15), "float32", 30)
    gz = [np.full((20, rows), value, np.float32) for rows, value in ((700, 2), (900, 3))]
    wanted = {(product(gz[0], x) + product(gz[1], y)).tobytes()}
    captured = pb.capture(step)
    for run in (step, captured, captured):
        assert {host(run(pb.asarray(x), pb.asarray(y))).tobytes()} == wanted


def test_blocks_are_not_one_chain() -> None:
    """The tests can fail: one chain, and blocks that are added from left to right, have other bits."""
    a, b = draw((17, 1300), "float32", 31), draw((1300, 20), "float32", 32)
    chain, blocks = np.zeros((17, 20), np.float32), []
    for k in range(1300):
        chain = fma(a[:, k, None], b[None, k], chain)
    for k in range(0, 1300, 256):
        blocks.append(product(a[:, k : k + 256], b[k : k + 256]))
    wanted = by_neighbours(np.stack(blocks))
    assert (chain != wanted).any()
    assert (sum(blocks[1:], blocks[0]) != wanted).any()
    equal(pb.asarray(a) @ pb.asarray(b), wanted)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 16, 17, 40, 257, 1030])
def test_a_sum_that_underflows_keeps_its_sign(k: int, dtype: str) -> None:
    """Every product is negative and rounds to -0, and no step of the chain may add a padding of 0 to it."""
    tiny = 1e-170 if dtype == "float64" else 1e-30
    for m, n in ((1, 1), (4, 16), (4, 5), (3, 2), (70, 40)):
        a, b = pb.full((m, k), tiny, dtype=dtype), pb.full((k, n), -tiny, dtype=dtype)
        columns = pb.copy(b.mT).mT
        for y in (a @ b, a @ columns, linear(a, columns.mT), linear(a, b.mT)):
            assert np.all(host(y) == 0)
            assert np.all(np.signbit(host(y))), (m, n)
