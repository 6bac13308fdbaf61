"""The work of pools and of norms of channels, forward and backward, as the textbook counts it."""

from __future__ import annotations

from typing import Any

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


def test_flops_of_shapes_alone() -> None:
    net = nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2))
    counted = pb.flops(lambda x: pb.sum(net(x)), pb.ones((4, 3, 8, 8)))
    assert counted.forward.flops == 3 * 48 + 47


@pytest.mark.parametrize("kind", ["batch", "group", "instance"])
def test_a_norm_is_one_launch_each_way_with_the_work_of_layer_norm(kind: str) -> None:
    """Each element takes 5 additions and 3 multiplications: for the mean, the variance, the scale and the bias."""
    layer: Any = {"batch": lambda: nn.BatchNorm2d(4, track_running_stats=False), "group": lambda: nn.GroupNorm(2, 4),
                  "instance": lambda: nn.InstanceNorm2d(4, affine=True)}[kind]()  # fmt: skip
    n, rows = 3 * 4 * 5 * 6, {"batch": 4, "group": 3 * 2, "instance": 3 * 4}[kind]
    forward, backward = profile(layer, 3, 4, 5, 6)
    assert (forward.flops, forward.special_ops, forward.launches) == (8 * n - rows, 3 * rows, 1)
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
