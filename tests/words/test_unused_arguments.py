"""Transforms warn of an argument that the value does not depend on, unless zero is right and nothing was forgotten."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn

NET = nn.Linear(3, 2)
COPIES = {name: pb.stop_gradient(p) for name, p in NET.named_parameters()}
X, Y = pb.ones((4, 3)), pb.ones((4, 2))


def forgets(_: Any, x: Any = X, y: Any = Y) -> Any:
    """Computes with the Parameters of the net, and not with the copies that it receives."""
    return nn.mse(NET(x), y)


def forgets_the_updated(copies: Any) -> Any:
    """Makes an inner step, and computes with the old Parameters."""
    slopes = pb.grad(lambda q: pb.sum(q["weight"] ** 2) + pb.sum(q["bias"] ** 2))(copies)
    _ = {name: copies[name] - 0.1 * slopes[name] for name in copies}
    return forgets(None)


FORGOTTEN: dict[str, Callable[[], Any]] = {
    "grad": lambda: pb.grad(forgets)(COPIES),
    "grad by position": lambda: pb.grad(lambda a, b: pb.sum(a), argnums=(0, 1))(X, X)[1],
    "value_and_grad": lambda: pb.value_and_grad(forgets)(COPIES)[1],
    "vjp": lambda: pb.vjp(forgets, COPIES)[1](1.0),
    "jvp": lambda: pb.jvp(forgets, (COPIES,), (COPIES,))[1],
    "linearize": lambda: pb.linearize(forgets, COPIES)[1](COPIES),
    "hvp": lambda: pb.hvp(forgets, COPIES, COPIES),
    "jacobian, reverse": lambda: pb.jacobian(forgets, mode="reverse")(COPIES),
    "jacobian, forward": lambda: pb.jacobian(forgets, mode="forward")(COPIES),
    "hessian": lambda: pb.hessian(forgets)(COPIES),
    "vmap of grad": lambda: pb.vmap(pb.grad(forgets), in_axes=(None, 0, 0))(COPIES, X, Y),
    "per_example_grad": lambda: pb.per_example_grad(forgets)(COPIES, X, Y),
    "weighted_grad": lambda: pb.weighted_grad(forgets, pb.ones(4))(COPIES, X, Y),
    "an inner step": lambda: pb.grad(forgets_the_updated)(COPIES),
    "a captured function": lambda: pb.capture(lambda: pb.grad(forgets)(COPIES))(),
}


@pytest.mark.parametrize("name", FORGOTTEN)
def test_an_argument_that_nothing_depends_on_is_named(name: str) -> None:
    with pytest.warns(
        pb.ZeroGradientWarning, match=r"does not depend on (argument [01]|the arguments); (no op|ops) used it"
    ) as found:
        gradients = FORGOTTEN[name]()
    assert {warning.filename for warning in found} == {__file__}
    assert all([not host(g).any() for g in pb.tree.leaves(gradients)])


def of_tape(x: Any) -> Any:
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = pb.sum(3 * x)
    return tape.gradient(y, x)


CUBE = pb.ones(3)
RIGHT: dict[str, Callable[[], Any]] = {
    "a part of a tree": lambda: pb.grad(lambda tree: pb.sum(tree["used"]))({"used": CUBE, "not": CUBE})["not"],
    "a part of a tree, forward": lambda: pb.jacobian(lambda tree: pb.sum(tree[0]), mode="forward")((CUBE, CUBE))[1],
    "an argument of another output": lambda: pb.jacobian(lambda a, b: (pb.sum(a), pb.sum(b)), argnums=(0, 1), mode="reverse")(
        CUBE, CUBE
    )[0][1],
    "an empty argument": lambda: pb.grad(lambda a, b: pb.sum(a), argnums=(0, 1))(CUBE, {})[1],
    "stop_gradient": lambda: pb.grad(lambda x: pb.sum(pb.stop_gradient(x) * 2))(CUBE),
    "second derivative of a linear function": lambda: pb.grad(pb.grad(lambda x: 3 * x))(2.0),
    "its vmap": lambda: pb.vmap(pb.grad(pb.grad(lambda x: 3 * x)))(CUBE),
    "around its vmap": lambda: pb.grad(lambda x: pb.sum(pb.vmap(pb.grad(lambda one: 3 * one))(x)))(CUBE),
    "hessian of a linear function": lambda: pb.hessian(lambda x: pb.sum(3 * x))(CUBE),
    "jacobian of a jacobian": lambda: pb.jacobian(pb.jacobian(lambda x: 3 * x, mode="reverse"), mode="reverse")(CUBE),
    "hvp of a linear function": lambda: pb.hvp(lambda x: pb.sum(3 * x), CUBE, CUBE),
    "around a tape": lambda: pb.grad(lambda x: pb.sum(of_tape(x)))(CUBE),
    "around jvp": lambda: pb.grad(lambda x: pb.sum(pb.jvp(lambda a: 3 * a, (x,), (CUBE,))[1]))(CUBE),
    "around vjp": lambda: pb.grad(lambda x: pb.sum(pb.vjp(lambda a: 3 * a, x)[1](CUBE)[0]))(CUBE),
    "around linearize": lambda: pb.grad(lambda x: pb.sum(pb.linearize(lambda a: 3 * a, x)[1](CUBE)))(CUBE),
    "around per_example_norm": lambda: pb.grad(lambda x: pb.sum(pb.per_example_norm(lambda a, e: pb.sum(a * e))(x, X)))(CUBE),
    "around weighted_grad": lambda: pb.grad(lambda x: pb.sum(pb.weighted_grad(lambda a, e: pb.sum(a * e), pb.ones(4))(x, X)))(CUBE),
    "a checkpoint": lambda: pb.grad(lambda x: pb.sum(pb.checkpoint(of_tape)(x)))(CUBE),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_zero_derivative_that_is_right_is_not_warned_of(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients = RIGHT[name]()
    assert all([not host(g).any() for g in pb.tree.leaves(gradients)])


def test_the_value_itself_depends_on_the_argument() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mode in ("forward", "reverse"):
            assert host(pb.jacobian(lambda x: x, mode=mode)(CUBE)).tolist() == np.eye(3).tolist()
        parameters = pb.grad(lambda _: forgets(None))(NET.parameters())  # the Parameters are found where they are used
    assert all([host(g).any() for g in parameters])
