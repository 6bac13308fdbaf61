"""What a captured function makes is right under tapes and transforms, and if it is used after the call."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import alike, needs_kernels, normal
from made_inside import Function, descend, replays_like_eager, train
from pullback import nn

pytestmark = needs_kernels


# ---- under tapes and transforms

AROUND: dict[str, Callable[[Function, Any], Any]] = {
    "tape": lambda f, x: pb.value_and_grad(lambda x: pb.sum(f(x) ** 2))(x),
    "jvp": lambda f, x: pb.jvp(f, (x,), (x * 0.5,)),
    "vmap": lambda f, x: pb.vmap(f)(pb.stack([x, x * 2])),
    "jacobian": lambda f, x: pb.jacobian(f)(x),
    "hvp": lambda f, x: pb.hvp(lambda x: pb.sum(f(x) ** 2), x, x),
    "gradient of each": lambda f, x: pb.vmap(pb.grad(lambda x: pb.sum(f(x) ** 2)))(pb.stack([x, x * 2])),
    "checkpoint": lambda f, x: pb.grad(lambda x: pb.sum(pb.checkpoint(f)(x) ** 2))(x),
}
INSIDE: dict[str, Callable[[Any, Any], Any]] = {
    "a Parameter": lambda net, x: pb.Parameter(np.full(6, 0.5, np.float32)) * x * x,
    "an assigned Parameter": lambda net, x: pb.Parameter(np.full(6, 0.5, np.float32)).assign(net[0].bias[:1] + pb.zeros(6)) * x * x,
    "a copy": lambda net, x: copy.deepcopy(net)(x) * net(x),
    "a copy of a Parameter": lambda net, x: pb.tanh(x @ copy.copy(net[0].weight).T),
    "a new Module": lambda net, x: nn.Tanh()(net(x)),
}


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("around", AROUND)
def test_it_is_made_anew_under_tapes_and_transforms(around: str, inside: str) -> None:
    found = []
    for wrap in (lambda f: f, pb.capture):
        pb.random.seed(1)
        net = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
        f, results = wrap(lambda x, net=net: INSIDE[inside](net, x)), []
        for k in range(4):
            results.append(AROUND[around](f, normal(k, 4, 6, dtype=pb.float32)))
            train(net)
        found.append(results)
    alike(*found)


def test_a_tape_around_gives_the_gradients_of_parameters_outside() -> None:
    found = []
    for wrap in (lambda f: f, pb.capture):
        pb.random.seed(1)
        net, results = nn.Linear(6, 2), []

        def f(x: Any, net: Any = net) -> Any:
            q = pb.Parameter(np.ones(2, np.float32))
            q.assign(pb.stop_gradient(q * pb.mean(x)))
            return pb.sum((net(x) * q) ** 2)

        f = wrap(f)
        for k in range(4):
            with pb.GradientTape() as tape:
                loss = f(normal(k, 4, 6, dtype=pb.float32))
            gradients = tape.gradient(loss, net.parameters())
            results.append([loss, gradients])
            for p, g in zip(net.parameters(), gradients):
                p.assign(p - 0.1 * g)
        found.append(results)
    alike(*found)


# ---- what is used after the call


def test_what_is_made_once_and_stored_goes_on_living() -> None:
    def make() -> Any:
        stored: dict[str, Any] = {}

        def f(x: Any) -> Any:
            if not stored:
                stored["count"], stored["layer"] = nn.Buffer(0), nn.Linear(6, 2)
            stored["count"].assign(stored["count"] + 1)
            descend(stored["layer"], x)
            return stored["count"] + 0, stored["layer"](x)

        return f

    replays_like_eager(make)


@pytest.mark.parametrize(
    "returned",
    [
        lambda x: pb.Parameter(x),
        lambda x: {"p": pb.Parameter(np.zeros((4, 6), np.float32)).assign(x)},
        lambda x: nn.Buffer(x),
        lambda x: copy.deepcopy(pb.Parameter(x)).assign(x * 2),
    ],
)
def test_what_is_returned_cannot_be_what_later_calls_make(returned: Function) -> None:
    f = pb.capture(returned)
    xs = [normal(k, 4, 6, dtype=pb.float32) for k in range(2)]
    first = f(xs[0])
    alike([first], [returned(xs[0])])
    with pytest.raises(pb.CaptureError, match=r"(Parameter|Buffer) that it makes.*pb\.copy"):
        f(xs[1])
    alike([first], [returned(xs[0])])


def test_a_view_of_what_is_made_can_be_returned() -> None:
    f = pb.capture(lambda x: pb.Parameter(x)[1:])
    xs = [normal(k, 4, 6, dtype=pb.float32) for k in range(4)]
    alike([f(x) for x in xs], [x[1:] for x in xs])


def test_a_module_that_is_returned_or_kept_is_refused() -> None:
    kept: list[Any] = []
    net = nn.Linear(3, 3)
    for f in (lambda x: kept.append(pb.Parameter(x)), lambda x: copy.deepcopy(net)):
        with pytest.raises(pb.CaptureError, match=r"what a replay could not repeat"):
            pb.capture(f, steps=2)(pb.ones((2, 3)))
        captured = pb.capture(f)
        captured(pb.ones(3))
        with pytest.raises(pb.CaptureError, match=r"what a replay could not repeat"):
            captured(pb.ones(3))


def test_a_recording_keeps_no_copy_alive() -> None:
    net, made = nn.Sequential(nn.Linear(6, 2), nn.Dropout(0.5)), weakref.WeakSet()

    def f(x: Any) -> Any:
        fast = copy.deepcopy(net)
        made.add(fast)
        made.add(fast[0].weight)
        return fast(x)

    captured = pb.capture(f)
    captured(normal(0, 4, 6, dtype=pb.float32))
    gc.collect()
    assert not made
    assert captured.stats().recordings == 1
