"""The backward pass: hooks, the summation of contributions, changes in place, kept and freed memory."""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import close, watched

# ---- hooks


def test_hooks_see_and_replace_gradients_of_leaves_and_intermediates() -> None:
    seen: list[float] = []
    with pb.GradientTape() as tape:
        x = watched(3.0, tape)
        h = x * x
        tape.on_gradient(h, lambda g: seen.append(g.item()))
        tape.on_gradient(h, lambda g: g * 10)
        tape.on_gradient(x, lambda g: g + 1)
        y = h * 2
    assert tape.gradient(y, x).item() == 2 * 10 * 6 + 1
    assert seen == [2.0]


def test_a_hook_sees_the_complete_gradient_once() -> None:
    seen: list[float] = []
    with pb.GradientTape() as tape:
        x = watched(3.0, tape)
        h = x * x
        tape.on_gradient(h, lambda g: seen.append(g.item()))
        y = h * 2 + h * 5 + pb.exp(h * 0)
    tape.gradient(y, x)
    assert seen == [7.0]


def test_a_hook_runs_though_its_tensor_is_no_source() -> None:
    seen: list[float] = []
    a, b = pb.Parameter(2.0), pb.Parameter(3.0)
    with pb.GradientTape() as tape:
        h = a * a
        tape.on_gradient(h, lambda g: seen.append(g.item()))
        tape.on_gradient(a, lambda g: seen.append(g.item()))
        y = h * b
    assert tape.gradient(y, b).item() == 4.0
    assert seen == [3.0, 12.0]


def test_a_hook_on_the_target_sees_and_replaces_what_the_backward_pass_begins_with() -> None:
    seen: list[float] = []
    with pb.GradientTape() as tape:
        x = watched(3.0, tape)
        y = x * x
        tape.on_gradient(y, lambda g: seen.append(g.item()))
        tape.on_gradient(y, lambda g: 100.0 * g)
    assert tape.gradient(y, x).item() == 600.0
    assert seen == [1.0]


def test_hooks_of_a_persistent_tape_run_in_every_backward_pass_that_reaches_them() -> None:
    seen: list[float] = []
    a, b = pb.Parameter(2.0), pb.Parameter(5.0)
    with pb.GradientTape(persistent=True) as tape:
        h = a * b
        tape.on_gradient(h, lambda g: seen.append(g.item()))
        y, aside = h * 3.0, b * 7.0
    assert [tape.gradient(y, a).item(), tape.gradient(y, h).item(), tape.gradient(aside, b).item()] == [15.0, 3.0, 7.0]
    assert seen == [3.0, 3.0]  # The third gradient does not pass through the hook.


def test_what_a_hook_returns_may_be_an_array_or_a_number_and_takes_the_gradients_dtype() -> None:
    x = pb.Parameter([1.0, 2.0])
    for replacement in (np.array([3.0, 4.0]), [3, 4], pb.tensor([3.0, 4.0], dtype=pb.float64)):
        with pb.GradientTape() as tape:
            tape.on_gradient(x, lambda g, replacement=replacement: replacement)
            y = pb.sum(x * x)
        g = tape.gradient(y, x)
        assert (g.tolist(), g.dtype) == ([3.0, 4.0], pb.float32)


def test_a_replaced_gradient_is_differentiated_as_what_the_hook_computed() -> None:
    x = pb.tensor(3.0, dtype=pb.float64)
    with pb.GradientTape() as outer:
        outer.watch(x)
        with pb.GradientTape() as inner:
            inner.watch(x)
            h = x * x
            inner.on_gradient(h, lambda g: g * pb.sin(x))
            y = h * x
        g = inner.gradient(y, x)  # 2x · (x sin x) + x²
    assert g.item() == pytest.approx(18 * np.sin(3.0) + 9)
    assert outer.gradient(g, x).item() == pytest.approx(12 * np.sin(3.0) + 18 * np.cos(3.0) + 6)


