"""GradientTape: nesting, persistence, watching, structures, hooks, aggregation, and what it keeps and frees."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn


def watched(value: Any, tape: Any, dtype: Any = None) -> Any:
    t = pb.tensor(value, dtype=dtype)
    tape.watch(t)
    return t


def close(got: Any, wanted: Any, rtol: float = 1e-6) -> None:
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=rtol, atol=1e-12)


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


def test_an_exception_inside_leaves_no_tape_behind() -> None:
    from pullback.primitive import listeners

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

    # the k-th derivative of sin(x) e^x is sqrt(2)^k sin(x + k pi / 4) e^x
    close(derivative(order), np.sqrt(2) ** order * np.sin(1.3 + order * np.pi / 4) * np.exp(1.3), 1e-12)


def test_inner_and_outer_sources_do_not_mix() -> None:
    """d/dx (x * d/dy (x * y)) = d/dx (x * x) = 2x: the confusion of perturbations that untagged numbers fall into."""
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
    assert second.gradient(c, x).item() == 9 * 3 + 27  # a was made before it listened: c = 9 x²
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


# ---- unconnected


def test_unconnected_three_ways() -> None:
    x, lone = pb.Parameter(2.0, name="x"), pb.Parameter([1.0, 2.0], name="lone")
    with pb.GradientTape(persistent=True) as tape:
        y = x * x
        lone * 2
    with pytest.raises(pb.UnconnectedError, match=r'source 1, Parameter "lone"'):
        tape.gradient(y, [x, lone])
    close(tape.gradient(y, [x, lone], unconnected="zero")[1], [0.0, 0.0])
    assert tape.gradient(y, [x, lone], unconnected="none")[1] is None
    with pytest.raises(pb.TapeError, match="zero"):
        tape.gradient(y, x, unconnected="ignore")


@pytest.mark.parametrize(
    ("leave", "how"),
    [
        (lambda h: pb.tensor(h.numpy()), r"numpy\(\)"), (lambda h: pb.tensor(h.item()), r"item\(\)"),
        (lambda h: pb.tensor(float(h)), r"float\(\)"), (lambda h: pb.tensor(np.asarray(h)), r"np\.asarray\(\)"),
        (lambda h: pb.tensor(h.tolist()), r"tolist\(\)"), (pb.stop_gradient, "stop_gradient"),
        (lambda h: pb.from_dlpack(np.from_dlpack(h)), r"__dlpack__\(\)"),
    ],
)  # fmt: skip
def test_the_line_where_the_path_was_cut_is_named(leave: Any, how: str) -> None:
    x = pb.Parameter(2.0)
    with pb.GradientTape() as tape:
        h = x * x
        y = leave(h) * 3
    with pytest.raises(pb.UnconnectedError, match=how + r' at ".*test_tape\.py", line \d+'):
        tape.gradient(y, x)


def test_a_hook_does_not_hide_that_a_source_is_unconnected() -> None:
    w, x = pb.Parameter(2.0), pb.tensor(1.0)
    with pb.GradientTape() as tape:
        tape.watch(x)
        h = w * 2
        tape.on_gradient(h, lambda g: None)
        y = h * h
        x * 3
    with pytest.raises(pb.UnconnectedError):
        tape.gradient(y, x)


# ---- zero gradients


@pytest.mark.parametrize(
    ("op", "name"),
    [(pb.sign, "sign"), (pb.round, "round"), (lambda x: pb.floor_divide(x, 2.0), "floor_divide"), (lambda x: x > 1, "greater"),
     (lambda x: pb.copysign(pb.ones(3), x), "copysign"), (pb.argmax, "argmax"), (lambda x: x.astype("int32"), "truncate")],
)  # fmt: skip
def test_a_gradient_that_is_zero_everywhere_warns_with_op_and_line(op: Any, name: str) -> None:
    x = pb.Parameter([1.0, 2.0, 3.0], name="x")
    with pb.GradientTape() as tape:
        y = pb.sum(op(x).astype(pb.float32))
    with pytest.warns(pb.ZeroGradientWarning, match=rf'"x".*{name}.*recorded at ".*test_tape\.py", line \d+'):
        close(tape.gradient(y, x), np.zeros(3))


def test_no_warning_where_another_path_has_a_slope() -> None:
    x = pb.Parameter(2.5)
    with pb.GradientTape() as tape:
        y = pb.round(x) * x
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tape.gradient(y, x).item() == 2.0


KINKS = [
    (pb.relu, 0.0, 0.0), (pb.abs, 0.0, 0.0), (lambda x: pb.maximum(x, 0.0), 0.0, 0.5), (lambda x: pb.minimum(x, 0.0), 0.0, 0.5),
    (lambda x: pb.clip(x, -1.0, 1.0), 1.0, 0.5), (lambda x: pb.clip(x, -1.0, 1.0), 2.0, 0.0), (pb.elu, 0.0, 1.0),
    (lambda x: pb.leaky_relu(x, 0.1), 0.0, 0.1), (lambda x: pb.hypot(x, 0.0), 0.0, 0.0), (lambda x: x**2.0, 0.0, 0.0),
    (lambda x: x**1.0, 0.0, 1.0), (lambda x: x**0.0, 0.0, 0.0), (pb.sign, 0.0, 0.0), (pb.square, 0.0, 0.0),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::pullback.ZeroGradientWarning")
@pytest.mark.parametrize(("f", "x", "slope"), KINKS)
def test_derivatives_at_kinks_are_those_of_the_table(f: Any, x: float, slope: float) -> None:
    with pb.GradientTape() as tape:
        t = watched(x, tape)
        y = f(t)
    close(tape.gradient(y, t), slope)


def test_ties_split_evenly() -> None:
    with pb.GradientTape() as tape:
        x = watched([3.0, 1.0, 3.0, 3.0], tape)
        y = pb.max(x)
    close(tape.gradient(y, x), [1 / 3, 0, 1 / 3, 1 / 3])
    with pb.GradientTape() as tape:
        a, b = watched(2.0, tape), watched(2.0, tape)
        y = pb.minimum(a, b)
    assert [g.item() for g in tape.gradient(y, [a, b])] == [0.5, 0.5]
    with pb.GradientTape() as tape:
        a, b = watched([2.0, 5.0], tape), watched([2.0, 1.0], tape)
        y = pb.sum(a.at[pb.tensor([0, 1])].max(b))
    first, second = tape.gradient(y, [a, b])
    close(first.numpy() + second.numpy(), [1.0, 1.0])


def test_where_differentiates_only_the_branch_it_chose() -> None:
    with pb.GradientTape() as tape:
        x = watched([-1.0, 4.0, 0.0], tape)
        y = pb.sum(pb.where(x > 0, pb.sqrt(x), 0 * x))
    close(tape.gradient(y, x), [0.0, 0.25, 0.0])


def test_where_keeps_the_other_branch_out_of_second_derivatives_too() -> None:
    x = pb.tensor([-1.0, 4.0, 0.0], dtype=pb.float64)
    with pb.GradientTape() as outer:
        outer.watch(x)
        with pb.GradientTape() as inner:
            inner.watch(x)
            y = pb.sum(pb.where(x > 0, pb.sqrt(x) * pb.log(x), x * x))
        (g,) = inner.gradient(y, [x])
        total = pb.sum(g)
    close(g, [-2.0, 0.25 * np.log(4.0) + 0.5, 0.0])
    close(outer.gradient(total, x), [2.0, -np.log(4.0) / (4 * 4**1.5), 2.0])


def test_a_where_inside_a_where_keeps_both_branches_out() -> None:
    with pb.GradientTape() as tape:
        x = watched([-1.0, 0.0, 4.0], tape)
        inner = pb.where(x < 0, pb.sqrt(x), pb.log(x) * pb.sqrt(x))
        y = pb.sum(pb.where(x > 0, inner, 3 * x))
    close(tape.gradient(y, x), [3.0, 3.0, 0.5 + 0.25 * np.log(4.0)])


def test_straight_through_passes_the_gradient() -> None:
    with pb.GradientTape() as tape:
        x = watched([0.2, 1.7], tape)
        y = pb.sum(pb.straight_through(pb.round)(x) ** 2)
    close(tape.gradient(y, x), [0.0, 4.0])
    with pytest.raises(pb.ShapeError, match="straight_through"):
        pb.straight_through(pb.sum)(pb.ones(3))


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


def test_a_hook_that_returns_another_shape_is_refused() -> None:
    with pb.GradientTape() as tape:
        x = watched([1.0, 2.0], tape)
        tape.on_gradient(x, lambda g: pb.sum(g))
        y = pb.sum(x * x)
    with pytest.raises(pb.TapeError, match=r"\(\).*\(2,\)"):
        tape.gradient(y, x)
    with pytest.raises(pb.TapeError, match="not on this tape"):
        tape.on_gradient(pb.ones(2), lambda g: None)


# ---- aggregation


@pytest.mark.parametrize("aggregation", ["accumulate", "add_n", "tree"])
def test_a_weight_used_256_times(aggregation: str) -> None:
    rng = np.random.default_rng(0)
    xs = rng.standard_normal((256, 8)).astype(np.float32)
    w = pb.Parameter(np.ones(8, np.float32))
    with pb.GradientTape() as tape:
        y = pb.sum(sum([w * x for x in xs], start=pb.zeros(8)))
    close(tape.gradient(y, w, aggregation=aggregation), xs.astype(np.float64).sum(0), 1e-4)


def test_tree_is_the_closest_to_float64() -> None:
    error = {name: 0.0 for name in ("accumulate", "tree")}
    for seed in range(8):
        xs = np.random.default_rng(seed).uniform(0.5, 1.5, (256, 64)).astype(np.float32)
        exact = xs.astype(np.float64).sum(0)
        w = pb.Parameter(np.ones(64, np.float32))
        with pb.GradientTape(persistent=True) as tape:
            y = [pb.sum(w * x) for x in xs]
        for name in error:
            error[name] += float(np.abs(tape.gradient(y, w, aggregation=name).numpy() - exact).sum())
    assert error["tree"] < 0.5 * error["accumulate"]


def test_an_unknown_aggregation_names_the_known_ones() -> None:
    x = pb.Parameter(1.0)
    with pb.GradientTape() as tape:
        y = x * x
    with pytest.raises(pb.TapeError, match="'accumulate', 'add_n', 'tree'"):
        tape.gradient(y, x, aggregation="mean")


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
    with pytest.raises(pb.StaleValueError, match=r'"w".*version 0 then, 1 now.*multiply.*test_tape\.py", line \d+'):
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
    """Freed temporaries give their addresses to new tensors: an id() would confuse them."""
    with pb.GradientTape() as tape:
        x = watched(1.5, tape, pb.float64)
        y = x * 0
        for k in range(500):
            pb.tensor(float(k)) * 2  # comes and goes
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
        y = pb.exp(h)  # keeps its output, not its input
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
