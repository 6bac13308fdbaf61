"""functional_call, stack and lsuv: other tensors in place of Parameters, and the Module as it was afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host, normal
from pullback import nn, optim
from pullback.nn.lent import lent


class Tied(nn.Module):
    """A network with Parameters in containers, and a Parameter that two layers share."""

    def __init__(self) -> None:
        self.scales = [pb.Parameter(normal(3)), {"inner": (pb.Parameter(normal(3)), None)}]
        self.first = nn.Linear(3, 3).to("float64")
        self.second = nn.Linear(3, 3, bias=False).to("float64")
        self.second.weight = self.first.weight

    def forward(self, x: Any, power: int = 1) -> Any:
        scale = self.scales[0] * self.scales[1]["inner"][0]
        return self.second(pb.tanh(self.first(x * scale))) ** power


def wanted(p: dict[str, Any], x: Any, power: int = 1) -> Any:
    hidden = pb.tanh((x * p["scales.0"] * p["scales.1.inner.0"]) @ p["first.weight"].mT + p["first.bias"])
    return (hidden @ p["first.weight"].mT) ** power


def given(net: Any) -> dict[str, Any]:
    return {path: pb.tensor(normal(*p.shape)) for path, p in net.named_parameters()}


X = pb.tensor(normal(4, 3))


def snapshot(net: Any) -> Any:
    """Returns the attributes of all Modules inside, without those in which a Module notes where its Parameters are."""
    return [(part, {name: value for name, value in vars(part).items() if not name.startswith("_")}) for part in net.modules()]


def unchanged(net: Any, before: Any) -> bool:
    now = snapshot(net)
    return all([a is b and [*m] == [*n] and all([m[k] is n[k] for k in m]) for (a, m), (b, n) in zip(before, now)])


def test_values_and_gradients_are_those_of_the_formula() -> None:
    net = Tied()
    assert [path for path, _ in net.named_parameters()] == ["scales.0", "scales.1.inner.0", "first.weight", "first.bias"]
    before, p = snapshot(net), given(net)
    np.testing.assert_allclose(host(nn.functional_call(net, p, X, power=2)), host(wanted(p, X, 2)), rtol=1e-12)
    found = pb.grad(lambda p: pb.sum(nn.functional_call(net, p, X) ** 2))(p)
    expected = pb.grad(lambda p: pb.sum(wanted(p, X) ** 2))(p)
    for path, g in expected.items():
        np.testing.assert_allclose(host(found[path]), host(g), rtol=1e-10)
    assert unchanged(net, before)


def test_a_shared_parameter_is_replaced_in_all_places_by_any_of_its_names() -> None:
    net = Tied()
    own = dict(net.named_parameters())
    for name in ("first.weight", "second.weight"):
        w = pb.tensor(normal(3, 3))
        np.testing.assert_allclose(
            host(nn.functional_call(net, {name: w}, X)), host(wanted({**own, "first.weight": w}, X)), rtol=1e-12
        )
    same = nn.functional_call(net, {"first.weight": w, "second.weight": w}, X)
    np.testing.assert_array_equal(host(same), host(nn.functional_call(net, {"first.weight": w}, X)))
    with pytest.raises(pb.PullbackError, match=r"second\.weight is the same Parameter as first\.weight, but two different tensors"):
        nn.functional_call(net, {"first.weight": w, "second.weight": w + 1}, X)


def test_the_module_is_as_before_after_an_error() -> None:
    net = Tied()
    before = snapshot(net)
    with pytest.raises(pb.ShapeError, match="broadcast"):
        nn.functional_call(net, given(net), pb.ones(7))
    assert unchanged(net, before)
    assert len(net.parameters()) == 4


def test_calls_nest_and_a_forward_may_list_its_parameters() -> None:
    class Lists(nn.Module):
        def __init__(self) -> None:
            self.parts = [pb.Parameter(pb.ones(2)), pb.Parameter(pb.ones(2))]

        def forward(self, x: Any, deeper: bool = False) -> Any:
            inner = nn.functional_call(self, {"parts.1": 5 * pb.ones(2)}, x) if deeper else 0.0
            return len(self.parameters()) + x * self.parts[0] + self.parts[1] + inner

    net = Lists()
    before = snapshot(net)
    assert host(nn.functional_call(net, {"parts.0": 2 * pb.ones(2)}, pb.ones(2))).tolist() == [4.0, 4.0]
    assert host(nn.functional_call(net, {"parts.0": 2 * pb.ones(2)}, pb.ones(2), deeper=True)).tolist() == [11.0, 11.0]
    assert unchanged(net, before)


def test_the_values_may_be_parameters_and_arrays() -> None:
    net = nn.Linear(3, 2).to("float64")
    w, b = pb.Parameter(normal(2, 3)), normal(2)
    with pb.GradientTape() as tape:
        loss = pb.sum(nn.functional_call(net, {"weight": w, "bias": b}, X))
    np.testing.assert_allclose(host(tape.gradient(loss, w)), np.tile(host(X).sum(0), (2, 1)), rtol=1e-12)


def test_captured_calls_are_eager_ones(native: None) -> None:
    net = Tied()

    def step(p: Any, x: Any) -> Any:
        return pb.grad(lambda p: pb.sum(nn.functional_call(net, p, x) ** 2))(p)

    captured = pb.capture(step)
    for _ in range(3):
        p = given(net)
        for a, b in zip(captured(p, X).values(), step(p, X).values()):
            np.testing.assert_array_equal(host(a), host(b))


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"weight": pb.ones((2, 2))}, pb.ShapeError, r"weight has shape \(2, 3\), and \(2, 2\) was given"),
        ({"wait": pb.ones((2, 3))}, pb.PullbackError, r"Linear has no Parameter 'wait'\. It has weight, bias"),
        ([pb.ones((2, 3))], pb.PullbackError, r"a dict of tensors by path"),
    ],
)
def test_parameters_that_do_not_fit(parameters: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        nn.functional_call(nn.Linear(3, 2), parameters, pb.ones(3))


# ---- stacks of models


def models() -> list[Any]:
    return [nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).to("float64").eval() for _ in range(4)]


def test_a_stack_of_models_runs_under_one_vmap() -> None:
    nets = models()
    for net in nets:
        net[1].running_mean.assign(normal(5))
    stacked = nn.stack(nets)
    assert [*stacked] == [*nets[0].state_dict()]
    assert [type(p).__name__ for p in stacked.values()] == ["Parameter"] * 4 + ["Buffer"] * 3 + ["Parameter"] * 2
    together = pb.vmap(lambda p, x: nn.functional_call(nets[0], p, x), in_axes=(0, None))
    np.testing.assert_allclose(host(together(stacked, X)), np.stack([host(net(X)) for net in nets]), rtol=1e-12)
    with pb.GradientTape() as tape:
        loss = pb.sum(together(stacked, X) ** 2)
    found = tape.gradient(loss, stacked["0.weight"])
    for i, net in enumerate(nets):
        with pb.GradientTape() as alone:
            one = pb.sum(net(X) ** 2)
        np.testing.assert_allclose(host(found[i]), host(alone.gradient(one, net[0].weight)), rtol=1e-10)


def test_a_stack_has_memory_of_its_own() -> None:
    nets = [nn.Linear(3, 2) for _ in range(2)]
    for net in nets:
        net.bias.trainable, net.weight.constraint = False, optim.constraints.MaxNorm(1.0, axis=1)
    stacked = nn.stack(nets)
    assert stacked["weight"].constraint == optim.constraints.MaxNorm(1.0, axis=1)
    stacked["weight"].assign(pb.zeros((2, 2, 3)))
    assert host(nets[0].weight).any()
    assert (stacked["weight"].trainable, stacked["bias"].trainable, stacked["weight"].name) == (True, False, "weight")


def constrained() -> nn.Module:
    net = nn.Linear(2, 3)
    net.weight.constraint = optim.constraints.NonNegative()
    return net


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (list, pb.PullbackError, "one or more Modules"),
        (
            lambda: [nn.Linear(2, 3), nn.Linear(2, 3, bias=False)],
            pb.PullbackError,
            "model 1 has other Parameters than model 0: bias",
        ),
        (
            lambda: [nn.Linear(2, 3), nn.Linear(3, 3)],
            pb.ShapeError,
            r"weight has shape \(3, 2\) in model 0, and \(3, 3\) in model 1",
        ),
        (lambda: nn.Linear(2, 3), pb.PullbackError, "a list of one or more Modules"),
        (lambda: [nn.Linear(2, 3), nn.Linear(2, 3).to("float64")], pb.PullbackError, "dtype of weight is float32 in model 0"),
        (lambda: [nn.Linear(2, 3), constrained()], pb.PullbackError, "constraint of weight is None in model 0, and NonNegative"),
    ],
)
def test_models_that_do_not_stack(made: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        nn.stack(made())


class Scaled(nn.Module):
    def __init__(self, scale: Any) -> None:
        self.layer, self.scale = nn.Linear(2, 2), scale

    def forward(self, x: Any) -> Any:
        return self.layer(x)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (nn.ReLU(), nn.Tanh(), "model 0 has a ReLU at '1', and model 1 a Tanh at '1'. The models must have the same layers."),
        (nn.ReLU(), None, "model 0 has a ReLU at '1', and model 1 nothing."),
        (nn.Dropout(0.1), nn.Dropout(0.2), "1.p is 0.1 in model 0, and 0.2 in model 1."),
        (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2), "1.negative_slope is 0.1 in model 0, and 0.2"),
        (nn.MaxPool2d(2), nn.MaxPool2d(2, 1), "1.stride is "),
        (nn.GELU(), nn.GELU(approximate="tanh"), "1.approximate is "),
        (nn.ReLU(), nn.ReLU().eval(), "1.training is True in model 0, and False in model 1."),
        (Scaled(2), Scaled(3), "1.scale is 2 in model 0, and 3 in model 1."),
        (Scaled((1, "a")), Scaled((1, "b")), "1.scale is (1, 'a') in model 0"),
        (Scaled(pb.relu), Scaled(pb.tanh), "1.scale is <"),
        (Scaled(2), Scaled(None), "1.scale is 2 in model 0, and None"),
    ],
)
def test_models_that_compute_something_else_do_not_stack(one: Any, other: Any, words: str) -> None:
    nets = [nn.Sequential(nn.Linear(2, 2), *([] if layer is None else [layer])) for layer in (one, other)]
    with pytest.raises(pb.PullbackError) as caught:
        nn.stack(nets)
    assert str(caught.value).startswith(f"stack: {words}")


def test_models_with_equal_settings_stack() -> None:
    for make in (lambda: nn.Dropout(0.1), nn.GELU, lambda: Scaled(float("nan")), lambda: Scaled(lambda x: x), lambda: Scaled([1])):
        assert nn.stack([nn.Sequential(nn.Linear(2, 2), make()) for _ in range(3)])["0.weight"].shape == (3, 2, 2)


def test_given_buffers_that_training_would_update_are_refused_in_words() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    with pytest.raises(pb.PullbackError, match="num_batches_tracked is updated in place, and a Tensor cannot be"):
        nn.functional_call(net, net.state_dict(), normal(4, 1, 4, 4))
    norms = [nn.InstanceNorm2d(2, affine=True, track_running_stats=True) for _ in range(2)]
    with pytest.raises(pb.PullbackError, match=r"one new value and not one for each.*net\.eval\(\).*track_running_stats=False"):
        pb.vmap(lambda p: nn.functional_call(norms[0], p, pb.ones((1, 2, 3, 3))))(nn.stack(norms))


def test_buffers_of_integers_are_refused_by_their_names() -> None:
    net = nn.BatchNorm1d(2)
    state, words = dict(net._named_tensors()), r'argument 0\["num_batches_tracked"\] is Buffer "num_batches_tracked" of dtype int64'
    for derive in (pb.grad, pb.jacobian, lambda f: lambda p: pb.vjp(f, p)):
        with pytest.raises(pb.TapeError, match=words + r".*by the Parameters alone, dict\(net.named_parameters\(\)\)"):
            derive(lambda p: pb.sum(nn.functional_call(net, p, pb.ones((3, 2)))))(state)
    assert (
        pb.grad(lambda p: pb.sum(nn.functional_call(net, p, pb.ones((3, 2)))))(dict(net.named_parameters()))["bias"].numpy()[0] == 3
    )


# ---- threads


class Asked(nn.Module):
    """Calls a function in another thread, and keeps what it returns or raises."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.layer, self.ask, self.answers = nn.Linear(2, 2), ask, list[Any]()

    def forward(self, x: Any) -> Any:
        def run() -> None:
            try:
                self.answers.append(self.ask())
            except pb.PullbackError as error:
                self.answers.append(error)

        if self.ask is not None:
            other = threading.Thread(target=run)
            other.start()
            other.join()
        return self.layer(x)