def test_an_exception_of_a_hook_reaches_the_user() -> None:
    def stop(g: Any) -> None:
        raise ZeroDivisionError("looked at")

    x = pb.Parameter(1.0)
    with pb.GradientTape() as tape:
        tape.on_gradient(x, stop)
        y = x * x
    with pytest.raises(ZeroDivisionError, match="looked at"):
        tape.gradient(y, x)


def test_gradients_at_any_node_come_from_one_backward_pass() -> None:
    """Gradients at nodes equal those of a separate backward pass to each node."""
    rng = np.random.default_rng(0)
    w1, w2 = pb.Parameter(rng.standard_normal((4, 3))), pb.Parameter(rng.standard_normal((2, 4)))
    x, seen = pb.tensor(rng.standard_normal((5, 3))), dict[str, Any]()
    with pb.GradientTape(persistent=True) as tape:
        s = x @ w1.mT
        a = pb.tanh(s)
        o = a @ w2.mT
        loss = pb.mean(pb.square(o))
    separate = {name: tape.gradient(loss, node) for name, node in {"s": s, "a": a, "o": o}.items()}
    for name, node in {"s": s, "a": a, "o": o}.items():
        tape.on_gradient(node, lambda g, name=name: seen.__setitem__(name, g))
    together = tape.gradient(loss, [w1, w2, s, a, o])
    for name, g in zip(("s", "a", "o"), together[2:]):
        close(seen[name], separate[name])
        close(g, separate[name])
    close(together[0], separate["s"].numpy().T @ x.numpy())
    close(together[1], separate["o"].numpy().T @ a.numpy())


def test_a_hook_that_returns_another_shape_is_refused() -> None:
    with pb.GradientTape() as tape:
        x = watched([1.0, 2.0], tape)
        tape.on_gradient(x, lambda g: pb.sum(g))
        y = pb.sum(x * x)
    with pytest.raises(pb.TapeError, match=r"\(\).*\(2,\)"):
        tape.gradient(y, x)
    with pytest.raises(pb.TapeError, match="not on this tape"):
        tape.on_gradient(pb.ones(2), lambda g: None)


# ---- sums of contributions


def test_accumulating_does_not_write_into_what_others_hold() -> None:
    x, g = pb.Parameter([1.0, 1.0]), np.array([1.0, 2.0], np.float32)
    with pb.GradientTape() as tape:
        y = x + x + x
    close(tape.gradient(y, x, output_gradients=g), [3.0, 6.0])
    close(g, [1.0, 2.0])


# ---- changes in place


def test_a_parameter_changed_before_the_backward_pass_is_an_error() -> None:
    w = pb.Parameter([1.0, 2.0], name="w")
    with pb.GradientTape() as tape:
        y = pb.sum(w * w)
    w.assign([5.0, 5.0])
    with pytest.raises(pb.StaleValueError, match=r'"w".*version 0 then, 1 now.*multiply.*test_backward\.py", line \d+'):
        tape.gradient(y, w)


@pytest.mark.parametrize("view", [lambda w: w[:2], lambda w: w.T, lambda w: pb.reshape(w, (2, 2)), lambda w: w[None]])
def test_a_view_of_a_changed_parameter_is_an_error_too(view: Any) -> None:
    w = pb.Parameter(np.ones((4,), np.float32), name="w")
    with pb.GradientTape() as tape:
        v = view(w)
        y = pb.sum(v * v)
    w.assign(np.zeros(4))
    with pytest.raises(pb.StaleValueError, match='"w"'):
        tape.gradient(y, w)


def test_an_op_that_does_not_need_the_old_value_does_not_mind() -> None:
    w = pb.Parameter([1.0, 2.0])
    with pb.GradientTape() as tape:
        y = pb.sum(w + 1)
    w.assign([5.0, 5.0])
    close(tape.gradient(y, w), [1.0, 1.0])


def test_a_new_value_is_used_by_the_next_forward_pass() -> None:
    w = pb.Parameter(2.0)
    for value in (2.0, 5.0):
        w.assign(value)
        with pb.GradientTape() as tape:
            y = w * w
        assert tape.gradient(y, w).item() == 2 * value


