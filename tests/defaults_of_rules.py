"""Initial weights, optimizers and random numbers with default arguments, and their values by formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb
from defaults_of_networks import Row, X, Y, of
from pullback import nn, optim
from update_rules import lion


def spread(init: Any) -> tuple[float, float]:
    """Returns the mean, to two digits, and ten times the standard deviation, to one digit, of a weight of 300 × 400."""
    p = nn.init.zeros(pb.Parameter(np.ones((300, 400), np.float32)))
    pb.random.seed(0)
    assert init(p) is p
    return round(float(p.numpy().mean()), 2), round(float(p.numpy().std() * 10), 1)


def first_step(rule: Any) -> Any:
    p = pb.Parameter(np.array([1.0, 2.0]))
    rule([p]).step([pb.tensor(np.array([0.5, -1.0]))])
    return pb.tensor(p)


def first_step_of_a_matrix(rule: Any) -> Any:
    p, bias = pb.Parameter(np.array([[2.0]])), pb.Parameter(np.array([1.0]))
    rule([p, bias]).step([pb.tensor(np.array([[0.5]])), pb.tensor(np.array([0.5]))])
    return pb.tensor([p.item(), bias.item()], dtype="float64")


def orthogonalized(x: float) -> float:
    """Returns five of Muon's iterations of a matrix of one element."""
    for _ in range(5):
        x = 3.4445 * x - 4.775 * x**3 + 2.0315 * x**5
    return x


def updated(make: Any) -> list[Any]:
    """Returns, for two steps with the gradients G and -G, whether the Parameter is as the formula predicts."""
    p = pb.Parameter(X)
    opt, found = make([p]), list[Any]()
    for g in (G, -G):
        opt.step([pb.tensor(g)])
        found.append(p.numpy().copy())
    return [np.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(found, wanted_updates(type(opt).__name__))]


G = Y + 0.5


def wanted_updates(name: str) -> list[Any]:
    if name == "Lion":
        return lion(X, [G, -G])
    p, m, v, found = X, np.zeros_like(X), np.zeros_like(X), list[Any]()
    for t, g in enumerate((G, -G), 1):
        if name == "SGD":
            p = p - 1e-3 * g
        else:
            p = p * (1 - 1e-3 * 1e-2) if name == "AdamW" else p
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            p = p - 1e-3 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        found.append(p)
    return found


def moments(*must: Any) -> Callable[[Any], Any]:
    """Returns a function that computes the mean and standard deviation of 40,000 draws, to one digit, and the default shape."""

    def call(f: Any) -> Any:
        x = f(*must, (200, 200)).numpy() if not must else f(*must, None, (200, 200)).numpy()
        return round(float(x.mean()), 1), round(float(x.std()), 1), f(*must).shape

    return call


def philox_seeded(f: Any) -> Any:
    f(7)
    first = pb.random.uniform((3,)).numpy()
    return bool((first == pb.random.Generator(7).uniform((3,)).numpy()).all())


def epochs(kind: Any) -> Any:
    """Loads five rows in batches of two. Returns the batch lengths, the sorted rows, and two comparisons of their order.

    The comparisons are: equal to the order with explicit defaults, and equal to the original order.
    """
    batches = [b.numpy().tolist() for b in kind(np.arange(5), 2)]
    again = [b.numpy().tolist() for b in kind(np.arange(5), 2, shuffle=True, seed=0, drop_last=False)]
    rows = [row for batch in batches for row in batch]
    return [len(b) for b in batches], sorted(rows), batches == again, rows == list(range(5))


ONE = optim.schedules.Schedule(0.5)
DIRECTION = np.array([0.5 / (0.5 + 1e-6), -1 / (1 + 1e-6)])
STEP_OF_LAMB = np.array([1.0, 2.0]) - 1e-3 * np.sqrt(5) / np.sqrt((DIRECTION**2).sum()) * DIRECTION


def of_ten_gradients(accumulator: Any) -> Any:
    acc = accumulator([pb.Parameter([0.0, 0.0])])
    return [acc.add([pb.tensor([float(k), 2.0 * k])]) for k in range(1, 11)], acc.take()


