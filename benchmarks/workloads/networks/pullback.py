"""The workloads in pullback, eager and captured."""

from functools import partial

import numpy as np

import pullback as pb
from pullback import nn, optim
from pullback.examples import gpt as example
from pullback.examples.mlperf_tiny import resnet8

from ..eager import pullback as eager
from . import (
    ATTENTION,
    CAUSAL,
    CHARACTERS,
    CNN,
    DIGITS,
    GPT,
    GRU,
    HEADS,
    LAYERS,
    NORM,
    RESNET,
    SHAPES,
    WIDTH,
    layers_of_cnn,
    layers_of_digits,
    reader,
)

NETWORKS = {
    CNN: lambda: nn.Sequential(*layers_of_cnn(nn)), DIGITS: lambda: nn.Sequential(*layers_of_digits(nn)),
    RESNET: resnet8, GRU: lambda: reader(nn),
}


def step(name, capture):
    net, rng, shape = NETWORKS[name](), np.random.default_rng(0), SHAPES[name]
    opt = optim.SGD(net.parameters(), lr=0.01) if name == RESNET else optim.Adam(net.parameters(), lr=1e-3)
    x, y = pb.tensor(rng.standard_normal(shape, dtype=np.float32)), pb.tensor(rng.integers(0, 10, shape[0]))

    def run(x, y):
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(net(x), y)
        opt.step(tape.gradient(loss, opt.parameters))
        return loss

    return partial(pb.capture(run) if capture else run, x, y)


def gpt(capture):
    net = example.GPT(CHARACTERS, SHAPES[GPT][1] - 1, LAYERS, HEADS, WIDTH)
    opt = optim.AdamW(net.parameters(), lr=1e-3)
    sequences = pb.tensor(np.random.default_rng(0).integers(0, CHARACTERS, SHAPES[GPT]))

    def run(sequences):
        return opt.minimize(lambda: example.loss_of(net, sequences))

    return partial(pb.capture(run) if capture else run, sequences)


def norm(capture):
    layer, rng = nn.BatchNorm2d(SHAPES[NORM][1]), np.random.default_rng(0)
    x, g = [pb.tensor(rng.standard_normal(SHAPES[NORM], dtype=np.float32)) for _ in range(2)]

    def run(x, g):
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return tape.gradient(y, [x, *layer.parameters()], output_gradients=g)

    return partial(pb.capture(run) if capture else run, x, g)


def attention(name, capture):
    rng = np.random.default_rng(0)
    q, k, v, g = [pb.tensor(rng.standard_normal(SHAPES[name], dtype=np.float32)) for _ in range(4)]

    def run(q, k, v, g):
        with pb.GradientTape() as tape:
            for x in (q, k, v):
                tape.watch(x)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=name == CAUSAL)
        return tape.gradient(y, [q, k, v], output_gradients=g)

    return partial(pb.capture(run) if capture else run, q, k, v, g)


WORKLOADS = {
    **{name: partial(step, name, False) for name in NETWORKS},
    **{f"{name}, captured": partial(step, name, True) for name in NETWORKS},
    GPT: partial(gpt, False),
    f"{GPT}, captured": partial(gpt, True),
    NORM: partial(norm, False),
    f"{NORM}, captured": partial(norm, True),
    **{name: partial(attention, name, False) for name in (ATTENTION, CAUSAL)},
    **{f"{name}, captured": partial(attention, name, True) for name in (ATTENTION, CAUSAL)},
}

facts = eager.facts
