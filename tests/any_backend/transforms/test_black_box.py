"""black_box: estimates of vector-Jacobian products of functions outside pullback, and the number of calls they take."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import close, watched
from pullback import nn, optim

RNG = np.random.default_rng(0)
A = RNG.standard_normal((64, 64))
X = RNG.standard_normal(64)
G = RNG.standard_normal(64)


def pulled(F: Any, x: Any, g: Any) -> Any:
    with pb.GradientTape() as tape:
        x = watched(x, tape)
        y = F(x)
    return tape.gradient(y, x, output_gradients=pb.tensor(g)).numpy()


# ---- estimates


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("batch", [True, False])
def test_central_differences_of_a_linear_function_are_exact(batch: bool, dtype: Any) -> None:
    F = pb.black_box(lambda x: x @ A.T, gradient="central", batch=batch)
    np.testing.assert_allclose(F(pb.tensor(X.astype(dtype))).numpy(), A @ X, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(pulled(F, X.astype(dtype), G.astype(dtype)), A.T @ G, atol=1e-4)


def test_rows_are_moved_together() -> None:
    x, g = RNG.standard_normal((5, 64)), RNG.standard_normal((5, 64))
    F = pb.black_box(lambda x: np.einsum("ri,oi->ro", x, A), batch="rows")  # The function accepts two axes, not three.
    np.testing.assert_allclose(pulled(F, x, g), g @ A, atol=1e-4)
    assert (F.stats.calls, F.stats.evaluations) == (2, 5 + 2 * 64 * 5)


@pytest.mark.parametrize("batch", [True, "rows"])
def test_the_mean_of_2000_spsa_estimates_is_within_three_sigma(batch: Any) -> None:
    F = pb.black_box(lambda x: x @ A.T, gradient="spsa", samples=1, batch=batch, generator=pb.random.Generator(1))
    x, g = X[None, :], G[None, :]
    estimates = np.stack([pulled(F, x, g)[0] for _ in range(2000)])
    sigma = estimates.std(axis=0, ddof=1) / np.sqrt(2000)
    off = (estimates.mean(axis=0) - A.T @ G) / sigma
    assert np.sqrt((off**2).mean()) < 1.3  # 64 values: 1 is expected, and 1.3 is 3.4 standard deviations above
    assert abs(off.mean()) < 3 / np.sqrt(64)
    assert np.abs(off).max() < 4


def test_more_samples_have_less_variance() -> None:
    def spread(samples: int) -> float:
        F = pb.black_box(lambda x: x @ A.T, gradient="spsa", samples=samples, generator=pb.random.Generator(2))
        return float(np.stack([pulled(F, X, G) for _ in range(200)]).var(axis=0).mean())

    assert spread(16) == pytest.approx(spread(1) / 16, rel=0.3)


def test_a_surrogate_learns_the_slopes_from_what_passes_by() -> None:
    F = pb.black_box(lambda x: x @ A.T + 3.0, gradient="surrogate")
    for _ in range(20):
        x = RNG.standard_normal((16, 64))
        gradient = pulled(F, x, np.tile(G, (16, 1)))
    np.testing.assert_allclose(gradient, np.tile(A.T @ G, (16, 1)), atol=2e-3)
    assert (F.stats.calls, F.stats.evaluations) == (20, 20)


def test_a_surrogate_that_has_seen_one_input_says_that_its_gradient_is_zero() -> None:
    F = pb.black_box(lambda x: x @ A.T, gradient="surrogate")
    with pytest.warns(pb.ZeroGradientWarning, match="no two inputs that differ"):
        assert not pulled(F, X, G).any()


def test_a_function_of_ones_own_is_differentiated_to_any_order() -> None:
    F = pb.black_box(np.exp, gradient=lambda g, x, y: g * y)
    G3 = pb.black_box(lambda x: x**3, gradient=lambda g, x, y: 3 * g * x * x)
    pb.check_gradients(lambda x: F(pb.sin(x)) * G3(x), (np.array([0.3, -0.6]),), order=3)


def test_several_inputs_and_outputs_of_another_shape() -> None:
    F = pb.black_box(lambda a, b: np.stack([a.sum(axis=-1) * b[..., 0], np.sin(b).sum(axis=-1)], axis=-1))
    pb_value = F(pb.tensor(np.ones((2, 3))), pb.tensor(np.ones((2, 4))))
    assert pb_value.shape == (2, 2)
    with pb.GradientTape() as tape:
        a, b = watched(RNG.standard_normal((2, 3)), tape), watched(RNG.standard_normal((2, 4)), tape)
        y = pb.sum(F(a, b))
    ga, gb = tape.gradient(y, [a, b])
    np.testing.assert_allclose(ga.numpy(), np.repeat(b.numpy()[:, :1], 3, axis=1), atol=1e-5)
    np.testing.assert_allclose(gb.numpy(), np.cos(b.numpy()) + a.numpy().sum(1)[:, None] * np.eye(4)[0], atol=1e-5)


# ---- inside and outside other transforms


@pytest.mark.parametrize("batch", [True, False, "rows"])
def test_vmap_jacobians_and_forward_mode_go_through_it(batch: Any) -> None:
    c = pb.tensor(np.linspace(0.5, 1.0, 3))
    F = pb.black_box(lambda x, c: np.sin(x) * c, batch=batch)

    def both(x: Any) -> tuple[Any, Any]:
        return F(x, pb.broadcast_to(c, x.shape)), pb.sin(x) * c

    x, xs = pb.tensor(RNG.standard_normal((2, 3))), pb.tensor(RNG.standard_normal((4, 2, 3)))
    for way in (
        lambda f: pb.vmap(f)(xs),
        lambda f: pb.grad(lambda xs: pb.sum(pb.vmap(f)(xs) ** 2))(xs),
        lambda f: pb.vmap(pb.grad(lambda x: pb.sum(f(x) ** 2)))(xs),
        lambda f: pb.vmap(pb.vmap(f) if batch != "rows" else f)(xs),
        lambda f: pb.jacobian(f, mode="reverse")(x),
        lambda f: pb.jacobian(f, mode="forward")(x),
        lambda f: pb.jvp(f, (x,), (x,))[1],
    ):
        ours, wanted = way(lambda x: both(x)[0]), way(lambda x: both(x)[1])
        np.testing.assert_allclose(ours.numpy(), wanted.numpy(), atol=1e-5)


def test_estimates_of_each_example_are_its_own() -> None:
    x, g = RNG.standard_normal((5, 64)), RNG.standard_normal((5, 64))
    F = pb.black_box(lambda x: x @ A.T, gradient="spsa", samples=4000)
    ours = pulled(lambda x: pb.vmap(F)(x), x, g)
    assert np.abs(ours - g @ A).std() < 0.2 * (g @ A).std()
    assert (F.stats.calls, F.stats.evaluations) == (2, 5 + 2 * 4000 * 5)


# ---- training through a black box

M = np.linalg.qr(np.random.default_rng(4).standard_normal((8, 8)))[0] * 1.2
INPUTS = np.random.default_rng(5).standard_normal((32, 8)).astype(np.float32)
TARGET = np.tanh(np.sin(INPUTS @ np.random.default_rng(6).standard_normal((8, 8)).astype(np.float32)) @ M).astype(np.float32)


def losses(mix: Any, steps: int) -> list[float]:
    pb.random.seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    opt = optim.Adam(net.parameters(), lr=1e-2)
    found: list[float] = []
    for _ in range(steps):
        with pb.GradientTape() as tape:
            loss = nn.mse(mix(net(INPUTS)), TARGET)
        opt.step(tape.gradient(loss, opt.parameters))
        found.append(loss.item())
    return found


def true_loss() -> float:
    mixing = pb.tensor(M.astype(np.float32))
    return losses(lambda z: pb.tanh(z @ mixing), 100)[-1]


@pytest.mark.parametrize("gradient", ["central", "spsa", "surrogate"])
def test_a_net_behind_a_mixing_black_box_reaches_the_loss_of_the_true_gradient(gradient: Any) -> None:
    F = pb.black_box(lambda z: np.tanh(z @ M), gradient=gradient, batch="rows", generator=pb.random.Generator(3))
    assert min(losses(F, 400)) <= 1.05 * true_loss()


# ---- cost


def asked(steps: int = 3, size: int = 6, **options: Any) -> tuple[int, int, int, int]:
    """Returns the calls and evaluations of a black box after `steps` forward and backward passes.

    Asserts that the function's own counts equal the black box's stats.
    """
    calls, seen = 0, 0

    def function(x: Any) -> Any:
        nonlocal calls, seen
        calls += 1
        seen += 1 if options.get("batch") is False else len(x)
        return x * 2

    F = pb.black_box(function, **options)
    for i in range(steps):
        pulled(F, X[i : i + size], G[:size])
    assert (F.stats.calls, F.stats.evaluations) == (calls, seen)
    assert F.stats.forward_calls + F.stats.backward_calls == calls
    return F.stats.calls, F.stats.evaluations, F.stats.forward_calls, F.stats.backward_calls


def test_the_calls_are_those_of_the_documented_formula() -> None:
    assert asked() == (6, 3 * (1 + 2 * 6), 3, 3)
    assert asked(batch=False) == (3 * (1 + 2 * 6), 3 * (1 + 2 * 6), 3, 3 * 2 * 6)
    assert asked(gradient="spsa", samples=5) == (6, 3 * (1 + 2 * 5), 3, 3)
    assert asked(gradient="spsa", samples=5, batch=False) == (3 * 11, 3 * 11, 3, 30)
    with pytest.warns(pb.ZeroGradientWarning):
        assert asked(gradient="surrogate") == (3, 3, 3, 0)
    assert asked(gradient=lambda g, x, y: 2 * g) == (3, 3, 3, 0)


def test_no_gradient_no_backward_calls() -> None:
    F = pb.black_box(lambda x: x * 2)
    F(pb.ones(3))
    assert F.stats == type(F.stats)(calls=1, evaluations=1, forward_calls=1, backward_calls=0)


# ---- refusals


def test_second_derivatives_of_an_estimate_are_refused_and_not_wrong() -> None:
    F = pb.black_box(lambda x: x**3)
    with pb.GradientTape(persistent=True) as tape:
        x = watched([1.0, 2.0], tape, dtype="float64")
        first = tape.gradient(pb.sum(F(x)), x)
        with pytest.raises(pb.TapeError, match="second derivative through <lambda>"):
            tape.gradient(pb.sum(first), x)


def test_a_function_that_takes_no_stack_is_told_so() -> None:
    F = pb.black_box(lambda x: x.reshape(-1) * np.ones(7))
    with pytest.raises(pb.ShapeError, match=r"given 1 inputs.*returned shape \(7,\).*batch=False"):
        F(pb.ones(1))
    with pytest.raises(pb.PullbackError, match=r"floating-point tensors.*int64"):
        F(pb.tensor([1, 2]))
    with pytest.raises(pb.PullbackError, match="gradient='centre'"):
        pb.black_box(lambda x: x, gradient="centre")
    with pytest.raises(pb.ShapeError, match=r"shape .* for the argument"):
        pulled(pb.black_box(lambda x: x, gradient=lambda g, x, y: pb.sum(g)), X, G)
    close(pulled(pb.black_box(lambda x: x, gradient=lambda g, x, y: g), X, G), G)


def test_a_surrogate_starts_anew_when_the_number_of_inputs_changes() -> None:
    F = pb.black_box(lambda x: 2 * x, gradient="surrogate")
    for width in (3, 5, 3):
        for _ in range(20):
            gradient = pulled(F, RNG.standard_normal((32, width)), np.ones((32, width)))
        np.testing.assert_allclose(gradient, np.full((32, width), 2.0), atol=1e-2)


def test_a_copy_draws_from_the_generator_of_pb_random_as_the_original_does() -> None:
    F = pb.black_box(lambda x: np.sum(x**2, axis=1, keepdims=True), gradient="spsa")
    found = []
    for function in (F, copy.deepcopy(F)):
        pb.random.seed(3)
        found.append(pulled(function, X, [1.0]))
    np.testing.assert_array_equal(found[0], found[1])
