"""The workloads in pullback, as a user would write them."""

from functools import partial

import numpy as np

import pullback as pb
from pullback import nn, optim

from . import SHAPES

BATCH = 64


def normal(*shape, seed=0):
    return pb.tensor(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def classifier():
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    labels = pb.tensor(np.random.default_rng(0).integers(0, 10, BATCH))
    return model, normal(BATCH, 784), labels


def _per_example(transform):
    model, x, y = classifier()
    params, f = model.parameters(), transform(lambda params, x, y: nn.cross_entropy(model(x), y))
    return lambda: f(params, x, y)


def step():
    """Returns a training step: forward, backward and Adam."""
    model, x, y = classifier()
    opt = optim.Adam(model.parameters(), lr=1e-3)

    def run():
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(model(x), y)
        opt.step(tape.gradient(loss, opt.parameters))

    return run


def two_layers(inputs=64, hidden=64, outputs=64):
    a, b = normal(hidden, inputs) / inputs**0.5, normal(outputs, hidden, seed=1) / hidden**0.5
    return lambda x: pb.tanh(b @ pb.tanh(a @ x))


def jacobian():
    f, x = pb.jacobian(two_layers()), normal(64)
    return lambda: f(x)


def hessian():
    net, x = two_layers(), normal(64)
    f = pb.hessian(lambda x: pb.sum(pb.square(net(x))))
    return lambda: f(x)


def of_shape(inputs, outputs, mode):
    f, x = pb.jacobian(two_layers(inputs, 64, outputs), mode=mode), normal(inputs)
    return lambda: f(x)


def segments():
    data, ids = normal(100_000, 32), pb.tensor(np.random.default_rng(0).integers(0, 5000, 100_000))
    weight = normal(5000, 32, seed=1)

    def run():
        with pb.GradientTape() as tape:
            tape.watch(data)
            y = pb.segment_sum(data, ids, 5000)
        return tape.gradient(y, data, output_gradients=weight)

    return run


def _recurrence(run, captures=False):
    """Returns the states of y_t = a_t y_{t-1} + b_t, computed by run(a, b)."""
    a, b = pb.sigmoid(normal(32, 1024, 64)), normal(32, 1024, 64, seed=1)
    f = pb.capture(run) if captures else run
    return lambda: f(a, b)


def affine(first, second):
    return first[0] * second[0], second[0] * first[1] + second[1]


def by_associative_scan(a, b):
    return pb.associative_scan(affine, (a, b), axis=1)[1]


def step_by_step(a, b):
    steps = pb.swapaxes(a, 0, 1), pb.swapaxes(b, 0, 1)
    return pb.scan(lambda y, ab: (ab[0] * y + ab[1],) * 2, pb.zeros((32, 64)), steps)[1]


def _eight_targets():
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
    with pb.GradientTape(persistent=True) as tape:
        targets = pb.unstack(pb.mean(model(normal(16, 64)), axis=0))
    return tape, targets, model.parameters()


def targets_at_once():
    tape, targets, params = _eight_targets()
    return lambda: tape.gradients(targets, params)


def one_sweep():
    """Returns the gradient of the sum of the same eight targets, which takes a single sweep."""
    tape, targets, params = _eight_targets()
    return lambda: tape.gradient(targets, params)


WORKLOADS = {
    "per-example gradients": lambda: _per_example(pb.per_example_grad),
    "per-example norms": lambda: _per_example(pb.per_example_norm),
    "step": step,
    "jacobian": jacobian,
    "hessian": hessian,
    "segment_sum": segments,
    "linear recurrence": lambda: _recurrence(lambda a, b: pb.linear_recurrence(a, b, 1)),
    "associative scan": lambda: _recurrence(by_associative_scan, captures=True),
    "scan": lambda: _recurrence(step_by_step),
    "scan, captured": lambda: _recurrence(step_by_step, captures=True),
    "8 targets": targets_at_once,
    "one sweep": one_sweep,
}
WORKLOADS |= {f"{m} -> {n}, {mode}": partial(of_shape, m, n, mode) for m, n in SHAPES for mode in ("auto", "forward", "reverse")}


def facts():
    from pullback.backends import native

    threads, blas = native.module.thread_count(), native.module.blas_core()
    return f"pullback {pb.__version__}, {native.simd_level()}, {threads} threads, BLAS {blas}"
