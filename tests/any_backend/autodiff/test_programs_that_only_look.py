"""Programs that look at values inside a tape, by NumPy, Python or ops, and must stay silent under -W error."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn, optim

Program = Callable[..., Any]
SILENT: dict[str, Program] = {}


def silent(f: Program) -> Program:
    SILENT[f.__name__] = f
    return f


def step(net: Any, opt: Any, x: Any, y: Any, inside: Callable[[Any, Any], Any] = lambda logits, loss: None) -> Any:
    with pb.GradientTape() as tape:
        logits = net(x)
        loss = nn.cross_entropy(logits, y)
        inside(logits, loss)
        total = loss + 1e-3 * pb.sum(net.weight**2)
    opt.step(tape.gradient(total, net.parameters()))
    return loss


@silent
def progress_bar(net: Any, opt: Any, x: Any, y: Any) -> None:
    for _ in pb.data.progress(range(3)):
        step(net, opt, x, y, lambda logits, loss: f"{loss:.3f} {float(loss):.2f} {loss!r}")


@silent
def accuracy_by_numpy(net: Any, opt: Any, x: Any, y: Any) -> None:
    step(net, opt, x, y, lambda logits, loss: (np.asarray(logits).argmax(1) == y).mean())
    step(net, opt, x, y, lambda logits, loss: (logits.numpy().argmax(1) == y).mean())


@silent
def early_stopping(net: Any, opt: Any, x: Any, y: Any) -> None:
    best = math.inf
    for _ in range(3):
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(net(x), y)
            if float(loss) >= best:
                break
            best = float(loss)
        opt.step(tape.gradient(loss, net.parameters()))


@silent
def a_schedule_fed_with_the_loss(net: Any, opt: Any, x: Any, y: Any) -> None:
    def lower(logits: Any, loss: Any) -> None:
        opt.lr = min(opt.lr, 0.1 * float(loss))

    step(net, opt, x, y, lower)


@silent
def losses_in_an_array(net: Any, opt: Any, x: Any, y: Any) -> None:
    losses = np.zeros(4)
    for i in range(4):
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(net(x), y)
            losses[i] = loss
        opt.step(tape.gradient(loss, net.parameters()))
    assert losses.mean() > 0


@silent
def losses_in_a_list(net: Any, opt: Any, x: Any, y: Any) -> None:
    losses: list[float] = []
    for _ in range(3):
        step(net, opt, x, y, lambda logits, loss: losses.append(loss.item()))
    assert np.mean(losses) > 0


@silent
def a_running_mean(net: Any, opt: Any, x: Any, y: Any) -> None:
    window: deque[float] = deque(maxlen=2)
    for _ in range(3):
        step(net, opt, x, y, lambda logits, loss: window.append(float(loss)))
        assert sum(window) / len(window) > 0


@silent
def weights_are_printed_and_saved(net: Any, opt: Any, x: Any, y: Any) -> None:
    kept: dict[str, Any] = {}
    step(net, opt, x, y, lambda logits, loss: kept.update(weight=net.weight.numpy(), norm=float(pb.sum(net.weight**2))))
    assert kept["weight"].shape == (3, 4)


@silent
def sampling_by_numpy(net: Any, opt: Any, x: Any, y: Any) -> None:
    rng = np.random.default_rng(0)
    with pb.GradientTape() as tape:
        logits = net(x)
        share = np.asarray(pb.softmax(logits, axis=1), np.float64)
        actions = np.array([rng.choice(3, p=row / row.sum()) for row in share])
        chosen = pb.take_along_axis(pb.log_softmax(logits, axis=1), actions[:, None], axis=1)
        loss = -pb.mean(chosen * (actions - actions.mean())[:, None])
    opt.step(tape.gradient(loss, net.parameters()))


@silent
def targets_by_another_network(net: Any, opt: Any, x: Any, y: Any) -> None:
    other = nn.Linear(4, 3)
    with pb.GradientTape() as tape:
        best = 0.5 + 0.9 * other(x).numpy().max(axis=1)
        loss = nn.mse(pb.max(net(x), axis=1), best.astype(np.float32))
    opt.step(tape.gradient(loss, net.parameters()))


@silent
def an_autoencoder_on_watched_data(net: Any, opt: Any, x: Any, y: Any) -> None:
    data = np.asarray(x)[:, :3].copy()
    with pb.GradientTape() as tape:
        given = pb.asarray(data)
        tape.watch(given)
        low, high = float(pb.min(given)), np.asarray(given).max()
        assert low < high
        loss = nn.mse(pb.tanh(given * 2.0), data)
    tape.gradient(loss, given)


@silent
def constants_of_the_same_value(net: Any, opt: Any, x: Any, y: Any) -> None:
    w = pb.Parameter(2.0)
    with pb.GradientTape() as tape:
        print(float(w), np.asarray(w), w)
        loss = w * 2.0 + pb.sum(np.array([2.0, 1.0])) * w + pb.sum(pb.asarray(np.full(3, 2.0)) * w)
    tape.gradient(loss, w)


@silent
def a_metric_of_several_losses(net: Any, opt: Any, x: Any, y: Any) -> None:
    with pb.GradientTape() as tape:
        losses = [nn.cross_entropy(net(x[i : i + 2]), y[i : i + 2]) for i in (0, 2)]
        print(np.mean([float(loss) for loss in losses]), np.array(losses).std())
        loss = pb.mean(losses)
    opt.step(tape.gradient(loss, net.parameters()))


@silent
def ops_on_constants(net: Any, opt: Any, x: Any, y: Any) -> None:
    history, saved = [], []

    def look(logits: Any, loss: Any) -> None:
        assert pb.isfinite(loss.item())
        assert pb.exp(loss.item()) > 0
        assert not bool(loss < loss.item())
        history.append(pb.mean(pb.argmax(logits.numpy(), axis=1) == y))
        saved.append(pb.tensor(net.weight.numpy()) * 0.1 + 0.9)

    for _ in range(2):
        step(net, opt, x, y, look)


@silent
def rows_of_one_array(net: Any, opt: Any, x: Any, y: Any) -> None:
    rows = np.full((3, 4, 3), 0.25, np.float32)
    with pb.GradientTape() as tape:
        logits = net(x)
        rows[0] = logits  # a log
        rows[1] = logits
        rows[1] = 0.125  # which is overwritten
        loss = pb.sum(logits * rows[2]) + pb.sum(logits * rows[1])
    opt.step(tape.gradient(loss, net.parameters()))


@silent
def zeros_among_others(net: Any, opt: Any, x: Any, y: Any) -> None:
    net.bias.assign(pb.zeros(3))
    with pb.GradientTape() as tape:
        assert np.array([net.bias[0] * 1.0, net.bias[1] * 1.0]).mean() == 0
        loss = pb.sum((net(x)[:, :2] - np.zeros(2)) ** 2)
    opt.step(tape.gradient(loss, net.parameters()))


def used(image: Any, constants: list[Any], look: Callable[[Any, Any], Any]) -> Any:
    """Looks at the range of an image, uses constants, and checks the gradient."""
    x = pb.tensor(image)
    with pb.GradientTape() as tape:
        tape.watch(x)
        look(pb.min(x * 1.0), pb.max(x * 1.0))
        loss = sum([pb.sum(pb.mean(x) * constant) for constant in constants], start=pb.sum(x))
    slope = 1 + sum([np.sum(constant) for constant in constants]) / 4
    np.testing.assert_allclose(host(tape.gradient(loss, x)), np.full(4, slope, np.float32), rtol=1e-6)


LOOKS: dict[str, Callable[[Any, Any], Any]] = {
    "array": lambda low, high: np.array([low, high]),
    "array_of_floats": lambda low, high: np.array([float(low), float(high)]),
    "rows": lambda low, high: np.array([pb.stack([low, high]), pb.stack([high, low])]),
    "full": lambda low, high: (np.full(2, low), np.full(2, high)),
}
COMMON = [np.array([0.0, 1.0, 1.0, 0.0], "f4"), np.array([0.0, 1.0]), np.eye(2), np.ones(3), np.linspace(0, 1, 5), -np.eye(2)]
RANGES: dict[str, tuple[list[float], list[Any]]] = {
    "of_pixels": ([0.0, 0.25, 1.0, 0.5], COMMON),
    "of_signs": ([-1.0, 0.25, 1.0, 0.5], [*COMMON, np.array([-1.0, 0.0, 1.0]), np.sign(np.arange(-2.0, 3.0))]),
    "of_counts": ([1.0, 5.0, 2.0, 3.0], [*COMMON, np.arange(6.0), np.arange(1.0, 6.0), np.array([[1.0, 2.0, 1.0], [5.0, 0, 1]])]),
    "up_to_one": ([0.37, 0.5, 1.0, 0.5], [*COMMON, np.array([0.5, 1.0]), np.linspace(0, 1, 3)]),
}
for name, (image, constants) in RANGES.items():
    for way, look in LOOKS.items():
        SILENT[f"the_range_{name}_in_{way}"] = lambda net, opt, x, y, a=(image, constants, look): used(*a)


@silent
def stop_gradient_of_what_left(net: Any, opt: Any, x: Any, y: Any) -> None:
    with pb.GradientTape() as tape:
        loss = pb.sum(net(x) * pb.stop_gradient(net(x).numpy()))
    opt.step(tape.gradient(loss, net.parameters()))


@silent
def a_confusion_matrix(net: Any, opt: Any, x: Any, y: Any) -> None:
    counts = np.zeros((3, 3), int)
    step(net, opt, x, y, lambda logits, loss: np.add.at(counts, (y, logits.numpy().argmax(1)), 1))
    assert counts.sum() == 4


@pytest.mark.parametrize("name", SILENT)
def test_programs_that_only_look_are_silent(name: str) -> None:
    pb.random.seed(0)
    net, rng = nn.Linear(4, 3), np.random.default_rng(1)
    opt = optim.SGD(net.parameters(), lr=0.1)
    before = host(net.weight).copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SILENT[name](net, opt, pb.tensor(rng.normal(size=(4, 4)).astype("f4")), rng.integers(0, 3, 4))
    if name not in ("an_autoencoder_on_watched_data", "constants_of_the_same_value") and "the_range" not in name:
        assert (host(net.weight) != before).any()
