"""Replays see the changes that were made since the recording, and they work with the rest of the library."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import CLASSES, OPTIMIZERS, ROWS, batches, needs_kernels, run, same, same_state, training
from conftest import host
from pullback import nn, optim
from pullback.tensors import devices

pytestmark = needs_kernels


# ---- changes that a replay sees


def test_a_new_learning_rate_holds_from_the_next_replay_on() -> None:
    data = batches(9)
    trained = []
    for wrap in (lambda f: f, pb.capture):
        _, opt, step = training(OPTIMIZERS["adam"])
        step = wrap(step)
        run(step, data[:3])
        opt.lr = 0.1
        run(step, data[3:6])
        opt.lr = optim.schedules.Exponential(0.05, 0.9)
        run(step, data[6:])
        trained.append(opt)
    same_state(*trained)
    assert step.stats().captures == 1


def test_a_parameter_that_was_assigned_or_loaded_is_read_anew() -> None:
    net, _, _ = training(OPTIMIZERS["sgd"])
    net.eval()
    f, x = pb.capture(net), batches(1)[0][0]
    state = net.state_dict()
    f(x)
    net.layers[0].weight.assign(pb.full((7, 5), 0.25))
    same(f(x), net(x))
    net.load_state_dict(state)
    same(f(x), net(x))
    assert f.stats().captures == 1


def test_a_parameter_that_moved_or_was_replaced_is_recorded_again() -> None:
    net, _, _ = training(OPTIMIZERS["sgd"])
    net.eval()
    f, x = pb.capture(net), batches(1)[0][0]
    f(x)
    net.layers[0].weight = pb.Parameter(np.full((7, 5), 0.5, np.float32))
    same(f(x), net(x))
    optim.Adam(net.parameters())  # moves the new Parameter into an arena
    net.layers[0].weight.assign(pb.full((7, 5), -0.5))
    same(f(x), net(x))
    assert f.stats().captures == 3


def test_training_mode_is_part_of_the_signature() -> None:
    net, _, _ = training(OPTIMIZERS["sgd"])
    f, x = pb.capture(net), batches(1)[0][0]
    for mode in (True, False, True, False):
        net.train(mode)
        pb.random.seed(4)
        got = f(x)
        pb.random.seed(4)
        same(got, net(x))
    assert f.stats().captures == 2


def test_values_of_other_arguments_are_part_of_the_signature() -> None:
    f = pb.capture(lambda x, power, *, negative=False: -(x**power) if negative else x**power)
    x = pb.tensor([1.5, 2.0])
    for _ in range(2):
        same(f(x, 2), x**2)
        same(f(x, 3), x**3)
        same(f(x, 3, negative=True), -(x**3))
        same(f(x, 2.0), x**2.0)
    assert f.stats().captures == 4
    g = pb.capture(lambda x, numbers, part: x[part] * sum(numbers))
    for numbers, part in (({1, 2}, slice(0, 1)), ({1, 3}, slice(0, 1)), ({1, 2}, slice(1, 2))):
        same(g(x, numbers, part), x[part] * sum(numbers))
    assert (g.stats().captures, g.stats().recordings) == (3, 3)


@needs_kernels
def test_an_object_and_a_dataclass_are_compared_by_their_attributes() -> None:
    class Settings:
        factor = 2.0

    @dataclass
    class Fields:
        factor: float = 2.0

    f, x = pb.capture(lambda x, settings: x * settings.factor), pb.ones(1)
    settings, fields = Settings(), Fields()
    assert [f(x, settings).item(), f(x, fields).item()] == [2.0, 2.0]
    settings.factor = fields.factor = 3.0
    assert [f(x, settings).item(), f(x, fields).item()] == [3.0, 3.0]
    assert f(x, Settings()).item() == 2.0
    f.clear()
    assert f(x, settings).item() == 3.0


def test_a_method_is_captured_for_each_object() -> None:
    class Scaled:
        def __init__(self, by: float) -> None:
            self.by = pb.tensor([by])

        @pb.capture
        def apply(self, x: Any) -> Any:
            return x * self.by

    one, two, x = Scaled(2.0), Scaled(3.0), pb.tensor([1.0, 4.0])
    for _ in range(2):
        same(one.apply(x), x * 2)
        same(two.apply(x), x * 3)


def test_many_signatures_warn_once_with_what_changes() -> None:
    f = pb.capture(lambda x: x + 1, cache=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(1, 8):
            same(f(pb.zeros((n,))), np.ones(n, np.float32))
    assert len(caught) == 1
    assert "shape (3,), then (4,)" in str(caught[0].message)
    assert f.stats().recordings == 3


def test_an_error_in_a_replay_accounts_for_what_was_done() -> None:
    def rig() -> Any:
        _, opt, step = training(OPTIMIZERS["adam"])
        return opt, step

    good, bad = batches(2), (batches(1)[0][0], pb.tensor(np.full(ROWS, CLASSES)))
    eager, step = rig()
    run(step, good)
    if devices.default_device() == "cpu":
        with pytest.raises(IndexError, match="class"):
            step(*bad)
    after = [host(step(*batch)) for batch in good]
    opt, step = rig()
    captured = pb.capture(step)
    run(captured, good)
    if devices.default_device() == "cpu":
        with pytest.raises(IndexError, match="cross_entropy_total: index 4"):
            captured(*bad)
    for got, wanted in zip([captured(*batch) for batch in good], after):
        same(got, wanted)
    same_state(opt, eager)


def test_threads_may_share_a_captured_function() -> None:
    f = pb.capture(lambda x: pb.sum(pb.tanh(x) * x, axis=1))
    xs = [pb.tensor(np.random.default_rng(k).standard_normal((300, 40), dtype=np.float32)) for k in range(4)]
    wanted = [host(pb.sum(pb.tanh(x) * x, axis=1)) for x in xs]
    f(xs[0])
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(50):
            if not np.array_equal(host(f(xs[k])), wanted[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- replays and the rest of the library


def test_transforms_inside_replay() -> None:
    w = pb.Parameter(np.random.default_rng(0).standard_normal((3, 3)))
    f = lambda x: pb.sum(pb.tanh(w @ x) ** 2)
    cases: list[Callable[[Any], Any]] = [
        pb.grad(f), pb.hessian(f), pb.jacobian(lambda x: pb.tanh(w @ x)), pb.vmap(f, in_axes=0),
        lambda x: pb.hvp(f, x, pb.ones_like(x)), lambda x: pb.jvp(f, (x,), (pb.ones_like(x),)),
        lambda x: pb.scan(lambda c, row: (pb.tanh(c + row), c), pb.zeros((3,), dtype=pb.float64), pb.stack([x, 2 * x])),
        pb.grad(pb.checkpoint(f)), pb.grad(lambda x: f(pb.nn.functional.dropout(x, 0.5))),
        pb.grad(pb.checkpoint(lambda x: f(pb.nn.functional.dropout(x, 0.5)))),
        lambda x: pb.per_example_grad(lambda v, row: pb.sum(v * row) ** 2)(pb.ones((3,), dtype=pb.float64), pb.stack([x, 3 * x])),
    ]
    for case in cases:
        captured = pb.capture(case)
        for k in range(3):
            x = pb.tensor(np.random.default_rng(k).standard_normal(3 if case is not cases[3] else (4, 3)))
            pb.random.seed(k)
            got = captured(x)
            pb.random.seed(k)
            for a, b in zip(_leaves(got), _leaves(case(x))):
                same(a, b)
        assert captured.stats().captures == 1


def _leaves(x: Any) -> list[Any]:
    return [leaf for part in x for leaf in _leaves(part)] if isinstance(x, (tuple, list)) else [x]


def test_memo_is_computed_again_at_every_replay() -> None:
    w = pb.Parameter([1.0, 2.0])
    half = pb.memo(lambda: w * 0.5)
    half()
    f = pb.capture(lambda x: x + half() + half())
    x = pb.tensor([0.0, 1.0])
    for value in (1.0, 5.0, 7.0):
        w.assign([value, 2 * value])
        same(f(x), x + w * 0.5 + w * 0.5)
    same(half(), w * 0.5)


@pytest.mark.parametrize("drawn_before", [0, 1])  # NumPy's normal numbers come in pairs, of which the generator keeps the second
@pytest.mark.parametrize("draw", [lambda: np.random.normal(), lambda: random.random()])  # noqa: NPY002
def test_random_numbers_of_others_are_refused(draw: Any, drawn_before: int) -> None:
    np.random.seed(0)  # noqa: NPY002
    for _ in range(drawn_before):
        draw()
    f, x = pb.capture(lambda x: x + draw()), pb.tensor(1.0)
    f(x)
    with pytest.raises(
        pb.CaptureError, match=r"draws random numbers from the global generator of (random|numpy\.random).*pb\.random"
    ):
        f(x)


def test_a_hook_inside_is_replayed() -> None:
    def f(x: Any) -> Any:
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            tape.on_gradient(y, lambda g: g * 3)
            z = pb.sum(y)
        return tape.gradient(z, x)

    captured = pb.capture(f)
    for k in range(3):
        x = pb.tensor([1.0 + k, 2.0])
        same(captured(x), 6 * x)


def test_a_constraint_holds_after_every_replay() -> None:
    p = pb.Parameter([0.5, -0.2, 1.0], constraint=lambda x: pb.maximum(x, 0.0))
    opt = optim.SGD([p], lr=1.0)
    captured = pb.capture(lambda g: opt.step([g]))
    wanted = np.array([0.5, -0.2, 1.0], np.float32)
    for k in range(4):
        g = np.array([0.3, -0.1, 0.6 - k], np.float32)
        captured(pb.tensor(g))
        wanted = np.maximum(wanted - g, 0)
        np.testing.assert_array_equal(host(p), wanted)


def test_deltas_and_previews_are_results_like_others() -> None:
    def rig() -> Any:
        p = pb.Parameter([1.0, 2.0, 3.0])
        opt = optim.Adam([p], lr=0.1)
        return lambda g: (opt.preview([g])[0], opt.step([g], return_delta=True)[0])

    eager, captured = rig(), pb.capture(rig())
    kept = []
    for k in range(4):
        g = pb.tensor([1.0, -2.0, float(k)])
        wanted, got = eager(g), captured(g)
        kept.append((got, [host(x) for x in wanted]))
    for got, wanted in kept:
        for a, b in zip(got, wanted):
            same(a, b)


def test_a_captured_function_inside_another_is_a_part_of_it() -> None:
    inner = pb.capture(lambda x: pb.tanh(x) + 1)
    outer = pb.capture(lambda x: inner(x) * inner(2 * x))
    for k in range(3):
        x = pb.tensor([0.1 * k, 1.0])
        same(outer(x), (pb.tanh(x) + 1) * (pb.tanh(2 * x) + 1))
    assert inner.stats().captures == 0


def test_a_replay_that_served_before_does_not_serve_where_it_would_go_unnoticed() -> None:
    """From the second call on, calls with tensor arguments take a shortcut, which must not bypass a tape, a vmap or a recording."""
    inner = pb.capture(lambda x: pb.tanh(x) + 1)
    x = pb.tensor([0.1, 1.0])
    for _ in range(3):
        same(inner(x), pb.tanh(x) + 1)
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = inner(x)
    same(tape.gradient(y, x, output_gradients=x), pb.vjp(lambda x: pb.tanh(x) + 1, x)[1](x)[0])
    same(pb.vmap(lambda u, scale: inner(u) * scale, in_axes=(None, 0))(x, pb.ones(3)), pb.stack([pb.tanh(x) + 1] * 3))
    outer = pb.capture(lambda x: inner(x) * 2)
    for k in range(3):
        y = pb.tensor([0.5 * k, 2.0])
        same(outer(y), (pb.tanh(y) + 1) * 2)
    same(inner(x), pb.tanh(x) + 1)


def test_a_profile_counts_every_replay_as_an_eager_step() -> None:
    data = batches(3)
    _, _, step = training(OPTIMIZERS["adam"])
    with pb.profile() as wanted:
        run(step, data)
    _, _, step = training(OPTIMIZERS["adam"])
    captured = pb.capture(step)
    captured(*data[0])
    with pb.profile(strict=True) as got:
        run(captured, data)
    for phase in ("forward", "backward", "optimizer"):
        ours, theirs = getattr(got, phase), getattr(wanted, phase)
        assert (ours.flops, ours.matmul_flops, ours.special_ops) == (theirs.flops, theirs.matmul_flops, theirs.special_ops)
    with pb.profile() as first:
        pb.capture(step)(*data[0])
    assert 3 * first.total.flops == wanted.total.flops


def test_what_a_replay_did_before_its_error_is_accounted_for(on_cpu: None) -> None:
    """The update before the bad index has taken place. The optimizer counts it, and the next eager step continues from there."""

    def rig() -> Any:
        p, q = pb.Parameter([1.0, 2.0, 3.0], dtype=pb.float64), pb.Parameter([1.0, 2.0, 3.0], dtype=pb.float64)
        first, second = optim.Adam([p], lr=0.1), optim.Adam([q], lr=0.1)

        def step(g: Any, i: Any) -> Any:
            first.step([g])
            y = pb.take(g, i)
            second.step([g * pb.sum(y)])
            return y

        return first, second, step

    g, good, bad = pb.tensor([1.0, -2.0, 0.5], dtype=pb.float64), pb.tensor([0, 2]), pb.tensor([0, 7])
    outcomes = []
    for wrap in (lambda f: f, pb.capture):
        first, second, step = rig()
        run_step = wrap(step)
        run_step(g, good)
        for _ in range(2):
            with pytest.raises(IndexError, match="index 7"):
                pb.sum(run_step(g, bad)).item()
        run_step(g, good)
        outcomes.append((first, second))
    (first, second), (captured_first, captured_second) = outcomes
    assert (first.steps, second.steps) == (4, 2)
    same_state(captured_first, first)
    same_state(captured_second, second)


@pytest.mark.parametrize("f", [
    lambda x, b: x + b, lambda x, b: x * pb.exp(b), lambda x, b: pb.tanh(b - x), lambda x, b: nn.mse(x, b), lambda x, b: b * 2.0,
])
def test_buffers_are_operands_of_native_kernels(f: Any) -> None:
    value = np.linspace(-1, 1, 5, dtype=np.float32)
    x, buffer = pb.tensor(value[::-1].copy()), nn.Buffer(value)
    wanted = f(x, pb.Parameter(value)).numpy()
    np.testing.assert_array_equal(f(x, buffer).numpy(), wanted)
    captured = pb.capture(lambda x: f(x, buffer))
    for _ in range(3):
        np.testing.assert_array_equal(captured(x).numpy(), wanted)


def test_running_statistics_move_on_in_replays() -> None:
    mean = nn.Buffer(np.zeros(3))

    def step(x: pb.Tensor) -> pb.Tensor:
        mean.assign(0.9 * mean + 0.1 * pb.mean(x, axis=0))
        return x - mean

    step, eager, x = pb.capture(step), np.zeros(3), np.random.default_rng(0).normal(size=(4, 8, 3))
    for batch in x:
        eager = 0.9 * eager + 0.1 * batch.mean(axis=0)
        np.testing.assert_allclose(step(pb.tensor(batch)).numpy(), batch - eager, rtol=1e-12)
    np.testing.assert_allclose(mean.numpy(), eager, rtol=1e-12)