# ---- memory and identity


def test_serials_and_not_addresses_identify_values() -> None:
    """New tensors reuse the addresses of freed temporaries, so id() would confuse them."""
    with pb.GradientTape() as tape:
        x = watched(1.5, tape, pb.float64)
        y = x * 0
        for k in range(500):
            pb.tensor(float(k)) * 2  # a temporary that is freed at once
            y = y + x * float(k)
            gc.collect(0)
    assert tape.gradient(y, x).item() == sum(range(500))


def test_what_was_kept_is_freed_as_the_backward_pass_consumes_it() -> None:
    alive: list[int] = []
    with pb.GradientTape() as tape:
        x = watched(np.ones(1000), tape)
        h, kept = x, []
        for _ in range(4):
            h = pb.tanh(h)
            kept.append(weakref.ref(h))
            tape.on_gradient(h, lambda g: alive.append(sum([ref() is not None for ref in kept])))
        y = pb.sum(h)
    del h
    tape.gradient(y, x)
    gc.collect()
    assert alive == sorted(alive, reverse=True)
    assert alive[-1] < alive[0]
    assert [ref() for ref in kept] == [None] * 4
    assert tape.nodes == []


def test_a_pullback_keeps_only_what_it_names() -> None:
    with pb.GradientTape() as tape:
        x = watched(np.ones(1000), tape)
        h = x + 1
        inner = weakref.ref(h)
        y = pb.exp(h)  # exp keeps its output and not its input.
        del h
        gc.collect()
        assert inner() is None
        z = pb.sum(y)
    close(tape.gradient(z, x), np.full(1000, np.exp(2.0)))


def test_a_dropped_tape_frees_everything() -> None:
    x = pb.Parameter(np.ones(10))
    tape = pb.GradientTape()
    with tape:
        y = pb.tanh(x)
        z = pb.sum(y)
    ref = weakref.ref(y)
    del y, z, tape
    gc.collect()
    assert ref() is None


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 3), (2, 1, 4), (0, 3)])
def test_sums_and_means_spread_the_cotangent_over_any_axes(shape: tuple[int, ...], keepdims: bool) -> None:
    rng = np.random.default_rng(0)
    for axes in [c for r in range(len(shape) + 1) for c in itertools.combinations(range(len(shape)), r)]:
        for f in (pb.sum, pb.mean) if 0 not in shape else (pb.sum,):
            with pb.GradientTape() as tape:
                x = watched(rng.standard_normal(shape), tape)
                y = f(x, axis=axes, keepdims=keepdims)
            g = rng.standard_normal(y.shape)
            cells = g.reshape([1 if i in axes else n for i, n in enumerate(shape)])
            count = np.prod([shape[i] for i in axes]) if f is pb.mean else 1
            got = tape.gradient(y, x, output_gradients=g)
            np.testing.assert_allclose(got.numpy(), np.broadcast_to(cells / count, shape), rtol=1e-6)


def test_what_a_function_returns_beside_its_value_has_no_part_in_the_gradient() -> None:
    def f(x: Any, scale: Any) -> Any:
        y = pb.sum(scale * x**3)
        return y, {"square": x * x, "name": "aux"}

    x = np.array([1.0, -2.0])
    (value, aux), gradient = pb.value_and_grad(f, has_aux=True)(pb.tensor(x), 2.0)
    assert value.item() == 2 * (x**3).sum()
    np.testing.assert_array_equal(gradient.numpy(), 6 * x**2)
    np.testing.assert_array_equal(aux["square"].numpy(), x * x)
    again, (_, second) = pb.grad(f, argnums=(0, 1), has_aux=True)(pb.tensor(x), pb.tensor(2.0, dtype=pb.float64))[::-1]
    assert again["name"] == "aux"
    assert second.item() == (x**3).sum()
    value, gradient = pb.value_and_grad(lambda x: f(x, 1.0)[0])(pb.tensor(x))
    assert value.item() == (x**3).sum()
    np.testing.assert_array_equal(gradient.numpy(), 3 * x**2)
