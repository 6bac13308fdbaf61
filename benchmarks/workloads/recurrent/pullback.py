"""The workloads in pullback, eager and captured."""

from functools import partial

import numpy as np

import pullback as pb
from pullback import nn

from . import SHAPES


def layer(kind, shape, capture):
    steps, batch, inputs, hidden = shape
    net = getattr(nn, kind)(inputs, hidden)
    x = pb.tensor(np.random.default_rng(0).standard_normal((steps, batch, inputs)), dtype=pb.float32)
    parameters = list(net.parameters())

    def run(x):
        with pb.GradientTape() as tape:
            loss = pb.mean(pb.square(net(x)[0]))
        return tape.gradient(loss, parameters)

    return partial(pb.capture(run) if capture else run, x)


WORKLOADS = {
    **{name: partial(layer, *how, False) for name, how in SHAPES.items()},
    **{f"{name}, captured": partial(layer, *how, True) for name, how in SHAPES.items()},
}


def facts():
    from pullback.backends import native

    return f"pullback {pb.__version__}, {native.simd_level()}, {native.module.thread_count()} threads"
