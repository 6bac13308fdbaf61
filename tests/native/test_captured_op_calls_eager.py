"""What stays as in eager code if a captured function has a `checkpoint` or a `custom_gradient` inside: errors, reports, memory."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import captured_step
import pullback as pb
from captured_calls import FUNCTIONS, Net, doubled, parameter, total
from captured_step import agree, alike, needs_kernels, normal, same
from pullback import nn, optim
from pullback.backends import kernels_on
from pullback.nn import functional as F
from pullback.tensors import devices

pytestmark = [needs_kernels, pytest.mark.filterwarnings("ignore::pullback.errors.ZeroGradientWarning")]

Function = Callable[[Any], Any]


# ---- what stays as it is in eager code


class Held:
    """An object that is neither a container nor a dataclass."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, g: Any) -> Any:
        return g * self.value


MODULE_LEVEL: dict[str, Any] = {}


@pb.custom_gradient
def by_global(x: Any) -> Any:
    MODULE_LEVEL["y"] = pb.sin(x)
    return x * 2, lambda g: g * MODULE_LEVEL["y"]


@pb.custom_gradient
def by_array(x: Any) -> Any:
    array = pb.sin(x).array
    return x * 2, lambda g: g * pb.asarray(array)


@pb.custom_gradient
def by_tape(x: Any) -> Any:
    with pb.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = pb.sin(x)
    return y, lambda g: tape.gradient(y, x, output_gradients=g)


class OfClass:
    value: Any = None

    def __call__(self, g: Any) -> Any:
        return g * MODULE_LEVEL["y"]


@pb.custom_gradient
def by_class(x: Any) -> Any:
    OfClass.value = pb.sin(x)
    return x * 2, lambda g: g * OfClass.value


@pb.custom_gradient
def by_method(x: Any) -> Any:
    """The value is in a global of a method of an object."""
    MODULE_LEVEL["y"] = pb.sin(x)
    inner = OfClass()
    return x * 2, lambda g: inner(g)


@pb.custom_gradient
def by_module(x: Any) -> Any:
    captured_step.leaked = pb.sin(x)  # type: ignore[attr-defined]
    return x * 2, lambda g: g * captured_step.leaked  # type: ignore[attr-defined]


@pb.custom_gradient
def by_attribute(x: Any) -> Any:
    held = Held(pb.sin(x))
    return x * 2, lambda g: g * held.value


@pb.custom_gradient
def by_set(x: Any) -> Any:
    held = frozenset([pb.sin(x)])
    return x * 2, lambda g: g * next(iter(held))


@pb.custom_gradient
def by_library(x: Any) -> Any:
    pytest.leaked = pb.sin(x)  # type: ignore[attr-defined]
    return x * 2, lambda g: g * pytest.leaked  # type: ignore[attr-defined]


