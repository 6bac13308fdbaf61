"""A tape warns if values that left pullback come back as constants, and stays silent where they do not come back."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import nn, optim

X = pb.tensor([1.0, 2.0, 3.0])
Program = Callable[..., Any]
PROGRAMS: dict[str, Program] = {}
SILENT: dict[str, Program] = {}


def program(f: Program) -> Program:
    PROGRAMS[f.__name__] = f
    return f


def silent(f: Program) -> Program:
    SILENT[f.__name__] = f
    return f


# ---- what comes back


@program
def elements_are_stored(x: Any) -> Any:
    a = np.zeros(3)
    a[0] = x[0] * x[0]
    a[1], a[2] = x[1] * x[0], x[2]
    return pb.sum(a * x)


@program
def a_row_is_stored(x: Any) -> Any:
    a = np.zeros((2, 3), np.float32)
    a[0] = 2 * x
    return pb.sum(pb.asarray(a) * x)


@program
def a_slice_is_stored_and_a_view_comes_back(x: Any) -> Any:
    a = np.zeros(6)
    a[1:3] = x[:2] * 2
    return pb.sum(x * a[:3])


@program
def elements_are_added(x: Any) -> Any:
    a = np.zeros(3)
    for i in range(3):
        a[i] += x[i] * x[0]
    return pb.sum(a * x)


@program
def a_flat_view_is_stored_into(x: Any) -> Any:
    a = np.zeros((3, 1))
    a.flat[:2] = x[:2]
    return pb.sum(a * x)


@program
def floats_become_an_array(x: Any) -> Any:
    return pb.sum(np.array([float(v) for v in x]) * x)


@program
def an_array_is_made_in_each_round(x: Any) -> Any:
    total = pb.sum(x)
    for k in range(3):
        a = np.array([x[k], 2.0])
        total = total + pb.sum(a) * x[0] if k == 2 else total
    return total


@program
def an_attribute_is_stored_into(x: Any) -> Any:
    class Memory:
        values = np.zeros(0)

    memory = Memory()
    memory.values = np.zeros(3)
    for i in range(3):
        memory.values[i] = x[i]
    return memory.values @ x


@program
def a_diagonal_is_stored(x: Any) -> Any:
    a = np.eye(3)
    a[np.arange(3), np.arange(3)] = x
    return pb.sum(pb.linalg.inv(a) @ x)


@program
def numpy_makes_an_array_of_numbers(x: Any) -> Any:
    return pb.sum(np.array([x[0], x[1], 1.0]) * x)


@program
def numpy_makes_an_array_of_rows(x: Any) -> Any:
    return pb.sum(np.array([2 * x, 3 * x]) * x)


@program
def numpy_fills(x: Any) -> Any:
    return pb.sum(np.full(20, x[1])) * x[0]


@program
def numpy_fills_in_another_dtype(x: Any) -> Any:
    return pb.sum(np.full(3, x[0], dtype=np.float64) * x)


@program
def a_float_is_a_factor(x: Any) -> Any:
    total = pb.sum(x)
    return float(total) * total


@program
def an_item_is_among_the_numbers_of_a_list(x: Any) -> Any:
    return pb.sum(pb.tensor([x[0].item(), 1.0, 2.0]) * x)


@program
def a_copy_is_a_factor(x: Any) -> Any:
    return pb.sum((2 * x).numpy() * x)


@program
def a_view_is_a_factor(x: Any) -> Any:
    return pb.sum(np.asarray(2 * x)[::-1] * x)


@program
def a_list_of_numbers_comes_back(x: Any) -> Any:
    return pb.sum(pb.tensor((2 * x).tolist()) * x)


@program
def floats_of_a_loop_come_back(x: Any) -> Any:
    return pb.sum(pb.tensor([float(v) for v in x]) * x)


@program
def a_number_fills(x: Any) -> Any:
    return pb.sum(pb.full(2, x[0].item()) + pb.full_like(x[:2], float(x[1]))) * x[1]


@program
def a_number_is_an_end(x: Any) -> Any:
    return pb.sum(pb.linspace(0.0, float(x[0]), 3)) * x[1]


@program
def a_constant_is_computed_from_it(x: Any) -> Any:
    scale = pb.exp(-pb.tensor((2 * x).numpy()))
    return pb.sum(pb.sqrt(scale) * 3.0 * x)


@program
def a_branch_of_where(x: Any) -> Any:
    return pb.sum(pb.where(x > 1.5, (2 * x).numpy(), x))


@pytest.mark.parametrize("way", ["grad", "jvp"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_warning_names_both_lines(name: str, way: str) -> None:
    f = PROGRAMS[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if way == "grad":
            pb.grad(f)(X)
        else:
            pb.jvp(f, (X,), (pb.ones(3),))
    (warning,) = caught
    assert warning.category is pb.ZeroGradientWarning
    assert warning.filename == __file__
    first, last = f.__code__.co_firstlineno, max([n for *_, n in f.__code__.co_lines() if n])
    assert first <= warning.lineno <= last
    assert f'"{__file__}", line ' in str(warning.message)
    assert "pb.stack joins tensors" in str(warning.message)
    assert "pb.stop_gradient(t)" in str(warning.message)


def test_a_constant_that_is_meant_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pb.grad(lambda x: pb.sum(pb.stop_gradient(2 * x) * x))(X)


STORES = ("elements_are_stored", "a_row_is_stored", "numpy_makes_an_array_of_numbers", "numpy_fills")


@pytest.mark.parametrize("name", STORES)
def test_examples_refuse_the_read(name: str) -> None:
    for f in (PROGRAMS[name], pb.grad(PROGRAMS[name])):
        with pytest.raises(pb.VmapError, match="cannot be read here, because they differ"):
            pb.vmap(f)(pb.stack([X, X]))


@needs_kernels
@pytest.mark.parametrize("name", STORES)
def test_captured_functions_refuse_the_read(name: str) -> None:
    with pytest.raises(pb.CaptureError, match=r"t\.at\[i\]\.set\(v\) writes into one"):
        pb.capture(PROGRAMS[name])(X)


# ---- programs that must stay silent under -W error


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
    if name not in ("an_autoencoder_on_watched_data", "constants_of_the_same_value"):
        assert (host(net.weight) != before).any()
