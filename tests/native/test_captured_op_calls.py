"""Checkpoints and custom gradients inside a captured function are replayed under a tape, with the bits of the eager function."""

from __future__ import annotations

import dataclasses
import gc
import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import captured_step
import pullback as pb
from captured_step import agree, alike, needs_kernels, normal, same
from pullback import nn, optim
from pullback.backends import kernels_on
from pullback.nn import functional as F
from pullback.tensors import devices

pytestmark = [needs_kernels, pytest.mark.filterwarnings("ignore::pullback.errors.ZeroGradientWarning")]

Function = Callable[[Any], Any]


# ---- functions with a Parameter w and a watched argument x, each of shape (3, 3)


@dataclasses.dataclass
class Pair:
    a: Any
    b: Any


class Net(nn.Module):
    def __init__(self) -> None:
        self.first, self.norm, self.drop, self.last = nn.Linear(3, 5), nn.LayerNorm(5), nn.Dropout(0.4), nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        return self.last(self.drop(pb.tanh(self.norm(self.first(x)))))


@pb.custom_gradient
def doubled(x: Any) -> Any:
    y = pb.tanh(x)
    return y, lambda g: g * (1 - y * y) * 2


def clipped(g: Any, limit: Any, scale: float) -> Any:
    return pb.minimum(g, limit) * scale


@pb.custom_gradient
def by_partial(x: Any) -> Any:
    return pb.sin(x), partial(clipped, limit=pb.cos(x), scale=0.5)


@pb.custom_gradient
def by_default(x: Any) -> Any:
    e = pb.exp(x)

    def pull(g: Any, e: Any = e, *, half: Any = e / 2) -> Any:
        return g * e + half

    return e, pull


@pb.custom_gradient
def by_containers(x: Any) -> Any:
    kept = {"both": (pb.sin(x), [pb.cos(x)]), "pair": Pair(x, pb.exp(x)), "number": 3.0}

    def inner(g: Any) -> Any:
        def innermost() -> Any:
            return g * kept["both"][0] + kept["both"][1][0] * kept["number"]

        return innermost() * kept["pair"].a + kept["pair"].b

    return pb.sum(x * x), lambda g: inner(g)


@pb.custom_gradient
def recursive(x: Any) -> Any:
    y = pb.sin(x)

    def power(g: Any, n: int) -> Any:
        return g if n == 0 else power(g, n - 1) * y

    return y, lambda g: power(g, 3)


@pb.custom_gradient
def of_trees(d: Any, w: Any, n: int, scale: float = 1.0) -> Any:
    s = pb.sigmoid(d["a"] @ w)

    def pull(g: Any) -> Any:
        first, (index, rest) = g["y"], g["more"]
        assert index is None
        return {"a": (first * s) @ w.mT, "b": [rest * n, None]}, d["a"].mT @ first * scale, None

    return {"y": s, "more": (pb.argmax(s), d["b"][0] * scale)}, pull


@pb.custom_gradient
def drawing(x: Any) -> Any:
    """Draws a mask once, and numbers anew in each backward pass."""
    mask = pb.random.uniform((3, 3)) > 0.5
    return pb.where(mask, x, 0), lambda g: pb.where(mask, g, 0) * pb.random.uniform((3, 3))


@pb.custom_gradient
def with_a_checkpoint(x: Any) -> Any:
    y = pb.checkpoint(lambda x: pb.tanh(x) * x)(x)
    return y, lambda g: pb.vjp(pb.checkpoint(pb.sin), y)[1](g)


def trees(w: Any) -> Function:
    def f(x: Any) -> Any:
        value = of_trees({"a": x, "b": [pb.sin(x), pb.ones(2)]}, w, 2, scale=3.0)
        return value["y"] * value["more"][1] + value["more"][0]

    return f