HIDDEN: dict[str, Function] = {
    "library": by_library,
    "attribute": by_attribute,
    "callable object": pb.custom_gradient(lambda x: (x * 2, Held(pb.sin(x)))),
    "bound method": pb.custom_gradient(lambda x: (x * 2, Held(pb.sin(x)).__call__)),
    "set": by_set,
    "global name": by_global,
    "class": by_class,
    "method": by_method,
    "module": by_module,
    "tape": by_tape,
    "array": by_array,
    "attribute in a checkpoint": lambda x: (lambda held: pb.checkpoint(lambda u: pb.tanh(u) * held.value)(x))(Held(pb.sin(x))),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_values_that_cannot_be_seen_make_the_function_run_eagerly(name: str) -> None:
    w = parameter()

    def run(g: Any, k: int) -> Any:
        w.assign(normal(k + 50, 3, 3, dtype=pb.float32))
        x = normal(k, 3, 3, dtype=pb.float32)
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = total(g(x))
        return [y, *tape.gradient(y, [x, w])]

    assert agree(lambda x: HIDDEN[name](x * w), run, 4).stats().replays == 0


def test_objects_without_values_of_the_run_are_shared() -> None:
    net, held, seen = Net(), Held(3.0), Held(pb.ones(3))

    @pb.custom_gradient
    def part(x: Any) -> Any:
        y = pb.tanh(x)
        return y, lambda g: held(g) * y * seen.value * (2 if net.training else 3)

    def run(g: Any, k: int) -> Any:
        return pb.grad(g)(normal(k, 3))

    assert agree(lambda x: pb.sum(part(x)), run).stats().replays == 4


@pytest.mark.parametrize("name", ["checkpoint", "of an argument and a parameter", "checkpoint of closures", "view of a parameter"])
def test_a_parameter_that_changed_after_the_call_is_an_error(name: str) -> None:
    w = parameter()
    captured = pb.capture(FUNCTIONS[name](w))
    for k in range(3):
        with pb.GradientTape() as tape:
            y = pb.sum(captured(normal(k, 3, 3, dtype=pb.float32)))
        w.assign(w * 1.5)
        with pytest.raises(pb.StaleValueError, match="changed in place after the forward pass"):
            tape.gradient(y, w)


def test_a_view_that_a_pullback_kept_is_stale_after_a_change() -> None:
    """The eager pullback reads the view, too."""
    p = pb.Parameter([1.0, 2.0], trainable=False)

    @pb.custom_gradient
    def scaled(x: Any) -> Any:
        view = p[::-1]
        return x * view, lambda g: g * view

    x = pb.ones(2)
    for f in (lambda x: pb.sum(scaled(x)), pb.capture(lambda x: pb.sum(scaled(x)))):
        for k in range(3):
            with pb.GradientTape() as tape:
                tape.watch(x)
                y = f(x)
            if k < 2:
                same(tape.gradient(y, x), pb.copy(p[::-1]))
            p.assign(p * 2)
        with pytest.raises(pb.StaleValueError):
            tape.gradient(y, x)


def test_a_value_from_outside_that_is_watched_later() -> None:
    """A checkpoint then has one more input, and a custom gradient refuses it."""
    a, w = normal(0, 3, 3, dtype=pb.float32), parameter()

    def run(g: Any, k: int) -> Any:
        x, sources = normal(k, 3, 3, dtype=pb.float32), [a] if k % 2 else []
        with pb.GradientTape() as tape:
            tape.watch([x, *sources])
            y = total(g(x))
        return [y, *tape.gradient(y, [x, w, *sources])]

    agree(lambda x: pb.checkpoint(lambda u: pb.sin(a) * u * w)(x), run, 5)
    uses = pb.custom_gradient(lambda x: (x * a, lambda g: g * a))
    captured = pb.capture(lambda x: pb.sum(uses(x)))
    x = normal(1, 3, 3, dtype=pb.float32)
    for k in range(4):
        tape = pb.GradientTape()
        tape.watch([x, a] if k % 2 else [x])
        if k % 2:
            with tape, pytest.raises(pb.TapeError, match="whose derivative is asked for and which is not an argument"):
                captured(x)
        else:
            with tape:
                y = captured(x)
            same(tape.gradient(y, x), a)


# ---- Modules


@pytest.mark.parametrize("part", ["layer", "nested", "function"])
def test_training_with_checkpointed_layers(part: str) -> None:
    """Batch norms keep running values, dropout draws, the modes change, and the optimizer updates the weights."""

    def trained(captures: bool) -> list[Any]:
        pb.random.seed(0)
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, 2))
        body: Any = pb.checkpoint(net)
        if part == "nested":
            body = pb.checkpoint(lambda x: pb.checkpoint(net)(x) + pb.checkpoint(net)(x * 2))
        if part == "function":
            body = lambda x: net[4](pb.checkpoint(lambda u: net[3](net[2](net[1](u))))(net[0](x)))
        f = lambda x, y: F.cross_entropy(body(x), y)
        g = pb.capture(f) if captures else f
        opt, values = optim.Adam(net.parameters(), lr=0.01), []
        for k in range(8):
            net.train(k not in (3, 4))
            x, y = normal(k, 5, 4, dtype=pb.float32), pb.tensor(np.arange(5) % 2)
            with pb.GradientTape() as tape:
                loss = g(x, y)
            net.train(k != 6)  # the backward pass computes again in the mode of the forward pass
            gradients = tape.gradient(loss, opt.parameters)
            opt.step(gradients)
            values += [pb.copy(v) for v in [loss, *gradients, *net.state_dict().values(), pb.random.uniform((1,))]]
        assert not captures or g.stats().replays > 7
        return values

    alike(trained(captures=True), trained(captures=False))


def test_a_backward_pass_in_another_mode_is_recorded_once() -> None:
    net = Net()
    captured = pb.capture(lambda x: pb.sum(pb.checkpoint(net)(x)))
    for k in range(6):
        net.train()
        with pb.GradientTape() as tape:
            y = captured(normal(k, 2, 3, dtype=pb.float32))
        net.train(k % 2 == 0)
        tape.gradient(y, net.parameters())
    assert (captured.stats().captures, captured.stats().replays) == (2, 10)


