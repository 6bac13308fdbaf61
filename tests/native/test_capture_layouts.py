"""Captured functions of views: products have the bits of the eager call, and one recording serves all places of a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import alike, needs_kernels
from conftest import host
from pullback import nn

pytestmark = needs_kernels

VIEWS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda x: pb.asarray(x),
    "transposed": lambda x: pb.swapaxes(pb.asarray(np.ascontiguousarray(np.swapaxes(x, 1, 2))), 1, 2),
    "axes in another order": lambda x: pb.permute_dims(pb.asarray(np.ascontiguousarray(np.transpose(x, (1, 2, 0)))), (2, 0, 1)),
    "every other": lambda x: pb.asarray(np.repeat(x, 2, axis=2))[..., ::2],
    "reversed": lambda x: pb.asarray(np.ascontiguousarray(x[:, ::-1]))[:, ::-1],
    "repeated": lambda x: pb.broadcast_to(pb.asarray(x[0]), x.shape),
    "repeated columns": lambda x: pb.broadcast_to(pb.asarray(x[:, :, :1]), x.shape),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("b_view", VIEWS)
@pytest.mark.parametrize("a_view", VIEWS)
def test_products_of_views_have_the_bits_of_the_eager_call(a_view: str, b_view: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    for m, k, n in ((1, 64, 20), (3, 33, 33), (7, 64, 1), (2, 5, 130)):
        a = VIEWS[a_view](rng.standard_normal((2, m, k)).astype(dtype))
        b = VIEWS[b_view](rng.standard_normal((2, k, n)).astype(dtype))
        for f in (lambda a, b: a @ b, pb.grad(lambda a, b: pb.sum(pb.sin(a @ b)), argnums=(0, 1))):
            captured, wanted = pb.capture(f), f(a, b)
            alike([captured(a, b), captured(a, b)], [wanted, wanted])


@pytest.mark.parametrize("queries", [1, 3])
def test_values_that_pullbacks_keep_have_the_layout_of_the_eager_call(queries: int) -> None:
    rng = np.random.default_rng(0)
    pb.random.seed(0)
    layer = nn.MultiheadAttention(8, 2)
    q, k = [pb.tensor(rng.standard_normal((n, 2, 8)).astype(np.float32)) for n in (queries, 6)]
    gradient_of = lambda f: pb.grad(lambda q: pb.sum(f(q, k, k)[0] ** 2))
    captured = gradient_of(pb.capture(layer))
    alike([captured(q), captured(q)], [gradient_of(layer)(q)] * 2)


@pytest.mark.parametrize("width", [4, 20])
def test_a_recording_serves_a_view_at_every_place(width: int) -> None:
    """Forward and backward are recorded once for columns that are read down, and once more for those that are read up.

    Columns of wide matrices, and those of a GPU, are copied, and then look alike.
    """
    x, w = pb.random.normal((8, width)), pb.Parameter(pb.ones(8))
    f = lambda x: pb.sum(pb.sin(x * w))
    captured = pb.capture(f)
    for i in range(width):
        for column in (x[:, i], x[::-1, i]):
            found = []
            for g in (captured, f):
                with pb.GradientTape() as tape:
                    y = g(column)
                found.append([y, tape.gradient(y, w)])
            alike(*found)
    assert captured.stats().captures <= 4


def test_a_transposed_argument_needs_no_copy_and_no_signature() -> None:
    x, w = pb.asarray(np.ones((6, 8), np.float32)).T, pb.ones((6, 4))
    captured = pb.capture(lambda x: x @ w)
    for _ in range(2):
        np.testing.assert_array_equal(host(captured(x)), np.full((8, 4), 6.0))
    if x.device == "cpu":  # a GPU gets a copy
        assert captured.last_used() is not None