@pytest.mark.parametrize("way", ["call", "layer", "functional_call"])
def test_another_thread_cannot_use_the_module_meanwhile(way: str) -> None:
    x, given = pb.ones(2), {"layer.bias": pb.ones(2)}
    ways: dict[str, Callable[[], Any]] = {
        "call": lambda: net(x), "layer": lambda: net.layer(x), "functional_call": lambda: nn.functional_call(net, given, x),
    }
    net: Any = Asked(ways[way])
    nn.functional_call(net, given, x)
    assert "nn.functional_call uses it in another thread" in str(net.answers[0])
    net.ask = None
    for use in ways.values():  # in this thread it may, also inside
        net.answers.append(use())
        nn.functional_call(net, given, x)
    assert not lent
    with pytest.raises(pb.PullbackError, match="no Parameter 'bias'"):
        nn.functional_call(net, {"bias": 1.0}, x)
    assert not lent


# ---- lsuv


def test_lsuv_gives_every_layer_the_standard_deviation() -> None:
    pb.random.seed(0)  # some weights are within the tolerance before they are scaled, and keep their standard deviation
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.BatchNorm1d(64), nn.Linear(64, 64), nn.Dropout(), nn.Linear(64, 3)).to(
        "float64"
    )
    x, before = pb.tensor(3 * normal(256, 20) + 1), host(net[2].running_mean)
    with pb.GradientTape() as tape:
        assert nn.init.lsuv(net, x, std=0.7) is net
        assert len(tape.gradient(pb.sum(net[0].weight * 2), [net[0].weight])) == 1
    assert net.training
    np.testing.assert_array_equal(host(net[2].running_mean), before)
    net.eval()
    h = x
    for layer in net:
        h = layer(h)
        if isinstance(layer, nn.Linear):
            assert host(h).std() == pytest.approx(0.7, rel=1e-9)
            w = host(layer.weight)
            product = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
            np.testing.assert_allclose(product, product[0, 0] * np.eye(len(product)), atol=1e-12)
            assert not host(layer.bias).any()


def test_lsuv_scales_a_shared_layer_once_and_leaves_embeddings() -> None:
    net = nn.Sequential(nn.Embedding(9, 6), layer := nn.Linear(6, 6), nn.Tanh(), layer)
    table = host(net[0].weight)
    nn.init.lsuv(net, pb.tensor(np.arange(9)))
    np.testing.assert_array_equal(host(net[0].weight), table)
    assert host(layer(net[0](pb.tensor(np.arange(9))))).std() == pytest.approx(1, rel=1e-5)
    assert "forward" not in vars(layer)


def test_lsuv_refuses_a_batch_that_does_not_vary() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    with pytest.raises(pb.PullbackError, match=r"standard deviation 0\.0 on this batch, which no factor makes 1.0"):
        nn.init.lsuv(net, pb.zeros((4, 3)))
    assert net.training
    assert "forward" not in vars(net[0])
