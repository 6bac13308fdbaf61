"""GradientTape: sources and targets, persistence, nesting to any order, threads and whole models."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import close, watched
from pullback import nn, optim

# ---- first derivatives


def test_parameters_are_watched_by_themselves() -> None:
    w1, w2 = pb.Parameter(5.0), pb.Parameter(3.0)
    with pb.GradientTape() as tape:
        z = 3 * w1**2 + 2 * w1 * w2
    d1, d2 = tape.gradient(z, [w1, w2])
    assert (d1.item(), d2.item()) == (36.0, 10.0)


def test_watch_parameters_false_watches_only_what_is_named() -> None:
    w1, w2 = pb.Parameter(5.0), pb.Parameter(3.0)
    with pb.GradientTape(watch_parameters=False) as tape:
        tape.watch(w1)
        z = w1 * w2
    assert tape.gradient(z, w1).item() == 3.0
    with pb.GradientTape(watch_parameters=False) as tape:
        tape.watch(w1)
        z = w1 * w2
    with pytest.raises(pb.UnconnectedError):
        tape.gradient(z, [w1, w2])


def test_a_parameter_that_is_a_target_itself_has_the_derivative_1() -> None:
    w, other = pb.Parameter(5.0), pb.Parameter(3.0)

    def recorded() -> pb.GradientTape:
        with pb.GradientTape() as tape:
            pass
        return tape

    assert recorded().gradient(w, w).item() == 1.0
    assert recorded().gradient(w, [w, other], unconnected="zero") == [1.0, 0.0]
    assert [g.item() for g in recorded().gradient([w, other], [w, other])] == [1.0, 1.0]
    assert recorded().jacobian(w, w).item() == 1.0
    assert recorded().diagnose(w, [w, other]).without_gradient == [other.label()]
    with pb.GradientTape() as tape:
        y = w * recorded().gradient(w, w)
    assert tape.gradient(y, w).item() == 1.0
    optim.SGD([w], lr=1.0).minimize(lambda: w)
    assert w.item() == 4.0
    with pytest.raises(pb.UnconnectedError):
        recorded().gradient(w, other)


def test_a_parameter_that_is_not_trainable_is_a_constant() -> None:
    frozen, w = pb.Parameter(2.0, name="frozen", trainable=False), pb.Parameter(3.0)
    with pb.GradientTape() as tape:
        z = frozen * w
    assert tape.gradient(z, w).item() == 2.0
    with pb.GradientTape() as tape:
        z = frozen * w
    with pytest.raises(pb.UnconnectedError, match=r'"frozen".*not trainable'):
        tape.gradient(z, frozen)


def test_a_tensor_that_was_not_watched_is_never_silently_zero() -> None:
    w, x = pb.Parameter([1.0, 2.0]), pb.tensor([3.0, 4.0])
    with pb.GradientTape() as tape:
        z = pb.sum(w * x)
    with pytest.raises(pb.UnconnectedError, match=r"source 1.*not watched.*tape\.watch"):
        tape.gradient(z, [w, x])


def test_intermediate_tensors_are_sources_and_targets() -> None:
    with pb.GradientTape(persistent=True) as tape:
        x = watched(3.0, tape)
        h = x * x
        y = h * h
    assert tape.gradient(y, h).item() == 18.0
    assert tape.gradient(h, x).item() == 6.0
    assert [g.item() for g in tape.gradient(y, [x, h])] == [108.0, 18.0]
    assert tape.gradient(y, y).item() == 1.0


def test_a_leaf_a_view_and_a_later_value_as_targets_and_sources() -> None:
    with pb.GradientTape(persistent=True) as tape:
        x = watched([1.0, 2.0, 3.0], tape)
        part = x[1:]
        y = pb.sum(part * part)
        z = y * y
    assert tape.gradient(x, x, output_gradients=[1.0, 5.0, 1.0]).tolist() == [1.0, 5.0, 1.0]
    assert tape.gradient(part, x, output_gradients=[3.0, 4.0]).tolist() == [0.0, 3.0, 4.0]
    assert tape.gradient(z, part).tolist() == [8 * 13.0, 12 * 13.0]
    assert [g.item() for g in tape.gradient({"y": y, "z": [z]}, [y])] == [1 + 26.0]
    with pytest.raises(pb.UnconnectedError):
        tape.gradient(y, z)  # z is computed after y.


def test_the_structure_of_the_sources_is_that_of_the_result() -> None:
    a, b, c = pb.Parameter(1.0), pb.Parameter(2.0), pb.Parameter(3.0)
    with pb.GradientTape() as tape:
        z = a * b * c
    grads = tape.gradient(z, {"a": a, "rest": [b, (c,)]})
    assert grads["a"].item() == 6.0
    assert isinstance(grads["rest"][1], tuple)
    assert (grads["rest"][0].item(), grads["rest"][1][0].item()) == (3.0, 2.0)


def test_several_targets_are_summed() -> None:
    x = pb.Parameter(2.0)
    with pb.GradientTape(persistent=True) as tape:
        targets = {"square": x * x, "cube": [x * x * x]}
    assert tape.gradient(targets, x).item() == 4.0 + 12.0
    assert tape.gradient([targets["square"]] * 3, x).item() == 12.0


def test_output_gradients_are_the_cotangents() -> None:
    x = pb.Parameter([1.0, 2.0, 3.0])
    with pb.GradientTape(persistent=True) as tape:
        y = x * x
        z = pb.sum(x)
    close(tape.gradient(y, x, output_gradients=[1.0, 0.0, -1.0]), [2.0, 0.0, -6.0])
    close(tape.gradient([y, z], x, output_gradients=[np.ones(3, np.float32), 10.0]), [12.0, 14.0, 16.0])
    with pytest.raises(pb.ShapeError, match=r"\(2,\).*\(3,\)"):
        tape.gradient(y, x, output_gradients=[1.0, 2.0])
    with pytest.raises(pb.TapeError, match=r"2 target.*1 output_gradients"):
        tape.gradient([y, z], x, output_gradients=[y])


def test_the_same_tensor_twice_among_the_sources() -> None:
    x = pb.Parameter(3.0)
    with pb.GradientTape() as tape:
        y = x * x
    assert [g.item() for g in tape.gradient(y, [x, x])] == [6.0, 6.0]


def test_broadcasting_is_undone() -> None:
    with pb.GradientTape() as tape:
        a, b, c = watched(np.ones((3, 1)), tape), watched(np.ones((4,)), tape), watched(2.0, tape, pb.float64)
        y = pb.sum(a * b + c)
    for g, x, n in zip(tape.gradient(y, [a, b, c]), (a, b, c), (4.0, 3.0, 12.0)):
        close(g, np.full(x.shape, n))


# ---- persistence, recording, reset


def test_a_tape_that_is_not_persistent_is_used_once() -> None:
    x = pb.Parameter(1.0)
    with pb.GradientTape() as tape:
        y = x * x
    tape.gradient(y, x)
    with pytest.raises(pb.TapeError, match=r"persistent=True"):
        tape.gradient(y, x)


def test_a_persistent_tape_is_used_again() -> None:
    x = pb.Parameter(3.0)
    with pb.GradientTape(persistent=True) as tape:
        y = x**3
    assert [tape.gradient(y, x).item() for _ in range(3)] == [27.0] * 3


def test_a_gradient_inside_the_tape_is_recorded_only_by_a_persistent_one() -> None:
    x = pb.Parameter(3.0)
    with pb.GradientTape(persistent=True) as tape:
        y = x**3
        dy = tape.gradient(y, x)
    assert tape.gradient(dy, x).item() == 18.0
    with pb.GradientTape() as tape:
        y = x**3
        dy = tape.gradient(y, x)
        after = dy * x
    assert after.item() == 81.0
    with pytest.raises(pb.TapeError):
        tape.gradient(after, x)


def test_stop_recording_makes_constants() -> None:
    with pb.GradientTape() as tape:
        x = watched(2.0, tape)
        y = x * x
        with tape.stop_recording():
            c = x * 10
        z = y + c * x
    assert tape.gradient(z, x).item() == 4.0 + 20.0


def test_reset_forgets() -> None:
    with pb.GradientTape() as tape:
        x = watched(2.0, tape)
        x * x
        tape.reset()
        assert tape.nodes == []
        tape.watch(x)
        y = x * 3
    assert tape.gradient(y, x).item() == 3.0


def test_ops_outside_the_tape_are_not_recorded() -> None:
    x = pb.Parameter(2.0)
    with pb.GradientTape() as tape:
        y = x * x
    z = y * 3
    with pytest.raises(pb.UnconnectedError):
        tape.gradient(z, x)


def test_a_tape_cannot_be_entered_twice_at_once() -> None:
    with pb.GradientTape() as tape, pytest.raises(pb.TapeError, match="another"), tape:
        pass


def test_a_subclass_of_parameter_is_watched() -> None:
    class Weight(pb.Parameter):
        pass

    w = Weight([2.0])
    with pb.GradientTape() as tape:
        y = pb.sum(w * w)
    assert tape.gradient(y, w).tolist() == [4.0]


def test_a_refused_question_leaves_the_tape_recording() -> None:
    x, lone = pb.Parameter(3.0), pb.Parameter(1.0)
    with pb.GradientTape() as tape:
        y = x * x
        with pytest.raises(pb.UnconnectedError):
            tape.gradient(y, lone)
        z = y * x
    assert tape.gradient(z, x).item() == 27.0


def test_memory_imported_through_dlpack_keeps_its_version() -> None:
    p, w = pb.Parameter([1.0, 2.0]), pb.Parameter(1.0)
    with pb.GradientTape() as tape:
        y = pb.sum(pb.from_dlpack(p) * w)
    p.assign([7.0, 8.0])
    with pytest.raises(pb.StaleValueError):
        tape.gradient(y, w)


def test_an_exception_inside_leaves_no_tape_behind() -> None:
    from pullback.autodiff.listeners import listeners

    with pytest.raises(ZeroDivisionError), pb.GradientTape():
        raise ZeroDivisionError
    assert listeners.stack == ()


# ---- nesting


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_tapes_nest_to_any_order(order: int) -> None:
    x = pb.tensor(1.3, dtype=pb.float64)

    def derivative(k: int) -> Any:
        if k == 0:
            return pb.sin(x) * pb.exp(x)
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = derivative(k - 1)
        return tape.gradient(y, x)

    # The k-th derivative of sin(x) e^x is sqrt(2)^k sin(x + k pi / 4) e^x.
    close(derivative(order), np.sqrt(2) ** order * np.sin(1.3 + order * np.pi / 4) * np.exp(1.3), 1e-12)


def test_inner_and_outer_sources_do_not_mix() -> None:
    """d/dx (x * d/dy (x * y)) = d/dx (x * x) = 2x. Dual numbers without tags would confuse the two perturbations here."""
    x, y = pb.tensor(3.0), pb.tensor(5.0)
    with pb.GradientTape() as outer:
        outer.watch(x)
        with pb.GradientTape() as inner:
            inner.watch(y)
            z = x * y
        w = x * inner.gradient(z, y)
    assert outer.gradient(w, x).item() == 6.0


def test_the_inner_gradient_is_taken_outside_the_outer_tape_too() -> None:
    x = pb.tensor(2.0)
    with pb.GradientTape() as outer:
        outer.watch(x)
        with pb.GradientTape() as inner:
            inner.watch(x)
            y = x**3
        d = inner.gradient(y, x)
        z = d * d
    assert outer.gradient(z, x).item() == 2 * 12 * 12  # d = 3x², d' = 6x


def test_tapes_that_overlap_without_nesting() -> None:
    x = pb.tensor(3.0)
    first, second = pb.GradientTape(), pb.GradientTape()
    with first:
        first.watch(x)
        a = x * x
        second.__enter__()
        second.watch(x)
        b = a * x
    c = b * x
    second.__exit__(None, None, None)
    assert second.gradient(c, x).item() == 9 * 3 + 27  # `a` precedes the second tape, so c = 9 x² to that tape.
    assert first.gradient(b, x).item() == 27.0


def test_a_hessian_by_two_tapes_is_the_matrix() -> None:
    a = np.array([[2.0, 1.0], [1.0, 3.0]])
    x = pb.tensor([1.0, -1.0], dtype=pb.float64)
    with pb.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with pb.GradientTape() as inner:
            inner.watch(x)
            y = 0.5 * (x @ (pb.tensor(a) @ x))
        g = inner.gradient(y, x)
        rows = [g[0], g[1]]
    close(np.stack([outer.gradient(row, x).numpy() for row in rows]), a)


def test_a_persistent_inner_tape_under_an_outer_one() -> None:
    x = pb.tensor(2.0)
    with pb.GradientTape() as outer:
        outer.watch(x)
        with pb.GradientTape(persistent=True) as inner:
            inner.watch(x)
            y, z = x**2, x**3
        total = inner.gradient(y, x) * inner.gradient(z, x)  # 2x * 3x²
    assert outer.gradient(total, x).item() == 18 * 4.0


def test_second_derivatives_of_parameters() -> None:
    w = pb.Parameter(2.0)
    with pb.GradientTape() as outer:
        with pb.GradientTape() as inner:
            y = pb.exp(w * w)
        dy = inner.gradient(y, w)
    close(outer.gradient(dy, w), (2 + 4 * 4) * np.exp(4.0), 1e-6)


# ---- threads


def test_tapes_are_per_thread() -> None:
    w = pb.Parameter(3.0)
    results: list[float] = []

    def work(k: int) -> None:
        for _ in range(50):
            with pb.GradientTape() as mine:
                y = w * float(k)
            results.append(mine.gradient(y, w).item() - k)

    with pb.GradientTape() as tape:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        y = w * w
        for thread in threads:
            thread.join()
    assert results == [0.0] * 200
    assert len(tape.nodes) == 1
    assert tape.gradient(y, w).item() == 6.0


# ---- whole models


def test_a_network_agrees_with_finite_differences_twice() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((5, 3))
    weights = [rng.standard_normal(shape) * 0.5 for shape in ((4, 3), (4,), (2, 4), (2,))]

    def loss(w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        h = nn.functional.linear(pb.tensor(x), w1, b1, activation="tanh")
        return pb.mean(pb.square(h @ w2.mT + b2))

    assert pb.check_gradients(loss, weights, order=2) < 1e-6
