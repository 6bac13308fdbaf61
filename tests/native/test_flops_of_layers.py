"""The work of pools, of norms of channels and of recurrent layers, forward and backward, as the textbook counts it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import pullback as pb
from pullback import nn
from pullback.nn import functional as F

pytestmark = pytest.mark.usefixtures("native")


def profile(f: Any, *shape: int) -> Any:
    x = pb.tensor(np.random.default_rng(0).standard_normal(shape), dtype="float32")
    with pb.GradientTape() as tape:
        tape.watch(x)
        with pb.profile() as forward:
            y = f(x)
    g = pb.ones_like(y)
    with pb.profile() as backward:
        tape.gradient(y, x, output_gradients=g)
    return forward.total, backward.total


def test_a_maximum_takes_comparisons_and_its_gradient_an_addition_for_each_window() -> None:
    forward, backward = profile(lambda x: F.max_pool2d(x, 2), 4, 3, 8, 8)
    windows = 4 * 3 * 4 * 4
    assert (forward.flops, forward.special_ops, forward.launches) == (0, 0, 1)
    assert (backward.flops, backward.special_ops, backward.launches) == (windows, 0, 1)
    assert forward.bytes_read == 4 * 4 * 3 * 8 * 8
    assert forward.bytes_written == 4 * windows


def test_a_mean_takes_the_additions_and_the_division_of_each_window() -> None:
    forward, backward = profile(lambda x: F.avg_pool2d(x, 3, 2), 4, 3, 9, 9)
    windows = 4 * 3 * 4 * 4
    assert (forward.flops, forward.special_ops, forward.launches) == (8 * windows, windows, 1)
    assert (backward.flops, backward.special_ops, backward.launches) == (9 * windows, windows, 1)


def test_padding_is_not_added() -> None:
    forward, backward = profile(lambda x: F.avg_pool2d(x, 3, 1, 1), 1, 1, 2, 2)
    assert (forward.flops, backward.flops) == (4 * 4 - 4, 4 * 4)


def test_adaptive_means_add_the_elements_of_each_part() -> None:
    forward, backward = profile(lambda x: F.adaptive_avg_pool2d(x, (2, 3)), 2, 5, 7)
    elements = 2 * (3 + 3) * (3 + 3 + 3)  # the parts of 5 rows and of 7 columns: 3 and 3; 3, 3 and 3
    assert (forward.flops, forward.special_ops) == (elements - 2 * 6, 2 * 6)
    assert (backward.flops, backward.special_ops) == (elements, 2 * 6)


@pytest.mark.parametrize("rows", [1, 7])
def test_the_gradient_of_each_examples_bias_is_a_sum_over_its_rows(rows: int) -> None:
    layer, x = nn.Linear(6, 5), pb.ones((4, rows, 6))
    with pb.profile() as prof:
        pb.per_example_grad(lambda _, x: pb.sum(layer(x)))(layer.parameters(), x)
    assert prof.backward.matmul_flops == 2 * 4 * rows * 5 * 6
    assert prof.backward.adds == 4 * (rows - 1) * 5


def test_flops_of_shapes_alone() -> None:
    net = nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2))
    counted = pb.flops(lambda x: pb.sum(net(x)), pb.ones((4, 3, 8, 8)))
    assert counted.forward.flops == 3 * 48 + 47


@pytest.mark.parametrize("kind", ["batch", "group", "instance"])
def test_a_norm_is_one_launch_each_way_with_the_work_of_layer_norm(kind: str) -> None:
    """Each element takes 5 additions and 3 multiplications: for the mean, the variance, the scale and the bias.

    A row takes 2 multiplications more, to see whether its deviations are within the rounding of its mean.
    """
    layer: Any = {"batch": lambda: nn.BatchNorm2d(4, track_running_stats=False), "group": lambda: nn.GroupNorm(2, 4),
                  "instance": lambda: nn.InstanceNorm2d(4, affine=True)}[kind]()
    n, rows = 3 * 4 * 5 * 6, {"batch": 4, "group": 3 * 2, "instance": 3 * 4}[kind]
    forward, backward = profile(layer, 3, 4, 5, 6)
    assert (forward.flops, forward.special_ops, forward.launches) == (8 * n - rows + 2 * rows, 3 * rows, 1)
    rows_alone, _ = profile(lambda x: F.layer_norm(x, pb.ones(n // rows), pb.ones(n // rows)), rows, n // rows)
    assert (rows_alone.flops, rows_alone.special_ops) == (forward.flops, forward.special_ops)
    with_sums = pulled(lambda x, w, b: F.layer_norm(x, w, b), (rows, n // rows), (n // rows,))
    vectors = dict(layer.named_parameters())
    found = pulled(lambda x, w, b: nn.functional_call(layer, {**vectors, "weight": w, "bias": b}, x), (3, 4, 5, 6), (4,))
    assert found.launches == 1
    assert (found.flops, found.special_ops) == (with_sums.flops - 2 * 4, with_sums.special_ops)  # sums of n begin without 0
    assert backward.launches == 1


def pulled(f: Any, shape: tuple[int, ...], channels: tuple[int, ...]) -> Any:
    x, w, b = pb.ones(shape), pb.ones(channels), pb.ones(channels)
    with pb.GradientTape() as tape:
        tape.watch([x, w, b])
        y = f(x, w, b)
    g = pb.ones(shape)
    with pb.profile() as prof:
        tape.gradient(y, [x, w, b], output_gradients=g)
    return prof.total


# ---- recurrent layers


class Cell(NamedTuple):
    """The work of a cell for each of its elements, without the biases."""

    gates: int
    flops: int
    special: int
    backward: int
    backward_special: int = 0


SIGMOID, SIGMOID_SPECIAL, TANH_SPECIAL = 2, 2, 1  # two additions, an exponential and a division; tanh counts as one operation
TIMES_SLOPE = 3  # a cotangent times 1 - y * y or y * (1 - y)
CELLS = {
    "RNN": Cell(1, 1, TANH_SPECIAL, backward=1 + TIMES_SLOPE),
    "LSTM": Cell(
        4,
        4 + 3 * SIGMOID + 3 + 1,  # x + p of four gates; c = f * c + i * g; h = o * tanh(c)
        3 * SIGMOID_SPECIAL + 2 * TANH_SPECIAL,
        # two sums of the cotangents of h and c; what h adds to that of c, by o and the slope of tanh; four gates; the c before
        backward=1 + 1 + (1 + TIMES_SLOPE + 1) + 4 * (2 + TIMES_SLOPE) + 1,
        backward_special=TANH_SPECIAL,
    ),
    "GRU": Cell(
        3,
        2 + 2 + 2 * SIGMOID + 3,  # x + p of two gates; x + r * p of the third; h = (h - n) * z + n
        2 * SIGMOID_SPECIAL + TANH_SPECIAL,
        # the sum of the cotangents of h; gate n with 1 - z; r; z with h - n; the hidden product of n; h of the step before
        backward=2 + (3 + TIMES_SLOPE) + (2 + TIMES_SLOPE) + (3 + TIMES_SLOPE) + 2 + 1,
    ),
}


@pytest.mark.parametrize("watched", [False, True], ids=["weights", "weights and data"])
@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no biases"])
@pytest.mark.parametrize(("layers", "directions"), [(1, 1), (1, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize("kind", CELLS)
def test_recurrent_layers(kind: str, layers: int, directions: int, bias: bool, watched: bool) -> None:
    """Each layer and direction has two products for every step, of its input and of its state, with all gates.

    Backward, each of them is two products: by the weight, and by the input, unless that is the data or the state before the first
    step, and nobody asks for it. The gradients of the biases are sums over all steps and rows, and where two directions read one
    input, two cotangents are added.
    """
    steps, rows, inputs, hidden = 5, 3, 4, 6
    cell, times = CELLS[kind], layers * directions
    net = getattr(nn, kind)(inputs, hidden, layers, bias=bias, bidirectional=directions == 2)
    x = pb.tensor(np.random.default_rng(0).standard_normal((steps, rows, inputs)), dtype="float32")
    with pb.profile(strict=True) as prof, pb.GradientTape() as tape:
        tape.watch([x] if watched else [])
        y = net(x)[0]
        tape.gradient(y, [*net.parameters(), *([x] if watched else [])], output_gradients=pb.ones_like(y))

    elements = steps * rows * hidden  # of one layer and direction
    widths = [inputs] + [directions * hidden] * (layers - 1)  # the features that each layer reads
    products = 2 * elements * cell.gates * directions * sum([width + hidden for width in widths])
    biases = 2 * bias * times
    forward = prof.forward
    assert forward.matmul_flops == products
    assert forward.flops == products + times * elements * cell.flops + biases * elements * cell.gates
    assert forward.special_ops == times * elements * cell.special

    unasked = times * 2 * rows * hidden * cell.gates * hidden + (0 if watched else 2 * elements * cell.gates * directions * inputs)
    sums = biases * (steps * rows - 1) * cell.gates * hidden
    joined = (directions - 1) * steps * rows * (sum(widths) - (0 if watched else inputs))
    cells = times * elements * cell.backward
    backward = prof.backward
    assert backward.matmul_flops == 2 * products - unasked
    assert backward.flops == 2 * products - unasked + cells + sums + joined
    assert backward.special_ops == times * elements * cell.backward_special
