"""Trains small networks for 200 steps and prints the hashes of all weights and optimizer states on the way.

    python tests/trainings.py eager,captured     every training, in these ways

Each line is [training, way, hashes, first loss, last loss]. The environment chooses the device and the number of threads. The
weights, the batches and the dropped elements come from pb.random, so the device makes them.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import pullback as pb
from pullback import nn, optim

LONG: Final = os.environ.get("PULLBACK_TRAININGS") == "long"
STEPS: Final = 200
AT_ONCE: Final = 20  # steps in one call of the way "steps", and from one hash to the next
WAYS: Final = ("eager", "captured", "steps")
NETS: Final = {"2-16-16-2": 100, "20-64-64-10": 30, "300-16-10": 300}  # the layers and the batch. 300 crosses the blocks of sums.


@optim.rule(slots=("m",), lr=0.01, beta=0.9)
def ByNorm(p: Any, g: Any, m: Any, h: Any) -> Any:
    """Steps along the momentum, as long as a share of the weights, which falls with the number of steps."""
    m = h.beta * m + (1 - h.beta) * g
    return -h.lr * h.step**-0.3 * m * (pb.linalg.norm(p) + 0.1) / (pb.linalg.norm(m) + 1e-6), m


OPTIMIZERS: Final[dict[str, Callable[[Any], Any]]] = {
    "sgd": partial(optim.SGD, lr=0.05, momentum=0.9),
    "adam": partial(optim.Adam, lr=0.003),
    "adamw": lambda ps: optim.AdamW(ps, lr=optim.schedules.Cosine(0.003, STEPS), weight_decay=0.1, clip_norm=0.5),
    "lion": partial(optim.Lion, lr=0.001, weight_decay=0.1),
    "lamb": partial(optim.LAMB, lr=0.01, weight_decay=0.1),
    "adafactor": partial(optim.Adafactor, lr=0.03),
    "muon": partial(optim.Muon, lr=0.01),
    "schedule-free": partial(optim.ScheduleFreeAdamW, lr=0.003, warmup_steps=20),
    "formula": ByNorm,
}


class Training(NamedTuple):
    """A network and how it is trained: keys of NETS and OPTIMIZERS, a dtype, and the extra layers, "dropout" or "norm"."""

    net: str
    optimizer: str
    dtype: str
    extra: str = ""


SHORT: Final = (
    Training("2-16-16-2", "sgd", "float32"), Training("2-16-16-2", "adam", "float64", "norm"),
    Training("20-64-64-10", "adam", "float32", "dropout"), Training("20-64-64-10", "adamw", "bfloat16", "norm dropout"),
    Training("300-16-10", "lion", "float32"), Training("300-16-10", "sgd", "bfloat16", "norm"),
    Training("2-16-16-2", "lamb", "float32"), Training("2-16-16-2", "adafactor", "bfloat16", "norm"),
    Training("2-16-16-2", "muon", "float32", "dropout"), Training("2-16-16-2", "schedule-free", "float64"),
    Training("2-16-16-2", "formula", "float32", "norm"),
)
WITH_EVERY_NET: Final = ("sgd", "adam", "adamw", "lion")  # the others train the first net only, to save time
ALL: Final = tuple(
    [
        Training(*one)
        for one in itertools.product(NETS, OPTIMIZERS, ("float32", "bfloat16", "float64"), ("", "dropout", "norm"))
        if one[0] == next(iter(NETS)) or one[1] in WITH_EVERY_NET
    ]
)
TRAININGS: Final = ALL if LONG else SHORT


def network(training: Training) -> nn.Module:
    sizes = [int(n) for n in training.net.split("-")]
    layers: list[Any] = []
    for k, (m, n) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Linear(m, n))
        if k < len(sizes) - 2:
            layers += [nn.LayerNorm(n)] * ("norm" in training.extra)
            layers.append((nn.ReLU(), nn.Tanh())[k % 2])
            layers += [nn.Dropout(0.2)] * ("dropout" in training.extra)
    return nn.Sequential(*layers).to(training.dtype)


def train(training: Training, way: str) -> tuple[list[str], float, float]:
    """Returns hashes of the weights, the optimizer's state and the losses after every AT_ONCE steps, and two losses."""
    pb.random.seed(11)
    model = network(training)
    opt = OPTIMIZERS[training.optimizer](model.parameters())
    inputs, classes = model[0].in_features, model[-1].out_features
    xs = pb.random.normal((AT_ONCE, NETS[training.net], inputs), dtype=training.dtype)
    ys = pb.random.randint(0, classes, xs.shape[:2])

    def step(x: Any, y: Any) -> Any:
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(model(x), y)
        opt.step(tape.gradient(loss, opt.parameters))
        return loss

    if way != "eager":
        step = pb.capture(step, steps=AT_ONCE if way == "steps" else None)
    hashes, losses = [], []
    for _ in range(STEPS // AT_ONCE):
        losses.append(step(xs, ys) if way == "steps" else pb.stack([step(x, y) for x, y in zip(xs, ys)]))
        hashes.append(pb.hash([model, opt, losses[-1]]))
    return hashes, pb.mean(losses[0]).item(), pb.mean(losses[-1]).item()


if __name__ == "__main__":
    for way in sys.argv[1].split(","):
        for training in TRAININGS:
            print(json.dumps([training, way, *train(training, way)]), flush=True)
