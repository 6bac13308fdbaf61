"""The workloads in pullback, as a user would write them."""

import numpy as np

import pullback as pb
from pullback import nn, optim

from ..yolo26n import MATRICES


def chain_and_input():
    """Returns a function that computes the gradient of a chain of ops, and its argument."""
    x, c = pb.tensor(np.linspace(-1, 1, 8, dtype=np.float32)), pb.tensor(np.linspace(0, 1, 8, dtype=np.float32))

    def gradient(x):
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in range(50):
                y = pb.tanh(y) + c
            loss = pb.sum(y)
        return tape.gradient(loss, x)

    return gradient, x


def chain():
    gradient, x = chain_and_input()
    return lambda: gradient(x)


def network(sizes):
    layers = []
    for i, (m, n) in enumerate(zip(sizes, sizes[1:])):
        layers += [nn.Linear(m, n)] + ([nn.ReLU()] if i + 2 < len(sizes) else [])
    return nn.Sequential(*layers)


def step_of(sizes):
    model = network(sizes)
    opt = optim.Adam(model.parameters(), lr=1e-3)

    def step(x, y):
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(model(x), y)
        opt.step(tape.gradient(loss, opt.parameters))
        return loss

    return step


def data(sizes, *batch):
    rng = np.random.default_rng(0)
    return pb.tensor(rng.standard_normal((*batch, sizes[0]), dtype=np.float32)), pb.tensor(rng.integers(0, sizes[-1], batch))


def mlp(sizes, batch):
    step, (x, y) = step_of(sizes), data(sizes, batch)
    return lambda: step(x, y)


def adam():
    params = [pb.Parameter(np.zeros(100_000, np.float32)) for _ in range(100)]
    grads = [pb.tensor(np.full(100_000, 0.5, np.float32)) for _ in range(100)]
    opt = optim.Adam(params, lr=1e-3)
    return lambda: opt.step(grads)


def _gradient_step(make, shapes):
    """Returns a step of an optimizer on Parameters of these shapes with random gradients."""
    rng = np.random.default_rng(0)
    params = [pb.Parameter(rng.standard_normal(shape, dtype=np.float32)) for shape in shapes]
    grads = [pb.tensor(rng.standard_normal(shape, dtype=np.float32)) for shape in shapes]
    opt = make(params)
    return lambda: opt.step(grads)


def _reduction(f, shape):
    x = pb.tensor(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))
    weight = pb.tensor(np.random.default_rng(1).standard_normal(shape, dtype=np.float32))

    def run():
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x, output_gradients=weight)

    return run


def gelu():
    x = pb.tensor(np.random.default_rng(0).standard_normal(10_000_000, dtype=np.float32))

    def run():
        with pb.GradientTape() as tape:
            tape.watch(x)
            loss = pb.sum(nn.functional.gelu(x))
        return tape.gradient(loss, x)

    return run


def layer_norm():
    norm = nn.LayerNorm(1024)
    return _reduction(norm, (4096, 1024))


WORKLOADS = {
    "chain": chain,
    "mlp 2-16-16-2": lambda: mlp((2, 16, 16, 2), 100),
    "mlp 784-128-10": lambda: mlp((784, 128, 10), 64),
    "mlp 784-1024-1024-10": lambda: mlp((784, 1024, 1024, 10), 512),
    "adam": adam,
    "adafactor": lambda: _gradient_step(optim.Adafactor, [(250, 400)] * 100),
    "adafactor, vectors": lambda: _gradient_step(optim.Adafactor, [(100_000,)] * 100),
    "muon": lambda: _gradient_step(optim.Muon, MATRICES),
    "gelu": gelu,
    "softmax": lambda: _reduction(lambda x: nn.functional.softmax(x, axis=-1), (4096, 1024)),
    "layer norm": layer_norm,
}


# The same workloads once more, to compare with torch's Adam(fused=True) and Adafactor(foreach=True). pullback's optimizers are
# always fused.
WORKLOADS |= {f"{name}, fused": WORKLOADS[name] for name in list(WORKLOADS) if name.startswith("mlp")}
WORKLOADS |= {f"{name}, foreach": WORKLOADS[name] for name in ("adafactor", "adafactor, vectors")}


def facts():
    from pullback.backends import native

    threads, blas = native.module.thread_count(), native.module.blas_core()
    return f"pullback {pb.__version__}, {native.simd_level()}, {threads} threads, BLAS {blas}"
