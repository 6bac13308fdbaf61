"""Parameters change in place and stay in their network: in-place operators, `assign`, and Module attributes."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import nn, optim

FLOATS = np.array([[1.5, -2.0], [0.25, 3.0]], np.float32)
OTHERS = np.array([[2.0, 3.0], [-1.0, 2.0]], np.float32)
ON_FLOATS = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "imatmul")
ON_INTEGERS = ("iand", "ior", "ixor", "ilshift", "irshift", "ipow", "iadd", "isub", "imul")


@pytest.mark.parametrize("name", [*ON_FLOATS, "ipow"])
def test_an_in_place_operator_writes_the_result_into_the_parameter(name: str) -> None:
    change = getattr(operator, name)
    value = np.abs(FLOATS) if name == "ipow" else FLOATS
    p = pb.Parameter(value)
    same, version, memory = p, p.version, p.array
    p = change(p, pb.tensor(OTHERS))
    assert p is same
    assert p.version > version
    assert p.array is memory
    expected = getattr(operator, name[1:])(value.astype(np.float64), OTHERS.astype(np.float64))
    np.testing.assert_allclose(p.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ON_INTEGERS)
def test_an_in_place_operator_on_integers_keeps_their_dtype(name: str) -> None:
    value = np.array([5, 3, 12], np.int32)
    same = p = pb.Parameter(value, trainable=False)
    p = getattr(operator, name)(p, 2)
    assert p is same
    assert p.dtype == pb.int32
    plain = {"iand": operator.and_, "ior": operator.or_}.get(name) or getattr(operator, name[1:])
    assert p.tolist() == plain(value, 2).tolist()


@pytest.mark.parametrize("g", [OTHERS.astype(np.float64), OTHERS, 0.5, pb.tensor(OTHERS[0]), np.float64(0.5)], ids=type)
def test_an_in_place_operator_converts_within_floats_and_broadcasts_to_the_parameter(g: Any) -> None:
    p = pb.Parameter(FLOATS)
    p -= 0.1 * g
    assert p.dtype == pb.float32
    assert p.shape == (2, 2)
    np.testing.assert_allclose(p.numpy(), FLOATS - 0.1 * host(g), rtol=1e-6)


def test_what_a_parameter_cannot_hold_is_refused() -> None:
    p, n = pb.Parameter(OTHERS[0]), pb.Parameter([1, 2, 3], trainable=False)
    before = p.version, n.version
    with pytest.raises(pb.ShapeError, match=r"\+=: .* has shape \(2,\), and the result has shape \(2, 2\)"):
        p += pb.tensor(FLOATS)
    with pytest.raises(pb.DTypeError, match=r"/=: .* has dtype int64, and the result has dtype float32"):
        n /= 2
    assert (p.version, n.version) == before
    assert n.tolist() == [1, 2, 3]


def test_an_in_place_operator_on_a_tensor_binds_a_new_one() -> None:
    x = y = pb.tensor(FLOATS)
    x += 1
    assert x is not y
    assert np.array_equal(y.numpy(), FLOATS)


def trained(steps: int, update: Any) -> list[Any]:
    """Returns pairs of regression weights after steps of gradient descent: by NumPy in float64, and by `update`."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 3)), rng.normal(size=(8, 1))
    net = nn.Linear(3, 1).to(pb.float64)
    w, b = net.weight.numpy(), net.bias.numpy()
    for _ in range(steps):
        error = 2 * (x @ w.T + b - y) / 8
        w, b = w - 0.1 * error.T @ x, b - 0.1 * error.sum(0)
        update(net, pb.tensor(x), pb.tensor(y))
    assert len(net.parameters()) == len(net.state_dict()) == 2
    return [(w, net.weight.numpy()), (b, net.bias.numpy())]


def gradients(net: Any, x: Any, y: Any) -> list[Any]:
    with pb.GradientTape() as tape:
        loss = nn.mse(net(x), y)
    return tape.gradient(loss, net.parameters())


