"""What a `with` block sets holds for the gradients of what ran in it: the table of docs/derivatives.md."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn, optim
from pullback.tensors import devices

RNG = np.random.default_rng(0)
W = RNG.standard_normal((40, 40)).astype(np.float32)
X = RNG.standard_normal((7, 40)).astype(np.float32)
V = RNG.standard_normal(40).astype(np.float32)


def block(on: bool = True) -> Any:
    return pb.amp.autocast("bfloat16") if on else nullcontext()


def inside(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that runs f in a block of its own."""

    def call(*args: Any) -> Any:
        with block():
            return f(*args)

    return call


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(host(x), host(y)) for x, y in zip(pb.tree.leaves(a), pb.tree.leaves(b), strict=True))


def loss(w: Any) -> Any:
    return pb.sum(pb.sin(pb.tanh(pb.asarray(X) @ w) @ w))


def vector(v: Any) -> Any:
    return pb.tanh(pb.asarray(X) @ pb.sin(pb.asarray(W) * v)) @ pb.asarray(V)


def square(v: Any) -> Any:
    return pb.sum(vector(v) ** 2)


def of_example(w: Any, row: Any) -> Any:
    return pb.sum(pb.tanh(row @ w) ** 2)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "eager": loss,
    "layer": lambda w: pb.sum(nn.functional.linear(pb.asarray(X), w, activation="tanh") ** 2),
    "attention": lambda w: pb.sum(nn.functional.scaled_dot_product_attention(*[(pb.asarray(X) @ w)[None, None]] * 3) ** 2),
    "checkpoint": pb.checkpoint(loss),
    "memo": pb.memo(loss),
    "vmap": lambda w: pb.sum(pb.vmap(lambda row: of_example(w, row))(pb.asarray(X))),
    "scan": lambda w: pb.sum(pb.scan(lambda c, row: (pb.tanh(c @ w + row), c), pb.zeros(40), pb.asarray(X))[0]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("captured", [False, True])
def test_a_backward_pass_rounds_as_the_forward_pass_did(name: str, captured: bool) -> None:
    f = pb.capture(FUNCTIONS[name]) if captured else FUNCTIONS[name]
    w = pb.Parameter(W)
    for _ in range(2):  # the second call replays

        def gradient(forward: bool, backward: bool) -> Any:
            with pb.GradientTape() as tape, block(forward):
                y = f(w)
            with block(backward):
                return tape.gradient(y, w)

        rounded, exact = gradient(True, True), gradient(False, False)
        assert same(gradient(True, False), rounded)
        assert same(gradient(False, True), exact)
        assert not same(rounded, exact)


@pytest.mark.parametrize("wrap", [lambda f: f, pb.checkpoint, pb.memo], ids=["alone", "checkpoint", "memo"])
@pytest.mark.parametrize("aggregation", ["accumulate", "tree"])
def test_a_block_inside_of_a_captured_function_holds_on_tapes_around_it(wrap: Any, aggregation: Any) -> None:
    w = pb.Parameter(W)

    def gradients(f: Any, forward: bool, backward: bool) -> list[Any]:
        with pb.GradientTape(persistent=True) as tape, block(forward):
            y = f(w)
            z = y * 2.0 + pb.sum(w)
        with block(backward):
            return [tape.gradient(t, w, aggregation=aggregation) for t in (y, z)]

    expected = gradients(loss, True, True)
    f = pb.capture(wrap(inside(loss)))
    for backward in (False, True, False, True):
        assert same(gradients(f, False, backward), expected)
    exact = gradients(loss, False, False)
    f = pb.capture(wrap(loss))
    for backward in (False, True, False, True):
        assert same(gradients(f, False, backward), exact)


@pytest.mark.parametrize("wrap", [lambda f: f, pb.checkpoint], ids=["eager", "checkpoint"])
def test_second_derivatives_round_as_the_first_ones_did(wrap: Any) -> None:
    f, w = wrap(loss), pb.Parameter(W)

    def second(first: bool, last: bool) -> Any:
        with pb.GradientTape() as outer:
            with pb.GradientTape() as tape, block():
                y = f(w)
            with block(first):
                g = tape.gradient(y, w)
                total = pb.sum(g * g)
        with block(last):
            return outer.gradient(total, w)

    expected = second(True, True)
    assert same(second(False, False), expected)
    assert same(second(False, True), expected)


def test_each_op_has_its_own_precision() -> None:
    w, x = pb.Parameter(W), pb.asarray(X)
    with pb.GradientTape(persistent=True) as tape:
        with block():
            a = x @ w
        b = a @ w
    seed = pb.ones_like(b)
    first = tape.gradient(b, a, output_gradients=seed)
    np.testing.assert_allclose(host(first), np.ones(X.shape) @ W.T.astype(np.float64), rtol=1e-4, atol=1e-4)
    rounded = tape.gradient(a, w, output_gradients=seed)
    narrow = host(pb.asarray(X).astype(pb.bfloat16)).astype(np.float64)
    np.testing.assert_allclose(host(rounded), narrow.T @ np.ones(X.shape), rtol=1e-5, atol=1e-5)


TRANSFORMS: dict[str, tuple[Callable[[Any], Any], Callable[..., Any], tuple[Any, ...]]] = {
    "grad": (pb.grad, loss, (W,)),
    "jacobian": (lambda f: pb.jacobian(f, mode="reverse"), vector, (V,)),
    "jacobian forward": (lambda f: pb.jacobian(f, mode="forward"), vector, (V,)),
    "hessian": (pb.hessian, square, (V,)),
    "per_example_grad": (pb.per_example_grad, of_example, (W, X)),
    "per_example_norm": (pb.per_example_norm, of_example, (W, X)),
    "weighted_grad": (lambda f: pb.weighted_grad(f, pb.ones(7)), of_example, (W, X)),
    "vjp": (lambda f: lambda w: pb.vjp(f, w)[1](pb.tensor(1.0)), loss, (W,)),
    "jvp": (lambda f: lambda v: pb.jvp(f, (v,), (v,)), vector, (V,)),
    "linearize": (lambda f: lambda v: pb.linearize(f, v)[1](v), vector, (V,)),
    "hvp": (lambda f: lambda v: pb.hvp(f, (v,), (v,)), square, (V,)),
    "grad of checkpoint": (lambda f: pb.grad(pb.checkpoint(f)), loss, (W,)),
    "grad of capture": (lambda f: pb.grad(pb.capture(f)), loss, (W,)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_block_inside_of_a_function_holds_for_its_derivatives(name: str) -> None:
    transform, f, given = TRANSFORMS[name]
    args = [pb.asarray(x) for x in given]
    with block():
        expected = transform(f)(*args)
    derivative = transform(inside(f))
    for _ in range(3):  # the later calls of a captured function replay
        assert same(derivative(*args), expected)
    assert not same(transform(f)(*args), expected)


@pytest.mark.parametrize("pull", ["vjp", "linearize"])
def test_a_pullback_that_is_called_later_rounds_as_the_function_did(pull: str) -> None:
    v = pb.asarray(V)
    seed = pb.ones(7) if pull == "vjp" else v
    with block():
        _, later = getattr(pb, pull)(vector, v)
        expected = later(seed)
    with block():
        _, later = getattr(pb, pull)(vector, v)
    assert same(later(seed), expected)


@pytest.mark.parametrize("gate", ["graph", "op"])
def test_minimize_rounds_as_the_loss_did(gate: Any) -> None:
    weights = []
    for outside in (True, False):
        w = pb.Parameter(W)
        opt = optim.SGD([w], lr=0.1)
        with block(outside):
            opt.minimize((lambda w=w: loss(w)) if outside else inside(lambda w=w: loss(w)), gate=gate)
        weights.append(host(w))
    assert np.array_equal(*weights)


def test_hooks_and_the_program_after_keep_their_own_precision() -> None:
    w, x = pb.Parameter(W), pb.asarray(X)
    exact = host(x @ w)
    seen: list[Any] = []
    with pb.GradientTape() as tape, block():
        a = x @ w
        y = pb.sum(pb.sin(a) @ w)
        tape.on_gradient(a, lambda g: seen.append(host(x @ w)))
    tape.gradient(y, w)
    assert np.array_equal(seen[0], exact)
    assert np.array_equal(host(x @ w), exact)
    with pb.GradientTape() as tape, block():
        y = pb.custom_gradient(lambda x: (x * 2.0, lambda g: 1 / 0))(x @ w)
    with pytest.raises(ZeroDivisionError):
        tape.gradient(y, w, output_gradients=pb.ones_like(y))
    assert np.array_equal(host(x @ w), exact)


# ---- the other blocks


def test_a_checkpoint_is_computed_again_on_the_device_of_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(devices, "check_device", lambda device: device)
    x = pb.Parameter(np.ones(3))

    def f(x: Any) -> Any:
        seen.append(devices.default_device())
        return x * x

    with pb.GradientTape() as tape, pb.use_device("cuda:7"):
        y = pb.checkpoint(f)(x)
    tape.gradient(y, x, output_gradients=pb.asarray(np.ones(3)))
    assert seen == ["cuda:7"] * 2
    assert devices.default_device() != "cuda:7"


def test_what_ran_in_stop_recording_has_no_gradient() -> None:
    x = pb.Parameter(2.0)
    with pb.GradientTape() as tape:
        with tape.stop_recording():
            y = x * 3.0
        z = x * y
    assert tape.gradient(z, x).item() == 6.0


def test_debug_nans_and_profile_see_what_runs_inside() -> None:
    x = pb.Parameter(0.0)
    with pb.GradientTape() as tape, pb.debug_nans():
        y = pb.sqrt(x)
    assert np.isinf(tape.gradient(y, x).item())
    with pb.GradientTape() as tape, pb.debug_nans(), pytest.raises(pb.NonFiniteError):
        tape.gradient(pb.sqrt(x), x)
    w = pb.Parameter(W)
    with pb.GradientTape() as tape, pb.profile(detail="count") as forward:
        y = loss(w)
    with pb.profile(detail="count") as backward:
        tape.gradient(y, w)
    assert forward.forward.matmul_flops > 0 == forward.backward.matmul_flops
    assert backward.backward.matmul_flops == 2 * forward.forward.matmul_flops - 2 * X.size * 40
