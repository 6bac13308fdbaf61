"""Captured functions in limiting cases: launches without users, arguments that are returned, arguments without elements."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import backends
from pullback.nn.functional import linear
from pullback.tensors import devices

pytestmark = pytest.mark.skipif(
    bool(backends.why_not(devices.default_device())), reason=f"nothing is captured: {backends.why_not(devices.default_device())}"
)


@pytest.mark.parametrize("detail", ["count", "phase", "kernel"])
@pytest.mark.parametrize("fusion", ["none", "exact", "fast"])
def test_a_launch_that_nobody_needs_under_a_profile(fusion: str, detail: str) -> None:
    captured = pb.capture(lambda x: (pb.exp(x), pb.tanh(x), 3)[2], fusion=fusion)
    x = pb.ones((2, 3))
    captured(x)
    with pb.profile(detail=detail) as prof:
        assert captured(x) == 3
    assert prof.total.launches == (2 if fusion == "none" else 0)


@pytest.mark.parametrize("steps", [1, 3])
def test_an_argument_that_is_returned_has_one_row_a_step(steps: int) -> None:
    captured = pb.capture(lambda x, y: (x, pb.sum(x), y), steps=steps)
    values = np.arange(2.0 * steps).reshape(steps, 2)
    x, y = pb.tensor(values), pb.tensor(values[:, 0])
    for _ in range(3):
        same, total, other = captured(x, y)
        np.testing.assert_array_equal(same.numpy(), values)
        np.testing.assert_array_equal(total.numpy(), values.sum(1))
        np.testing.assert_array_equal(other.numpy(), values[:, 0])


def test_arguments_without_elements_have_any_strides() -> None:
    captured = pb.capture(lambda x: pb.sum(x) + 1)
    empty = pb.permute_dims(pb.tensor(np.zeros((0, 3), np.float32)), (1, 0))
    assert [float(captured(empty)) for _ in range(3)] == [1.0] * 3
    several = pb.capture(lambda x: pb.sum(x) + 1, steps=4)
    assert several(pb.zeros((4, 0))).numpy().tolist() == [1.0] * 4


def test_products_of_strided_and_broadcast_arguments_have_the_bits_of_the_eager_run() -> None:
    """A library's product of a vector rounds by the layout of the matrix, so both runs must copy the argument to one layout."""
    rng = np.random.default_rng(0)
    captured = pb.capture(linear)
    for _ in range(40):
        x, row = [pb.asarray(rng.standard_normal(300).astype(np.float32)) for _ in range(2)]
        matrix = pb.asarray(rng.standard_normal((300, 128)).astype(np.float32))
        for w in (pb.broadcast_to(row, (64, 300)), matrix.mT[::2], matrix.mT[:, ::2], matrix.mT[::-1, ::-1]):
            k = w.shape[1]
            assert np.array_equal(host(linear(x[:k], w)), host(captured(x[:k], w)))