def over_a_list(net: Any, x: Any, y: Any) -> None:
    for p, g in zip(net.parameters(), gradients(net, x, y)):
        p -= 0.1 * g


def over_attributes(net: Any, x: Any, y: Any) -> None:
    weight, bias = gradients(net, x, y)
    net.weight -= 0.1 * weight
    net.bias -= 0.1 * bias


@pytest.mark.parametrize("update", [over_a_list, over_attributes])
def test_gradient_descent_by_hand_trains_the_network(update: Any) -> None:
    for expected, found in trained(20, update):
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_gradient_descent_by_hand_is_replayed() -> None:
    net = nn.Linear(3, 1).to(pb.float64)
    step = pb.capture(lambda x, y: over_attributes(net, x, y))
    twin = nn.Linear(3, 1).to(pb.float64)
    twin.load_state_dict(net.state_dict())
    x, y = pb.tensor(np.arange(12.0).reshape(4, 3) / 10), pb.ones((4, 1), dtype=pb.float64)
    for _ in range(5):
        version = net.weight.version
        step(x, y)
        over_attributes(twin, x, y)
        assert net.weight.version == version + 1
        assert np.array_equal(net.weight.numpy(), twin.weight.numpy())


def test_scaling_a_weight_of_a_layer_keeps_it_in_the_network() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    weight, before = net[0].weight, net[0].weight.numpy()
    net[0].weight *= 0.5
    assert net[0].weight is weight
    assert len(net.parameters()) == len(net.state_dict()) == 4
    assert np.array_equal(weight.numpy(), before / 2)


# ---- changes while a tape watches


def test_a_watched_value_is_not_assigned() -> None:
    w, other = pb.Parameter(1.0), pb.Parameter(2.0)
    version = w.version
    with pb.GradientTape(persistent=True) as outer:
        with pb.GradientTape() as inner:
            loss = w * w
        g = inner.gradient(loss, w)
        for change in (lambda: w.assign(w - 0.1 * g), lambda: operator.isub(w, 0.1 * g), lambda: w.assign(other)):
            with pytest.raises(pb.TapeError, match=r"w = w - lr \* g"):
                change()
        assert (w.item(), w.version) == (1.0, version)
        moved = w - 0.1 * g  # The error message advises this, and the meta-gradient is right.
        total = moved * moved
    assert outer.gradient(total, w).item() == pytest.approx(2 * 0.8 * 0.8)
    w.assign(moved)
    assert w.item() == pytest.approx(0.8)


def test_a_tangent_is_not_assigned() -> None:
    w = pb.Parameter(1.0)
    with pytest.raises(pb.TapeError, match="assign"):
        pb.jvp(lambda x: w.assign(x * 2), (pb.tensor(1.0),), (pb.tensor(1.0),))


def test_what_no_tape_watches_is_assigned_while_one_records() -> None:
    w, counter = pb.Parameter(1.0), nn.Buffer(0.0)
    with pb.GradientTape() as tape:
        loss = w * w * 3
        counter += loss  # This is allowed, because a Buffer holds statistics of watched values.
        w.assign(pb.stop_gradient(loss))
        w.assign(2.0)
        w.assign(np.float32(1.0))
        with tape.stop_recording():
            w -= 1.0 * w
    assert counter.item() == 3.0
    assert w.item() == 0.0


def test_an_update_after_the_gradient_was_taken_inside_the_block_is_fine() -> None:
    w = pb.Parameter(1.0)
    with pb.GradientTape() as tape:
        w -= 0.25 * tape.gradient(w * w, w)
    assert w.item() == 0.5


# ---- attributes of Modules


@pytest.mark.parametrize("value", [pb.ones((1, 2)), np.ones((1, 2)), 1.0, "x"], ids=type)
def test_an_attribute_that_is_a_parameter_is_not_replaced_by_something_else(value: Any) -> None:
    layer = nn.Linear(2, 1)
    layer.count = nn.Buffer(0)
    weight = layer.weight
    for name in ("weight", "count"):
        with pytest.raises(pb.PullbackError, match=rf"Linear\.{name} is a .*{name}\.assign\(value\)"):
            setattr(layer, name, value)
    assert layer.weight is weight
    assert len(layer.state_dict()) == 3


