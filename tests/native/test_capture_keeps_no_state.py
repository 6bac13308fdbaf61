"""What keeps state from call to call is refused where a captured function makes it; copies of networks are not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import alike, needs_kernels, normal, same
from made_inside import Function, replays_like_eager, train
from pullback import nn, optim

pytestmark = needs_kernels


# ---- what keeps state


def stateful() -> dict[str, Function]:
    net, x = nn.Linear(6, 2), np.ones((8, 2), np.float32)
    opt, other = optim.Adam(net.parameters()), optim.SGD([pb.Parameter(np.ones((2, 2)))], lr=0.1)
    accumulator, scaler = optim.Accumulator(net.parameters()), pb.amp.LossScaler()
    generator, loader = pb.random.Generator(3), pb.data.Loader(x, 2)
    batches, rows = iter(loader), pb.capture(lambda x: x)
    next(batches)
    pruned = optim.SGD([pb.Parameter(np.ones((2, 2)))], lr=0.1)
    pruning = optim.Pruning(pruned, 0.5)
    makers: dict[str, Function] = {
        "a new Adam,": lambda x: optim.Adam(net.parameters(), lr=0.1),
        "a new SGD,": lambda x: optim.SGD(net.parameters(), lr=optim.schedules.Cosine(0.1, 9)),
        "a new Muon,": lambda x: optim.Muon(other.parameters),
        "a new ScheduleFreeSGD,": lambda x: optim.ScheduleFreeSGD(net.parameters()),
        "a new Adafactor,": lambda x: optim.Adafactor(net.parameters()),
        "a new Accumulator,": lambda x: optim.Accumulator(net.parameters()),
        "a new LossScaler,": lambda x: pb.amp.LossScaler(),
        "a new Pruning,": lambda x: optim.Pruning(other, 0.5),
        "a new Generator,": lambda x: pb.random.Generator(3),
        "a new Loader,": lambda x: pb.data.Loader(np.ones((4, 2)), 2),
        "taking batches of a Loader": lambda x: next(iter(loader)),
        "taking batches of a Loader (in a loop)": lambda x: [x + b for b in loader],
        "taking batches of a Loader (begun outside)": lambda x: next(batches),
        "taking batches of a Loader (rows)": lambda x: loader.next_rows(),
        "taking batches of a Loader (for a call inside)": lambda x: rows(loader),
        "state_dict() of a Loader": lambda x: loader.state_dict(),
        "loading a Loader's state": lambda x: loader.load_state_dict({"epoch": 0, "batches": 0, "seed": 0}),
    }
    for name, it in {"a new Generator,": generator, "a new Loader,": loader, "a new Pruning,": pruning}.items():
        makers[f"{name} (copied)"] = lambda x, it=it: copy.copy(it)
    for name, it in {"optimizer": opt, "Accumulator": accumulator, "LossScaler": scaler}.items():
        makers[f"copying an? {name}"] = lambda x, it=it: copy.copy(it)
        makers[f"copying an? {name} (deep)"] = lambda x, it=it: copy.deepcopy([net, it])
    makers["a new Generator, (deep)"] = lambda x: copy.deepcopy(generator).normal((1,))
    makers["a new Loader, (deep)"] = lambda x: copy.deepcopy(loader)
    return makers


@pytest.mark.parametrize("what", stateful())
def test_what_keeps_state_is_refused_with_the_line_that_makes_it(what: str) -> None:
    f = stateful()[what]
    words = what.partition(" (")[0].replace("()", "[(][)]")
    with pytest.raises(pb.CaptureError, match=f'(?s)^{words}.*keeps_no_state.py", line .*replay could not repeat it'):
        pb.capture(lambda x: f(x * 1.0))(pb.ones(2))
    assert pb.capture(lambda x: x * 2)(pb.ones(1)).tolist() == [2.0]


def test_the_error_of_an_optimizer_says_what_an_inner_step_is() -> None:
    net = nn.Linear(2, 2)
    with pytest.raises(pb.CaptureError, match=r"Make it outside; an inner step is p.assign\(p - lr \* g\)"):
        pb.capture(lambda x: optim.Adam(net.parameters()))(pb.ones(2))


def test_what_keeps_no_state_may_be_made_inside() -> None:
    def f(x: Any) -> Any:
        rate = optim.schedules.Cosine(0.1, 10)(3) * optim.schedules.Product(optim.schedules.Step(1.0, 5, 0.5), 2.0)(7)
        y = nn.Sequential(nn.ReLU(), nn.Dropout(0.5))(x) * rate + pb.vmap(lambda x: x * 2)(x)
        y = y + pb.grad(lambda x: pb.sum(x * x))(x) + pb.checkpoint(lambda x: x * 3)(x) + pb.memo(lambda x: x * 4)(x)
        return y + pb.capture(lambda x: x * 5)(x) + optim.constraints.NonNegative()(x), copy.deepcopy(nn.Dropout(0.5))(x)

    replays_like_eager(lambda: f)


# ---- programs


def meta_learning() -> tuple[Any, Function]:
    """First-order MAML: two inner steps on a copy, whose last gradient moves the network (Finn et al. 2017)."""
    pb.random.seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    opt = optim.Adam(net.parameters(), lr=0.01)

    def outer(x: Any, y: Any) -> Any:
        fast = copy.deepcopy(net)
        for _ in range(2):
            with pb.GradientTape() as tape:
                loss = nn.mse(fast(x[0]), y[0])
            for p, g in zip(fast.parameters(), tape.gradient(loss, fast.parameters())):
                p.assign(p - 0.1 * g)
        with pb.GradientTape() as tape:
            loss = nn.mse(fast(x[1]), y[1])
        opt.step(tape.gradient(loss, fast.parameters()))
        return loss

    return net, outer


def test_meta_learning_with_deepcopy_has_the_bits_of_the_eager_run() -> None:
    xs, ys = normal(0, 20, 2, 4, 6, dtype=pb.float32), normal(1, 20, 2, 4, 1, dtype=pb.float32)
    net, outer = meta_learning()
    wanted = [outer(x, y) for x, y in zip(xs, ys)]
    captured_net, step = meta_learning()
    step = pb.capture(step)
    alike([step(x, y) for x, y in zip(xs, ys)], wanted)
    assert step.stats().captures == 1
    stepped_net, steps = meta_learning()
    steps = pb.capture(steps, steps=5)
    same(pb.concat([steps(xs[k : k + 5], ys[k : k + 5]) for k in range(0, 20, 5)]), pb.stack(wanted))
    for other in (captured_net, stepped_net):
        alike(other.parameters(), net.parameters())


def by_state(target: Any, net: Any) -> None:
    target.load_state_dict(net.state_dict())


def by_values(target: Any, net: Any) -> None:
    for t, p in zip(target.parameters(), net.parameters()):
        t.assign(p)


def by_average(target: Any, net: Any) -> None:
    target.load_state_dict({name: 0.9 * value + 0.1 * net.state_dict()[name] for name, value in target.state_dict().items()})


@pytest.mark.parametrize("follow", [by_state, by_values, by_average])
def test_a_target_network_follows_in_every_replay(follow: Callable[[Any, Any], None]) -> None:
    def make() -> Any:
        net, target = [nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2)]
        opt = optim.Adam(net.parameters(), lr=0.05)

        def f(x: Any) -> Any:
            follow(target, net)
            wanted = pb.max(target(x[1:]), axis=1)
            with pb.GradientTape() as tape:
                loss = nn.mse(net(x[:-1])[:, 0], wanted)
            opt.step(tape.gradient(loss, opt.parameters))
            return loss, target(x)

        return f, lambda k: train(net)

    replays_like_eager(make)


def test_several_paths_to_one_tensor_are_not_compared_inside() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            self.a = self.b = pb.Parameter(np.ones(2, np.float32))

    net, ones = Tied(), pb.ones(2)
    net.load_state_dict({"a": ones, "b": ones * 1.0})
    pb.capture(lambda x: net.load_state_dict({"a": x, "b": x}))(ones * 2)
    assert net.a.numpy().tolist() == [2.0, 2.0]
    with pytest.raises(pb.CaptureError, match='loading "b" and "a", which are one tensor'):
        pb.capture(lambda x: net.load_state_dict({"a": x, "b": x * 2}))(ones)
