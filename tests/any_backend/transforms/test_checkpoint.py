"""Checkpoints: gradients are equal to the last bit, only inputs are kept, and recomputation is a phase of its own in profiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import watched
from pullback import nn
from pullback.autodiff.node import all_kept
from pullback.ops.dropout import dropout


def gradients(f: Callable[..., Any], x: Any, parameters: Any, **options: Any) -> list[Any]:
    """Returns the gradients with respect to x and the parameters of a loss that also uses both outside f."""
    pb.random.seed(3)
    x = pb.tensor(x)
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = f(pb.sin(x))
        loss = pb.sum(f(y * x)) + pb.sum(x * y) + sum([pb.sum(p * p) for p in parameters])
    return [g.numpy() for g in tape.gradient(loss, [x, *parameters], **options)]


def network() -> nn.Module:
    pb.random.seed(5)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.4), nn.Linear(16, 6), nn.Softplus())


X = np.random.default_rng(0).standard_normal((7, 6)).astype(np.float32)


# ---- first derivatives


@pytest.mark.parametrize("aggregation", ["accumulate", "add_n", "tree"])
def test_gradients_are_equal_bit_for_bit_with_dropout_and_closed_over_parameters(aggregation: str) -> None:
    net = network()
    wanted = gradients(net, X, net.parameters(), aggregation=aggregation)
    got = gradients(pb.checkpoint(net), X, net.parameters(), aggregation=aggregation)
    for ours, plain in zip(got, wanted):
        assert ours.tobytes() == plain.tobytes()
        assert plain.any()


def test_nested_checkpoints_give_the_same_bits() -> None:
    net = network()
    inner = pb.checkpoint(lambda x: net(pb.cos(x)))

    def plain(x: Any) -> Any:
        return net(pb.cos(net(pb.cos(x)))) * x

    nested = pb.checkpoint(lambda x: inner(inner(x)) * x)
    for ours, theirs in zip(gradients(nested, X, net.parameters()), gradients(plain, X, net.parameters())):
        assert ours.tobytes() == theirs.tobytes()


def test_the_random_stream_goes_on_as_if_nothing_had_been_drawn_again() -> None:
    generator = pb.random.Generator(11)

    def f(x: Any) -> Any:
        return dropout(x, 0.5, generator=generator) * pb.random.uniform(x.shape)

    pb.random.seed(2)
    with pb.GradientTape() as tape:
        x = watched(X, tape)
        y = pb.sum(pb.checkpoint(f)(x))
    before = generator.state_dict(), pb.random.uniform((3,)).numpy()
    tape.gradient(y, x)
    assert generator.state_dict() == before[0]
    following = pb.random.uniform((3,)).numpy()
    pb.random.seed(2)
    pb.random.uniform(X.shape)
    assert before[1].tobytes() == pb.random.uniform((3,)).numpy().tobytes()
    assert following.tobytes() == pb.random.uniform((3,)).numpy().tobytes()


def test_structures_go_in_and_out_and_outputs_may_be_inputs() -> None:
    @pb.checkpoint
    def f(d: Any, k: int, *, scale: Any) -> Any:
        return {"scaled": d["x"] * scale, "same": d["x"], "rest": [k, pb.argmax(d["x"]), (pb.exp(d["y"]),)]}

    scale = pb.Parameter([2.0, 3.0])
    with pb.GradientTape() as tape:
        x, y = watched([1.0, 2.0], tape), watched([0.0, 1.0], tape)
        out = f({"x": x, "y": y}, 5, scale=scale)
        loss = pb.sum(out["scaled"] * out["same"]) + pb.sum(out["rest"][2][0])
    gx, gy, gscale = tape.gradient(loss, [x, y, scale])
    np.testing.assert_allclose(gx.numpy(), [4.0, 12.0], rtol=1e-6)  # d(scale x^2) = 2 scale x
    np.testing.assert_allclose(gy.numpy(), np.exp([0.0, 1.0]), rtol=1e-6)
    np.testing.assert_allclose(gscale.numpy(), [1.0, 4.0], rtol=1e-6)
    assert (out["rest"][0], out["rest"][1].item()) == (5, 1)


def test_an_input_that_the_function_does_not_use_stays_unconnected() -> None:
    with pb.GradientTape() as tape:
        x, unused = watched(2.0, tape), watched(3.0, tape)
        y = pb.checkpoint(lambda a, b: a * a)(x, unused)
    with pytest.raises(pb.UnconnectedError, match="source 1"):
        tape.gradient(y, [x, unused])


def test_it_computes_again_in_the_precision_of_the_forward_pass() -> None:
    net, seen = nn.Linear(6, 6), []

    def f(x: Any) -> Any:
        seen.append(net(x).numpy())
        return net(x)

    with pb.GradientTape() as tape:
        x = watched(X, tape)
        with pb.amp.autocast("bfloat16"):
            y = pb.sum(pb.checkpoint(f)(x))
    tape.gradient(y, x)
    assert seen[0].tobytes() == seen[1].tobytes()


# ---- memory and work


def kept_bytes(tape: pb.GradientTape) -> int:
    """Returns the bytes of all arrays that a tape's nodes keep, counting each array once."""
    arrays = {id(value.array): value.nbytes for value in all_kept(tape.nodes) if hasattr(value, "array")}
    return sum(arrays.values())


