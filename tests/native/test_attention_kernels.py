"""The kernels of attention: they form no array of all scores, count exactly, and give the same bits however many threads run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import simulated
from pullback import nn
from pullback.backends import kernels_on, native
from pullback.nn.functional import scaled_dot_product_attention as attend
from pullback.tensors import devices

pytestmark = pytest.mark.usefixtures("native")


def operands(*shape: int, count: int = 4, dtype: str = "float32") -> list[Any]:
    rng = np.random.default_rng(0)
    return [pb.tensor(rng.standard_normal(shape), dtype=dtype) for _ in range(count)]


def step(q: Any, k: Any, v: Any, g: Any, **options: Any) -> list[Any]:
    with pb.GradientTape() as tape:
        for x in (q, k, v):
            tape.watch(x)
        y = attend(q, k, v, **options)
    return [y, *tape.gradient(y, [q, k, v], output_gradients=g)]


def test_no_array_of_all_scores_is_kept_or_formed() -> None:
    """24 heads of 400 queries and keys have 15 MB of scores, and each operand 0.6 MB."""
    xs = operands(3, 8, 400, 16)
    kept, scores = xs[0].array.nbytes, 4 * 24 * 400 * 400
    with pb.profile() as prof:
        base = kernels_on(devices.default_device()).live_bytes()  # what tests before this one have left
        step(*xs, is_causal=True)
    assert prof.memory.peak - base < 16 * kept < scores


@pytest.mark.usefixtures("on_cpu")
def test_the_working_memory_is_that_of_a_few_heads() -> None:
    """The cache of the allocator holds every block that the step took."""
    xs = operands(3, 8, 400, 16)
    pb.trim()
    before = native.module.cache_use()[0]
    step(*xs)
    grown = native.module.cache_use()[0] - before
    assert grown < 4 * xs[0].array.nbytes + 2**21 < 4 * 24 * 400 * 400 / 3


def counted(causal: bool, mask: Any = None) -> Any:
    batch, heads, groups, queries, keys, width, out = 2, 4, 2, 12, 9, 5, 3
    rng = np.random.default_rng(0)
    shapes = ((batch, heads, queries, width), (batch, groups, keys, width), (batch, groups, keys, out))
    xs = [pb.tensor(rng.standard_normal(shape), dtype="float32") for shape in shapes]
    with pb.profile(strict=True) as prof, pb.GradientTape() as tape:
        for x in xs:
            tape.watch(x)
        y = attend(*xs, mask, is_causal=causal, enable_gqa=True)
        tape.gradient(y, xs, output_gradients=pb.ones_like(y))
    visible = sum([min(i + 1, keys) for i in range(queries)]) if causal else queries * keys
    return prof, batch * heads * visible, batch * heads * queries, width, out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_work_is_that_of_the_scores_that_a_query_sees(causal: bool, masked: bool) -> None:
    """Forward: two products, a maximum, an exponential and a sum for each score. Backward: four products.

    The scores and exponentials that the pullback computes again are executed, but no part of the formula.
    """
    prof, scores, rows, width, out = counted(causal, pb.tensor(np.zeros((12, 9), np.float32)) if masked else None)
    assert prof.forward.matmul_flops == 2 * scores * (width + out)
    assert prof.backward.matmul_flops == 4 * scores * (width + out)
    assert prof.forward.special_ops == scores + rows
    assert prof.backward.special_ops == 0
    adds, multiplies = (3 if masked else 2) * scores - rows, rows * (width + out)
    assert prof.forward.flops == prof.forward.matmul_flops + adds + multiplies
    of_scores = 2 * scores + rows * (2 * out - 1)
    assert prof.backward.flops == prof.backward.matmul_flops + of_scores + rows * (2 * width + out)
    assert prof.backward.executed_flops >= 5 / 4 * prof.backward.matmul_flops


def test_a_layer_counts_its_projections_and_its_attention() -> None:
    batch, length, embed = 2, 8, 12
    layer = nn.MultiHeadAttention(embed, 3, causal=True)
    x = pb.tensor(np.ones((batch, length, embed), np.float32))
    with pb.profile(strict=True) as prof:
        layer(x)
    scores = batch * length * (length + 1) // 2  # of each head, which has embed / 3 features
    assert prof.forward.matmul_flops == 2 * batch * length * embed * 4 * embed + 2 * scores * 2 * embed


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("shape", [(1, 1, 300, 8), (3, 2, 70, 20)])
def test_threads_do_not_change_bits(shape: tuple[int, ...]) -> None:
    kernels, xs = native.module, operands(*shape)
    before, found = kernels.thread_count(), []
    try:
        for count in (1, 2, 5):
            kernels.set_thread_count(count)
            found.append([y.numpy() for y in [*step(*xs), *step(*xs, is_causal=True)]])
    finally:
        kernels.set_thread_count(before)
    for other in found[1:]:
        for a, b in zip(found[0], other):
            np.testing.assert_array_equal(a, b)


def test_only_needed_gradients_are_computed() -> None:
    q, k, v, g = operands(1, 2, 10, 4)
    wanted = step(q, k, v, g)[1:]
    for i, x in enumerate((q, k, v)):
        with pb.profile() as prof, pb.GradientTape() as tape:
            tape.watch(x)
            y = attend(q, k, v)
            gx = tape.gradient(y, x, output_gradients=g)
        np.testing.assert_array_equal(gx.numpy(), wanted[i].numpy())
        assert prof.backward.matmul_flops == 2 * 2 * 100 * 4 * (1 if x is v else 2)


@pytest.mark.skipif(devices.default_device() == "cpu" or not simulated(), reason="the CPU has no limit")
def test_more_keys_than_a_gpu_has_room_for() -> None:
    q, k = pb.tensor(np.ones((1, 1, 2, 3), np.float32)), pb.tensor(np.ones((1, 1, 1100, 3), np.float32))
    np.testing.assert_allclose(attend(q, k, k).numpy(), np.ones((1, 1, 2, 3)), rtol=1e-5)
