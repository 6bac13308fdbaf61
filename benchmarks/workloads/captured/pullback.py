"""The workloads under pb.capture, as a user would write them."""

import time
from functools import partial

import pullback as pb
from pullback import nn

from ..eager.pullback import chain_and_input, data, network, step_of
from ..transforms import pullback as transforms
from . import STEPS


def chain(fusion):
    gradient, x = chain_and_input()
    captured = pb.capture(gradient, fusion=fusion)
    return lambda: captured(x)


def mlp(sizes, batch, fusion):
    step, (x, y) = pb.capture(step_of(sizes), fusion=fusion), data(sizes, batch)
    return lambda: step(x, y)


def taped(sizes, batch):
    """Returns the forward and backward pass of a captured loss under a tape."""
    model, (x, y) = network(sizes), data(sizes, batch)
    loss_of = pb.capture(lambda x, y: nn.cross_entropy(model(x), y))
    params = model.parameters()

    def run():
        with pb.GradientTape() as tape:
            loss = loss_of(x, y)
        return tape.gradient(loss, params)

    return run


def many_steps(sizes, batch, fusion):
    step, (x, y) = pb.capture(step_of(sizes), fusion=fusion, steps=STEPS), data(sizes, STEPS, batch)
    return lambda: step(x, y)


def first_call(sizes, batch):
    """Returns a function that times the first call of a captured step, which records the step. One eager step runs before it."""

    def run():
        step, (x, y) = step_of(sizes), data(sizes, batch)
        step(x, y)
        begin = time.perf_counter()
        pb.capture(step)(x, y)
        return time.perf_counter() - begin

    return run


def _captured(f, *args):
    captured = pb.capture(f)
    return lambda: captured(*args)


def norms():
    model, x, y = transforms.classifier()
    params, f = model.parameters(), pb.per_example_norm(lambda params, x, y: nn.cross_entropy(model(x), y))
    return _captured(lambda x, y: f(params, x, y), x, y)


def jacobian():
    return _captured(pb.jacobian(transforms.two_layers()), transforms.normal(64))


def hessian():
    net = transforms.two_layers()
    return _captured(pb.hessian(lambda x: pb.sum(pb.square(net(x)))), transforms.normal(64))


def targets(at_once):
    """Returns a captured forward pass with the gradients of its 8 targets, or with the gradient of their sum."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
    params = model.parameters()

    def run(x):
        with pb.GradientTape(persistent=True) as tape:
            found = pb.unstack(pb.mean(model(x), axis=0))
        return tape.gradients(found, params) if at_once else tape.gradient(found, params)

    return _captured(run, transforms.normal(16, 64))


WORKLOADS = {}
for fusion in ("exact", "fast"):
    WORKLOADS |= {
        f"chain, {fusion}": partial(chain, fusion),
        f"mlp 2-16-16-2, {fusion}": partial(mlp, (2, 16, 16, 2), 100, fusion),
        f"mlp 2-16-16-2, 100 steps, {fusion}": partial(many_steps, (2, 16, 16, 2), 100, fusion),
        f"mlp 784-128-10, {fusion}": partial(mlp, (784, 128, 10), 64, fusion),
        f"mlp 784-1024-1024-10, {fusion}": partial(mlp, (784, 1024, 1024, 10), 512, fusion),
    }
WORKLOADS |= {
    "mlp 2-16-16-2, tape": partial(taped, (2, 16, 16, 2), 100),
    "mlp 784-128-10, tape": partial(taped, (784, 128, 10), 64),
    "mlp 784-1024-1024-10, tape": partial(taped, (784, 1024, 1024, 10), 512),
    "norms": norms,
    "step of the same net": partial(mlp, (784, 128, 10), 64, "exact"),
    "8 targets": lambda: targets(at_once=True),
    "their sum": lambda: targets(at_once=False),
    "jacobian": jacobian,
    "hessian": hessian,
    "first call": lambda: first_call((784, 128, 10), 64),
}

facts = transforms.facts
