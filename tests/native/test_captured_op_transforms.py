"""Transforms of a captured function, with the bits of those of the eager function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import agree, alike, needs_kernels, normal
from pullback import nn
from pullback.nn import functional as F

pytestmark = [needs_kernels, pytest.mark.filterwarnings("ignore::pullback.errors.ZeroGradientWarning")]


def transforms() -> dict[str, Callable[[Any, Any], Any]]:
    def persistent(g: Any, x: Any) -> Any:
        with pb.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = pb.sum(g(x))
            z = pb.sum(pb.sin(tape.gradient(y, x)))
        return [tape.gradient(z, x), tape.gradient(y, x)]

    def jacobians(g: Any, x: Any) -> Any:
        with pb.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = g(x)
            several = [pb.sum(y), pb.sum(y * y)]
        return [tape.jacobian(y, x), tape.gradients(several, x), pb.jacobian(g)(x), pb.jacobian(g, mode="forward")(x)]

    total = lambda g: lambda x: pb.sum(g(x))
    third = lambda g: pb.grad(lambda x: pb.sum(pb.sin(pb.grad(lambda u: pb.sum(pb.grad(total(g))(u) ** 2))(x))))
    return {
        "grad": lambda g, x: pb.grad(total(g))(x),
        "second": lambda g, x: pb.grad(lambda u: pb.sum(pb.sin(pb.grad(total(g))(u))))(x),
        "third": lambda g, x: third(g)(x),
        "vmap": lambda g, x: pb.vmap(g)(pb.stack([x, x + 1])),
        "vmap of vmap": lambda g, x: pb.vmap(pb.vmap(g))(pb.reshape(pb.stack([x, x + 1, -x, x * 2]), (2, 2, *x.shape))),
        "vmap of grad": lambda g, x: pb.vmap(pb.grad(total(g)))(pb.stack([x, x + 1])),
        "grad of vmap": lambda g, x: pb.grad(lambda u: pb.sum(pb.vmap(g)(u)))(pb.stack([x, x + 1])),
        "jvp": lambda g, x: pb.jvp(g, (x,), (x * 2,)),
        "hvp": lambda g, x: pb.hvp(total(g), x, x + 1),
        "hessian": lambda g, x: pb.hessian(total(g))(x),
        "linearize": lambda g, x: pb.linearize(g, x)[1](x),
        "vjp": lambda g, x: pb.vjp(g, x)[1](x),
        "checkpoint": lambda g, x: pb.grad(lambda u: pb.sum(pb.checkpoint(g)(u) * u))(x),
        "persistent tape": persistent,
        "jacobians": jacobians,
        "per example": lambda g, x: pb.per_example_grad(lambda x, s: pb.sum(g(x) * s))(x, pb.tensor([1.0, 2.0], pb.float64)),
        "captured": lambda g, x: pb.capture(pb.grad(total(g)))(x),
    }


@pytest.mark.parametrize("name", transforms())
def test_transforms_of_a_captured_function(name: str) -> None:
    way = transforms()[name]
    agree(lambda x: pb.tanh(x) * x[::-1] + pb.sum(x * x), lambda g, k: way(g, normal(k, 4)))


@pytest.mark.parametrize("name", transforms())
def test_transforms_of_a_function_that_captures_a_closure_over_its_argument(name: str) -> None:
    way, x = transforms()[name], normal(0, 4)
    made = lambda capture: lambda x: capture(lambda u: pb.tanh(u) * x + pb.sin(x))(x * 2)
    alike(way(made(pb.capture), x), way(made(lambda f: f), x))


def test_transforms_around_transforms_are_recordings_too() -> None:
    hessian = pb.hessian(captured := pb.capture(lambda x: pb.sum(pb.tanh(x) * x)))
    for k in range(3):
        hessian(normal(k, 4))
    before = captured.stats()
    hessian(normal(3, 4))
    assert captured.stats().captures == before.captures
    assert captured.stats().replays > before.replays


def test_a_scan_with_a_captured_body_and_a_captured_scan() -> None:
    p = pb.Parameter(np.linspace(-1, 1, 9).reshape(3, 3), dtype=pb.float64)
    body = lambda c, x: (pb.tanh(c @ p + x), pb.sum(c))
    zero = pb.zeros(3, dtype=pb.float64)

    def of_body(g: Any, k: int) -> Any:
        xs = normal(k, 5, 3)
        with pb.GradientTape() as tape:
            tape.watch(xs)
            c, ys = pb.scan(g, zero, xs)
            z = pb.sum(c) + pb.sum(ys * ys)
        return [z, *tape.gradient(z, [p, xs])]

    def of_scan(g: Any, k: int) -> Any:
        xs = normal(k, 5, 3)
        with pb.GradientTape() as tape:
            tape.watch(xs)
            z = pb.sum(g(xs))
        return [z, *tape.gradient(z, [p, xs])]

    agree(body, of_body)
    assert agree(lambda xs: pb.scan(body, zero, xs)[1], of_scan).stats().captures == 2


@pytest.mark.parametrize("kind", ["custom gradient", "checkpoint"])
def test_a_function_with_pullbacks_that_keep_values_of_their_own(kind: str) -> None:
    @pb.custom_gradient
    def doubled(x: Any) -> Any:
        y = pb.tanh(x)
        return y, lambda g: g * y * 2

    p = pb.Parameter([1.0, 2.0, 3.0])
    part = doubled if kind == "custom gradient" else pb.checkpoint(lambda x: pb.tanh(nn.functional.dropout(x, 0.5)))
    f = lambda x: pb.sum(part(x * p) * pb.random.uniform((3,)))

    def run(g: Any, k: int) -> Any:
        x = normal(k, 3, dtype=pb.float32)
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = g(x) * 2
        return [y, tape.gradient(y, [p, x])]

    agree(f, run, 4)
    agree(f, lambda g, k: pb.vmap(pb.grad(g))(normal(k, 2, 3, dtype=pb.float32)))


def test_gradients_of_examples() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    def run(g: Any, k: int) -> Any:
        x, y = normal(k, 6, 4, dtype=pb.float32), pb.tensor(np.random.default_rng(k).integers(0, 3, 6))
        clip = lambda norms: pb.minimum(1, norms)
        of = net.parameters()
        return [pb.per_example_grad(g)(of, x, y), pb.per_example_norm(g)(of, x, y), pb.weighted_grad(g, clip)(of, x, y)]

    agree(lambda _, x, y: F.cross_entropy(net(x), y), run)


def test_products_of_the_hessian_by_parameters_from_outside() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    of = tuple(net.parameters())
    ones = tuple([pb.ones_like(p) for p in of])
    agree(lambda x: pb.sum(pb.square(net(x))), lambda g, k: pb.hvp(lambda *_: g(pb.ones((2, 4)) * (k + 1)), of, ones))


@pb.custom_gradient
def doubled(x: Any) -> Any:
    return x * 2, lambda g: g * 2


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("way", ["custom gradient", "tangent from outside", "example from outside"])
def test_a_call_that_cannot_be_served_changes_state_once(way: str, steps: bool) -> None:
    """The function runs again without a recording, after what it changed the first time has its old values back."""

    def after(captures: bool) -> list[Any]:
        pb.random.seed(0)
        norm, count, p = nn.BatchNorm1d(3), nn.Buffer([0.0]), pb.Parameter([1.0, 2.0, 3.0])
        opt = pb.optim.Adam([p], lr=0.5)
        outside, data = [pb.ones(3)], normal(0, 4, 3, dtype=pb.float32)

        def f(x: Any) -> Any:
            y = norm(data) * pb.random.normal((3,))  # the batch norm and the counter change before the run ends
            count.assign(count + 1)
            if steps:
                opt.step([p * 2])
            return pb.sum(doubled(x) if way == "custom gradient" else x * outside[0]) + pb.sum(y)

        g = pb.capture(f) if captures else f

        def from_outside(x: Any) -> Any:
            outside[0] = x * x
            return g(pb.ones(3)) if way.startswith("example") else g(x)

        x = pb.tensor([1.0, 2.0, 3.0])
        ways = {
            "custom gradient": lambda: pb.vmap(pb.grad(g))(pb.stack([x, x + 1])),
            "tangent from outside": lambda: pb.jvp(from_outside, (x,), (x + 1,)),
            "example from outside": lambda: pb.vmap(from_outside)(pb.stack([x, x + 1])),
        }
        results = [ways[way]() for _ in range(3)]
        return [*results, *norm.state_dict().values(), count, p, pb.random.normal((2,)), *opt.state_dict().values()]

    alike(after(captures=True), after(captures=False))


class Lazy(nn.Module):
    """Makes its layers when it first needs them, and draws before, between and after."""

    def __init__(self, outside: list[Any]) -> None:
        self.first = self.second = self.count = None
        self.outside = outside  # not a fact of the recording, because its items are tensors

    def forward(self, x: Any) -> Any:
        noise = pb.random.normal((3,))
        if self.first is None:
            self.first, self.count = nn.Linear(3, 3), nn.Buffer(0.0)
        self.count.assign(self.count + 1)
        y = F.dropout(self.first(x), 0.5)
        if self.second is None:
            try:
                self.second = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
            except Exception:  # a fallback, which no call of the eager function takes
                self.second = nn.Identity()
        return pb.sum(self.second(pb.stack([y, y * 2])) * self.outside[0] + noise) * pb.random.uniform()


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("draws_parameter", [False, True])
def test_a_layer_that_the_first_call_makes_is_that_of_the_eager_function(served: bool, draws_parameter: bool) -> None:
    """A first run that has to be repeated ends before it has made a Parameter, which would stay with the wrong numbers."""

    def after(captures: bool) -> list[Any]:
        pb.random.seed(0)
        outside = [pb.ones(3)]
        net, kept = Lazy(outside), list[Any]()

        def f(x: Any) -> Any:
            if draws_parameter and not kept:
                kept.append(pb.Parameter(pb.random.normal((3,))))
            return net(x * kept[0] if kept else x)

        g = pb.capture(f) if captures else f

        def from_outside(x: Any) -> Any:
            if not served:
                outside[0] = x * x  # it has a tangent, and is no argument
            return g(x)

        x = pb.tensor([1.0, 2.0, 3.0])
        results = [pb.jvp(from_outside, (x + k,), (x + 1,)) for k in range(4)]
        if captures:
            assert (g.stats().replays > 0) is served
        return [*results, *net.state_dict().values(), *kept, pb.random.normal((2,))]

    eager, captured = after(captures=False), after(captures=True)
    alike(captured, eager)
    assert len(eager) == 4 + 10 + draws_parameter + 1


def test_layers_that_the_first_call_makes_are_changed_once_under_a_batch() -> None:
    """Layers without random numbers may be made for an example of a batch."""

    def after(captures: bool) -> list[Any]:
        outside, data, made = [pb.ones(3)], normal(0, 4, 3, dtype=pb.float32), list[Any]()

        def f(x: Any) -> Any:
            if not made:
                made.extend([nn.BatchNorm1d(3), nn.Buffer(0.0)])
            made[1].assign(made[1] + 1)
            return pb.sum(made[0](data)) + pb.sum(x * outside[0])

        g = pb.capture(f) if captures else f

        def from_outside(x: Any) -> Any:
            outside[0] = x * x
            return g(pb.ones(3))

        x = pb.tensor([1.0, 2.0, 3.0])
        results = [pb.vmap(from_outside)(pb.stack([x, x + 1])) for _ in range(3)]
        return [*results, *made[0].state_dict().values(), made[1]]

    alike(after(captures=True), after(captures=False))


@pytest.mark.parametrize("way", ["tape", "jvp"])
def test_a_function_that_makes_its_layers_in_the_first_call_is_replayed_afterwards(way: str) -> None:
    made: list[Any] = []

    def lazily(x: Any) -> Any:
        if not made:
            made.append(nn.Linear(3, 3))
        return pb.sum(made[0](x))

    def always(x: Any) -> Any:
        return pb.sum(x * pb.Parameter([1.0, 2.0, 3.0]))

    ways = {"tape": lambda f, x: pb.value_and_grad(f)(x), "jvp": lambda f, x: pb.jvp(f, (x,), (x,))}
    for f, replays in ((lazily, True), (always, False)):
        captured = pb.capture(f)
        for k in range(5):
            x = normal(k, 2, 3, dtype=pb.float32)
            alike([ways[way](captured, x)], [ways[way](f, x)])
        assert (captured.stats().replays >= 3) is replays


# ---- several steps


@pytest.mark.parametrize("transform", transforms())
def test_each_of_several_steps_is_transformed(transform: str) -> None:
    w, x = pb.Parameter(normal(1, 4)), normal(0, 3, 4)
    f = lambda x: pb.sin(x * w)
    captured = pb.capture(f, steps=3)
    for _ in range(2):
        found = [transforms()[transform](g, x) for g in (captured, lambda x: pb.stack([f(x[i]) for i in range(3)]))]
        alike(*found)


def test_several_steps_of_each_example_take_options_and_what_all_share() -> None:
    scale, x = pb.tensor([1.0, 2.0]), normal(0, 3, 4)
    captured = pb.capture(lambda x, by=2.0: {"y": x * by, "name": "steps"}, steps=3)
    found = pb.vmap(lambda x, s: captured(x * s, by=3.0)["y"], in_axes=(None, 0))(x, scale)
    alike([found], [pb.stack([x * 3, x * 2 * 3])])
    with pytest.raises(pb.ShapeError, match=r"steps=3: an argument has shape \(2, 4\); its first axis"):
        pb.vmap(captured)(normal(0, 5, 2, 4))