def tree_checkpoint(w: Any) -> Function:
    @pb.checkpoint
    def part(d: Any, k: int, *, pair: Any) -> Any:
        return {"y": d["x"] @ w * k, "same": d["x"], "rest": [k, pb.argmax(d["x"]), (pb.exp(pair.a) * pair.b,)]}

    def f(x: Any) -> Any:
        h = pb.sin(x)
        out = part({"x": h}, 2, pair=Pair(x, 3.0))
        return out["y"] * out["same"] + out["rest"][2][0] + out["rest"][1]

    return f


def closing_over_values(w: Any) -> Function:
    def f(x: Any) -> Any:
        h, c = pb.tanh(x @ w), pb.sign(x) + 2
        inner = pb.checkpoint(lambda u: pb.sin(u) * h + pb.checkpoint(lambda v: v * c * w)(u) * u)
        return inner(x * 2) + inner(h) * h

    return f


def several(w: Any) -> Function:
    """Each output depends on its own inputs, and one input of the checkpoint is also a result of the function."""

    def f(x: Any) -> Any:
        h = pb.sin(x * w)
        a, b = pb.checkpoint(lambda u, v: (pb.exp(u), v * v))(h, w)
        return h, a, b, doubled(h)

    return f


FUNCTIONS: dict[str, Callable[[Any], Function]] = {
    "closure": lambda w: lambda x: doubled(x @ w),
    "partial": lambda w: lambda x: by_partial(x @ w),
    "defaults": lambda w: lambda x: by_default(x @ w),
    "containers": lambda w: lambda x: by_containers(x @ w),
    "recursive": lambda w: lambda x: recursive(x * w),
    "trees": trees,
    "draws": lambda w: lambda x: drawing(x * w) * pb.random.normal((3, 3)),
    "of an argument and a parameter": lambda w: lambda x: pb.custom_gradient(
        lambda x, p: (x @ p, lambda g: (g @ p.mT, x.mT @ g))
    )(x, w),
    "checkpoint": lambda w: lambda x: pb.checkpoint(lambda u: pb.tanh(u @ w) * u)(pb.sin(x)),
    "checkpoint of arguments": lambda w: pb.checkpoint(lambda u: pb.tanh(u @ w) * u),
    "checkpoint of trees": tree_checkpoint,
    "checkpoint of closures": closing_over_values,
    "checkpoint with draws": lambda w: lambda x: pb.checkpoint(
        lambda u: F.dropout(u @ w, 0.5) * pb.random.uniform((3, 3))
    )(x) * pb.random.normal((3, 3)),
    "nested checkpoints with draws": lambda w: pb.checkpoint(
        lambda u: pb.checkpoint(lambda v: F.dropout(v * w, 0.5))(F.dropout(u, 0.3)) * pb.random.uniform((3, 3))
    ),
    "checkpoint in a scan": lambda w: lambda x: pb.scan(
        lambda c, u: (pb.tanh(c @ w + u) * F.dropout(u, 0.3), pb.sum(c)), x[0], x, length=3, checkpoint=2
    )[0],
    "custom gradient in a checkpoint": lambda w: lambda x: pb.checkpoint(lambda u: doubled(u @ w) * by_partial(u))(x),
    "checkpoint in a custom gradient": lambda w: lambda x: with_a_checkpoint(x @ w),
    "several results": several,
    "view of a parameter": lambda w: lambda x: (
        pb.checkpoint(lambda u, v: u @ v)(x, w.mT) + pb.checkpoint(lambda u: u @ w[:, ::-1])(x)
    ),
    "inside a vmap": lambda w: lambda x: pb.vmap(lambda row: doubled(pb.checkpoint(lambda u: pb.sin(u @ w) * row)(row)))(x),
    "inside a grad": lambda w: pb.grad(lambda x: pb.sum(doubled(x) * pb.checkpoint(lambda u: pb.tanh(u @ w))(x))),
}  # fmt: skip


def parameter(seed: int = 3) -> Any:
    return pb.Parameter(normal(seed, 3, 3, dtype=pb.float32))


def total(y: Any) -> Any:
    return sum([pb.sum(pb.sin(part) * part) for part in y], pb.zeros(())) if isinstance(y, tuple) else pb.sum(pb.sin(y) * y)


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
