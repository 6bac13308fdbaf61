"""The work of the backward pass: it launches what the requested gradients need, and nothing for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import ops
from pullback import nn
from pullback.nn import functional as F

pytestmark = needs_kernels
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return pb.tensor(RNG.standard_normal(shape), dtype=pb.float32)


def parameter(*shape: int) -> pb.Parameter:
    return pb.Parameter(RNG.standard_normal(shape), dtype=pb.float32)


def _backward(f: Callable[..., Any], given: Any, wanted: Any) -> tuple[int, int, int]:
    """Returns (launches, FLOPs, special ops) of the backward pass of f(*given), if only the gradients of `wanted` are requested."""
    with pb.profile(strict=True) as prof:
        with pb.GradientTape(persistent=True) as tape:
            tape.watch([x for x in given if not isinstance(x, pb.Parameter)])
            y = pb.sum(f(*given))
        tape.gradient(y, wanted)
    return prof.backward.launches, prof.backward.flops, prof.backward.special_ops


def test_gradients_that_nobody_wants_cost_nothing() -> None:
    """The cotangent of the sum is one launch without FLOPs. Only the launches that lead to the requested gradients follow."""
    a, b = parameter(10), parameter(10)
    product = lambda a, b: a * b
    assert _backward(product, (a, b), a) == (2, 10, 0)
    assert _backward(product, (a, b), b) == (2, 10, 0)
    assert _backward(product, (a, b), [a, b]) == (3, 20, 0)
    # the backward pass does not enter b's branch if only a's gradient is requested
    deep = lambda a, b: a * pb.exp(pb.tanh(pb.sin(b)))
    assert _backward(deep, (a, b), a) == (2, 10, 0)
    x, w, v = normal(4, 5), parameter(5, 6), parameter(6, 3)
    net = lambda x, w, v: pb.tanh(x @ w) @ v
    last, both, all_three = [_backward(net, (x, w, v), [x, w, v][first:]) for first in (2, 1, 0)]
    assert (last[0], last[1]) == (2, 2 * 4 * 6 * 3)
    assert (both[0], all_three[0]) == (5, 6)
    assert all_three[1] - both[1] == 2 * 4 * 5 * 6
    with pb.profile(strict=True) as prof, pb.GradientTape(watch_parameters=False) as tape:
        tape.watch(v)
        tape.gradient(pb.sum(net(x, w, v)), v)
    # an operand that is not watched costs no more than one whose gradient is not requested
    assert (prof.backward.launches, prof.backward.flops) == last[:2]


FUSED = {
    # op: launches for the first input, the second, and both: one kernel per input, and one for the cotangent of the sum
    "multiply": (2, 2, 3), "divide": (2, 2, 3), "pow": (2, 2, 3), "maximum": (2, 2, 3), "minimum": (2, 2, 3), "atan2": (2, 2, 3),
    "logaddexp": (2, 2, 3), "hypot": (2, 2, 3), "add": (1, 1, 1), "subtract": (1, 2, 2),
}


@pytest.mark.parametrize("name", FUSED)
def test_the_pullback_of_a_binary_op_is_one_launch_for_each_input(name: str) -> None:
    a, b = [pb.Parameter(np.linspace(0.5, 1.5 + k, 10), dtype=pb.float32) for k in (0, 1)]
    f = getattr(pb, name)
    assert tuple([_backward(f, (a, b), wanted)[0] for wanted in (a, b, [a, b])]) == FUSED[name]


UNARY = [op for op in ops("unary") if any(op.rules) and not op.dead and op.native and (op.name in dir(pb) or op.name in dir(F))]


@pytest.mark.parametrize("op", UNARY, ids=str)
def test_the_pullback_of_a_unary_op_is_at_most_one_launch(op: Any) -> None:
    low, high = op.facts.domain
    x = pb.Parameter(np.linspace(low + 0.1 * (high - low), high - 0.1 * (high - low), 10), dtype=pb.float32)
    assert _backward(getattr(pb if op.name in dir(pb) else F, op.name), (x,), x)[0] <= 2


@pytest.mark.parametrize(
    ("make", "forward", "backward"),
    [
        (lambda: nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)), 3, 4),
        (lambda: nn.Sequential(nn.Linear(20, 30), nn.GELU(), nn.Linear(30, 5)), 4, 5),
        (lambda: nn.Sequential(nn.LayerNorm(20), nn.Linear(20, 5)), 3, 4),
        (lambda: nn.Sequential(nn.RMSNorm(20), nn.Linear(20, 5)), 3, 4),
        (lambda: nn.Sequential(nn.Linear(20, 30), nn.Dropout(0.5), nn.Linear(30, 5)), 4, 5),
    ],
    ids=["mlp", "gelu", "layer norm", "rms norm", "dropout"],
)
def test_the_launches_of_a_training_step_stay_few(make: Callable[[], Any], forward: int, backward: int) -> None:
    net, x, y = make(), normal(7, 20), pb.tensor(np.arange(7) % 5)
    with pb.profile(strict=True) as prof:
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(net(x), y, reduction="sum")
        tape.gradient(loss, net.parameters())
    assert (prof.forward.launches, prof.backward.launches) == (forward, backward)
