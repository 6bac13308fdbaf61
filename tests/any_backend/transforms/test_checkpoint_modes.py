"""A checkpoint computes again in the modes of the forward pass, which are those of its thread alone."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn

X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)


def network() -> Any:
    pb.random.seed(1)
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))


def in_another_thread(f: Callable[[], Any]) -> Any:
    found = list[Any]()
    other = threading.Thread(target=lambda: found.append(f()))
    other.start()
    other.join()
    return found[0]


@pytest.mark.parametrize("later", [True, False])
def test_another_thread_meets_the_modes_that_the_user_has_set(later: bool) -> None:
    net, x, seen = network().train(not later), pb.tensor(X), list[Any]()

    def mode_elsewhere() -> tuple[list[bool], bytes]:
        return [part.training for part in net.modules()], b"" if net.training else net(x).numpy().tobytes()

    def f(x: Any) -> Any:
        y = net(x)
        seen.append((net[2].training, in_another_thread(mode_elsewhere)))
        return pb.sum(y * y)

    with pb.GradientTape() as tape:
        y = pb.checkpoint(f)(x)
    net.train(later)
    right = mode_elsewhere()
    tape.gradient(y, net.parameters())
    assert [mine for mine, _ in seen] == [not later, not later]
    assert seen[1][1] == right
    assert mode_elsewhere() == right


def test_modes_that_another_thread_sets_meanwhile_stay() -> None:
    net = network()

    def f(x: Any) -> Any:
        return pb.sum(net(x) ** 2)

    def changing(x: Any) -> Any:
        y = f(x)
        if len(calls) == 2:
            in_another_thread(net.train)
        calls.append(net.training)
        return y

    calls = [None]
    with pb.GradientTape() as tape:
        y = pb.checkpoint(changing)(pb.tensor(X))
    net.eval()
    tape.gradient(y, net.parameters())
    assert calls == [None, True, True]
    assert net.training


@pytest.mark.parametrize("around", [False, True], ids=["step", "forward"])
def test_a_captured_function_with_a_checkpoint_follows_the_mode(around: bool) -> None:
    """Its backward pass sets modes inside the recording, which is still one of the mode outside."""
    net, x = network(), pb.tensor(X)
    block = pb.checkpoint(net)

    def forward(x: Any) -> Any:
        return pb.sum(block(x) ** 2)

    def step(x: Any, f: Any = forward) -> Any:
        with pb.GradientTape() as tape:
            y = f(x)
        return y, *tape.gradient(y, net.parameters())

    captured: Any = pb.capture(forward) if around else None
    replayed = (lambda x: step(x, captured)) if around else pb.capture(step)
    for mode in (True, True, False, False, True, False):
        net.train(mode)
        state = net.state_dict()
        found = []
        for run in (replayed, step):
            net.load_state_dict(state)
            pb.random.seed(2)
            found.append([y.numpy().tobytes() for y in [*run(x), *net.buffers()]])
        assert found[0] == found[1], mode


def test_a_copy_that_the_function_makes_has_the_mode_of_the_forward_pass() -> None:
    def gradient(wrap: Any, later: bool) -> bytes:
        net, x = network(), pb.tensor(X)
        pb.random.seed(3)
        f = wrap(lambda x: pb.sum(copy.deepcopy(net)(x) ** 2))
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        net.train(later)
        return tape.gradient(y, x).numpy().tobytes()

    assert gradient(pb.checkpoint, False) == gradient(lambda f: f, False)


class Evaluated(nn.Dropout):
    training = False


@dataclass(eq=False)
class Field(nn.Module):
    p: float = 0.5
    training: bool = False

    def forward(self, x: Any) -> Any:
        return nn.functional.dropout(x, self.p, self.training)


@pytest.mark.parametrize("kind", [Evaluated, Field])
def test_the_mode_of_new_modules_is_that_in_the_body_of_the_class(kind: Any) -> None:
    net, x = kind(0.5), pb.tensor(X)
    assert (net.training, kind.training, nn.Module.training, kind().train().training) == (False, False, True, True)
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = pb.sum(pb.checkpoint(net)(x))
    net.train()
    np.testing.assert_array_equal(tape.gradient(y, x).numpy(), np.ones_like(X))
    with pytest.raises(pb.PullbackError, match=r"training of the class is that of new instances. Call net.train\(\)"):
        kind.training = True