@pytest.mark.parametrize("gate", ["graph", "op"])
def test_minimize_with_a_captured_loss(gate: Any) -> None:
    def trained(captures: bool) -> list[Any]:
        pb.random.seed(0)
        net = Net()
        opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        f = lambda x: pb.sum(pb.square(doubled(pb.checkpoint(net)(x))))
        g = pb.capture(f) if captures else f
        for k in range(5):
            opt.minimize(g, normal(k, 6, 3, dtype=pb.float32), gate=gate)
        return list(net.parameters())

    alike(trained(captures=True), trained(captures=False))


# ---- reports and memory


def gradients(f: Any, x: Any, of: Any) -> list[Any]:
    with pb.GradientTape() as tape:
        y = f(x)
    return [y, *tape.gradient(y, of)]


def test_reports_of_the_tape_are_those_of_the_eager_run() -> None:
    net = Net().eval()
    f = lambda x: pb.sum(doubled(pb.checkpoint(net)(x) * pb.checkpoint(pb.sin)(x)))
    captured, x = pb.capture(f), pb.ones((2, 3))
    for _ in range(3):
        found = []
        for g in (captured, f):
            with pb.GradientTape() as tape:
                y = g(x)
            gc.collect()  # the functions that made a recording refer to themselves, and keep its values until then
            check = tape.check(y)
            reports = [str(tape.explain(y)), str(tape.diagnose(y, net.parameters())), str(check)]
            found.append((reports, tape.gradient(y, net.parameters())))
        assert found[0][0] == found[1][0]
        assert "doubled" in found[0][0][0]
        alike(found[0][1], found[1][1])


def test_a_profile_counts_the_recomputation_as_in_the_eager_run() -> None:
    net, x = Net().eval(), pb.ones((2, 3))
    inside = pb.checkpoint(lambda u: pb.tanh(net(u)))
    f = lambda x: pb.sum(pb.checkpoint(lambda u: doubled(inside(u)))(x))
    captured = pb.capture(f)
    with pb.profile():
        gradients(f, x, net.parameters())  # names the Modules
    for _ in range(3):
        found = []
        for g in (captured, f):
            with pb.profile(detail="kernel") as profile:
                gradients(g, x, net.parameters())
            rows = sorted([(row.kernel, row.op, row.module, row.line, row.order, row.phase, row.dtype) for row in profile.rows])
            parts = profile.forward, profile.recompute, profile.backward
            found.append((rows, [f"{part.flops} {part.bytes_read} {part.launches}" for part in parts]))
        assert found[0] == found[1]
        assert profile.recompute.flops > 0
    assert {kernel.phase for kernel in captured.explain().kernels} == {"forward", "recompute", "backward"}


def live_bytes() -> int:
    gc.collect()
    return int(kernels_on(devices.default_device()).live_bytes())


def test_a_tape_keeps_what_an_eager_tape_keeps() -> None:
    pb.random.seed(0)
    net = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 64), nn.Tanh())
    f = lambda x: pb.sum(doubled(pb.checkpoint(net)(x)))
    x, kept = pb.ones((512, 20)), []
    for g in (pb.capture(f), f):
        for _ in range(3):
            gradients(g, x, net.parameters())
        before = live_bytes()
        with pb.GradientTape() as tape:
            y = g(x)
        kept.append(live_bytes() - before)
        tape.gradient(y, net.parameters())
        del tape, y
        assert live_bytes() - before < 64
    np.testing.assert_allclose(kept[0], kept[1], atol=64)  # the state of the generator
    assert kept[0] < 3 * 512 * 64 * 4


def test_memory_does_not_grow() -> None:
    net, x = Net(), pb.ones((256, 3))
    f = pb.capture(lambda x: pb.sum(doubled(pb.checkpoint(net)(x))))
    gradients(f, x, net.parameters())
    for _ in range(int(os.environ.get("PULLBACK_CALLS", "50"))):
        gradients(f, x, net.parameters())
        pb.grad(lambda u: pb.sum(pb.sin(pb.grad(f)(u))))(x)
    later = live_bytes()
    gradients(f, x, net.parameters())
    assert live_bytes() == later


def test_a_recording_does_not_keep_the_values_of_its_first_run() -> None:
    values: weakref.WeakSet[Any] = weakref.WeakSet()

    @pb.custom_gradient
    def custom(x: Any) -> Any:
        y = pb.sin(x)
        values.add(y)
        return y * 2, lambda g: g * y

    f, x = pb.capture(lambda x: pb.sum(custom(pb.checkpoint(pb.exp)(x)))), pb.ones(3)
    pb.grad(f)(x)
    gc.collect()
    assert not values
    assert f.stats().captures == 2
