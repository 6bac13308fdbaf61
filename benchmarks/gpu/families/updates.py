"""Optimizers: every rule, clipping, averages, pruning, constraints, half precision and loss scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pullback as pb
from pullback import nn, optim
from pullback.optim import constraints as c, schedules as s

from .values import Case, between, floats, integers

RULES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (optim.SGD, {}),
    "sgd, momentum": (optim.SGD, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.02}),
    "sgd, nesterov": (optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (optim.Adam, {}),
    "adamw": (optim.AdamW, {"weight_decay": 0.1}),
    "adam, amsgrad": (optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "adamw, amsgrad": (optim.AdamW, {"amsgrad": True}),
    "adamax": (optim.Adamax, {}),
    "nadam": (optim.NAdam, {}),
    "nadam, decoupled": (optim.NAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "radam": (optim.RAdam, {}),
    "radam, decoupled": (optim.RAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "rmsprop": (optim.RMSprop, {}),
    "rmsprop, momentum": (optim.RMSprop, {"momentum": 0.9}),
    "rmsprop, centered": (optim.RMSprop, {"centered": True}),
    "rmsprop, momentum, centered": (optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "adagrad": (optim.Adagrad, {"lr_decay": 0.1}),
    "adadelta": (optim.Adadelta, {}),
    "lamb": (optim.LAMB, {"weight_decay": 0.1}),
    "lion": (optim.Lion, {"weight_decay": 0.1}),
    "schedule-free sgd": (optim.ScheduleFreeSGD, {"warmup_steps": 3}),
    "schedule-free adamw": (optim.ScheduleFreeAdamW, {"warmup_steps": 3}),
    "adafactor": (optim.Adafactor, {}),
    "muon": (optim.Muon, {}),
}

MANY = "many parameters"  # more than a small launch takes

# Options that each rule runs with in turn. Weights of half precision need one of the last two.
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("float32", {}),
    "clipped, averaged": ("float32", {"clip_norm": 1.0, "clip_value": 0.5, "ema": 0.9}),
    "float64": ("float64", {"clip_norm": 1.0}),
    "master weights": ("bfloat16", {"master_weights": True}),
    "stochastic rounding": ("float16", {"stochastic_rounding": True, "clip_norm": 1.0}),
    MANY: ("float32", {}),
}


def _shapes(n: int) -> tuple[tuple[int, ...], ...]:
    return ((n // 4, 4), (30, 4), (1,), (257,))


def _steps(opt: Any, parameters: list[Any], count: int = 2, with_slots: bool = True) -> list[Any]:
    """Returns the parameters, and the slots if they are wanted, after some steps."""
    for seed in range(count):
        opt.step([floats(*p.shape, seed=seed, dtype=str(p.dtype)) for p in parameters])
    slots = [slot for p in parameters if with_slots for slot in opt.slots(p).values()]
    return [pb.copy(x) for x in (*parameters, *slots)]


def optimizers(n: int) -> Iterator[Case]:
    """Runs two steps of every rule, with each set of options."""

    def run(rule: str, options: str) -> list[Any]:
        (make, hyper), (dtype, more) = RULES[rule], OPTIONS[options]
        shapes = [(3, i + 1) for i in range(30)] if options == MANY else _shapes(n)
        parameters = [pb.Parameter(floats(*shape, seed=7, dtype=dtype)) for shape in shapes]
        opt = make(parameters, lr=0.1, **hyper, **more)
        out = _steps(opt, parameters, with_slots=options != MANY)
        return [*out, *[pb.copy(opt.averaged(p)) for p in parameters if "ema" in more]]

    for rule in RULES:
        for options in OPTIONS:
            yield f"{rule}, {options}", partial(run, rule, options)


def update_options(n: int) -> Iterator[Case]:
    """Runs updates with members, schedules, deltas, adaptive clipping, accumulated gradients and gradients in any layout."""

    def made(make: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "float32") -> tuple[Any, list[Any]]:
        parameters = [pb.Parameter(floats(*shape, seed=7, dtype=dtype)) for shape in shapes or _shapes(n)]
        return make(parameters), parameters

    def clipped(dtype: str, *shapes: tuple[int, ...]) -> list[Any]:
        return _steps(*made(lambda p: optim.SGD(p, lr=0.1, clip_adaptive=0.01, momentum=0.9), *shapes, dtype=dtype))

    def turned() -> list[Any]:
        out = []
        for dtype in ("float32", "float64", "bfloat16"):
            opt, parameters = made(lambda p: optim.Adam(p, lr=0.1, clip_norm=1.0), (4, 5, 6), (7, 8), dtype=dtype)
            opt.step([pb.permute_dims(floats(6, 5, 4, dtype=dtype), (2, 1, 0)), floats(8, 7, dtype=dtype).T])
            out += [pb.copy(p) for p in parameters]
        return out

    def members(make: Any, **options: Any) -> list[Any]:
        opt, parameters = made(lambda p: make(p, lr=[0.1, 0.01, 0.001], **options), (3, 30, 4), (3, n // 3))
        found = _steps(opt, parameters)
        return [*found, *[pb.tensor(opt.gradient_norm) for _ in options.keys() & {"clip_norm"}]]

    def observed() -> list[Any]:
        opt, parameters = made(lambda p: optim.Adam(p, lr=s.Cosine(1.0, 20) * s.ReduceOnPlateau(0.1, patience=0)))
        for metric in (1.0, 2.0, 3.0):
            opt.observe(pb.tensor(metric))
            _steps(opt, parameters, 1)
        return [pb.copy(p) for p in parameters]

    def delta() -> list[Any]:
        opt, parameters = made(lambda p: optim.AdamW(p, lr=0.1))
        return opt.step([floats(*p.shape, seed=1) for p in parameters], return_delta=True)

    def accumulated(dtype: str) -> list[Any]:
        _, parameters = made(lambda p: None, dtype=dtype)
        acc = optim.Accumulator(parameters, every=3)
        for seed in range(3):
            acc.add([floats(*p.shape, seed=seed, dtype=dtype) for p in parameters], count=seed + 1)
        return acc.take()

    for dtype in ("float32", "float64", "float16", "bfloat16"):
        yield f"adaptive clipping {dtype}", partial(clipped, dtype)
        yield f"accumulated gradients {dtype}", partial(accumulated, dtype)
    yield "adaptive clipping of long rows", partial(clipped, "float32", (3, max(n, 5000)), (5, 4, 3, 3), (9000,))
    yield "adaptive clipping of many parameters", partial(clipped, "float32", *[(3, i + 1) for i in range(30)])
    yield "gradients in any layout", turned
    yield "members", partial(members, optim.SGD, momentum=0.9, clip_norm=1.0)
    yield "members, lamb", partial(members, optim.LAMB)
    yield "members, adaptive clipping", partial(members, optim.Adam, clip_adaptive=0.02)
    yield "schedules and a plateau", observed
    yield "a delta", delta
    yield "many parameters", lambda: _steps(*made(lambda p: optim.Adam(p, clip_norm=1.0), *[(3, i + 1) for i in range(90)]))
    yield "a rule by formula", lambda: _steps(*made(_by_formula))
    yield "a rule by formula, many parameters", lambda: _steps(*made(_by_formula, *[(3, i + 1) for i in range(30)]))


@optim.rule(slots=("m",), lr=1e-4, beta1=0.9)
def _ByFormula(p: Any, g: Any, m: Any, h: Any) -> Any:
    m = h.beta1 * m + (1 - h.beta1) * g
    return -h.lr * pb.sign(m), m


def _by_formula(parameters: list[Any]) -> Any:
    return _ByFormula(parameters)


def projection(n: int) -> Iterator[Case]:
    """Runs steps with constraints: bounds, which the update applies, and limits of vectors, which one launch applies after it."""
    limits = {
        "non-negative": c.NonNegative(), "a box": c.Box(-0.5, 0.5), "MaxNorm": c.MaxNorm(1.0, 1), "UnitNorm": c.UnitNorm(0),
        "simplex of rows": c.Simplex(1), "simplex of columns": c.Simplex(0), "simplex of all": c.Simplex(None),
        "MaxNorm of all": c.MaxNorm(0.5, None),
    }

    def run(name: str, dtype: str, shape: tuple[int, ...], options: dict[str, Any]) -> list[Any]:
        parameters = [pb.Parameter(between(0, 1, *shape, dtype=dtype), constraint=limits[name]), pb.Parameter(floats(9))]
        opt = optim.Adam(parameters, lr=0.1, **options)
        return _steps(opt, parameters)

    for name in limits:
        for dtype in ("float32", "float64"):
            yield f"{name} {dtype}", partial(run, name, dtype, (n // 50 + 2, 37), {"ema": 0.9})
        yield f"{name}, master weights", partial(run, name, "bfloat16", (30, 37), {"master_weights": True})
    yield "a long simplex", partial(run, "simplex of all", "float32", (2, n // 2), {})


def loss_scaler(n: int) -> Iterator[Case]:
    """Trains in float16 with a scaled loss. The second step overflows, so it must change nothing but the scale."""

    def train(**options: Any) -> list[Any]:
        parameters = [pb.Parameter(0.1 * floats(*shape, dtype="float16")) for shape in ((20, 10), (10,))]
        opt = optim.Adam(parameters, lr=0.01, master_weights=True, **options)
        scaler = pb.amp.LossScaler(1024.0, growth_interval=2)
        x, labels = floats(32, 20, dtype="float16"), integers(10, 32)
        out = []
        for factor in (1.0, float("inf"), 1.0, 1.0, 1.0):
            with pb.GradientTape() as tape:
                loss = nn.cross_entropy(x @ parameters[0] + parameters[1], labels)
                scaled = scaler.scale(loss)
            gradients = tape.gradient(scaled, parameters)
            scaler.step(opt, [g * pb.tensor(factor).astype("float16") for g in gradients])
            scaler.update()
            out += [loss, scaler.value, scaler.skipped, *[pb.copy(p) for p in parameters]]
        if int(scaler.skipped.item()) != 1:
            raise RuntimeError(f"the scaler left out {scaler.skipped.item()} steps of five, of which one had an overflow")
        return out

    yield "five steps", train
    yield "five steps, clipped", partial(train, clip_norm=1.0, ema=0.9)