RULES: dict[str, Row] = {
    **{f"optim.{name}": (updated, [True, True]) for name in ("SGD", "Adam", "AdamW", "Lion")},
    "optim.rule": (lambda f: first_step(f(lr=0.5)(lambda p, g, h: -h.lr * g)), np.array([0.75, 2.5])),
    # torch.optim 2.13 gives these numbers with float64 as its default dtype.
    "optim.Adadelta": (first_step, np.array([0.9968377855834876, 2.0031622618488987])),
    "optim.Adagrad": (first_step, np.array([0.990000000002, 2.009999999999])),
    "optim.Adamax": (first_step, np.array([0.99800000004, 2.0019999999800002])),
    "optim.NAdam": (first_step, np.array([0.9978870964855473, 2.002112903535582])),
    "optim.RAdam": (first_step, np.array([0.9995, 2.001])),
    # By hand, for the gradients 0.5 and -1.
    "optim.LAMB": (first_step, STEP_OF_LAMB),
    "optim.ScheduleFreeSGD": (first_step, np.array([0.5, 3.0])),
    "optim.ScheduleFreeAdamW": (first_step, np.array([1 - 0.0025 / (1 + 2e-8 / 0.001**0.5), 2 + 0.0025 / (1 + 1e-8 / 0.001**0.5)])),
    "optim.Adafactor": (first_step, np.array([1.0, 2.0]) - 1e-2 * np.sqrt(2.5) * np.array([1.0, -1.0])),
    "optim.Muon": (
        first_step_of_a_matrix,
        np.array([2 - 1e-3 * (0.1 * 2 + orthogonalized(1.0)), 1 - 1e-3 * (1e-2 + 0.5 / (0.5 + 1e-8))]),
    ),
    "optim.RMSprop": (first_step, np.array([0.900000019999996, 2.099999990000001])),
    "optim.Accumulator": (of_ten_gradients, ([False] * 9 + [True], [np.array([5.5, 11.0])])),
    "schedules.Schedule": (lambda f: [f(0.5).rate(t) for t in (0, 3)], [0.5, 0.5]),
    "schedules.Constant": (lambda f: [round(f(0.6).rate(t), 12) for t in (0, 4, 5)], [0.2, 0.2, 0.6]),
    "schedules.Lambda": (lambda f: [f(0.5, lambda t: 1 / (1 + t), 3).rate(t) for t in (0, 1, 2, 9)], [0.5, 0.25, 0.5 / 3, 0.5 / 3]),
    "schedules.Multiplicative": (lambda f: [f(0.5, lambda t: 0.5, 3).rate(t) for t in (0, 1, 2, 9)], [0.5, 0.25, 0.125, 0.125]),
    "schedules.Product": (lambda f: [f(ONE, ONE).rate(t) for t in (0, 2)], [0.25, 0.25]),
    "schedules.ReduceOnPlateau": (lambda f: [f(0.5).rate(t) for t in (0, 20)], [0.5, 0.5]),
    "schedules.Sequential": (lambda f: [f([ONE, optim.schedules.Schedule(0.1)], [2]).rate(t) for t in (0, 1, 2)], [0.5, 0.5, 0.1]),
    "schedules.Table": (lambda f: [f([0.5, 0.25]).rate(t) for t in (0, 1, 9)], [0.5, 0.25, 0.25]),
    "schedules.Step": (lambda f: [f(0.5, 3).rate(t) for t in (0, 6)], [0.5, 0.5 * 0.1**2]),
    "schedules.Exponential": (lambda f: [f(0.5).rate(t) for t in (0, 2)], [0.5, 0.5 * 0.99**2]),
    "schedules.Cosine": (lambda f: [round(f(0.5, 2).rate(t), 12) for t in (0, 1, 2)], [0.5, 0.25, 0.0]),
    "schedules.Linear": (lambda f: [f(0.5, 2).rate(t) for t in (0, 1, 2)], [0.5, 0.25, 0.0]),
    "schedules.Polynomial": (lambda f: [f(0.5, 4).rate(t) for t in (0, 1, 4, 5)], [0.5, 0.375, 0.0, 0.0]),
    "schedules.MultiStep": (lambda f: [f(0.5, [9]).rate(t) for t in (0, 9)], [0.5, 0.05]),
    "schedules.OneCycle": (lambda f: [round(f(0.5, 11).rate(t), 12) for t in (0, 10)], [0.02, 2e-6]),
    "schedules.CosineRestarts": (lambda f: [f(0.5, 2).rate(t) for t in (0, 1, 2)], [0.5, 0.25, 0.5]),
    "schedules.Cyclic": (lambda f: [round(f(0.5).rate(t), 12) for t in (0, 2000, 4000)], [0.5, 0.1, 0.5]),
    "schedules.WarmupStableDecay": (lambda f: [f(0.5, 4).rate(t) for t in (0, 3, 4)], [0.5, 0.5, 0.0]),
    "schedules.WarmupCosine": (lambda f: [round(f(0.5, 2).rate(t), 12) for t in (0, 1, 2)], [0.5, 0.25, 0.0]),
    "schedules.PolynomialSparsity": (lambda f: [f(0.0, 0.5, 1, 3).sparsity(t) for t in (0, 1, 2, 3)], [0.0, 0.0, 0.0, 0.5]),
    "optim.Pruning": (lambda f: f(optim.SGD([pb.Parameter(X)]), 0.5).report(), {"parameter0": 0.0}),
    "constraints.NonNegative": (lambda f: f()(pb.tensor(X)), np.maximum(X, 0)),
    "constraints.Box": (lambda f: f(-0.1, 0.2)(pb.tensor(X)), np.clip(X, -0.1, 0.2)),
    "constraints.MaxNorm": (lambda f: f(1e6, 0)(pb.tensor(X)), X),
    "constraints.UnitNorm": (lambda f: f(0)(pb.tensor(X)), X / np.linalg.norm(X, axis=0)),
    "constraints.Simplex": (lambda f: f(0)(pb.tensor([[3.0, 0.5], [1.0, 0.5]])), np.array([[1.0, 0.5], [0.0, 0.5]], np.float32)),
    "init.zeros": (spread, (0.0, 0.0)),
    "init.ones": (spread, (1.0, 0.0)),
    "init.constant": (lambda f: f(pb.Parameter(X), 2.5), np.full_like(X, 2.5)),
    "init.uniform": (spread, (0.5, round(10 / math.sqrt(12), 1))),
    "init.normal": (spread, (0.0, 10.0)),
    "init.truncated_normal": (spread, (0.0, 8.8)),
    "init.xavier_uniform": (spread, (0.0, round(10 * math.sqrt(2 / 700), 1))),
    "init.xavier_normal": (spread, (0.0, round(10 * math.sqrt(2 / 700), 1))),
    "init.kaiming_uniform": (spread, (0.0, round(10 * math.sqrt(2 / 400), 1))),
    "init.kaiming_normal": (spread, (0.0, round(10 * math.sqrt(2 / 400), 1))),
    "init.orthogonal": (lambda f: bool(np.allclose((q := f(pb.Parameter(X)).numpy()) @ q.T, np.eye(2), atol=1e-12)), True),
    "init.lsuv": (lambda f: round(float(f(nn.Linear(3, 2).to(pb.float64), pb.tensor(X))(pb.tensor(X)).numpy().std()), 6), 1.0),
    "init.calculate_gain": (lambda f: [f("leaky_relu"), f("tanh")], [math.sqrt(2 / (1 + 0.01**2)), 5 / 3]),
    "init.fans": (of((2, 3, 5)), (15, 10)),
    "random.uniform": (moments(), (0.5, 0.3, ())),
    "random.normal": (moments(), (0.0, 1.0, ())),
    "random.truncated_normal": (moments(), (0.0, 0.9, ())),
    "random.bernoulli": (moments(), (0.5, 0.5, ())),
    "random.randint": (moments(10), (4.5, 2.9, ())),
    "random.permutation": (lambda f: sorted(f(9).tolist()), list(range(9))),
    "random.seed": (philox_seeded, True),
    "random.state_dict": (lambda f: (pb.random.seed(7), f())[1], {"seed": 7, "serial": 0}),
    "random.load_state_dict": (lambda f: (f({"seed": 5, "serial": 3}), pb.random.state_dict())[1], {"seed": 5, "serial": 3}),
    "random.Generator": (lambda f: f().state_dict(), {"seed": 0, "serial": 0}),
    "data.shakespeare": (lambda f: [f().train.size, f().validation.size, len(f().characters)], [1_003_854, 111_540, 65]),
    "data.digits": (lambda f: [len(x) for x in vars(f()).values()], [1442, 1442, 355, 355]),
    "data.progress": (lambda f: [*f([3, 4])], [3, 4]),
    "data.Loader": (epochs, ([2, 2, 1], [0, 1, 2, 3, 4], True, False)),
}
