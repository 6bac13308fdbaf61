"""Functions with a pullback of their own: any order of derivative, structures, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import close, watched
from pullback.autodiff.node import named


@pb.custom_gradient
def log1pexp(x: Any) -> Any:
    e = pb.exp(x)
    return pb.log(1 + e), lambda g: g * (1 - 1 / (1 + e))


POINTS = np.array([-30.0, -2.0, 0.0, 0.7, 5.0, 100.0])


def sigmoid_derivatives(x: Any) -> list[Any]:
    """The first three derivatives of log(1 + e^x), in closed form."""
    s = 1 / (1 + np.exp(-x))
    return [s, s * (1 - s), s * (1 - s) * (1 - 2 * s)]


# ---- derivatives


def test_the_pullback_is_the_rule_and_not_the_forward_pass() -> None:
    x = pb.tensor([1000.0])
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = pb.sum(log1pexp(x))
    assert tape.gradient(y, x).item() == 1.0  # the ops inside would give NaN here


def test_the_second_and_third_derivative_see_what_the_pullback_kept() -> None:
    x = pb.tensor(POINTS)
    with pb.GradientTape() as outer:
        outer.watch(x)
        with pb.GradientTape() as middle:
            middle.watch(x)
            with pb.GradientTape() as inner:
                inner.watch(x)
                y = pb.sum(log1pexp(x))
            first = inner.gradient(y, x)
        second = middle.gradient(first, x, output_gradients=pb.ones_like(x))
    third = outer.gradient(second, x, output_gradients=pb.ones_like(x))
    for ours, closed in zip((first, second, third), sigmoid_derivatives(POINTS)):
        close(ours, closed, rtol=1e-9)


def test_a_persistent_tape_differentiates_its_own_pullback() -> None:
    x = pb.tensor(POINTS)
    with pb.GradientTape(persistent=True) as tape:
        tape.watch(x)
        first = tape.gradient(pb.sum(log1pexp(x)), x)
        second = tape.gradient(pb.sum(first), x)
    close(second, sigmoid_derivatives(POINTS)[1], rtol=1e-9)


def test_finite_differences_agree_through_two_orders() -> None:
    @pb.custom_gradient
    def product(d: Any, b: Any) -> Any:
        y = d["x"] * pb.sin(b)
        return {"y": y, "pair": (b * b,)}, lambda g: ({"x": g["y"] * pb.sin(b)}, g["y"] * d["x"] * pb.cos(b) + 2 * b * g["pair"][0])

    def f(x: Any, b: Any) -> Any:
        out = product({"x": pb.exp(x)}, b)
        return pb.tanh(out["y"]) * out["pair"][0]

    pb.check_gradients(f, (np.array([0.3, -0.2]), np.array([0.5, 1.1])), order=2)


def test_one_tape_alone_records_two_nodes_and_nothing_inside() -> None:
    with pb.GradientTape() as tape:
        log1pexp(watched([1.0, 2.0], tape))
    assert [node.op.name for node in named(tape.nodes)] == ["log1pexp", "output"]


def test_an_output_that_nobody_used_has_a_cotangent_of_zeros() -> None:
    seen: list[Any] = []

    @pb.custom_gradient
    def two(x: Any) -> Any:
        return (x * 2, {"rest": x[:1], "count": 7}), lambda g: (seen.append(g), g[0] * 2)[1]

    with pb.GradientTape() as tape:
        x = watched([1.0, 2.0], tape)
        y, _ = two(x)
        total = pb.sum(y)
    close(tape.gradient(total, x), [2.0, 2.0])
    (((_, rest),),) = (seen,)
    close(rest["rest"], [0.0])
    assert rest["count"] is None


def test_options_are_passed_through_and_not_differentiated() -> None:
    @pb.custom_gradient
    def scaled(x: Any, *, by: Any) -> Any:
        return x * by, lambda g: g * by

    by = pb.Parameter(3.0)
    with pb.GradientTape() as tape:
        x = watched(2.0, tape)
        y = scaled(x, by=by)
    gx, gby = tape.gradient(y, [x, by], unconnected="none")
    assert gx.item() == 3.0
    assert gby is None


def test_a_value_that_is_the_argument_itself_still_goes_by_the_rule() -> None:
    @pb.custom_gradient
    def reversed_gradient(x: Any) -> Any:
        return x, lambda g: -g

    w = pb.Parameter([1.0, 2.0])
    with pb.GradientTape() as tape:
        y = pb.sum(reversed_gradient(w) * 3)
    close(tape.gradient(y, w), [-3.0, -3.0])


# ---- what is refused


def gradient_of(pullback: Any, *args: Any) -> None:
    @pb.custom_gradient
    def f(*args: Any) -> Any:
        return args[0] * 1, pullback

    with pb.GradientTape() as tape:
        tape.watch(args[0])
        y = pb.sum(f(*args))
    tape.gradient(y, args[0])


def test_a_pullback_of_another_number_structure_or_shape_is_named() -> None:
    a, b = pb.tensor([1.0, 2.0]), pb.tensor([3.0])
    with pytest.raises(pb.TapeError, match=r"f was called with 2 positional arguments.* and returned 3 of them.*recorded at"):
        gradient_of(lambda g: (g, g, g), a, b)
    with pytest.raises(pb.TapeError, match="returned a Tensor"):
        gradient_of(lambda g: g, a, b)
    with pytest.raises(pb.TapeError, match=r"argument 1 of f has the structure .*'x'.*, the argument \*"):
        gradient_of(lambda g: (g, {"x": g}), a, b)
    with pytest.raises(pb.ShapeError, match=r"shape \(2,\) for argument 1 of f.*\(1,\)"):
        gradient_of(lambda g: (g, g), a, b)
    with pytest.raises(pb.ShapeError, match=r"shape \(\) for the argument of f"):
        gradient_of(lambda g: 1.0, a)


def test_a_function_that_returns_no_pullback_is_named() -> None:
    @pb.custom_gradient
    def no_pullback(x: Any) -> Any:
        return x * 2

    with pytest.raises(pb.TapeError, match=r"no_pullback must return two things.*a Tensor"):
        no_pullback(pb.tensor(1.0))


def test_a_watched_value_that_is_no_argument_is_an_error_and_not_a_missing_gradient() -> None:
    w = pb.Parameter([1.0, 2.0], name="w")

    @pb.custom_gradient
    def closes_over(x: Any) -> Any:
        return x * w, lambda g: g * w

    @pb.custom_gradient
    def stops(x: Any) -> Any:
        return x * pb.stop_gradient(w), lambda g: g * w

    with pb.GradientTape() as tape:
        x = watched([1.0, 1.0], tape)
        with pytest.raises(pb.TapeError, match=r'closes_over uses Parameter "w".*not an argument'):
            closes_over(x)
        y = pb.sum(stops(x))
    close(tape.gradient(y, x), [1.0, 2.0])


def test_a_parameter_that_changes_before_the_backward_pass_is_an_error() -> None:
    w = pb.Parameter([1.0, 2.0], name="w")

    @pb.custom_gradient
    def square(x: Any) -> Any:
        return x * x, lambda g: 2 * g * x

    with pb.GradientTape() as tape:
        y = pb.sum(square(w))
    w.assign([3.0, 4.0])
    with pytest.raises(pb.StaleValueError, match='"w" was changed in place'):
        tape.gradient(y, w)


def test_an_argument_without_a_gradient_has_no_tangent() -> None:
    """A pullback that gives None for an argument says that the value does not depend on it, in forward mode too."""
    product = pb.custom_gradient(lambda x, y: (x * y, lambda g: (None, g * x)))
    x, y, t = pb.tensor([1.0, 2.0]), pb.tensor([3.0, 4.0]), pb.tensor([1.0, 0.5])
    value, tangent = pb.jvp(lambda x: product(x, y), (x,), (t,))
    close(value, [3.0, 8.0])
    close(tangent, [0.0, 0.0])
    close(pb.jvp(lambda y: product(x, y), (y,), (t,))[1], [1.0, 1.0])
    close(pb.jvp(product, (x, y), (t, t))[1], [1.0, 1.0])
