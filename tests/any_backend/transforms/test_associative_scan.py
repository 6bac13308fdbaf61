"""pb.associative_scan and pb.linear_recurrence against loops and finite differences, and the layers that use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn


def random_steps(shape: tuple[int, ...], dtype: str = "float64", seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return pb.tensor(rng.uniform(-0.9, 0.9, shape), dtype=dtype), pb.tensor(rng.standard_normal(shape), dtype=dtype)


def looped(a: Any, b: Any, axis: int, reverse: bool, start: Any = 0.0) -> Any:
    """Returns y_t = a_t y_{t-1} + b_t in float64."""
    a, b = [np.moveaxis(np.asarray(host(x), np.float64), axis, 0) for x in (a, b)]
    y, now = np.zeros(b.shape), np.broadcast_to(host(start), b.shape[1:])
    for t in range(len(b))[::-1] if reverse else range(len(b)):
        now = y[t] = a[t] * now + b[t]
    return np.moveaxis(y, 0, axis)


def affine(first: Any, second: Any) -> Any:
    return first[0] * second[0], second[0] * first[1] + second[1]


# ---- linear recurrences


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-13), ("float32", 1e-6), ("float16", 1e-3), ("bfloat16", 1e-2)])
def test_a_linear_recurrence_is_the_loop(dtype: str, error: float, reverse: bool) -> None:
    for shape, axis in (((40, 3), 0), ((3, 40), 1), ((2, 33, 20), 1), ((1, 1), 0), ((0, 3), 0), ((3, 0), 0), ((70, 5, 2), 0)):
        a, b = random_steps(shape, dtype)
        y = pb.linear_recurrence(a, b, axis, reverse=reverse)
        assert (y.dtype, y.shape) == (b.dtype, shape)
        wanted = looped(a, b, axis, reverse)
        np.testing.assert_allclose(host(y).astype(np.float64), wanted, rtol=error, atol=error * (1 + np.abs(wanted).max(initial=0)))


@pytest.mark.parametrize("reverse", [False, True])
def test_its_derivatives(reverse: bool) -> None:
    a, b = random_steps((2, 6, 3))
    start = pb.tensor(np.random.default_rng(1).standard_normal((2, 3)))
    f = lambda a, b, h: pb.linear_recurrence(a, b, 1, initial=h, reverse=reverse)
    np.testing.assert_allclose(host(f(a, b, start)), looped(a, b, 1, reverse, start), rtol=1e-13)
    assert pb.check_gradients(f, (a, b, start), order=2) < 1e-9
    forward, backward = [pb.jacobian(f, argnums=(0, 1, 2), mode=mode)(a, b, start) for mode in ("forward", "reverse")]
    for x, y in zip(forward, backward):
        np.testing.assert_allclose(host(x), host(y), atol=1e-13)


def test_it_broadcasts_promotes_and_takes_other_layouts() -> None:
    a, b = random_steps((4, 30, 3))
    rates = a[:1, :, :1]
    np.testing.assert_allclose(host(pb.linear_recurrence(rates, b, -2)), looped(pb.broadcast_to(rates, b.shape), b, 1, False))
    turned = pb.swapaxes(b, 0, 2)
    np.testing.assert_allclose(host(pb.linear_recurrence(pb.swapaxes(a, 0, 2), turned, 1)), looped(a, b, 1, False).swapaxes(0, 2))
    assert pb.linear_recurrence(pb.ones(3, dtype="int32"), pb.ones(3, dtype="int32")).dtype == pb.float32
    np.testing.assert_array_equal(host(pb.linear_recurrence([1, 1, 1], [1.0, 2.0, 3.0])), [1, 3, 6])


def test_the_first_state_promotes_and_broadcasts() -> None:
    y = pb.linear_recurrence(pb.ones((3, 2)), pb.ones((3, 2)), initial=pb.tensor(0.1, dtype="float64"))
    np.testing.assert_allclose(host(y), np.array([1.1, 2.1, 3.1])[:, None] * np.ones(2), rtol=1e-15)


def test_without_a_first_state_the_first_coefficient_is_not_used() -> None:
    np.testing.assert_array_equal(host(pb.linear_recurrence([np.nan, 2.0], [1.0, 1.0])), [1, 3])
    np.testing.assert_array_equal(host(pb.linear_recurrence([np.nan, 2.0], [1.0, 1.0], initial=0.0)), [np.nan, np.nan])
    np.testing.assert_array_equal(host(pb.linear_recurrence([2.0, np.inf], [1.0, 1.0], reverse=True)), [3, 1])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.filterwarnings("error")
def test_without_steps_the_first_state_is_used_and_checked_as_well(reverse: bool) -> None:
    nothing = pb.ones((0, 3))
    y, pull = pb.vjp(lambda h: pb.linear_recurrence(nothing, nothing, initial=h, reverse=reverse), pb.ones(3))
    np.testing.assert_array_equal(host(pull(y)[0]), np.zeros(3))
    assert pb.grad(lambda h: pb.sum(pb.linear_recurrence(nothing, nothing, initial=h)))(pb.ones(3)).tolist() == [0.0] * 3
    with pytest.raises(pb.ShapeError, match=r"initial has shape \(2,\); it must broadcast to that of one step, \(3,\)"):
        pb.linear_recurrence(nothing, nothing, initial=pb.ones(2), reverse=reverse)


def test_it_under_vmap_and_per_example() -> None:
    a, b = random_steps((5, 7, 3))
    y = pb.vmap(lambda a, b: pb.linear_recurrence(a, b))(a, b)
    np.testing.assert_array_equal(host(y), host(pb.linear_recurrence(a, b, 1)))
    shared = pb.vmap(lambda b: pb.linear_recurrence(a[0], b))(b)
    np.testing.assert_allclose(host(shared[2]), looped(a[0], b[2], 0, False))
    rates = pb.Parameter([0.5, -0.2, 0.9], dtype="float64")
    loss = lambda rates, b: pb.sum(pb.linear_recurrence(rates, b) ** 2)
    each = pb.per_example_grad(loss)(rates, b)
    for i in range(5):
        np.testing.assert_allclose(host(each[i]), host(pb.grad(loss)(rates, b[i])), rtol=1e-12)


def test_coefficients_of_the_first_step_do_not_matter() -> None:
    y = pb.linear_recurrence([np.inf, 0.5], [1.0, 2.0])
    np.testing.assert_array_equal(host(y), [1.0, 2.5])


# ---- associative scans


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 31, 100])
def test_a_scan_of_affine_maps_is_the_recurrence(n: int, reverse: bool) -> None:
    a, b = random_steps((2, n, 3))
    rates, y = pb.associative_scan(affine, (a, b), axis=1, reverse=reverse)
    np.testing.assert_allclose(host(y), looped(a, b, 1, reverse), rtol=1e-10, atol=1e-12)
    turned = host(a)[:, ::-1] if reverse else host(a)
    products = np.cumprod(turned, axis=1)
    np.testing.assert_allclose(host(rates), products[:, ::-1] if reverse else products, rtol=1e-10)


def test_functions_that_do_not_commute_keep_their_order() -> None:
    matrices = pb.tensor(np.random.default_rng(0).standard_normal((11, 2, 2)))
    y, now = host(pb.associative_scan(lambda x, y: y @ x, matrices)), np.eye(2)
    for t in range(11):
        now = host(matrices[t]) @ now
        np.testing.assert_allclose(y[t], now, rtol=1e-12)
    seen: list[int] = []
    pb.associative_scan(lambda x, y: seen.append(x.shape[0]) or y @ x, matrices)
    assert sum(seen) < 2 * 11


def test_its_derivatives_and_transforms() -> None:
    a, b = random_steps((1, 5, 1))
    f = lambda a, b: pb.associative_scan(affine, (a, b), axis=1)[1]
    assert pb.check_gradients(f, (a, b), order=2) < 1e-9
    y = pb.vmap(lambda a, b: pb.associative_scan(affine, {"x": (a, b)}["x"])[1])(a, b)
    np.testing.assert_allclose(host(y), host(f(a, b)), rtol=1e-13)
    tangent = pb.jvp(f, (a, b), (b, a))[1]
    wanted = pb.jvp(lambda a, b: pb.linear_recurrence(a, b, 1), (a, b), (b, a))[1]
    np.testing.assert_allclose(host(tangent), host(wanted), rtol=1e-12)
    captured = pb.capture(pb.grad(lambda a, b: pb.sum(f(a, b) ** 2)))
    np.testing.assert_array_equal(host(captured(a, b)), host(captured(a, b)))


def test_trees_other_dtypes_and_one_step() -> None:
    xs = {"sum": pb.arange(5, dtype="int64"), "most": [pb.tensor([3, 1, 4, 1, 5])]}
    y = pb.associative_scan(lambda x, y: {"sum": x["sum"] + y["sum"], "most": [pb.maximum(x["most"][0], y["most"][0])]}, xs)
    np.testing.assert_array_equal(host(y["sum"]), np.cumsum(np.arange(5)))
    np.testing.assert_array_equal(host(y["most"][0]), [3, 3, 4, 4, 5])
    np.testing.assert_array_equal(host(pb.associative_scan(pb.add, np.arange(4.0))), [0, 1, 3, 6])
    for n in (0, 1):
        assert pb.associative_scan(pb.add, pb.ones((n, 2))).shape == (n, 2)


# ---- layers


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("make", [nn.MinGRU, nn.LRU])
def test_a_layer_continues_where_it_ended(make: Callable[..., Any], batch_first: bool) -> None:
    """Two halves of a sequence, the second from the state after the first, give the whole; so do single sequences."""
    layer, axis = make(3, 4, batch_first=batch_first, dtype="float64"), int(batch_first)
    x = pb.tensor(np.random.default_rng(0).standard_normal((2, 8, 3) if batch_first else (8, 2, 3)))
    y, last = layer(x)
    first, rest = pb.split(x, 2, axis=axis)
    y1, state = layer(first)
    y2, end = layer(rest, state)
    np.testing.assert_allclose(host(pb.concat([y1, y2], axis=axis)), host(y), rtol=1e-12, atol=1e-14)
    for part, whole in zip(end, last):
        np.testing.assert_allclose(host(part), host(whole), rtol=1e-12, atol=1e-14)
    one = x[0] if batch_first else x[:, 0]
    np.testing.assert_allclose(host(layer(one)[0]), host(y[0] if batch_first else y[:, 0]), rtol=1e-12, atol=1e-14)
    params = layer.parameters()
    with pb.GradientTape() as tape:
        loss = pb.sum(layer(x)[0] ** 2)
    assert all([np.isfinite(host(g)).all() and np.abs(host(g)).max() > 0 for g in tape.gradient(loss, params)])


def test_the_formula_of_lru() -> None:
    layer = nn.LRU(3, 5, r_min=0.4, r_max=0.9, dtype="float64")
    p = {name: host(value) for name, value in layer.state_dict().items()}
    rates = np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["theta_log"]))
    assert np.all((np.abs(rates) >= 0.4) & (np.abs(rates) <= 0.9))
    np.testing.assert_allclose(np.exp(2 * p["gamma_log"]), 1 - np.abs(rates) ** 2, rtol=1e-12)
    x, state = np.random.default_rng(0).standard_normal((6, 2, 3)), np.zeros((2, 5), complex)
    y = host(layer(pb.tensor(x))[0])
    for t in range(6):
        state = rates * state + np.exp(p["gamma_log"]) * (x[t] @ (p["B_re"] + 1j * p["B_im"]).T)
        np.testing.assert_allclose(y[t], (state @ (p["C_re"] + 1j * p["C_im"]).T).real + p["D"] * x[t], rtol=1e-10)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("make", [nn.MinGRU, nn.LRU])
def test_without_steps_the_last_state_is_the_first(make: Any, batch_first: bool) -> None:
    """As in a loop over no steps, and as nn.GRU gives it."""
    layer, given = make(3, 4, batch_first=batch_first), np.random.default_rng(0).standard_normal((2, 2, 4)).astype(np.float32)
    for shape, wanted in (((2, 0, 3) if batch_first else (0, 2, 3), given), ((0, 3), given[:, 0])):
        h = [pb.tensor(part) for part in wanted]
        with pb.GradientTape() as tape:
            tape.watch(h[0])
            y, last = layer(pb.ones(shape), h[0] if make is nn.MinGRU else tuple(h))
            states = [last] if make is nn.MinGRU else list(last)
            loss = pb.sum(3 * states[0]) + pb.sum(y)
        gru_y, gru_last = nn.GRU(3, 4, batch_first=batch_first)(pb.ones(shape))
        assert y.shape == (shape if make is nn.LRU else gru_y.shape)
        for state, part in zip(states, wanted):
            np.testing.assert_array_equal(host(state), part)
        np.testing.assert_array_equal(host(tape.gradient(loss, h[0])), np.full(wanted[0].shape, 3.0, np.float32))
        last = layer(pb.ones(shape))[1]
        for state in [last] if make is nn.MinGRU else last:
            np.testing.assert_array_equal(host(state), host(gru_last[0]))
    with pytest.raises(pb.ShapeError, match="the state h has shape"):
        layer(pb.ones((0, 3)), pb.ones(5) if make is nn.MinGRU else (pb.ones(5), pb.ones(5)))


# ---- refusals

STEPS = np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (pb.ShapeError, r"lengths \[4, 3\]", lambda: pb.associative_scan(affine, (pb.ones(4), pb.ones(3)))),
        (pb.ShapeError, "keep the shape", lambda: pb.associative_scan(lambda x, y: pb.sum(y), pb.ones(4))),
        (pb.DTypeError, "returned int32 for float32", lambda: pb.associative_scan(lambda x, y: y.astype("int32"), pb.ones(4))),
        (pb.PullbackError, "tree like its arguments", lambda: pb.associative_scan(lambda x, y: (x, y), pb.ones(4))),
        (pb.ShapeError, "axis", lambda: pb.associative_scan(pb.add, pb.ones(4), axis=1)),
        (pb.ShapeError, "linear_recurrence", lambda: pb.linear_recurrence(pb.ones((4, 3)), STEPS)),
        (pb.ShapeError, "linear_recurrence", lambda: pb.linear_recurrence(STEPS, STEPS, 2)),
        (pb.ShapeError, "linear_recurrence", lambda: pb.linear_recurrence(STEPS, STEPS, initial=pb.ones(3))),
        (pb.ShapeError, r"initial has shape \(1, 2\)", lambda: pb.linear_recurrence(STEPS, STEPS, initial=pb.ones((1, 2)))),
        (pb.ShapeError, "input_size is 3", lambda: nn.MinGRU(3, 2)(STEPS)),
        (pb.ShapeError, r"needs \(5, 2\)", lambda: nn.MinGRU(2, 2)(pb.ones((4, 5, 2)), pb.ones((4, 2)))),
        (pb.PullbackError, "real and imaginary", lambda: nn.LRU(2, 2)(STEPS, pb.ones(2))),
        (pb.PullbackError, "r_min < r_max", lambda: nn.LRU(2, 2, r_min=0.9, r_max=0.5)),
        (pb.ShapeError, "hidden_size", lambda: nn.MinGRU(2, 0)),
    ],
)
def test_refusals(error: type[Exception], words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=words):
        call()
