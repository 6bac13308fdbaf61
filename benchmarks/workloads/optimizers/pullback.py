"""The updates in pullback: plain ones, and the same rules with bounds, masks, clipping and deltas."""

from functools import partial

import numpy as np

import pullback as pb
from pullback import nn, optim
from pullback.launch import door

from ..eager.pullback import data, facts as facts
from . import COUNT, RULES, SIZE

BOX = optim.constraints.Box(-1.0, 1.0)
NORM = optim.constraints.MaxNorm(300.0, None)


def update(kind, options, bounds=None, masked=False, delta=False, **more):
    rng = np.random.default_rng(0)
    params = [pb.Parameter(rng.standard_normal(SIZE, np.float32), constraint=bounds) for _ in range(COUNT)]
    grads = [pb.tensor(np.full(SIZE, 0.5, np.float32)) for _ in range(COUNT)]
    opt = getattr(optim, kind)(params, lr=1e-3, **options, **more)
    if masked:
        optim.Pruning(opt, 0.5, params)
    return lambda: opt.step(grads, return_delta=delta)


def plain(params):
    return optim.Adam(params, lr=1e-3)


def with_everything(params):
    """Returns an optimizer with groups, both ways of clipping, a schedule and bounds."""
    for p in params:
        p.constraint = BOX
    groups = {"*.bias": {"weight_decay": 0.0}, "0.*": {"lr_scale": 0.1}}
    schedule = optim.schedules.WarmupCosine(1e-3, steps=100_000, warmup=100)
    return optim.Adam(params, lr=schedule, weight_decay=0.01, clip_norm=1.0, clip_value=0.5, groups=groups)


@optim.rule(slots=("m", "v"), lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
def AdamByFormula(p, g, m, v, h):
    (b1, b2), t = h.betas, h.step
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    return -h.lr * (m / (1 - b1**t)) / (pb.sqrt(v / (1 - b2**t)) + h.eps), m, v


@optim.rule(slots=("m",), lr=1e-4, beta1=0.9, beta2=0.99)
def LionByFormula(p, g, m, h):
    return -h.lr * pb.sign(h.beta1 * m + (1 - h.beta1) * g), h.beta2 * m + (1 - h.beta2) * g


@optim.rule(slots=("m",), lr=1e-3, mu=0.9)
def MomentumByFormula(p, g, m, h):
    m = h.mu * m + g
    return -h.lr * m, m


# Rules with a kernel, and the same rules by formula.
FORMULAS = {
    "adam": (partial(optim.Adam, lr=1e-3), AdamByFormula),
    "lion": (partial(optim.Lion, lr=1e-4), LionByFormula),
    "momentum": (partial(optim.SGD, lr=1e-3, momentum=0.9), MomentumByFormula),
}


def large_update(make):
    rng = np.random.default_rng(0)
    params = [pb.Parameter(rng.standard_normal(SIZE, np.float32)) for _ in range(COUNT)]
    grads = [pb.tensor(np.full(SIZE, 0.5, np.float32)) for _ in range(COUNT)]
    opt = make(params)
    return lambda: opt.step(grads)


def small_network(make):
    """Returns a network of 1,002 weights and its optimizer."""
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10))
    return model, make(model.parameters())


def small_update(make):
    _, opt = small_network(make)
    grads = [pb.ones(p.shape) for p in opt.parameters]
    return lambda: opt.step(grads)


def small_training(make):
    model, opt = small_network(make)
    x, y = pb.ones((16, 20)), pb.zeros((16, 10))

    @pb.capture
    def step(x, y):
        with pb.GradientTape() as tape:
            loss = nn.mse(model(x), y)
        opt.step(tape.gradient(loss, opt.parameters))
        return loss

    return lambda: step(x, y)


def step_of(make):
    """Returns a training step of a network of three layers, and its arguments."""
    sizes = (784, 128, 64, 10)
    model = nn.Sequential(*[layer for m, n in zip(sizes, sizes[1:]) for layer in (nn.Linear(m, n), nn.ReLU())][:-1])
    opt = make(model.parameters())

    def step(x, y):
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(model(x), y)
        opt.step(tape.gradient(loss, opt.parameters))
        return loss

    return step, data(sizes, 64)


def train(make, captured):
    step, arguments = step_of(make)
    step = pb.capture(step) if captured else step
    return lambda: step(*arguments)


def launches(make):
    """Returns a function that counts the launches of the optimizer in a replay of a captured step."""
    step, arguments = step_of(make)
    captured = pb.capture(step)
    captured(*arguments)

    def count():
        with pb.profile(detail="kernel") as prof:
            captured(*arguments)
        return sum([x.phase == door.OPTIMIZER for x in prof.launches])

    return count


WORKLOADS = {name: partial(update, *rule) for name, rule in RULES.items()}
WORKLOADS["lion"] = partial(update, "Lion", {})
for name in ("sgd", "adam"):
    rule = RULES[name]
    WORKLOADS |= {
        f"{name} again": partial(update, *rule),
        f"{name}, bounds": partial(update, *rule, bounds=BOX),
        f"{name}, mask": partial(update, *rule, masked=True),
        f"{name}, clipping": partial(update, *rule, clip_norm=1.0),
        f"{name}, delta": partial(update, *rule, delta=True),
        f"{name}, average": partial(update, *rule, ema=0.999),
        f"{name}, norm": partial(update, *rule, bounds=NORM),
        f"{name}, all four": partial(update, *rule, bounds=BOX, masked=True, delta=True, clip_norm=1.0),
    }
for name, make in (("plain", plain), ("with everything", with_everything)):
    WORKLOADS |= {
        f"eager step, {name}": partial(train, make, False),
        f"captured step, {name}": partial(train, make, True),
        f"launches, {name}": partial(launches, make),
    }
for name, rules in FORMULAS.items():
    for by, make in zip(("kernel", "formula"), rules):
        WORKLOADS |= {
            f"{name} by {by}, large": partial(large_update, make),
            f"{name} by {by}, small": partial(small_update, make),
            f"{name} by {by}, captured": partial(small_training, make),
        }
