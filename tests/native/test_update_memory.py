"""The memory of gradients, by the counts of the allocator: sums of contributions, gates of updates, and accumulation."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import optim
from pullback.backends import kernels_on
from pullback.tensors import devices

pytestmark = needs_kernels
SIDE = 128  # The allocator of the CPU counts blocks of 64 KiB or more.
BYTES = 4 * SIDE * SIDE


def live() -> int:
    """Returns the bytes of all arrays of this device."""
    return kernels_on(devices.default_device()).live_bytes()


def peak(f: Callable[[], Any]) -> float:
    """Returns the most memory that f() needs at a time in addition to what there is before, in matrices of SIDE x SIDE."""
    gc.collect()  # so that nothing else is freed while f() runs
    before = live()
    with pb.profile(detail="kernel") as prof:
        f()
    return (max([x.live_bytes for x in prof.launches]) - before) / BYTES


# ---- aggregation


def used_often(times: int, dtype: str = "float32") -> tuple[Any, Any, Any, Any]:
    """Returns a tape, a target, a weight that it uses many times, and the gradient in float64."""
    xs = np.random.default_rng(times).uniform(0.5, 1.5, (times, SIDE, SIDE)).astype(dtype)
    w = pb.Parameter(np.ones((SIDE, SIDE), dtype))
    with pb.GradientTape(persistent=True) as tape:
        y = [pb.sum(w * x) for x in [pb.tensor(x) for x in xs]]
    return tape, y, w, xs.astype(np.float64).sum(0)


# The sum and a contribution; three where the second contribution arrives. All contributions, their stack, and the sum. A sum
# of each rank, from 1 to 7, in float64; and two contributions, both in float64, and their sum.
MOST = {"accumulate": 3, "add_n": 2 * 256 + 1, "tree": 2 * 7 + 2 + 4 + 2}


@pytest.mark.parametrize("aggregation", MOST)
def test_the_memory_of_a_weight_that_is_used_256_times(aggregation: Any) -> None:
    tape, y, w, exact = used_often(256)
    found: list[Any] = []
    assert peak(lambda: found.append(tape.gradient(y, w, aggregation=aggregation))) == pytest.approx(MOST[aggregation], abs=0.1)
    np.testing.assert_allclose(host(found[0]), exact, rtol=1e-5)


def test_accumulate_keeps_one_buffer_and_the_contribution_that_arrives() -> None:
    tape, y, w, _ = used_often(64)
    gc.collect()
    before = live()
    with pb.profile(detail="kernel") as prof:
        tape.gradient(y, w)
    sizes = [(x.live_bytes - before) / BYTES for x in prof.launches]
    assert max(sizes[len(sizes) // 2 :]) == pytest.approx(2, abs=0.1)


# ---- gates


def layers(count: int) -> tuple[list[pb.Parameter], Callable[[], Any]]:
    """Returns the weights of a deep network of little activation, and its loss."""
    weights = [pb.Parameter(0.5 * np.eye(SIDE, dtype=np.float32), name=f"w{k}") for k in range(count)]
    x = pb.ones((1, SIDE))

    def layer(h: Any, w: Any) -> Any:
        return pb.tanh(h @ w)

    def loss(wrap: Callable[[Any], Any] = lambda f: f, whole: Callable[[Any], Any] = lambda f: f) -> Any:
        def run(h: Any) -> Any:
            for w in weights:
                h = wrap(layer)(h, w)
            return h

        return pb.sum(whole(run)(x))

    return weights, loss


NO_CHECKPOINT: dict[str, Any] = {}
CHECKPOINTS = {"none": NO_CHECKPOINT, "each layer": {"wrap": pb.checkpoint}, "the network": {"whole": pb.checkpoint}}


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("make", [lambda ps: optim.SGD(ps, 0.01), optim.Adam], ids=["sgd", "adam"])
def test_a_gate_at_each_op_has_the_gradients_of_one_layer_at_a_time(make: Any, checkpoint: str) -> None:
    most = {}
    for gate in ("graph", "op"):
        weights, loss = layers(12)
        opt = make(weights)

        def step(gate: Any = gate, opt: Any = opt, loss: Any = loss) -> None:
            opt.minimize(lambda: loss(**CHECKPOINTS[checkpoint]), gate=gate)

        step()
        most[gate] = peak(step)
    assert most["graph"] > 12
    assert most["op"] <= 2


def test_a_captured_gate_needs_less_memory_for_temporaries() -> None:
    arenas = {}
    for gate in ("graph", "op"):
        weights, loss = layers(12)
        opt = optim.Adam(weights)
        step = pb.capture(lambda gate=gate, opt=opt, loss=loss: opt.minimize(loss, gate=gate))
        step()
        step()
        arenas[gate] = step.stats().arena_bytes / BYTES
    assert arenas["graph"] >= 12
    assert arenas["op"] <= 2


# ---- accumulation


def test_an_accumulator_has_one_buffer_for_each_parameter() -> None:
    params = [pb.Parameter(np.ones((SIDE, SIDE)), dtype=dtype) for dtype in ("float32", "float16", "float64")]
    before = live()
    acc = optim.Accumulator(params, every=4)
    assert (live() - before) / BYTES == pytest.approx(1 + 1 + 2, abs=0.2)
    grads = [pb.ones_like(p) for p in params]
    acc.add(grads)
    assert peak(lambda: acc.add(grads)) == pytest.approx(1, abs=0.1)  # the gradient of half precision in float32
