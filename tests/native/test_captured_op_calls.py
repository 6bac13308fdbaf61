"""Checkpoints and custom gradients inside a captured function are replayed under a tape, with the bits of the eager function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pullback as pb
from captured_calls import FUNCTIONS, parameter, total
from captured_step import agree, needs_kernels, normal
from pullback.tensors import devices

pytestmark = [needs_kernels, pytest.mark.filterwarnings("ignore::pullback.errors.ZeroGradientWarning")]

Function = Callable[[Any], Any]


# ---- first derivatives


@pytest.mark.parametrize("aggregation", ["accumulate", "add_n", "tree"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_have_the_bits_of_the_eager_function(name: str, aggregation: Any) -> None:
    """The data changes from call to call, and so does the Parameter."""
    w = parameter()

    def run(g: Any, k: int) -> Any:
        w.assign(normal(k + 50, 3, 3, dtype=pb.float32))
        x = normal(k, 3, 3, dtype=pb.float32)
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = g(x)
            z = total(y) + pb.sum(x * w)
        return [y, z, *tape.gradient(z, [x, w], aggregation=aggregation)]

    stats = agree(FUNCTIONS[name](w), run, 4).stats()
    assert stats.captures == (1 + (aggregation == "accumulate"))
    assert stats.replays == 3 * stats.captures


@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_batches_before_the_first_backward_pass_keep_values_of_their_own(name: str) -> None:
    w = parameter()

    def run(g: Any, k: int) -> Any:
        found: list[Any] = []
        for tape in (tapes := [pb.GradientTape() for _ in range(3)]):
            x = normal(3 * k + len(found), 3, 3, dtype=pb.float32)
            tape.watch(x)
            with tape:
                found.append((x, total(g(x))))
        return [[y, *tape.gradient(y, [x, w])] for tape, (x, y) in reversed(list(zip(tapes, found)))]

    assert agree(FUNCTIONS[name](w), run, 3).stats().captures == 2


@pytest.mark.filterwarnings("ignore:.* is counted in:UserWarning")
def test_the_function_runs_once_and_the_inside_of_a_checkpoint_twice() -> None:
    calls = [0, 0, 0]  # of the checkpoint's inside, the custom gradient and its pullback

    def inside(u: Any) -> Any:
        calls[0] += 1
        return pb.sin(u)

    @pb.custom_gradient
    def custom(x: Any) -> Any:
        calls[1] += 1

        def pull(g: Any) -> Any:
            calls[2] += 1
            return g

        return x * 2, pull

    captured = pb.capture(lambda x: pb.sum(custom(pb.checkpoint(inside)(x))))
    for k in range(4):
        pb.grad(captured)(normal(k, 3))
    assert calls == [2, 1, 1]
    assert (captured.stats().captures, captured.stats().replays) == (2, 6)


# ---- higher derivatives, batches and other listeners

WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "second": lambda f, x: pb.grad(lambda u: pb.sum(pb.sin(pb.grad(f)(u))))(x),
    "hvp": lambda f, x: pb.hvp(f, x, pb.cos(x)),
    "hessian": lambda f, x: pb.hessian(f)(x),
    "jvp": lambda f, x: pb.jvp(f, (x,), (pb.cos(x),)),
    "vmap of grad": lambda f, x: pb.vmap(pb.grad(f))(pb.stack([x, pb.sin(x), -x])),
    "grad of vmap": lambda f, x: pb.grad(lambda u: pb.sum(pb.vmap(f)(u)))(pb.stack([x, pb.sin(x), -x])),
    "jacobian": lambda f, x: pb.jacobian(lambda u: f(u) * u[0], mode="reverse")(x),
    "checkpoint": lambda f, x: pb.grad(pb.checkpoint(f))(x),
    "per example": lambda f, x: pb.per_example_grad(lambda u, s: f(u * s))(x, pb.tensor([1.0, 2.0], pb.float32)),
}
# Forward mode refuses the pullbacks of these.
NONLINEAR = ("partial", "defaults", "containers", "draws", "custom gradient in a checkpoint")
CUSTOM = [name for name in FUNCTIONS if "custom" in name or not any([word in name for word in ("checkpoint", "view")])]
DRAWS_AGAIN = ("checkpoint with draws", "nested checkpoints with draws", "checkpoint in a scan")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_transforms_have_the_bits_of_those_of_the_eager_function(name: str, way: str) -> None:
    w = parameter()
    f = FUNCTIONS[name](w)

    def run(g: Any, k: int) -> Any:
        w.assign(normal(k + 50, 3, 3, dtype=pb.float32))
        x = normal(k, 3, 3, dtype=pb.float32)
        if refused:
            with pytest.raises(pb.TapeError, match="not linear in the cotangent"):
                WAYS[way](lambda x: total(g(x)), x)
            return None
        return WAYS[way](lambda x: total(g(x)), x)

    of_forward_mode = way in ("hvp", "hessian", "jvp")
    refused = of_forward_mode and name in NONLINEAR
    unchecked = of_forward_mode and name in CUSTOM and devices.default_device() != "cpu"  # whether it is linear
    eager = refused or unchecked or (name in DRAWS_AGAIN and way in ("vmap of grad", "per example"))
    assert (agree(f, run).stats().replays == 0) is eager


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_persistent_tape_walks_twice_and_records_its_backward_pass(name: str) -> None:
    w = parameter()

    def run(g: Any, k: int) -> Any:
        x = normal(k, 3, 3, dtype=pb.float32)
        with pb.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = total(g(x))
            z = pb.sum(pb.sin(tape.gradient(y, x)))
        return [tape.gradient(y, [x, w]), tape.gradient(z, [x, w], unconnected="zero"), tape.gradient(y, w)]

    assert agree(FUNCTIONS[name](w), run, 4).stats().replays > 0


def test_second_derivatives_of_a_checkpoint_are_replayed() -> None:
    w = parameter()
    captured = pb.capture(lambda x: total(FUNCTIONS["checkpoint of closures"](w)(x)))
    found = []
    for k in range(4):
        pb.hessian(captured)(normal(k, 3, 3, dtype=pb.float32))
        found.append(captured.stats())
    assert found[3].captures == found[0].captures
    assert found[3].replays > found[2].replays > found[1].replays
