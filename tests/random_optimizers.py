"""Random configurations of optimizers: rules, hyper-parameters, Parameters, groups, schedules, clipping, constraints, pruning.

`Configuration(seed)` is one configuration. It has the gradients of a few steps, and what changes between them: hyper-parameters,
constraints, weights, observations. random_optimizer_runs.py trains with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

import pullback as pb
from pullback import optim
from pullback.optim import constraints as C, schedules as S

COUNT: Final = int(os.environ.get("PULLBACK_OPTIMIZERS", "40"))
Shape = tuple[int, ...]
SHAPES: Final[tuple[Shape, ...]] = (
    (), (1,), (3,), (7,), (300,), (0,), (4, 3), (3, 4), (2, 9), (17, 5), (1, 1), (1, 6), (0, 3), (2, 3, 4), (2, 1, 3, 2), (2, 0, 3),
)
LARGE: Final[Shape] = (8200,)  # more weights than are computed together by a formula
DTYPES: Final = ("float16", "bfloat16", "float32", "float64")
SPECIAL: Final = (0.0, -0.0, 1e-40, -1e-7, 65504.0, np.inf, -np.inf, np.nan)


class Each(NamedTuple):
    """One value for each member."""

    values: tuple[Any, ...]


def choose(rng: Any, things: Any) -> Any:
    return things[rng.integers(len(things))]


def given(value: Any, member: int | None) -> Any:
    """Returns a value as an optimizer takes it: for all members, or for one of them that is trained alone."""
    if isinstance(value, Each):
        return list(value.values) if member is None else value.values[member]
    if isinstance(value, tuple):
        return tuple([given(x, member) for x in value])
    if isinstance(value, dict):
        return {key: given(x, member) for key, x in value.items()}
    return value


# ---- rules by formula


@optim.rule(slots=("m",), lr=1e-2, beta=0.9, weight_decay=0.0)
def Signs(p: Any, g: Any, m: Any, h: Any) -> Any:
    """An elementwise rule with a bias correction, whose new slot is used twice."""
    m = h.beta * m + (1 - h.beta) * g
    return -h.lr * (m / (1 - h.beta**h.step) / (1 + pb.abs(m)) + h.weight_decay * p), m


@optim.rule(slots={"v": 0.1, "last": 0.0}, lr=1e-2, shares=(0.9, 0.5), eps=1e-3)
def Switched(p: Any, g: Any, v: Any, last: Any, h: Any) -> Any:
    """An elementwise rule with a first value of a slot, a hyper-parameter of two numbers, and another formula after two steps."""
    v = h.shares[0] * v + (1 - h.shares[0]) * g * g
    step = pb.where(h.step > 2, g + h.shares[1] * last, g)
    return -h.lr * step / (pb.sqrt(v) + h.eps), v, step


@optim.rule(slots=("m",), lr=1e-2, beta=0.8)
def Normed(p: Any, g: Any, m: Any, h: Any) -> Any:
    """A rule with reductions, the formula of which is computed for one member after another."""
    m = h.beta * m + g
    return -h.lr * (1 + pb.sqrt(pb.sum(p * p))) * m / (1 + pb.sqrt(pb.sum(m * m))), m


# ---- random hyper-parameters

CLASSES: Final[tuple[Any, ...]] = (
    optim.SGD, optim.SGD, optim.RMSprop, optim.RMSprop, optim.Adagrad, optim.Adadelta, optim.Adam, optim.AdamW, optim.Adamax,
    optim.NAdam, optim.RAdam, optim.Lion, optim.LAMB, optim.Adafactor, optim.Muon, optim.Muon, optim.ScheduleFreeSGD,
    optim.ScheduleFreeAdamW, Signs, Switched, Normed,
)
AUXILIARIES: Final[tuple[Any, ...]] = (
    optim.SGD, optim.RMSprop, optim.Adagrad, optim.Adadelta, optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam, optim.RAdam,
    optim.Lion, optim.LAMB,
)
FLAGS: Final[dict[Any, tuple[str, ...]]] = {
    optim.SGD: ("nesterov",), optim.RMSprop: ("centered",), optim.Adam: ("amsgrad",), optim.AdamW: ("amsgrad",),
    optim.NAdam: ("decoupled_weight_decay",), optim.RAdam: ("decoupled_weight_decay",),
    optim.Muon: ("nesterov", "bias_correction", "flatten"),
}
VALUES: Final[dict[str, tuple[float, ...]]] = {
    "lr": (0.1, 0.03, 0.01), "lr_scale": (0.5, 2.0, 1.0, 0.0), "momentum": (0.9, 0.5, 0.8), "dampening": (0.0, 0.3),
    "weight_decay": (0.0, 0.02, 0.1), "alpha": (0.9, 0.99, 0.6), "lr_decay": (0.0, 0.1), "rho": (0.9, 0.8),
    "betas": (0.9, 0.8, 0.99), "eps": (1e-8, 1e-6, 1e-3), "momentum_decay": (4e-3, 0.1), "warmup_steps": (0, 3),
    "r": (0, 0.5, 1), "weight_lr_power": (2, 1, 0), "beta2_decay": (-0.8, -0.5), "d": (1.0, 2.0), "beta": (0.9, 0.5),
    "shares": (0.9, 0.5), "clip_value": (0.3, 1.0),
    "ema": (0.9, 0.5, 0.0),
}
COEFFICIENTS: Final = ((3.4445, 3.4), (-4.775, -4.7), (2.0315, 2.0))


def hyper(rng: Any, cls: Any, name: str, members: int | None) -> Any:
    """Returns a random value of a hyper-parameter, which may have a number for each member."""

    def number(of: Any) -> Any:
        one = members is None or rng.random() < 0.5
        return choose(rng, of) if one else Each(tuple([choose(rng, of) for _ in range(members or 0)]))

    if name == "ns_coefficients":
        return tuple([number(of) for of in COEFFICIENTS])
    if name == "eps" and cls is optim.Adafactor:
        return (None if rng.random() < 0.5 else number((1e-4, 1e-3)), number((1e-3, 1e-2)))
    if name == "momentum" and cls in (optim.SGD, optim.RMSprop) and rng.random() < 0.2:
        return 0
    count = cls.hyper.get(name, 1)
    return number(VALUES[name]) if count == 1 else tuple([number(VALUES[name]) for _ in range(count)])


def simple_schedule(rng: Any, base: float) -> Any:
    return choose(rng, (
        S.Constant(base, 2, 0.5), S.Step(base, 2, 0.5), S.MultiStep(base, (1, 3), 0.5), S.Exponential(base, 0.9),
        S.Linear(base, 4, 0.25, 0.75), S.Polynomial(base, 5, 0.01 * base, 2.0), S.Cosine(base, 5, 0.1 * base),
        S.CosineRestarts(base, 2, 2, 0.1 * base), S.OneCycle(base, 6, 0.4), S.OneCycle(base, 8, 0.3, 10.0, 100.0, "linear", True),
        S.Cyclic(base, 2 * base, 2, 3, 0.5, 0.95), S.WarmupCosine(base, 6, 0.0, 2, 0.1 * base),
        S.WarmupStableDecay(base, 6, 1, 3, 0.01 * base, 0.1 * base, 0.5), S.Table([base, 0.5 * base, 0.75 * base]),
        S.Lambda(base, lambda t: 1 / (1 + t), 4), S.Multiplicative(base, lambda t: 0.9, 4),
        S.ReduceOnPlateau(base, 0.5, 0), S.ReduceOnPlateau(base, 0.3, 1, 0.01, "max", "abs", 1, 0.1 * base),
    ))


def schedule(rng: Any, base: float) -> Any:
    draw = rng.random()
    if draw < 0.7:
        return simple_schedule(rng, base)
    pieces = [simple_schedule(rng, base) for _ in range(int(rng.integers(2, 4)))]
    whole = S.Sequential(pieces, list(range(2, 2 * len(pieces), 2)))
    return whole if draw < 0.85 else choose(rng, (whole, pieces[0])) * simple_schedule(rng, 1.0)


def rate(rng: Any, members: int | None) -> Any:
    """Returns a number or a schedule, or one of them for each member."""
    base = choose(rng, VALUES["lr"])
    draw = rng.random()
    if members is not None and draw < 0.5:
        if draw < 0.25:
            return Each(tuple([choose(rng, VALUES["lr"]) for _ in range(members)]))
        return Each(tuple([schedule(rng, choose(rng, VALUES["lr"])) for _ in range(members)]))
    return base if rng.random() < 0.5 else schedule(rng, base)


def shrunk(w: Any) -> Any:
    """A constraint that is a function."""
    return pb.clip(w * 0.875, -1.0, 0.75)


def alternating(t: int) -> float:
    """A sparsity that rises and falls."""
    return (0.2, 0.6, 0.4)[t % 3]


def constraint(rng: Any, shape: Shape) -> Any:
    axis = int(rng.integers(len(shape))) - choose(rng, (0, len(shape))) if shape and rng.random() < 0.7 else None
    axes = tuple(range(len(shape))) if shape and rng.random() < 0.2 else axis
    return choose(rng, (
        C.NonNegative(), C.Box(-0.5, 0.75), C.Box(0.1, 2), C.Box(-np.inf, 0.3), C.MaxNorm(0.8, axes), C.UnitNorm(axes),
        C.Simplex(axis), shrunk, None,
    ))


LAYOUTS: Final[dict[str, Callable[[Any], Any]]] = {
    "dense": pb.tensor,
    "array": lambda g: g,  # of NumPy, which a step copies to the device
    "transposed": lambda g: pb.tensor(g.T.copy()).T if g.ndim == 2 else pb.tensor(g),
    "reversed": lambda g: pb.flip(pb.tensor(np.flip(g).copy())),
    "strided": lambda g: pb.tensor(np.repeat(g, 2, axis=-1))[..., ::2] if g.ndim else pb.tensor(g),
    "broadcast": lambda g: pb.broadcast_to(pb.tensor(g[..., :1]), g.shape) if g.size and g.ndim else pb.tensor(g),
}


# ---- a configuration


class Configuration:
    """A rule, its options, Parameters, gradients, and what happens between steps.

    Args:
        seed: of all random choices.
        dtype: of all Parameters, instead of random ones.
        plain: leaves out what other implementations lack: special gradients, members, pruning, masters, stochastic rounding.
        classes: the rules to choose from.
        stacked: the Parameters are those of several members, or of one.
    """

    def __init__(
        self, seed: int, dtype: str | None = None, plain: bool = False, classes: Any = CLASSES, stacked: bool = False
    ) -> None:
        rng = np.random.default_rng((seed, 71))
        self.seed, self.steps = seed, int(rng.integers(3, 8))
        self.cls: Any = choose(rng, classes)
        self.composed = self.cls.composed
        self.members: int | None = None if plain or (rng.random() < 0.6 and not stacked) else int(rng.integers(1, 4))
        self.special = bool(rng.random() < 0.1) and not plain
        self.scale = choose(rng, (1.0, 1.0, 1e-3, 30.0))
        self.layout = choose(rng, ("dense", "dense", *LAYOUTS))
        self._parameters(rng, dtype, plain)
        self._options(rng, plain)
        at_random = np.random.default_rng((seed, 72)).random() < 0.3  # from a stream of its own, which leaves the other choices
        if at_random and not plain and "master_weights" not in self.options:
            self.options["stochastic_rounding"] = True
        self.pruning: Any = None
        if rng.random() < 0.2 and not plain:
            self._prune(rng)
        self.micro = () if rng.random() < 0.8 else tuple([choose(rng, (1, 2, 5)) for _ in range(rng.integers(1, 4))])
        self.reduce = choose(rng, ("mean", "sum"))
        self.fusion = choose(rng, ("exact", "none"))
        self.missing = [self._missing(rng) for _ in range(self.steps)]
        self.wanted = [bool(x) for x in rng.random(self.steps) < 0.5]
        self.previews = [bool(x) for x in rng.random(self.steps) < 0.3]
        self.events = [self._events(rng, k, plain) for k in range(self.steps)]

    def _parameters(self, rng: Any, dtype: str | None, plain: bool) -> None:
        shapes = [choose(rng, SHAPES) for _ in range(rng.integers(1, 6))]
        if rng.random() < 0.05:
            shapes.append(LARGE)
        if self.cls is optim.Muon and not any([len(shape) == 2 for shape in shapes]):
            shapes.append((4, 3))
        self.shapes: list[Shape] = shapes
        one = choose(rng, DTYPES)
        mixed = rng.random() < 0.3
        self.dtypes = [dtype or (choose(rng, DTYPES) if mixed else one) for _ in shapes]
        self.names = [f"{'abc'[i // 2]}.{('weight', 'bias')[i % 2]}" for i in range(len(shapes))]
        lead = () if self.members is None else (self.members,)
        self.start = [rng.standard_normal((*lead, *shape)) for shape in shapes]
        limited = rng.random() < 0.3
        self.constraints = [constraint(rng, shape) if limited and rng.random() < 0.7 else None for shape in shapes]

    def _options(self, rng: Any, plain: bool) -> None:
        cls, members = self.cls, self.members
        self.options: dict[str, Any] = {"lr": rate(rng, members), **self._rule(rng, cls, members)}
        if cls is optim.Adagrad:
            self.options["initial_accumulator_value"] = choose(rng, (0, 0.2))
        if cls is optim.Muon:
            kind = choose(rng, AUXILIARIES)
            self.options |= {
                "ns_steps": choose(rng, (1, 2, 5)), "adjust_lr_fn": choose(rng, (None, "original", "match_rms_adamw")),
                "dtype": choose(rng, ("float32", "bfloat16")), "auxiliary": kind,
                "auxiliary_options": {"lr": rate(rng, members), **self._rule(rng, kind, members)},
            }
            matrices = [name for name, shape in zip(self.names, self.shapes) if len(shape) == 2]
            if len(matrices) > 1 and rng.random() < 0.3:
                self.options["auxiliary_names"] = [matrices[0]]
        if rng.random() < 0.3:
            self.options["clip_norm"] = choose(rng, (0.5, 2.0, 1e6))
        if rng.random() < 0.2:
            self.options["clip_value"] = choose(rng, VALUES["clip_value"])
        if rng.random() < 0.2:
            self.options["clip_adaptive"] = choose(rng, (0.01, 0.5))
        if rng.random() < 0.3:
            self.options["ema"] = hyper(rng, cls, "ema", members)
        if rng.random() < 0.3 and not plain:
            self.options["master_weights"] = True
        self._group(rng)
        if members is not None and not self._has_members():
            self.options["lr"] = Each(tuple([choose(rng, VALUES["lr"]) for _ in range(members)]))

    def _has_members(self) -> bool:
        def found(value: Any) -> bool:
            inside = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
            return isinstance(value, Each) or any([found(x) for x in inside])

        values = {key: x for key, x in self.options.items() if key != "auxiliary_options"}
        return found(values) or any([found(own) for _, own in self.groups or ()])

    def _rule(self, rng: Any, cls: Any, members: int | None) -> dict[str, Any]:
        names = [name for name in cls.hyper if rng.random() < 0.6]
        options = {name: hyper(rng, cls, name, members) for name in names}
        options |= {name: bool(rng.random() < 0.5) for name in FLAGS.get(cls, ())}
        if options.get("nesterov") and cls is optim.SGD:
            options |= {"momentum": 0.9, "dampening": 0}
        return options

    def _group(self, rng: Any) -> None:
        """Chooses groups: a list of (pattern, values), of which an optimizer is made with patterns or with dicts."""
        self.groups: list[tuple[str, dict[str, Any]]] | None = None
        self.listed: list[int] | None = None  # the numbers of Parameters in each dict
        if rng.random() < 0.5:
            return
        patterns = list(dict.fromkeys([choose(rng, (name, name[:2] + "*", "*" + name[1:], "*")) for name in self.names]))[:3]
        if rng.random() < 0.4:
            cuts = sorted({0, len(self.shapes), *rng.integers(0, len(self.shapes), 1).tolist()})
            self.listed = [b - a for a, b in zip(cuts, cuts[1:])]
            patterns = [str(i) for i in range(len(self.listed))]
        rates = choose(rng, ("lr", "lr_scale"))  # A Parameter that several patterns name must not get both.
        self.groups = [(pattern, self._own(rng, rates)) for pattern in patterns]

    def _own(self, rng: Any, rates: str) -> dict[str, Any]:
        own: dict[str, Any] = {}
        # A group of Muon may have parameters of the auxiliary only, which has other hyper-parameters.
        for name in () if self.cls is optim.Muon else self.cls.hyper:
            if rng.random() < 0.3 and not (self.cls is optim.SGD and name in ("momentum", "dampening")):
                own[name] = hyper(rng, self.cls, name, self.members)
        if rng.random() < 0.5 and rates == "lr":
            own["lr"] = rate(rng, self.members)
        elif rng.random() < 0.5 and rates == "lr_scale":
            own["lr_scale"] = hyper(rng, self.cls, "lr_scale", self.members)
        if rng.random() < 0.2:
            own["clip_value"] = choose(rng, VALUES["clip_value"])
        if rng.random() < 0.2 and "ema" in self.options:
            own["ema"] = hyper(rng, self.cls, "ema", self.members)
        if self.cls is optim.RMSprop and "momentum" in own and not self.options.get("momentum"):
            del own["momentum"]
        return own

    def _prune(self, rng: Any) -> None:
        places = [i for i, shape in enumerate(self.shapes) if int(np.prod(shape))]
        if not places:
            return
        chosen = [i for i in places if rng.random() < 0.7] or places[:1]
        whole = len({self.dtypes[i] for i in chosen}) == 1 and rng.random() < 0.4
        sparsity = choose(rng, (0.3, 0.6, S.PolynomialSparsity(0.1, 0.8, 1, 5, every=2), alternating))
        self.pruning = sparsity, chosen, "global" if whole else "tensor"

    def _missing(self, rng: Any) -> tuple[tuple[bool, ...], ...]:
        """Returns which gradients are None, for each of the batches of a step."""
        share = choose(rng, (0.0, 0.0, 0.3, 1.0 if rng.random() < 0.3 else 0.0))
        return tuple([tuple([bool(x) for x in rng.random(len(self.shapes)) < share]) for _ in self.micro or (1,)])

    def _events(self, rng: Any, k: int, plain: bool) -> list[tuple[Any, ...]]:
        events: list[tuple[Any, ...]] = []
        if rng.random() < 0.5:
            one = self.members is None or rng.random() < 0.5
            metrics = [float(x) for x in rng.integers(0, 4, 1 if one else self.members)]
            events.append(("observe", metrics[0] if one else Each(tuple(metrics))))
        if k == 0 or rng.random() < 0.5:
            return events
        i = int(rng.integers(len(self.shapes)))
        names = list(self.cls.hyper)
        kind = choose(rng, (
            "lr", "lr_scale", "hyper", "hyper", "group", "group", "clip_norm", "clip_value", "clip_adaptive", "gradient_scale",
            "ema", "assign", "constraint", "mode", "remove", "auxiliary",
        ))
        if kind == "lr":
            events.append(("set", "lr", rate(rng, self.members)))
        elif kind in ("lr_scale", "ema"):
            events.append(("set", kind, hyper(rng, self.cls, kind, self.members)))
        elif kind == "hyper" and names:
            name = choose(rng, names)
            events.append(("set", name, hyper(rng, self.cls, name, self.members)))
        elif kind == "group":
            name = choose(rng, [*names, "lr", "lr_scale", "clip_value"])
            value = rate(rng, self.members) if name == "lr" else hyper(rng, self.cls, name, self.members)
            events.append(("group", int(rng.integers(4)), name, choose(rng, VALUES[name]) if name == "clip_value" else value))
        elif kind in ("clip_norm", "clip_value", "clip_adaptive"):
            events.append(("set", kind, choose(rng, (None, 0.05, 0.7))))
        elif kind == "gradient_scale":
            events.append(("set", kind, choose(rng, (0.5, 1.0, 1 / 3))))
        elif kind == "assign":
            events.append(("assign", i, rng.standard_normal(self.start[i].shape)))
        elif kind == "constraint":
            events.append(("constraint", i, constraint(rng, self.shapes[i])))
        elif kind in ("mode", "remove") and not plain:
            events.append((kind,))
        elif kind == "auxiliary" and self.cls is optim.Muon:
            rule = self.options["auxiliary"]
            name = choose(rng, [*rule.hyper, "lr"])
            value = rate(rng, self.members) if name == "lr" else hyper(rng, rule, name, self.members)
            events.append(("auxiliary", name, value))
        return events

    def gradients(self, k: int) -> list[list[Any]]:
        """Returns the gradients of each batch of step k, in float64 and without those that are None."""
        rng = np.random.default_rng((self.seed, k, 72))
        found: list[list[Any]] = []
        for absent in self.missing[k]:
            grads: list[Any] = []
            for value, none in zip(self.start, absent):
                g = rng.standard_normal(value.shape) * self.scale
                sparse = rng.random(value.shape)
                g = np.where(sparse < 0.05, 0.0, g)
                if self.special:
                    g = np.where(sparse > 0.97, rng.choice(SPECIAL, value.shape), g)
                if self.layout == "broadcast" and value.ndim > (self.members is not None):
                    g = g[..., :1] + np.zeros_like(g)
                grads.append(None if none else g)
            found.append(grads)
        return found

    def __repr__(self) -> str:
        shown = {key: x for key, x in vars(self).items() if key != "start"}
        return "\n".join([f"{key}: {x}" for key, x in shown.items()])
