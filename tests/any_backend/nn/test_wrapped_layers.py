"""A layer in a transform, such as pb.checkpoint(layer), is a part of the Module that holds it, and is copied with it."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn, optim
from pullback.function_wrapper import innermost
from wrapped_layers import CASES, Alone, Layer, Shared, changed

NAMES = [f"{place}.linear.{kind}" for place in ("block", "blocks.0") for kind in ("weight", "bias")] + ["head.weight", "head.bias"]
every_transform = pytest.mark.parametrize("name", CASES)


def pickled(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


@every_transform
def test_the_parameters_are_found_under_the_names_that_they_have_without_the_transform(name: str) -> None:
    net = Alone(name)
    assert [path for path, _ in net.named_parameters()] == NAMES
    assert [p.name for p in net.parameters()] == NAMES
    assert [path for path, _ in nn.Sequential(net.block).named_parameters()] == ["0.linear.weight", "0.linear.bias"]
    assert "(block): " in repr(net)
    state = {path: np.full(p.shape, k + 0.5, np.float32) for k, (path, p) in enumerate(net.named_parameters())}
    net.load_state_dict(state)
    for path, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), state[path])
    net.to(pb.float64)
    assert {p.dtype for p in net.parameters()} == {pb.float64}


@every_transform
def test_evaluation_mode_reaches_the_layers(name: str) -> None:
    net, case = Alone(name), CASES[name]
    layers = [module for module in net.modules() if isinstance(module, Layer)]
    net.eval()
    assert len(layers) == 2
    for function, layer in zip([net.block, *net.blocks], layers, strict=True):
        case.check(function, layer)
    net.train()
    assert all([layer.dropout.training for layer in layers])


@every_transform
def test_a_layer_that_is_also_an_attribute_has_one_name_and_is_found_once(name: str) -> None:
    net = Shared(name)
    assert [path for path, _ in net.named_parameters()] == ["layer.linear.weight", "layer.linear.bias"]
    net.load_state_dict({"run.linear.weight": np.ones((2, 2)), "through.linear.bias": np.ones(2)})
    np.testing.assert_array_equal(net.layer.linear.weight.numpy(), np.ones((2, 2)))
    assert "body" not in repr(net)


@every_transform
def test_a_method_of_a_layer_brings_the_layer(name: str) -> None:
    case, net = CASES[name], nn.Module()
    net.f = case.wrap(case.layer().forward)
    assert [path for path, _ in net.named_parameters()] == ["f.linear.weight", "f.linear.bias"]


@every_transform
@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_copies_compute_with_their_own_weights(name: str, duplicate: Any) -> None:
    case = CASES[name]
    net = Shared(name).eval()
    for function in net.functions():
        case.check(function, net.layer)  # what memo and capture remember belongs to the original
    other = changed(duplicate(net))
    for function in other.functions():
        case.check(function, other.layer)
    for function in net.functions():
        case.check(function, net.layer)
    before = net.layer.linear.weight.numpy()
    np.testing.assert_allclose(other.layer.linear.weight.numpy(), 3 * before)
    layer = nn.Sequential(net.run)
    twin = changed(duplicate(layer))
    case.check(twin[0], dict(twin.named_modules())["0"])


@every_transform
def test_a_method_that_was_copied_alone_brings_its_own_network(name: str) -> None:
    net = Shared(name).eval()
    for duplicate in (copy.deepcopy, pickled):
        function = duplicate(net.body)
        owner = innermost(function).__self__
        assert owner is not net
        CASES[name].check(owner.body, changed(owner).layer)


@pytest.mark.parametrize("name", ["checkpoint", "capture", "vmap", "memo"])
def test_an_optimizer_trains_the_layers(name: str) -> None:
    x, layers = pb.random.normal((4, 2)), nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    plain = nn.Sequential(copy.deepcopy(layers), nn.Linear(2, 1))
    net = nn.Sequential(CASES[name].wrap(layers), copy.deepcopy(plain[1]))
    for each in (plain, net):
        opt = optim.SGD(each.parameters(), lr=0.1)
        for _ in range(3):
            opt.minimize(lambda each=each: pb.mean(pb.square(each(x))))
    for p, q in zip(plain.parameters(), net.parameters(), strict=True):
        np.testing.assert_allclose(q.numpy(), p.numpy(), rtol=1e-5, atol=1e-6)


# ---- the function inside


def area(width: Any, height: Any = 2.0) -> Any:
    """Returns a product."""
    return pb.sum(width * height)


@every_transform
def test_the_name_the_signature_and_the_documentation_are_those_of_the_function(name: str) -> None:
    function = CASES[name].wrap(area)
    assert (function.__name__, function.__qualname__, function.__module__) == ("area", "area", __name__)
    assert function.__doc__ == area.__doc__
    assert inspect.signature(function) == inspect.signature(area)
    assert "area" in repr(function)


@every_transform
def test_the_transform_of_a_layer_has_its_name_and_its_attributes(name: str) -> None:
    case = CASES[name]
    layer = case.layer()
    function = case.wrap(layer)
    assert function.__name__ == type(layer).__name__
    assert function.linear is layer.linear
    with pytest.raises(pb.DTypeError, match="a function is not made of numbers"):
        pb.sin(function)


@pb.checkpoint
def doubled(x: Any) -> Any:
    return 2 * x


class Methods(nn.Module):
    def __init__(self) -> None:
        self.scale = pb.Parameter([2.0])
        self.half = pb.checkpoint(super().forward)

    @pb.checkpoint
    def forward(self, x: Any) -> Any:
        return self.scale * x

    @pb.memo
    def doubled(self) -> Any:
        return 2 * self.scale


def test_a_decorated_function_is_copied_and_pickled_by_its_name() -> None:
    for function in (doubled, Methods.forward):
        for duplicate in (copy.copy, copy.deepcopy, pickled):
            assert duplicate(function) is function


def test_a_decorated_method_is_bound_to_its_object() -> None:
    for net in (Methods(), pickled(Methods())):
        changed(net)
        assert net(pb.ones(1)).item() == 6.0
        assert net.doubled().item() == 12.0
        with pytest.raises(NotImplementedError, match="Methods has no forward"):
            net.half(pb.ones(1))  # the method of the base class
    assert inspect.signature(Methods().forward) == inspect.signature(Layer().forward)


class Part(nn.Module):
    def __init__(self, whole: Any) -> None:
        self.weight = pb.Parameter([1.0])
        self.call_whole = pb.checkpoint(whole.forward)


class Whole(nn.Module):
    def __init__(self) -> None:
        self.part = Part(self)
        self.slope = pb.grad(self)

    def forward(self, x: Any) -> Any:
        return pb.sum(self.part.weight * x)


def test_transforms_of_the_modules_around_do_not_recurse() -> None:
    net = Whole()
    assert [path for path, _ in net.named_parameters()] == ["part.weight"]
    assert "(part): Part" in repr(net)
    assert "(part): Part" in repr(net.slope)
    other = changed(copy.deepcopy(net))
    assert other.slope(pb.ones(1)).item() == other.part.call_whole(pb.ones(1)).item() == 3.0


def test_setting_a_transform_of_another_layer_is_a_change_that_a_recording_cannot_repeat() -> None:
    net: Any = nn.Module()
    net.f = pb.checkpoint(nn.Linear(2, 2))
    step = pb.capture(lambda x: net.f(x))
    x = pb.ones((1, 2))
    step(x)
    net.f = pb.checkpoint(nn.Linear(2, 2))
    np.testing.assert_array_equal(step(x).numpy(), net.f(x).numpy())
    with pytest.raises(pb.PullbackError, match="a set has no order"):
        net.layers = {pb.checkpoint(nn.Linear(2, 2))}