def test_the_tape_keeps_the_inputs_only() -> None:
    def f(x: Any) -> Any:
        for _ in range(20):
            x = pb.tanh(x) * x
        return x

    def kept(g: Callable[[Any], Any]) -> int:
        with pb.GradientTape() as tape:
            g(watched(X, tape))
        return kept_bytes(tape)

    assert kept(pb.checkpoint(f)) == X.nbytes
    assert kept(f) >= 40 * X.nbytes


def test_the_second_computation_is_charged_as_recompute() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh())

    def profile(f: Callable[[Any], Any]) -> Any:
        with pb.profile() as prof:
            with pb.GradientTape() as tape:
                x = watched(X, tape)
                y = pb.sum(f(x))
            tape.gradient(y, [x, *net.parameters()])
        return prof

    plain, ours = profile(net), profile(pb.checkpoint(net))
    inside = profile(net).forward.flops - X.size  # without the sum
    assert plain.recompute.flops == 0
    assert abs(ours.recompute.flops - inside) <= X.size
    assert ours.recompute.flops > 0.9 * inside > 0
    assert ours.forward.flops == plain.forward.flops
    assert ours.backward.flops == plain.backward.flops


# ---- higher orders and refusals


def test_second_derivatives_are_right() -> None:
    def f(x: Any, b: Any) -> Any:
        return pb.checkpoint(lambda a: pb.tanh(a * b) * pb.exp(a))(x * x)

    pb.check_gradients(f, (np.array([0.3, -0.5]), np.array([0.7, 0.2])), order=3)


def test_a_persistent_tape_walks_a_checkpoint_twice() -> None:
    with pb.GradientTape(persistent=True) as tape:
        x = watched([0.5, 1.5], tape, dtype="float64")
        y = pb.sum(pb.checkpoint(pb.sin)(x))
        first = tape.gradient(y, x)
        second = tape.gradient(pb.sum(first), x)
    np.testing.assert_allclose(tape.gradient(y, x).numpy(), np.cos([0.5, 1.5]), rtol=1e-12)
    np.testing.assert_allclose(first.numpy(), np.cos([0.5, 1.5]), rtol=1e-12)
    np.testing.assert_allclose(second.numpy(), -np.sin([0.5, 1.5]), rtol=1e-12)


@pytest.mark.parametrize("view", [False, True])
def test_a_parameter_changed_before_the_second_computation_is_an_error(view: bool) -> None:
    w = pb.Parameter([1.0, 2.0], name="w", trainable=not view)
    value = w[:] if view else w
    with pb.GradientTape() as tape:
        x = watched([1.0, 2.0], tape)
        y = pb.sum(pb.checkpoint(lambda x: x + value)(x))
    w.assign([0.0, 0.0])
    with pytest.raises(pb.StaleValueError, match=r'"w" was changed in place.*checkpoint'):
        tape.gradient(y, x)