def test_an_attribute_that_is_a_parameter_can_be_another_one_or_none() -> None:
    layer = nn.Linear(2, 1)
    layer.weight, layer.bias = pb.Parameter([[1.0, 2.0]]), None
    assert layer.parameters() == [layer.weight]
    assert layer(pb.ones((1, 2))).tolist() == [[3.0]]
    layer.bias = pb.Parameter([1.0])
    assert len(layer.parameters()) == 2


def test_setting_an_attribute_to_what_it_is_keeps_recordings() -> None:
    net = nn.Sequential(nn.Linear(2, 1))
    opt = optim.SGD(net.parameters(), lr=0.1)
    step = pb.capture(lambda x: opt.minimize(lambda: pb.sum(net(x))))
    for _ in range(3):
        step(pb.ones((1, 2)))
        layer = net[0]
        layer.weight = layer.weight
        layer.weight *= 0.5
        net.first = net[0]
        net.first = net[0]
    captures = step.stats().captures
    assert captures <= 2  # The new attribute `first` causes the second capture.


def test_a_frozen_module_stays_as_it_is() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    assert net.trainable
    net[0].trainable = False
    assert (net.trainable, net[0].trainable, net[2].trainable) == (False, False, True)
    opt = optim.SGD(net.parameters(), lr=0.1)
    assert [p is q for p, q in zip(opt.parameters, net[2].parameters())] == [True, True]
    before = [p.numpy() for p in net.parameters()]
    opt.minimize(lambda: nn.mse(net(np.ones((4, 2), np.float32)), np.zeros((4, 1), np.float32)))
    assert [bool(np.any(p.numpy() != old)) for p, old in zip(net.parameters(), before)] == [False, False, True, True]
    net.trainable = True
    assert [p.trainable for p in net.parameters()] == [True] * 4


def test_freezing_what_has_no_parameters_or_by_no_bool_is_refused() -> None:
    class Early(nn.Module):
        def __init__(self) -> None:
            self.trainable = False  # The Parameter that follows would be trained all the same.
            self.weight = pb.Parameter([1.0])

    for make in (Early, lambda: setattr(nn.Tanh(), "trainable", False)):
        with pytest.raises(pb.PullbackError, match="no Parameters inside, or none yet"):
            make()
    net: Any = nn.Linear(2, 1)
    with pytest.raises(pb.DTypeError, match="must be True or False"):
        net.trainable = [net.weight]
    net.count = pb.Parameter([1], trainable=False)
    with pytest.raises(pb.DTypeError, match="trainable=False"):
        net.trainable = True
    assert [p.trainable for p in net.parameters()] == [True, True, False]


@pytest.mark.parametrize("which", [lambda net: net, lambda net: net.weight], ids=["module", "parameter"])
def test_freezing_ends_the_recordings_made_before(which: Any) -> None:
    net = nn.Linear(2, 1)
    opt = optim.SGD(net.parameters(), lr=0.1)

    @pb.capture
    def step(x: Any) -> Any:
        with pb.GradientTape() as tape:
            loss = pb.sum(net(x))
        opt.step(tape.gradient(loss, opt.parameters, unconnected="none"))
        return loss

    x = pb.ones((3, 2))
    for _ in range(3):
        step(x)
    which(net).trainable = False
    frozen = net.weight.numpy()
    for _ in range(3):
        step(x)
    np.testing.assert_array_equal(net.weight.numpy(), frozen)
    net.trainable = True
    step(x)
    assert np.any(net.weight.numpy() != frozen)


@needs_kernels
def test_a_captured_function_cannot_freeze() -> None:
    net = nn.Linear(2, 1)

    @pb.capture
    def step(x: Any) -> Any:
        net.trainable = False
        return net(x)

    with pytest.raises(pb.CaptureError, match='setting trainable of Parameter "weight"'):
        step(pb.ones((3, 2)))
    assert net.trainable
