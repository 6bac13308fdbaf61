"""custom_gradient, checkpoint and scan inside and outside vmap, forward mode, Jacobians and other tapes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import close
from pullback.autodiff.node import named

W = pb.Parameter(np.array([0.5, -0.8, 1.1]), name="w")
X = np.random.default_rng(0).uniform(-1, 1, 3)
XS = np.random.default_rng(1).uniform(-1, 1, (4, 3))


def plain(x: Any, w: Any = W) -> Any:
    return pb.exp(pb.sin(x * w)) * pb.sum(x * x)


@pb.custom_gradient
def _inner(x: Any, w: Any) -> Any:
    s, n = pb.sin(x * w), pb.sum(x * x)
    y = pb.exp(s)

    def pullback(g: Any) -> Any:
        along = g * n * y * pb.cos(x * w)
        return along * w + 2 * x * pb.sum(g * y), along * x

    return y * n, pullback


def custom(x: Any, w: Any = W) -> Any:
    return _inner(x, w)


def checkpointed(x: Any, w: Any = W) -> Any:
    return pb.checkpoint(lambda x: plain(x, w))(x)


def nested(x: Any, w: Any = W) -> Any:
    inner = pb.checkpoint(lambda a: pb.exp(pb.sin(a * w)))
    return pb.checkpoint(lambda x: inner(x) * pb.sum(x * x))(x)


def scanned(x: Any, w: Any = W) -> Any:
    def step(total: Any, xw: Any) -> Any:
        return total + xw[0] * xw[0], pb.exp(pb.sin(xw[0] * xw[1]))

    total, ys = pb.scan(step, pb.sum(x) * 0.0, (x, w), checkpoint=2)
    return ys * total


FUNCTIONS = [custom, checkpointed, nested, scanned]
DIRECTION = pb.tensor(np.array([0.3, -1.0, 0.4]))


def by_tape(f: Any, x: Any, *, vmapped: bool) -> Any:
    x = pb.tensor(x)
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = pb.vmap(f)(x) if vmapped else f(x)
        loss = pb.sum(y * y)
    return tape.gradient(loss, [x, W])


def tape_in_vmap(f: Any, x: Any) -> Any:
    def per_example(x: Any) -> Any:
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = pb.sum(f(x) * x)
        return tape.gradient(y, [x, W])

    return pb.vmap(per_example)(pb.tensor(x))


def total(f: Any) -> Callable[..., Any]:
    return lambda x: pb.sum(f(x) * x)


def x_of(x: Any) -> Any:
    return pb.tensor(x)


WAYS: dict[str, Callable[[Any], Any]] = {
    "tape": lambda f: by_tape(f, X, vmapped=False),
    "vmap": lambda f: pb.vmap(f)(x_of(XS)),
    "tape over vmap": lambda f: by_tape(f, XS, vmapped=True),
    "tape in vmap": lambda f: tape_in_vmap(f, XS),
    "vmap of grad": lambda f: pb.vmap(pb.grad(total(f)))(x_of(XS)),
    "vmap of a constant": lambda f: by_tape(lambda x: x[0] * pb.vmap(lambda a: a * f(x))(x_of(X)), X, vmapped=False),
    "grad over vmap of grad": lambda f: pb.grad(lambda x: pb.sum(pb.sin(pb.vmap(pb.grad(total(f)))(x))))(x_of(XS)),
    "vmap of vmap": lambda f: pb.grad(lambda x: pb.sum(pb.vmap(pb.vmap(lambda a: f(x * a)))(x_of(XS)) ** 2))(x_of(X)),
    "jvp": lambda f: pb.jvp(f, (x_of(X),), (DIRECTION,)),
    "vmap of jvp": lambda f: pb.vmap(lambda x: pb.jvp(f, (x,), (DIRECTION,))[1])(x_of(XS)),
    "jvp of vmap": lambda f: pb.jvp(pb.vmap(f), (x_of(XS),), (x_of(XS[::-1]),)),
    "jvp of grad": lambda f: pb.hvp(total(f), x_of(X), DIRECTION),
    "grad of jvp": lambda f: pb.grad(lambda x: pb.sum(pb.jvp(f, (x,), (DIRECTION,))[1]))(x_of(X)),
    "jvp of jvp": lambda f: pb.jvp(lambda x: pb.jvp(f, (x,), (DIRECTION,))[1], (x_of(X),), (DIRECTION,)),
    "reverse jacobian": lambda f: pb.jacobian(f, mode="reverse")(x_of(X)),
    "forward jacobian": lambda f: pb.jacobian(f, mode="forward")(x_of(X)),
    "hessian": lambda f: pb.hessian(total(f))(x_of(X)),
    "reverse hessian": lambda f: pb.jacobian(pb.grad(total(f)), mode="reverse")(x_of(X)),
    "vmap of hvp": lambda f: pb.vmap(lambda x: pb.hvp(total(f), x, DIRECTION))(x_of(XS)),
    "vmap of hessian": lambda f: pb.vmap(pb.hessian(total(f)))(x_of(XS)),
    "jacobian of vmap": lambda f: pb.jacobian(pb.vmap(f), mode="reverse")(x_of(XS)),
    "linearize": lambda f: pb.linearize(f, x_of(X))[1](DIRECTION),
    "vjp of grad": lambda f: pb.vjp(pb.grad(total(f)), x_of(X))[1](DIRECTION),
}


def leaves(tree: Any) -> list[Any]:
    return [y for part in tree for y in leaves(part)] if isinstance(tree, (list, tuple)) else [tree]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_every_nesting_is_that_of_the_plain_function(f: Any, way: str) -> None:
    ours, wanted = leaves(WAYS[way](f)), leaves(WAYS[way](plain))
    assert len(ours) == len(wanted)
    for got, right in zip(ours, wanted):
        close(got, right, rtol=1e-9)
        assert np.abs(right.numpy()).max() > 0


@pb.custom_gradient
def _doubled(x: Any) -> Any:
    return pb.multiply(x, 2), lambda g: g * 2


@pytest.mark.parametrize("f", [pb.checkpoint(pb.tanh), _doubled], ids=["checkpoint", "custom_gradient"])
def test_the_record_of_a_call_is_freed_without_garbage_collection(f: Callable[[Any], Any]) -> None:
    """A reference cycle would keep the values of a forward pass until Python next looks for cycles."""
    x = pb.Parameter(np.ones(3, np.float32))
    gc.disable()
    try:
        with pb.GradientTape() as tape:
            y = pb.sum(f(x))
        (call,) = [weakref.ref(node.op) for node in named(tape.nodes) if node.op.joint]
        tape.gradient(y, x)
        del tape
        assert call() is None
    finally:
        gc.enable()