def test_a_function_that_returns_something_else_the_second_time_is_an_error() -> None:
    calls: list[int] = []

    def f(x: Any) -> Any:
        calls.append(0)
        return [x * 2] * len(calls)

    with pb.GradientTape() as tape:
        x = watched(1.0, tape)
        (y,) = pb.checkpoint(f)(x)
    with pytest.raises(pb.TapeError, match="returned 1 values in the forward pass, and 2"):
        tape.gradient(y, x)


def test_without_a_tape_it_is_the_function_itself() -> None:
    calls: list[int] = []
    y = pb.checkpoint(lambda x: (calls.append(0), x * 2)[1])(pb.tensor(3.0))
    assert (y.item(), len(calls)) == (6.0, 1)


def test_random_numbers_are_the_same_again_inside_of_vmap_and_in_jacobians() -> None:
    def noisy(x: Any) -> Any:
        return dropout(pb.sin(x), 0.5) * pb.random.uniform(x.shape)

    def run(f: Any, derivative: Any) -> Any:
        pb.random.seed(8)
        return derivative(f)(pb.tensor(X.astype(np.float64))).numpy()

    def by_a_batch_of_cotangents(f: Any) -> Any:
        def rows(x: Any) -> Any:
            with pb.GradientTape(persistent=True) as tape:
                tape.watch(x)
                y = f(x)
            cotangents = pb.tensor(np.eye(x.size).reshape(-1, *x.shape))
            return pb.vmap(lambda g: tape.gradient(y, x, output_gradients=g))(cotangents)

        return rows

    ways = [
        lambda f: pb.vmap(pb.grad(lambda x: pb.sum(f(x)))),
        lambda f: pb.grad(lambda x: pb.sum(pb.vmap(f)(x))),
        lambda f: pb.jacobian(f, mode="reverse"),
        lambda f: pb.vmap(pb.jacobian(f, mode="reverse")),
        by_a_batch_of_cotangents,
    ]
    for way in ways:
        np.testing.assert_array_equal(run(pb.checkpoint(noisy), way), run(noisy, way))
        assert len(np.unique(run(noisy, way))) > 10


def test_a_forward_jacobian_draws_one_mask_for_all_directions() -> None:
    def jacobian(mode: Any) -> Any:
        pb.random.seed(4)
        return pb.jacobian(lambda x: dropout(x * x, 0.5), mode=mode)(pb.tensor(X[0])).numpy()

    np.testing.assert_array_equal(jacobian("forward"), jacobian("reverse"))


# ---- norms that keep running values, and the modes of Modules


class Images(nn.Module):
    """Calls an instance norm with each row of (N, C) as an image of C channels."""

    def __init__(self) -> None:
        self.inside = nn.InstanceNorm2d(6, track_running_stats=True)

    def forward(self, x: Any) -> Any:
        image = pb.reshape(x, (*x.shape, 1, 1)) * pb.tensor(X[:2, :2])
        return pb.sum(self.inside(image) * image, axis=(2, 3))


def normed(momentum: float | None = 0.1) -> Any:
    pb.random.seed(5)
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=momentum), nn.Tanh(), nn.Dropout(0.3), Images())


def nested(net: nn.Module) -> Callable[[Any], Any]:
    inner = pb.checkpoint(net)
    return pb.checkpoint(lambda x: inner(inner(x) + x))


def scanned(net: nn.Module, checkpoint: bool) -> Callable[[Any], Any]:
    return lambda x: pb.scan(lambda h, _: (net(h) + x, pb.sum(h)), x, length=4, checkpoint=checkpoint)[0]


WAYS: dict[str, tuple[Callable[[nn.Module], Any], Callable[[nn.Module], Any]]] = {
    "once": (pb.checkpoint, lambda net: net),
    "nested": (nested, lambda net: lambda x: net(net(x) + x)),
    "scan": (lambda net: scanned(net, True), lambda net: scanned(net, False)),
}


