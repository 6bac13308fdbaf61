"""Limits of CUDA and of memory on the simulated device: sizes of grids, and how often the allocator calls the driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host, simulated
from pullback.nn.functional import scaled_dot_product_attention as attend
from pullback.tensors import gpu

pytestmark = pytest.mark.skipif(not simulated(), reason="device cuda is not simulated: build with PULLBACK_CUDA=SIM")


@pytest.fixture(autouse=True)
def on_cuda() -> Iterator[None]:
    with pb.use_device("cuda"):
        yield


def attention(queries: int, keys: int) -> list[Any]:
    """Returns the result, the gradients and a tangent of two heads that share their keys."""
    rng = np.random.default_rng(3)
    shapes = ((2, queries, 3), (1, keys, 3), (1, keys, 2))
    xs = [pb.tensor(rng.standard_normal(shape), dtype="float32") for shape in shapes]

    def f(*xs: Any) -> Any:
        return attend(*xs, enable_gqa=True)

    with pb.GradientTape() as tape:
        tape.watch(xs)
        y = f(*xs)
    _, tangent = pb.jvp(f, xs, xs)
    return [y, *tape.gradient(y, xs, output_gradients=pb.ones_like(y)), tangent]


def test_attention_of_any_number_of_queries_fits_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,400 queries of a key are 18 blocks, of which each has a partial sum. On a GPU a grid has at most 65,535 along y."""
    wanted = [host(x).tobytes() for x in attention(2200, 20)]
    monkeypatch.setenv("CUDASIM_GRID_YZ", "1")
    assert [host(x).tobytes() for x in attention(2200, 20)] == wanted


def test_the_blocks_of_rows_of_several_tasks_are_not_mixed_up() -> None:
    """Every batch has the gradients that it has alone."""
    rng = np.random.default_rng(4)
    values = [rng.standard_normal((3, 2, length, 4)).astype(np.float32) for length in (300, 40, 40, 300)]

    def gradients(*arrays: Any) -> list[bytes]:
        q, k, v, g = map(pb.tensor, arrays)
        with pb.GradientTape() as tape:
            tape.watch([q, k, v])
            y = attend(q, k, v)
        return [host(x) for x in tape.gradient(y, [q, k, v], output_gradients=g)]

    together = gradients(*values)
    for batch in range(3):
        alone = gradients(*[value[batch : batch + 1] for value in values])
        assert [x[batch].tobytes() for x in together] == [x[0].tobytes() for x in alone]


def test_the_allocator_counts_its_calls_of_the_driver() -> None:
    """The simulator keeps no memory for later, so every array is one call, and one more when it is dropped."""
    calls = gpu.need().kernels.driver_calls
    allocations, releases = calls()
    arrays = [pb.empty((10,)) for _ in range(3)]
    assert calls() == (allocations + 3, releases)
    arrays.pop()
    assert calls() == (allocations + 3, releases + 1)
