"""Capture of every op in the table: a replay with different numbers than the recording gives the bits of the eager run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import UNREPEATABLE, needs_kernels, same as same_bits
from conftest import call, example, ops, rng_for, takes
from pullback.autodiff.primitive import ZERO, Op

ALL = [op for op in ops() if op.names[:1] != ("state",) and op.name not in UNREPEATABLE]
DTYPES = ("float32", "float64", "float16", "int32", "bool")
CASES = [(op, dtype) for op in ALL for dtype in DTYPES if dtype in takes(op)]
KERNELLESS = {"int32": ("pad",)}  # the example pads with 0.5
DIFFERENTIABLE = [op for op in ALL if op.pullback is not None and op.pullback is not ZERO]

pytestmark = needs_kernels


def calls(op: Op, dtype: str, count: int = 3) -> tuple[list[list[Any]], tuple[Any, ...]]:
    """Returns the arguments of `count` calls with equal signatures and different values.

    Integers (indices) are rotated from call to call.
    """
    rng, found, params = rng_for(op), [], ()
    for k in range(count):
        inputs, params = example(op, dtype, rng)
        found.append([np.asarray(x) if np.asarray(x).dtype.kind in "fVb" else np.roll(x, k, -1) for x in inputs])
    if op.name == "dropout":
        for inputs in found:
            inputs[1] = found[0][1]
    return found, params


@pytest.mark.parametrize("fusion", ["exact", "none"])
@pytest.mark.parametrize(("op", "dtype"), CASES, ids=str)
def test_a_replay_of_an_op_is_the_op(op: Op, dtype: str, fusion: str) -> None:
    given, params = calls(op, dtype)
    f = lambda *xs: call(op, xs, params)
    captured = pb.capture(f, fusion=fusion)
    if op.name in KERNELLESS.get(dtype, ()):
        with pytest.raises(pb.CaptureError, match=f"^{op.name}, (which has no native kernel|whose kernel does not take)"):
            captured(*[pb.asarray(x) for x in given[0]])
        return
    for inputs in given:
        xs = [pb.asarray(x) for x in inputs]
        same_bits(captured(*xs), f(*xs))
    assert captured.stats().captures == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_a_replay_of_a_gradient_is_the_gradient(op: Op, dtype: str) -> None:
    given, params = calls(op, dtype)

    def gradient(*xs: Any) -> Any:
        floats = [x for x in xs if x.dtype.kind == "f"]
        with pb.GradientTape() as tape:
            tape.watch(floats)
            y = call(op, xs, params)
            z = pb.sum(pb.square(y) + pb.sin(y))
        return tape.gradient(z, floats, unconnected="zero")

    def second(*xs: Any) -> Any:
        floats = [x for x in xs if x.dtype.kind == "f"]
        with pb.GradientTape() as outer:
            outer.watch(floats)
            total = pb.sum(gradient(*xs)[0])
        return outer.gradient(total, floats, unconnected="zero")

    for f in (gradient, second):
        captured = pb.capture(f)
        for inputs in given:
            xs = [pb.asarray(x) for x in inputs]
            for got, wanted in zip(captured(*xs), f(*xs)):
                same_bits(got, wanted)
        assert captured.stats().captures == 1


@pytest.mark.parametrize("name", UNREPEATABLE)
def test_an_op_without_a_kernel_is_refused_by_name(name: str) -> None:
    op = next(op for op in ops() if op.name == name)
    inputs, params = example(op, np.float32)
    params = ("cuda" if params == ("cpu",) else "cpu",) if name == "to_device" and pb.cuda.is_available() else params
    if name == "to_device" and not pb.cuda.is_available():
        pytest.skip("one device: nothing can be moved")
    with pytest.raises(pb.CaptureError, match=f"{name}.* at .*line"):
        pb.capture(lambda *xs: call(op, xs, params))(*[pb.asarray(x) for x in inputs])


@pytest.mark.parametrize("name", ["uniform", "normal", "truncated_normal", "bernoulli", "randint", "permutation"])
def test_random_numbers_go_on_as_in_eager_runs(name: str) -> None:
    sizes = {"permutation": (7,), "randint": (0, 9, (4, 3))}.get(name, ((4, 3),))

    def draws(generator: Any) -> Any:
        return [getattr(generator, name)(*sizes), getattr(generator, name)(*sizes)]

    eager, replayed = pb.random.Generator(5), pb.random.Generator(5)
    captured = pb.capture(lambda: draws(replayed))
    for _ in range(4):
        for got, wanted in zip(captured(), draws(eager)):
            same_bits(got, wanted)
        assert replayed.state_dict() == eager.state_dict()
    same_bits(replayed.uniform((3,)), eager.uniform((3,)))  # the eager generator's draw between two replays
    for got, wanted in zip(captured(), draws(eager)):
        same_bits(got, wanted)
    replayed.seed(9), eager.seed(9)
    for got, wanted in zip(captured(), draws(eager)):
        same_bits(got, wanted)
    assert captured.stats().captures == 1
