"""Functions with a custom pullback: derivatives of any order, structures and refusals."""

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
    """Returns the first three derivatives of log(1 + e^x) in closed form."""
    s = 1 / (1 + np.exp(-x))
    return [s, s * (1 - s), s * (1 - s) * (1 - 2 * s)]


# ---- derivatives


def test_the_pullback_is_the_rule_and_not_the_forward_pass() -> None:
    x = pb.tensor([1000.0])
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = pb.sum(log1pexp(x))
    assert tape.gradient(y, x).item() == 1.0  # The pullbacks of the ops inside would yield NaN.


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


# ---- refusals


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
    """If a pullback returns None for an argument, the value does not depend on the argument, in forward mode either."""
    product = pb.custom_gradient(lambda x, y: (x * y, lambda g: (None, g * x)))
    x, y, t = pb.tensor([1.0, 2.0]), pb.tensor([3.0, 4.0]), pb.tensor([1.0, 0.5])
    value, tangent = pb.jvp(lambda x: product(x, y), (x,), (t,))
    close(value, [3.0, 8.0])
    close(tangent, [0.0, 0.0])
    close(pb.jvp(lambda y: product(x, y), (y,), (t,))[1], [1.0, 1.0])
    close(pb.jvp(product, (x, y), (t, t))[1], [1.0, 1.0])


def test_the_only_gradient_may_come_in_a_tuple() -> None:
    x = pb.tensor([1.0, 2.0])

    def derivative(pullback: Any, f: Any, *args: Any) -> Any:
        rule = pb.custom_gradient(lambda *given: (f(*given), pullback))
        return pb.grad(lambda *given: pb.sum(rule(*given)))(*args)

    close(derivative(lambda g: (3 * g,), lambda a: a * 2, x), [3.0, 3.0])
    close(derivative(lambda g: {"a": 3 * g}, lambda d: d["a"] * 2, {"a": x})["a"], [3.0, 3.0])
    close(derivative(lambda g: ({"a": 3 * g},), lambda d: d["a"] * 2, {"a": x})["a"], [3.0, 3.0])
    for pullback in (lambda g: (3 * g,), lambda g: ((3 * g,),), lambda g: [(3 * g,)]):  # the argument is a tuple itself
        (gx,) = derivative(pullback, lambda pair: pair[0] * 2, (x,))
        close(gx, [3.0, 3.0])
    with pytest.raises(pb.TapeError, match=r"called with 1 positional argument.*must return 1 gradient, and returned 2 of them"):
        derivative(lambda g: (g, None), lambda a: a * 2, x)


# ---- forward mode, which transposes the pullback


NOT_LINEAR: dict[str, Any] = {
    "clips at 1": lambda g: pb.clip(g, -1.0, 1.0),
    "clips at 100": lambda g: pb.clip(g, -100.0, 100.0),
    "clips the norm": lambda g: g * pb.minimum(1.0, 5.0 / pb.sqrt(pb.sum(g * g))),
    "normalizes": lambda g: g / pb.sqrt(pb.sum(g * g)),
    "keeps positive ones": lambda g: pb.maximum(g, 0.0),
    "keeps the largest": lambda g: pb.where(pb.abs(g) >= pb.max(pb.abs(g)), g, 0.0),
    "drops small ones": lambda g: pb.where(pb.abs(g) > 0.01, g, 0.0),
    "adds": lambda g: g + 0.01,
}
FORWARD: dict[str, Any] = {
    "jvp": lambda f, x: pb.jvp(f, (x,), (x,)),
    "linearize": lambda f, x: pb.linearize(f, x)[1](x),
    "jacobian": lambda f, x: pb.jacobian(f, mode="forward")(x),
    "hvp": lambda f, x: pb.hvp(lambda x: pb.sum(f(x) ** 2), x, x),
    "hessian": lambda f, x: pb.hessian(lambda x: pb.sum(f(x) ** 2))(x),
    "jvp of a vmap": lambda f, x: pb.jvp(pb.vmap(lambda one: f(x * one)), (x,), (x,)),
    "vmap of a jvp": lambda f, x: pb.vmap(lambda one: pb.jvp(f, (x * one,), (x,)))(x),
    "jvp of a checkpoint": lambda f, x: pb.jvp(pb.checkpoint(f), (x,), (x,)),
    "linearize of a checkpoint": lambda f, x: pb.linearize(pb.checkpoint(f), x)[1](x),
}


@pytest.mark.parametrize("forward", FORWARD)
@pytest.mark.parametrize("pullback", NOT_LINEAR)
def test_forward_mode_refuses_a_pullback_that_is_not_linear(pullback: str, forward: str) -> None:
    rule = pb.custom_gradient(lambda x: (x * 2, NOT_LINEAR[pullback]))
    with pytest.raises(pb.TapeError, match=r"custom_gradient: the pullback of .* is not linear in the cotangent: for .*reverse"):
        FORWARD[forward](rule, pb.tensor([1.0, -2.0, 3.0]))


@pytest.mark.parametrize("pullback", NOT_LINEAR)
def test_a_jacobian_of_more_outputs_than_inputs_takes_such_a_pullback_in_reverse(pullback: str) -> None:
    rule, x = pb.custom_gradient(lambda x: (x * 2, NOT_LINEAR[pullback])), pb.tensor([1.0, -2.0, 3.0])

    def tall(x: Any) -> Any:
        return rule(x) * pb.tensor([[1.0], [20.0]])

    wanted = [[pb.grad(lambda x, i=i, j=j: tall(x)[i, j])(x).numpy() for j in range(3)] for i in range(2)]
    for _ in range(2):  # the second call could use the choice of the first
        close(pb.jacobian(tall)(x), np.array(wanted))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_forward_mode_through_linear_pullbacks_of_any_size_is_their_transpose(dtype: str) -> None:
    x = pb.tensor([1.0, -2.0, 3.0]).astype(getattr(pb, dtype))
    matrix = np.array([[1.0, 2.0, 0.0], [0.0, -1.0, 4.0], [0.5, 0.0, 1.0]])
    a = pb.asarray(matrix).astype(x.dtype)
    for size in (1.0, 2.0**10, 2.0**-10):
        rule = pb.custom_gradient(lambda x, size=size: (a @ x, lambda g: (g @ a) * size))
        close(pb.jvp(rule, (x,), (x,))[1].astype(pb.float64), matrix @ x.astype(pb.float64).numpy() * size, rtol=0.02)


def test_a_black_box_with_a_formula_that_is_not_linear_has_no_forward_mode() -> None:
    x = pb.tensor([1.0, -2.0])
    clipped = pb.black_box(lambda z: z * 2, gradient=lambda g, x, y: pb.clip(2 * g, -1.0, 1.0))
    with pytest.raises(pb.TapeError, match=r"black_box: the pullback of .* is not linear"):
        pb.jvp(clipped, (x,), (x,))
    estimated = pb.black_box(lambda z: z * 2)
    close(pb.jvp(estimated, (x,), (x,))[1], [2.0, -4.0])
    assert estimated.stats.backward_calls == 1  # an estimate is linear, so nothing is evaluated to find out