def bits(tensors: Any) -> list[bytes]:
    return [x.numpy().tobytes() for x in tensors]


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_norms_are_trained_to_the_same_bits_and_count_each_batch_once(way: str, captured: bool, momentum: float | None) -> None:
    def trained(wrap: Callable[[nn.Module], Any]) -> tuple[Any, ...]:
        net = normed(momentum)
        f, opt, x, z = wrap(net), pb.optim.SGD(net.parameters(), lr=0.1), pb.tensor(X), pb.tensor(X[::-1].copy())

        def step() -> Any:  # calls f twice before the gradient
            return opt.minimize(lambda: pb.mean((f(x) - f(z)) ** 2))

        step = pb.capture(step) if captured else step
        losses = [step() for _ in range(3)]
        return bits(losses), bits(net.parameters()), bits(net.buffers()), net[1].num_batches_tracked.item()

    ours, plain = [trained(wrap) for wrap in WAYS[way]]
    assert ours == plain
    assert plain[-1] == 3 * 2 * {"once": 1, "nested": 2, "scan": 4}[way]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", [True, False])
def test_it_computes_again_in_the_mode_of_the_forward_pass(mode: bool, way: str) -> None:
    def run(wrap: Callable[[nn.Module], Any], later: bool) -> list[bytes]:
        net = normed().train(mode)
        net[1].eval()  # this layer differs from the others
        f, x = wrap(net), pb.tensor(X)
        with pb.GradientTape(persistent=True) as tape:
            y = pb.sum(pb.sin(f(x)))
        net.train(later)
        found = [g for _ in range(2) for g in tape.gradient(y, net.parameters())]
        assert [module.training for module in net.modules()] == [later] * len(net.modules())
        return bits([y, *found, *net.buffers()])

    wrap, plain = WAYS[way]
    assert run(wrap, True) == run(wrap, False) == run(plain, not mode)


def test_a_function_may_change_the_mode_itself() -> None:
    def f(net: nn.Module, x: Any) -> Any:
        before = net.training
        net.eval()
        y = net(x)
        return net.train(before)(x) * y

    def run(wrap: Callable[..., Any]) -> list[bytes]:
        net = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
        net.load_state_dict({"0.weight": X[:6], "0.bias": X[0]})
        pb.random.seed(3)
        with pb.GradientTape() as tape:
            y = pb.sum(wrap(f)(net, pb.tensor(X)))
        assert net.training
        net.eval()
        found = tape.gradient(y, net.parameters())
        assert not net.training
        return bits([y, *found])

    assert run(pb.checkpoint) == run(lambda f: f)


@pytest.mark.parametrize("name", ["1.weight", "1.running_mean"])
def test_values_of_a_norm_that_affect_the_result_must_not_change(name: str) -> None:
    net = normed().train(name == "1.weight")
    values = dict(net.named_parameters()) | {"1.running_mean": net[1].running_mean}
    with pb.GradientTape() as tape:
        y = pb.sum(pb.checkpoint(net)(pb.tensor(X)))
    values[name].assign(values[name] + 1)
    with pytest.raises(pb.StaleValueError, match=name):
        tape.gradient(y, net.parameters())


def test_after_an_error_in_the_second_computation_modes_and_updates_are_as_before() -> None:
    net: Any = nn.BatchNorm1d(6)
    calls: list[Any] = []

    def f(x: Any) -> Any:
        calls.append(net(x))
        if len(calls) == 2:
            raise KeyError("again")
        return calls[-1]

    with pb.GradientTape() as tape:
        y = pb.sum(pb.checkpoint(f)(pb.tensor(X)))
    net.eval()
    with pytest.raises(KeyError, match="again"):
        tape.gradient(y, net.parameters())
    assert not net.training
    net.train()(pb.tensor(X))
    assert net.num_batches_tracked.item() == 2
