"""Captured assignments: a replay writes a new value directly into the Parameter where no op could see the difference."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same
from conftest import host
from formulas import FORMULAS
from pullback.backends import native
from pullback.tensors import devices

pytestmark = needs_kernels
KERNELS: Any = native.module
on_cpu = pytest.mark.skipif(devices.default_device() != "cpu", reason="a GPU's elementwise kernels are not fused yet")


def parameters(n: int, dtypes: Any = ("float32", "float32")) -> list[Any]:
    rng = np.random.default_rng(n)
    return [pb.Parameter(rng.standard_normal(n), dtype=dtype) for dtype in dtypes]


def scaled(p: Any, q: Any, x: Any) -> Any:
    p.assign(p * 0.9 + x)


def read_after(p: Any, q: Any, x: Any) -> Any:
    y = p * 0.5 + x
    p.assign(y)
    return y * 2.0 + p


def old_value_read_before_the_write(p: Any, q: Any, x: Any) -> Any:
    y = p * 0.5 + x
    before = p - y
    p.assign(y)
    return before


def new_value_read_after_another_write(p: Any, q: Any, x: Any) -> Any:
    y = p * 0.5 + x
    p.assign(y)
    p.assign(x - y)
    return y * 3.0


def two_writes(p: Any, q: Any, x: Any) -> Any:
    p.assign(p * 0.5)
    z = p + x
    p.assign(z * 0.25)
    return z


def one_value_for_two(p: Any, q: Any, x: Any) -> Any:
    y = p * 0.5 + x
    p.assign(y)
    q.assign(y)


def exchanged(p: Any, q: Any, x: Any) -> Any:
    a, b = p * 1.0, q * 1.0
    p.assign(b)
    q.assign(a)


def reversed_elements(p: Any, q: Any, x: Any) -> Any:
    p.assign(p[::-1] * 0.5 + x)


def shifted_elements(p: Any, q: Any, x: Any) -> Any:
    y = p[1:] * 0.5
    p.assign(pb.concat([y, x[:1]]) + 1.0)


def first_element_repeated(p: Any, q: Any, x: Any) -> Any:
    p.assign(p[0] * 0.5 + x)


def view_of_the_old_value(p: Any, q: Any, x: Any) -> Any:
    part = p[1:4] * 2.0
    p.assign(p * 0.5 + x)
    return part + p[1:4]


def returned(p: Any, q: Any, x: Any) -> Any:
    y = p * 0.5 + x
    p.assign(y)
    return y


def broadcast_value(p: Any, q: Any, x: Any) -> Any:
    p.assign(pb.broadcast_to(pb.sum(x) * 0.5, p.shape))


def sum_of_the_new_value(p: Any, q: Any, x: Any) -> Any:
    y = p * 0.5 + x
    p.assign(y)
    return pb.sum(y)


CASES: list[Callable[..., Any]] = [
    scaled, read_after, old_value_read_before_the_write, new_value_read_after_another_write, two_writes, one_value_for_two,
    exchanged, reversed_elements, shifted_elements, first_element_repeated, view_of_the_old_value, returned, broadcast_value,
    sum_of_the_new_value,
]


@pytest.mark.parametrize("n", [5, 1_000, 20_000])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_assignments_have_the_bits_of_the_eager_run(case: Any, n: int) -> None:
    eager, mine = parameters(n), parameters(n)
    captured = pb.capture(lambda x: case(*mine, x))
    results = []
    for k in range(4):
        x = pb.tensor(np.random.default_rng(k).standard_normal(n, np.float32))
        wanted = case(*eager, x)
        results.append((captured(x), wanted))
        for p, q in zip(mine, eager):
            same(p, q)
    for got, wanted in results:  # at the end, so that no result shares memory with a Parameter
        if wanted is not None:
            same(got, wanted)
    assert captured.stats().captures == 1


@pytest.mark.parametrize("dtypes", [("float64", "float32"), ("bfloat16", "float32"), ("float16", "float64")], ids=str)
def test_a_value_of_another_dtype_is_converted_as_in_the_eager_run(dtypes: Any) -> None:
    def step(p: Any, q: Any, x: Any) -> Any:
        y = q * 0.5 + x.astype(q.dtype)
        p.assign(y)
        q.assign(p.astype(q.dtype) * 2.0)
        return y

    eager, mine = parameters(3_000, dtypes), parameters(3_000, dtypes)
    captured = pb.capture(lambda x: step(mine[0], mine[1], x))
    for k in range(3):
        x = pb.tensor(np.random.default_rng(k).standard_normal(3_000, np.float32))
        same(captured(x), step(eager[0], eager[1], x))
        for p, q in zip(mine, eager):
            same(p, q)


@on_cpu
def test_an_assigned_value_takes_no_memory_and_no_pass_of_its_own() -> None:
    p, _ = parameters(5_000)
    captured = pb.capture(lambda x: scaled(p, None, x))
    x = pb.ones((5_000,))
    captured(x)
    stats = captured.stats()
    assert (stats.kernels_per_replay, stats.launches, stats.arena_bytes) == (1, 2, 0)
    with pb.profile(detail="kernel") as prof:
        captured(x)
    assert [launch.kernel for launch in prof.launches] == ["multiply", "add", "assign"]  # a profile counts what was recorded


@on_cpu
def test_an_error_before_the_assignment_leaves_the_parameter_as_it_is() -> None:
    p, _ = parameters(2_000)

    def step(x: Any, ids: Any) -> Any:
        y = p * 0.5 + x
        picked = pb.take(x, ids)
        p.assign(y)
        return picked

    captured, x = pb.capture(step), pb.ones((2_000,))
    captured(x, pb.tensor([1, 2]))
    before = host(p).copy()
    with pytest.raises(IndexError):
        captured(x, pb.tensor([1, 2_000]))
    np.testing.assert_array_equal(host(p), before)


# ---- updates that follow the ops that compute their gradients


@on_cpu
@pytest.mark.parametrize("rule", ["adam", "lion", "signum"])
def test_a_step_of_a_formula_is_one_pass_without_temporaries_of_the_size_of_the_weights(rule: str) -> None:
    rng = np.random.default_rng(0)
    params = [pb.Parameter(rng.standard_normal(n).astype(np.float32)) for n in (30_000, 30_000, 20_001)]
    opt = FORMULAS[rule][0](params)
    captured = pb.capture(lambda *grads: opt.step(list(grads)))
    grads = [pb.tensor(rng.standard_normal(p.shape).astype(np.float32)) for p in params]
    captured(*grads)
    assert captured.stats().arena_bytes < 20_000
    last = captured.explain().kernels[-1].launches
    assert last[-1] == "add_step"
    assert last.count("assign") == len(opt.slot_names) * len(params)


@pytest.fixture(params=[1, 2, 3])
def threads(request: Any) -> Any:
    """Lets this number of threads share the loops of the CPU's kernels."""
    before = KERNELS.thread_count()
    KERNELS.set_thread_count(request.param)
    yield request.param
    KERNELS.set_thread_count(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_an_update_that_follows_its_gradients_has_the_bits_of_the_eager_run(dtype: str) -> None:
    """Some gradients come from elementwise ops, and others from memory; the weights are read by the ops, too."""
    both = []
    for _ in range(2):
        rng = np.random.default_rng(1)
        params = [pb.Parameter(rng.standard_normal(n), dtype=dtype) for n in (3_000, 7, 3_000, 5_001)]
        opt = pb.optim.Adam(params, lr=0.01, ema=0.9)

        def step(a: Any, b: Any, params: Any = params, opt: Any = opt) -> Any:
            p, _, r, s = params
            opt.step([a * 2.0 + p * 0.1, None, a - r, b], return_delta=True)
            return pb.sum(s)

        both.append((params, opt, step))
    captured = pb.capture(both[1][2])
    for k in range(4):
        rng = np.random.default_rng(k)
        a, b = (pb.tensor(rng.standard_normal(n), dtype=dtype) for n in (3_000, 5_001))
        same(captured(a, b), both[0][2](a, b))
        for p, q in zip(both[0][0], both[1][0]):
            same(p, q)
            for x, y in zip(both[0][1].slots(p).values(), both[1][1].slots(q).values()):
                same(x, y)


@on_cpu
def test_the_time_of_a_recording_grows_in_proportion_to_the_values_that_are_kept_at_once() -> None:
    """A hole below the values, too small for one of them, must not be found again for each of them."""

    def seconds(count: int) -> float:
        def kept(x: Any) -> Any:
            values = [x]
            for i in range(count):
                values.append(pb.cumulative_sum(values[-1], axis=0) * values[i // 2])
            return sum(values[1:], x)

        captured, began = pb.capture(kept), time.process_time()
        captured(pb.ones((3, 4)))
        taken = time.process_time() - began
        assert captured.stats().arena_bytes == 64 * count  # each value has its own memory
        return taken

    seconds(100)
    assert seconds(8000) < 8 * seconds(2000)  # in proportion it is 4 times; it was 16 times
