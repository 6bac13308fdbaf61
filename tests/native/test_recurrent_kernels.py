"""The kernels of recurrent layers: captured as eager, with any number of threads, by rows or step by step, in few launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same
from conftest import FLOATS, host
from pullback import nn
from pullback.backends import native
from pullback.tensors import devices

pytestmark = needs_kernels
KINDS = ("RNN", "LSTM", "GRU")


def inputs(k: int, *shape: int, dtype: Any = "float32") -> Any:
    return pb.tensor(np.random.default_rng(k).standard_normal(shape), dtype=dtype)


def step_of(layer: Any) -> Any:
    """Returns a function of x that returns the results of the layer and all gradients of a loss of them."""

    def step(x: Any) -> Any:
        with pb.GradientTape() as tape:
            tape.watch(x)
            y, last = layer(x)
            results = [y, *(last if isinstance(last, tuple) else [last])]
            loss = pb.sum(y * y) + sum([pb.sum(h) for h in results[1:]])
        return results, tape.gradient(loss, [x, *layer.parameters()])

    return step


def leaves(found: Any) -> list[Any]:
    return [*found[0], *found[1]]


@pytest.fixture(params=["machine", "everywhere"])
def mode(request: Any) -> Iterator[str]:
    if request.param == "everywhere" and (reason := pb.config.why_not()):
        pytest.skip(reason)
    before, pb.config.reproducible = pb.config.reproducible, request.param
    yield request.param
    pb.config.reproducible = before


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_layer_has_the_bits_of_the_eager_one(kind: str, dtype: str) -> None:
    step = step_of(getattr(nn, kind)(5, 7, 2, bidirectional=True, dtype=dtype))
    captured = pb.capture(step)
    for k in range(3):
        x = inputs(k, 4, 3, 5, dtype=dtype)
        for got, wanted in zip(leaves(captured(x)), leaves(step(x))):
            same(got, wanted)
    assert captured.stats().captures == 1


@pytest.mark.parametrize("kind", KINDS)
def test_captured_cells_in_a_loop(kind: str) -> None:
    cell = getattr(nn, f"{kind}Cell")(5, 7)

    def run(x: Any) -> Any:
        with pb.GradientTape() as tape:
            state = None
            for t in range(3):
                state = cell(x[t], state)
            h = state[0] if isinstance(state, tuple) else state
        return h, tape.gradient(h, list(cell.parameters()), output_gradients=pb.ones_like(h))

    captured = pb.capture(run)
    for k in range(3):
        x = inputs(k, 3, 2, 5)
        (h, gradients), (wanted, right) = captured(x), run(x)
        for got, expected in zip([h, *gradients], [wanted, *right]):
            same(got, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_one_launch(kind: str) -> None:
    layer, x = getattr(nn, kind)(5, 7), inputs(0, 9, 3, 5)
    with pb.profile(strict=True) as prof, pb.GradientTape() as tape:
        y = layer(x)[0]
        tape.gradient(y, layer.parameters(), output_gradients=pb.ones_like(y))
    kernels = [row.kernel for row in prof.rows for _ in range(row.figures.launches)]
    assert kernels.count(kind.lower()) == kernels.count(f"{kind.lower()}_pullback") == 1
    assert kernels.count("linear") == 1
    assert kernels.count("linear_pullback") == 2  # of the input and the hidden product


@pytest.mark.skipif(devices.default_device() != "cpu", reason="threads of the CPU")
@pytest.mark.parametrize(("rows", "hidden"), [(33, 20), (2, 20), (40, 300)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_threads_does_not_matter(kind: str, rows: int, hidden: int, mode: str) -> None:
    kernels: Any = native.module
    step, x, before = step_of(getattr(nn, kind)(5, hidden)), inputs(0, 12, rows, 5), kernels.thread_count()
    found = []
    try:
        for count in (1, 2, 5):
            kernels.set_thread_count(count)
            found.append([host(a) for a in leaves(step(x))])
    finally:
        kernels.set_thread_count(before)
    for other in found[1:]:
        for a, b in zip(found[0], other):
            np.testing.assert_array_equal(a, b)


@pytest.mark.skipif(bool(pb.config.why_not()), reason="everywhere")
@pytest.mark.parametrize("hidden", [7, 70, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_alone_has_the_bits_that_it_has_in_a_batch(kind: str, hidden: int) -> None:
    """A batch of one row runs step by step, and a large one shares the weight among its rows."""
    before, pb.config.reproducible = pb.config.reproducible, "everywhere"
    try:
        layer, x = getattr(nn, kind)(5, hidden), inputs(0, 6, 40, 5)
        every = host(layer(x)[0])
        for i in (0, 17):
            np.testing.assert_array_equal(host(layer(x[:, i : i + 1])[0]), every[:, i : i + 1])
            np.testing.assert_array_equal(host(layer(x[:, i])[0]), every[:, i])
    finally:
        pb.config.reproducible = before


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "tf32"])
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_products_round_their_factors_in_autocast(kind: str, precision: str) -> None:
    layer, x = getattr(nn, kind)(5, 7), inputs(0, 30, 3, 5)
    exact = host(layer(x)[0])
    with pb.amp.autocast(precision):
        rounded = host(layer(x)[0])
    error = np.abs(rounded - exact).max()
    assert error < {"bfloat16": 2e-2, "float16": 2e-3, "tf32": 2e-3}[precision]
    assert error > 0 or precision == "tf32"


@pytest.mark.parametrize("first_state", [False, True], ids=["weights", "weights and h0"])
@pytest.mark.parametrize("steps", [1, 2, 16])
@pytest.mark.parametrize(
    ("kind", "gates", "forward", "backward"),
    [("RNN", 1, (2, 0), (2, 2)), ("LSTM", 4, (15, 3), (12, 16)), ("GRU", 3, (12, 2), (11, 11))],
)
def test_work_is_that_of_the_formulas(kind: str, gates: int, forward: Any, backward: Any, steps: int, first_state: bool) -> None:
    """One direction has 64 units over 64 numbers, and batch 8.

    Backward, the data needs no gradient: of four products (by each factor of the input and of the hidden products) three are left.
    The product with the weight of the first step gives the gradient of the state before it, and is computed for that alone.
    `forward` and `backward` are the additions and multiplications of a cell, per element. Each sigmoid has two additions.
    """
    layer, x, n = getattr(nn, kind)(64, 64), inputs(0, steps, 8, 64), steps * 8 * 64
    h, c = inputs(1, 1, 8, 64), inputs(2, 1, 8, 64)
    with pb.profile(strict=True) as prof, pb.GradientTape() as tape:
        if first_state:
            tape.watch(h)
        y = layer(x, (h, c) if kind == "LSTM" else h)[0]
        tape.gradient(y, [*layer.parameters(), *([h] if first_state else [])], output_gradients=pb.ones_like(y))
    products = n * gates * 64 * 2
    unasked = 0 if first_state else products // steps
    assert (prof.forward.matmul_flops, prof.backward.matmul_flops) == (2 * products, 3 * products - unasked)
    rows = {row.kernel: row.figures for row in prof.rows}
    assert rows[kind.lower()].flops == products + n * sum(forward)
    more = 8 * 64 if kind == "GRU" and first_state else 0  # the cotangent of h before the first step is a sum of two
    assert rows[f"{kind.lower()}_pullback"].flops == products - unasked + n * sum(backward) + more
