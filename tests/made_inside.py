"""Shared by the tests of what captured functions make: runs them from equal states, captured and eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pullback as pb
from captured_step import alike, normal
from pullback import nn

FUSIONS = ("exact", "fast", "none")

Function = Callable[[Any], Any]


def results_of(make: Callable[[], Any], wrap: Callable[[Function], Any], calls: int = 5) -> tuple[list[Any], Any]:
    """Returns what calls return of the function that `make` returns, which starts from the same state each time, and the function.

    make() may also return what changes the state outside after call number k.
    """
    pb.random.seed(5)
    made = make()
    function, between = made if isinstance(made, tuple) else (made, lambda k: None)
    f, found = wrap(function), []
    for k in range(calls):
        found.append(f(normal(k, 4, 6, dtype=pb.float32)))
        between(k)
    return [*found, pb.random.uniform((2,))], f  # as many random numbers were drawn


def replays_like_eager(make: Callable[[], Any], recordings: int = 1) -> None:
    """Asserts that captured calls return the bits of eager ones, with every fusion, and are recorded that often."""
    wanted, _ = results_of(make, lambda f: f)
    for fusion in FUSIONS:
        got, f = results_of(make, lambda f, fusion=fusion: pb.capture(f, fusion=fusion))
        alike(got, wanted)
        assert f.stats().captures == recordings


def train(net: nn.Module) -> None:
    for p in net.parameters():
        p.assign(p * 0.5 + 0.1)


def descend(net: Any, x: Any, lr: float = 0.01) -> None:
    """Does a step of gradient descent on all Parameters that are trainable."""
    with pb.GradientTape() as tape:
        loss = pb.mean(net(x) ** 2)
    parameters = [p for p in net.parameters() if p.trainable]
    for p, g in zip(parameters, tape.gradient(loss, parameters, unconnected="zero")):
        p.assign(p - lr * g)
