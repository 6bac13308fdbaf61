"""LossScaler in trainings: gradients that float16 cannot hold, several optimizers, states, and what is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import nn, optim
from pullback.optim import schedules, sets


def adam(clip_norm: float | None = None) -> tuple[Any, list[Any]]:
    """Returns an optimizer, and gradients of its Parameters."""
    params = [pb.Parameter(np.ones(shape, np.float32)) for shape in ((3, 4), (4,), ())]
    return optim.Adam(params, 0.1, clip_norm=clip_norm), [pb.ones(p.shape) for p in params]


def float16_run(scaler: Any) -> tuple[float, float]:
    """Trains a float16 network, the gradients of which float16 rounds to 0. Returns the first and the last loss."""
    rng = np.random.default_rng(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    for p in net.parameters():
        p.assign(0.3 * rng.standard_normal(p.shape))
    net.to("float16")
    x = pb.tensor(rng.standard_normal((16, 8)), dtype="float16")
    y = pb.tensor(np.sin(host(x).astype(np.float32)).sum(axis=1, keepdims=True), dtype="float16")
    opt = optim.Adam(net.parameters(), 0.03, eps=1e-12, master_weights=True)

    def loss() -> Any:
        return nn.mse(net(x).astype("float32"), y.astype("float32")) * 1e-9

    losses = [float(opt.minimize(loss, scaler=scaler)) for _ in range(25)]
    return losses[0], losses[-1]


def test_gradients_that_float16_cannot_hold() -> None:
    first, last = float16_run(None)
    assert last > 0.9 * first
    first, last = float16_run(pb.amp.LossScaler(2.0**24))
    assert last < 0.1 * first


def test_products_of_autocast_in_float16() -> None:
    w, x = pb.Parameter(np.full((4, 4), 0.5, np.float32)), pb.full((3, 4), 0.25)
    scaler = pb.amp.LossScaler()
    with pb.amp.autocast("float16"):
        with pb.GradientTape(persistent=True) as tape:
            loss = (x @ w).sum() * 2.0**-30
            scaled = scaler.scale(loss)
        assert np.all(host(tape.gradient(loss, [w])[0]) == 0)
        opt = optim.SGD([w], 2.0**30)
        scaler.step(opt, tape.gradient(scaled, [w]))
    assert np.all(host(w) == 0.5 - 0.75)


# ---- several optimizers, accumulation


def test_several_optimizers_share_one_update() -> None:
    a, b = pb.Parameter([1.0]), pb.Parameter([1.0])
    scaler, first, second = pb.amp.LossScaler(4.0, growth_interval=1), optim.SGD([a], 1.0), optim.SGD([b], 1.0)
    scaler.step(first, [pb.tensor([np.inf])])
    scaler.step(second, [pb.tensor([4.0])])  # is divided by the scale of its loss, although the first one had an overflow
    scaler.update()
    assert (float(a[0]), float(b[0]), float(scaler.value)) == (1.0, 0.0, 2.0)
    for opt in (first, second):
        scaler.step(opt, [pb.tensor([2.0])])
    scaler.update()
    assert (float(a[0]), float(b[0]), float(scaler.value)) == (0.0, -1.0, 4.0)
    scaler.update()  # without a step
    assert float(scaler.value) == 4.0
    scaler.step(first, [pb.tensor([2.0])])
    with pytest.raises(pb.PullbackError, match=r"since the last scaler.update\(\)\. Call it once"):
        scaler.step(first, [pb.tensor([2.0])])


def test_an_accumulator() -> None:
    p = pb.Parameter(np.ones(2, np.float16))
    scaler, opt = pb.amp.LossScaler(4.0), optim.SGD([p], 1.0)
    acc = optim.Accumulator(opt.parameters, every=2)
    for rows in ([[4, 8], [8, 8]], [[np.inf, 8], [8, 8]], [[4, 8], [8, 8]]):
        for g in rows:
            if acc.add([pb.tensor(g, dtype="float16")]):
                scaler.step(opt, acc.take())
        scaler.update()
        scale = float(scaler.value)
    assert scale == 2.0
    assert host(p).tolist() == [1 - 1.5 - 3.0, 1 - 2.0 - 4.0]


def test_steps_without_a_scaler_in_between() -> None:
    p = pb.Parameter([1.0])
    scaler, opt = pb.amp.LossScaler(4.0), optim.SGD([p], 1.0, clip_norm=100.0)
    opt.gradient_scale = 0.5
    scaler.step(opt, [pb.tensor([4.0])])
    assert float(opt.gradient_norm) == 0.5
    opt.step([pb.tensor([4.0])])
    assert float(opt.preview([pb.tensor([4.0])])[0][0]) == -2.0
    assert float(p[0]) == 1 - 0.5 - 2.0
    assert host(next(iter(opt.state_dict()["settings"].values())))[0, sets.GRADIENT_SCALE] == 0.5
    scaler.update()
    scaler.step(opt, [pb.tensor([np.nan])])
    assert float(opt.gradient_norm) == 2.0
    assert (opt.steps, float(opt.gradient_scale)) == (2, 0.5)


def test_an_error_leaves_the_factor_of_the_gradients_as_it_was() -> None:
    p, scaler = pb.Parameter([1.0], constraint=lambda x: x * (1 / 0)), pb.amp.LossScaler(4.0)
    opt = optim.SGD([p], 1.0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            scaler.step(opt, [pb.tensor([8.0])])
        scaler.update()
    p.constraint = None
    opt.step([pb.tensor([-4.0])])
    assert (float(p[0]), opt.steps) == (1 - 2.0 - 2.0 + 4.0, 3)


def test_a_step_without_gradients_does_nothing() -> None:
    scaler, opt = pb.amp.LossScaler(4.0, growth_interval=1), optim.SGD([pb.Parameter([1.0])], 1.0)
    scaler.step(opt, [None])
    scaler.update()
    assert (float(scaler.value), opt.steps) == (4.0, 0)


def test_counts_and_rates_follow_the_device() -> None:
    scaler, p = pb.amp.LossScaler(4.0), pb.Parameter([1.0])
    opt = optim.SGD([p], schedules.Exponential(1.0, 0.5))
    for g in (1.0, np.inf, 1.0, np.nan):
        scaler.step(opt, [pb.tensor([g])])
        scaler.update()
    assert (opt.steps, opt.lr) == (2, 0.25)
    assert "2 steps" in repr(opt)
    assert copy.deepcopy(opt).steps == 2
    opt.step([pb.tensor([1.0])])
    assert (opt.steps, opt.state_dict()["steps"]) == (3, 3)


# ---- state


def test_state(tmp_path: Path) -> None:
    net = nn.Linear(2, 1)
    opt, scaler = optim.SGD(net.parameters(), 0.1), pb.amp.LossScaler(64.0, 3.0, 0.25, 5)
    for value in (1.0, np.inf, 1.0, 1.0):
        opt.minimize(lambda value=value: net(pb.full((1, 2), value)).sum(), scaler=scaler)
    pb.save_training(tmp_path / "run", net, opt, scaler=scaler.state_dict())
    other = pb.amp.LossScaler()
    other.load_state_dict(pb.load_training(tmp_path / "run", net, opt)["scaler"])
    factors, counts = "growth_factor=3, backoff_factor=0.25, growth_interval=5", "2 good steps since its last change, 1 skipped"
    text = f"LossScaler(scale=16, {factors}; {counts})"
    assert [repr(x) for x in (scaler, other, copy.deepcopy(scaler), pickle.loads(pickle.dumps(scaler)))] == [text] * 4
    assert pb.hash(other.state_dict()) == pb.hash(scaler.state_dict())
    assert (scaler.value.dtype, scaler.value.shape, scaler.skipped.dtype) == (np.float32, (), np.int64)
    state = scaler.state_dict()
    for name, value in (("scale", pb.tensor(np.nan)), ("good_steps", pb.tensor(-1.0)), ("growth_factor", 1.0), ("scale", 3.0)):
        with pytest.raises(pb.PullbackError, match=name):
            other.load_state_dict({**state, name: value})
    with pytest.raises(pb.PullbackError, match="the state of a LossScaler has entries"):
        other.load_state_dict({"scale": 1.0})
    assert repr(other) == text


@needs_kernels
def test_a_recording_is_made_again_after_other_factors_were_loaded() -> None:
    p, scaler = pb.Parameter([1.0]), pb.amp.LossScaler(4.0)
    opt = optim.SGD([p], 0.0)
    step = pb.capture(lambda g: opt.minimize(lambda: (p * g).sum(), scaler=scaler))
    step(pb.tensor([np.inf]))
    scaler.load_state_dict({**pb.amp.LossScaler(16.0, backoff_factor=0.25).state_dict()})
    step(pb.tensor([np.inf]))
    assert float(scaler.value) == 4.0


@needs_kernels
def test_a_scaled_step_is_three_launches_more() -> None:
    for clip, more in ((None, 3), (1.0, 2)):
        (opt, grads), scaler = adam(clip), pb.amp.LossScaler()
        with pb.profile(strict=True) as plain:
            opt.step(grads)
        with pb.profile(strict=True) as prof:
            scaler.step(opt, grads)
            scaler.update()
        assert prof.total.launches == prof.optimizer.launches == plain.optimizer.launches + more


# ---- what is refused


def refused(text: str, call: Callable[[], Any], error: Any = pb.PullbackError) -> None:
    with pytest.raises(error, match=text):
        call()


def test_arguments() -> None:
    scaler, p = pb.amp.LossScaler(), pb.Parameter([1.0])
    opt = optim.SGD([p], 0.1)
    for name, values in {
        "init_scale": (0, -1, np.inf, np.nan, 1e39, 1e-40, "2", None, True), "growth_factor": (1.0, 0.5, np.inf, "2"),
        "backoff_factor": (0.0, 1.0, -0.5, None), "growth_interval": (0, 2.5, -1, 2**25, np.nan, "9"),
    }.items():
        for value in values:
            refused(f"LossScaler: {name}=", lambda name=name, value=value: pb.amp.LossScaler(**{name: value}))
    refused("enabled", lambda: pb.amp.LossScaler(enabled=True), TypeError)  # type: ignore[call-arg]
    refused("the loss is a float", lambda: scaler.scale(1.0))  # type: ignore[arg-type]
    refused("dtype int32", lambda: scaler.scale(pb.tensor(1, dtype="int32")), pb.DTypeError)
    refused("a list was given, and not an optimizer", lambda: scaler.step([p], [p]))
    refused("step: the gradient", lambda: scaler.step(opt, [pb.ones((2,))]), pb.ShapeError)
    refused("scaler is a float", lambda: opt.minimize(lambda: p.sum(), scaler=2.0))  # type: ignore[arg-type]
    refused('gate="op" .*scaler', lambda: opt.minimize(lambda: p.sum(), gate="op", scaler=scaler))
    with pytest.raises(AttributeError):
        scaler.growth_factor = 3.0  # type: ignore[misc]
    scaler.step(opt, [pb.tensor([65536.0])])
    assert float(p[0]) == np.float32(0.9)


def test_optimizers_that_are_refused() -> None:
    scaler = pb.amp.LossScaler()
    many = optim.SGD([pb.Parameter(np.ones((2, 3)), dtype="float32")], [0.1, 0.2])
    refused("this SGD trains several members", lambda: scaler.step(many, [pb.ones((2, 3))]))
    opt, grads = adam()
    optim.Pruning(opt, schedules.PolynomialSparsity(0.0, 0.5, 1, 3))
    refused("a count of steps on the host", lambda: scaler.step(opt, grads))


def test_a_scale_that_changes_before_the_backward_pass_is_an_error() -> None:
    p, scaler = pb.Parameter([1.0]), pb.amp.LossScaler()
    opt = optim.SGD([pb.Parameter([1.0])], 0.1)
    with pb.GradientTape() as tape:
        loss = scaler.scale((p * p).sum())
    scaler.step(opt, [pb.tensor([1.0])])
    scaler.update()
    refused("LossScaler", lambda: tape.gradient(loss, [p]), pb.StaleValueError)


def test_running_statistics_move_in_a_step_that_is_left_out() -> None:
    net, scaler = pb.nn.BatchNorm1d(2), pb.amp.LossScaler(1e30)
    opt = pb.optim.SGD(net.parameters(), 0.1)
    weight, x = host(net.weight).copy(), pb.tensor([[1.0, 2.0], [3.0, 8.0], [5.0, 5.0]])

    def loss(x: Any) -> Any:
        return pb.sum(net(x) ** 2) * 1e10

    opt.minimize(loss, x, scaler=scaler)
    assert scaler.skipped.item() == 1
    np.testing.assert_array_equal(host(net.weight), weight)
    np.testing.assert_allclose(host(net.running_mean), [0.3, 0.5], rtol=1e-6)  # as torch.nn.BatchNorm1d: 0.1 of the means
    np.testing.assert_allclose(host(net.running_var), [0.9 + 0.1 * 4, 0.9 + 0.1 * 9], rtol=1e-6)
    assert net.num_batches_tracked.item() == 1


def test_running_statistics_of_activations_that_overflow_are_seen_in_the_values() -> None:
    net, scaler = pb.nn.BatchNorm1d(1), pb.amp.LossScaler(2.0)
    opt = pb.optim.SGD(net.parameters(), 0.1)
    opt.minimize(lambda x: pb.sum(net(x)), pb.tensor([[np.inf], [1.0]], dtype="float16"), scaler=scaler)
    opt.minimize(lambda x: pb.sum(net(x)), pb.tensor([[2.0], [1.0]], dtype="float16"), scaler=scaler)
    assert scaler.skipped.item() == 1
    assert np.isnan(host(net.eval()(pb.ones((1, 1))))).all()
