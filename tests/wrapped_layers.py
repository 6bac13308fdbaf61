"""Layers in transforms: one row for each transform that returns a function of a function, with its value in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import pullback as pb
from pullback import nn

X = np.array([0.5, -1.0], np.float32)
ROWS = np.array([[0.5, -1.0], [2.0, 0.25], [-0.5, 1.5]], np.float32)
TARGETS = np.array([0.0, 1.0, 2.0], np.float32)
WEIGHTS = np.array([1.0, -2.0, 0.5], np.float32)


class Layer(nn.Module):
    def __init__(self) -> None:
        self.linear = nn.Linear(2, 2)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.dropout(self.linear(x))


class Energy(Layer):
    def forward(self, x: Any, target: Any = 0.0) -> Any:
        return pb.sum(pb.square(super().forward(x) - target))


class WithPullback(Layer):
    def forward(self, x: Any) -> Any:
        return super().forward(x), lambda g: g @ self.linear.weight


class Case(NamedTuple):
    """A transform.

    Attributes:
        wrap: the transform.
        layer: makes the layer that it is applied to.
        args: the arguments of the function that it returns.
        value: returns the value of this function without dropout, from the weight and the bias of the layer.
    """

    wrap: Callable[[Any], Any]
    layer: Callable[[], Layer]
    args: tuple[Any, ...]
    value: Callable[[Any, Any], Any]

    def call(self, function: Any) -> list[Any]:
        """Returns the tensors that the function returns."""
        found = function(*[pb.tensor(x) for x in self.args])
        return list(found) if isinstance(found, tuple) else [found]

    def expected(self, layer: Any) -> list[Any]:
        found = self.value(layer.linear.weight.numpy(), layer.linear.bias.numpy())
        return list(found) if isinstance(found, tuple) else [found]

    def check(self, function: Any, layer: Any) -> None:
        """Asserts that the function computes with the weights of the layer."""
        for y, wanted in zip(self.call(function), self.expected(layer), strict=True):
            np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5, atol=1e-5)


def energy(w: Any, b: Any) -> Any:
    return np.sum((w @ X + b) ** 2)


def slope(w: Any, b: Any) -> Any:
    return 2 * (w @ X + b) @ w


def slopes(w: Any, b: Any) -> Any:
    return 2 * (w @ X + b - TARGETS[:, None]) @ w


def rows(w: Any, b: Any) -> Any:
    return ROWS @ w.T + b


CASES = {
    "checkpoint": Case(pb.checkpoint, Layer, (ROWS,), rows),
    "capture": Case(pb.capture, Layer, (ROWS,), rows),
    "vmap": Case(pb.vmap, Layer, (ROWS,), rows),
    "memo": Case(pb.memo, Layer, (ROWS,), rows),
    "straight_through": Case(pb.straight_through, Layer, (ROWS,), rows),
    "custom_gradient": Case(pb.custom_gradient, WithPullback, (ROWS,), rows),
    "grad": Case(pb.grad, Energy, (X,), slope),
    "value_and_grad": Case(pb.value_and_grad, Energy, (X,), lambda w, b: (energy(w, b), slope(w, b))),
    "jacobian": Case(pb.jacobian, Layer, (X,), lambda w, b: w),
    "hessian": Case(pb.hessian, Energy, (X,), lambda w, b: 2 * w.T @ w),
    "per_example_grad": Case(pb.per_example_grad, Energy, (X, TARGETS), slopes),
    "per_example_norm": Case(pb.per_example_norm, Energy, (X, TARGETS), lambda w, b: np.sum(slopes(w, b) ** 2, axis=1)),
    "weighted_grad": Case(
        lambda f: pb.weighted_grad(f, pb.tensor(WEIGHTS)), Energy, (X, TARGETS), lambda w, b: WEIGHTS @ slopes(w, b)
    ),
    "checkpoint(capture)": Case(lambda f: pb.checkpoint(pb.capture(f)), Layer, (ROWS,), rows),
    "capture(checkpoint)": Case(lambda f: pb.capture(pb.checkpoint(f)), Layer, (ROWS,), rows),
}


class Alone(nn.Module):
    """A network that holds its layer in the transform alone, once as an attribute and once in a list."""

    def __init__(self, name: str) -> None:
        case = CASES[name]
        self.block = case.wrap(case.layer())
        self.blocks = [case.wrap(case.layer())]
        self.head = nn.Linear(2, 1)


class Shared(nn.Module):
    """A network that holds its layer, a transform of it, a transform of its method, and one of a method of the network."""

    def __init__(self, name: str) -> None:
        case = CASES[name]
        self.layer = case.layer()
        self.run = case.wrap(self.layer)
        self.through = case.wrap(self.layer.forward)
        self.body = case.wrap(self.body)

    def body(self, *args: Any) -> Any:
        return self.layer(*args)

    def functions(self) -> list[Any]:
        return [self.run, self.through, self.body]


def changed(net: Any) -> Any:
    """Multiplies the Parameters by 3, and returns the network."""
    for p in net.parameters():
        p.assign(p * 3)
    return net
