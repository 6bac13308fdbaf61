"""Derivatives of first to third order at ties, zeros, ones, large numbers and infinities, in every mode, against mpmath."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import close, host
from pullback import nn

mpmath = pytest.importorskip("mpmath", reason="mpmath is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::pullback.ZeroGradientWarning")
DIGITS = 120
ORDERS = (1, 2, 3)


def reverse(f: Callable[..., Any], place: int) -> Callable[..., Any]:
    return pb.grad(f, argnums=place)


def forward(f: Callable[..., Any], place: int) -> Callable[..., Any]:
    return lambda *xs: pb.jvp(f, xs, tuple([pb.ones_like(x) if k == place else pb.zeros_like(x) for k, x in enumerate(xs)]))[1]


def derivative(f: Callable[..., Any], places: Sequence[int], modes: Sequence[Any]) -> Callable[..., Any]:
    """Returns the derivative with respect to the arguments at these positions, one after another."""
    for place, mode in zip(places, modes):
        f = mode(f, place)
    return f


def tensors(point: Sequence[float]) -> list[Any]:
    return [pb.tensor(v, dtype="float64") for v in point]


@functools.cache
def truth(f: Callable[..., Any], point: tuple[float, ...], counts: tuple[int, ...]) -> float:
    with mpmath.workdps(DIGITS):
        return float(mpmath.diff(f, tuple([mpmath.mpf(v) for v in point]), counts))


MODES = [(reverse,) * 3, (forward,) * 3, (reverse, forward, reverse)]

# ---- functions of one number at points where they are smooth

ROOT_HALF = "0.70710678118654752440084436210484903928483593768847403658833986899536623923105"
SLOPE, CUBE = "1.5957691216057307117597842397375274", "0.044715"
UNARY: dict[str, Any] = {
    "square": lambda x: x * x, "sqrt": mpmath.sqrt, "rsqrt": lambda x: 1 / mpmath.sqrt(x), "reciprocal": lambda x: 1 / x,
    "exp": mpmath.exp, "exp2": lambda x: mpmath.mpf(2) ** x, "expm1": mpmath.expm1, "log": mpmath.log,
    "log1p": mpmath.log1p, "log2": lambda x: mpmath.log(x, 2), "log10": lambda x: mpmath.log(x, 10),
    "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan, "asin": mpmath.asin, "acos": mpmath.acos, "atan": mpmath.atan,
    "sinh": mpmath.sinh, "cosh": mpmath.cosh, "tanh": mpmath.tanh, "asinh": mpmath.asinh, "acosh": mpmath.acosh,
    "atanh": mpmath.atanh, "erf": mpmath.erf, "erfc": mpmath.erfc, "erfinv": mpmath.erfinv,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)), "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "silu": lambda x: x / (1 + mpmath.exp(-x)), "gelu": lambda x: x * mpmath.erfc(-x * mpmath.mpf(ROOT_HALF)) / 2,
    "gelu_tanh": lambda x: x / (1 + mpmath.exp(-mpmath.mpf(SLOPE) * (x + mpmath.mpf(CUBE) * x**3))),
}
INSIDE = {  # docs/derivatives.md covers the ends of the domains, where derivatives are infinite.
    **dict.fromkeys(("sqrt", "rsqrt", "log", "log2", "log10"), (0, math.inf)), "reciprocal": (0, math.inf),
    **dict.fromkeys(("asin", "acos", "atanh", "erfinv"), (-1, 1)), "log1p": (-1, math.inf), "acosh": (1, math.inf),
}
POINTS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1e-8, -1e-8, 1e-30, 20.0, -20.0]


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name: str) -> None:
    f, low_high = getattr(pb, name), INSIDE.get(name, (-math.inf, math.inf))
    for v in [v for v in POINTS if low_high[0] < v < low_high[1]]:
        for order in ORDERS:
            wanted = truth(UNARY[name], (v,), (order,))
            for modes in MODES:
                got = float(derivative(f, (0,) * order, modes)(*tensors([v])))
                assert got == pytest.approx(wanted, rel=1e-8, abs=1e-12), f"{name}, derivative {order} at {v}"


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number_have_their_digits_near_zero(name: str) -> None:
    """Derivatives that are small there, too, except those of sigmoids, which are computed from a result near 1/2."""
    f, low_high = getattr(pb, name), INSIDE.get(name, (-math.inf, math.inf))
    rounded = {"sigmoid": 2, "softplus": 3, "silu": 3, "gelu_tanh": 3}.get(name, 4)  # the first order that has not all digits
    for v in [v for v in (1e-8, -1e-8, 1e-4, -1e-4, 1e-2) if low_high[0] < v < low_high[1]]:
        for order in ORDERS:
            wanted = truth(UNARY[name], (v,), (order,))
            got = float(derivative(f, (0,) * order, MODES[0])(*tensors([v])))
            tolerance = {"rel": 1e-13, "abs": 0.0} if order < rounded else {"rel": 0.0, "abs": 2e-15}
            assert got == pytest.approx(wanted, **tolerance), f"{name}, derivative {order} at {v}"


def test_a_sigmoid_by_tanh_has_the_digits_of_its_second_derivative() -> None:
    for v in (1e-8, -1e-4, 1e-2, 1.0):
        got = float(derivative(lambda x: 0.5 + 0.5 * pb.tanh(0.5 * x), (0, 0), MODES[0])(*tensors([v])))
        assert got == pytest.approx(truth(UNARY["sigmoid"], (v,), (2,)), rel=1e-14)


LIMITS = {  # the derivatives of first to third order at -inf and at inf
    "tanh": ((0, 0, 0), (0, 0, 0)), "sigmoid": ((0, 0, 0), (0, 0, 0)), "softplus": ((0, 0, 0), (1, 0, 0)),
    "silu": ((0, 0, 0), (1, 0, 0)), "gelu": ((0, 0, 0), (1, 0, 0)), "gelu_tanh": ((0, 0, 0), (1, 0, 0)),
    "erf": ((0, 0, 0), (0, 0, 0)), "erfc": ((0, 0, 0), (0, 0, 0)), "exp": ((0, 0, 0), (math.inf,) * 3),
    "atan": ((0, 0, 0), (0, 0, 0)), "asinh": ((0, 0, 0), (0, 0, 0)), "relu": ((0, 0, 0), (1, 0, 0)), "elu": ((0, 0, 0), (1, 0, 0)),
    "abs": ((-1, 0, 0), (1, 0, 0)), "sin": ((math.nan,) * 3,) * 2, "cos": ((math.nan,) * 3,) * 2,
}


@pytest.mark.parametrize("name", LIMITS)
def test_at_infinity_derivatives_are_their_limits(name: str) -> None:
    for v, wanted in zip((-math.inf, math.inf), LIMITS[name]):
        for order in ORDERS:
            got = float(derivative(getattr(pb, name), (0,) * order, (reverse,) * 3)(*tensors([v])))
            assert got == pytest.approx(wanted[order - 1], nan_ok=True), f"{name}, derivative {order} at {v}"


# ---- functions of two numbers: every partial derivative, in every order of the arguments, and with a Python number

GRID = (0.0, 1.0, -0.5, 1e-8)
BINARY: dict[str, tuple[Any, list[tuple[float, float]]]] = {
    "multiply": (lambda a, b: a * b, list(itertools.product(GRID, GRID))),
    "divide": (lambda a, b: a / b, list(itertools.product(GRID, (1.0, -1.0, 0.5, 1e3)))),
    "pow": (mpmath.power, list(itertools.product((0.5, 1.0, 1.2345), (0.0, -0.0, 1.0, 2.0, 3.0, -1.0, 2.5)))),
    "logaddexp": (lambda *ab: log_sum(*ab), list(itertools.product((0.0, -0.5, 1e-8, 300.0), repeat=2))),
    "atan2": (mpmath.atan2, [(a, b) for a, b in itertools.product(GRID, GRID) if a or b > 0]),
    "hypot": (mpmath.hypot, [(a, b) for a, b in itertools.product((0.0, 1.0, -3.0), repeat=2) if a or b]),
}


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_numbers(name: str) -> None:
    f, (true, points) = getattr(pb, name), BINARY[name]
    for point in points:
        for first, order in [(first, total) for total in ORDERS for first in range(total + 1)]:
            wanted = pytest.approx(truth(true, point, (first, order - first)), rel=1e-8, abs=1e-10)
            told = f"{name} at {point}, {first} times by the first and {order - first} by the second"
            for places in set(itertools.permutations([0] * first + [1] * (order - first))):
                for modes in MODES[:2]:
                    assert float(derivative(f, places, modes)(*tensors(point))) == wanted, told
            if first in (0, order):  # Pass the other argument as a Python number.
                place = 0 if first else 1
                alone = functools.partial(_beside, f, point[1 - place], place)
                for modes in MODES:
                    got = float(derivative(alone, (0,) * order, modes)(*tensors([point[place]])))
                    assert got == wanted, told + ", the other a Python number"


def _beside(f: Any, number: float, place: int, x: Any) -> Any:
    return f(number, x) if place else f(x, number)


@pytest.mark.parametrize("point", [1e-300, 1e-20, -1e-9, 0.3, -0.7, 1 - 1e-9])
@pytest.mark.parametrize("name", ["asin", "acos", "atanh"])
def test_the_curvature_of_inverse_functions_has_its_digits_near_zero(name: str, point: float) -> None:
    with mpmath.workdps(1000):
        right = float(mpmath.diff(getattr(mpmath, name), mpmath.mpf(point), 2, h=mpmath.mpf(10) ** -330))
    for modes in itertools.product((reverse, forward), repeat=2):
        assert abs(float(derivative(getattr(pb, name), (0, 0), modes)(*tensors([point]))) / right - 1) < 1e-14


def test_equal_infinities_have_no_slope() -> None:
    for v, wanted in ((math.inf, math.nan), (-math.inf, 0.0)):
        for modes in MODES[:2]:
            for places in ((0,), (1,), (0, 0), (0, 1)):
                np.testing.assert_equal(abs(float(derivative(pb.logaddexp, places, modes)(*tensors([v, v])))), wanted)
        np.testing.assert_equal(float(pb.grad(lambda x, v=v: pb.logaddexp(x, v))(*tensors([v]))), wanted)


def test_an_angle_has_no_slope_where_an_argument_is_infinite() -> None:
    for point in itertools.product((math.inf, -math.inf, 0.5), repeat=2):
        if not all([math.isfinite(v) for v in point]):
            for places in [(0,), (1,), *itertools.product((0, 1), repeat=2)]:
                for modes in MODES:
                    assert float(derivative(pb.atan2, places, modes)(*tensors(point))) == 0.0, f"{point}, {places}"


def test_the_base_of_a_power_has_the_precision_of_the_exponent() -> None:
    x = pb.tensor(0.3, dtype="float64")
    for base in (1.2345, 10.0, 3):
        wanted = base**0.3 * math.log(base)
        assert float(pb.linearize(lambda z, base=base: base**z, x)[1](pb.ones_like(x))) == pytest.approx(wanted, rel=1e-14)
    half = pb.grad(pb.grad(lambda z: 10.0**z))(pb.tensor(0.3, dtype="float16"))
    assert half.dtype == pb.float16
    assert float(half) == pytest.approx(10**0.3 * math.log(10) ** 2, rel=5e-3)


def test_powers_of_zero() -> None:
    zero = tensors([0.0])[0]
    for power, wanted in {0.0: (0, 0, 0), 1.0: (1, 0, 0), 2.0: (0, 2, 0), 3.0: (0, 0, 6)}.items():
        for order in ORDERS:
            for exponent in (power, *tensors([power])):
                got = derivative(lambda x, e=exponent: x**e, (0,) * order, MODES[0])(zero)
                assert float(got) == wanted[order - 1], f"0**{power}, order {order}"
    for order in ORDERS:
        assert float(derivative(lambda x: 0.0**x, (0,) * order, MODES[0])(*tensors([2.0]))) == 0.0
    assert math.isnan(float(pb.grad(lambda x: (-2.0) ** x)(*tensors([2.0]))))


def test_a_nan_is_no_zero_in_a_higher_derivative() -> None:
    for modes in MODES:
        assert math.isnan(float(derivative(lambda x: pb.sin(x) * x, (0, 0, 0), modes)(*tensors([math.inf]))))


# ---- kinks: the first derivatives in docs/derivatives.md are constants, so higher derivatives are zero


@pytest.mark.parametrize("v", [0.0, -0.0, 1.0, -1.0])
def test_after_a_kink_there_is_no_curvature(v: float) -> None:
    pieces: list[Any] = [
        pb.relu, pb.abs, lambda x: pb.maximum(x, v), lambda x: pb.minimum(v, x), lambda x: pb.clip(x, -1.0, 1.0),
        lambda x: pb.copysign(x, -1.0), pb.sign, lambda x: pb.max(pb.stack([x, v + 0 * x])), lambda x: x % 1.0,
        lambda x: pb.leaky_relu(x, 0.1), lambda x: pb.where(x > v, x, 2 * x), lambda x: nn.functional.l1(x, pb.tensor(v)),
    ]
    for f in pieces:
        for order in (2, 3):
            for modes in MODES:
                assert float(derivative(f, (0,) * order, modes)(*tensors([v]))) == 0.0


# ---- functions of a vector


def power_sums(*xs: Any) -> Any:
    return mpmath.sqrt(mpmath.fsum([x * x for x in xs]))


def mean_square(*xs: Any) -> Any:
    mean = mpmath.fsum(xs) / len(xs)
    return mpmath.fsum([(x - mean) ** 2 for x in xs]) / len(xs)


def log_sum(*xs: Any) -> Any:
    return mpmath.log(mpmath.fsum([mpmath.exp(x) for x in xs]))


VECTORS: dict[str, tuple[Any, Any]] = {
    "prod": (pb.prod, lambda *xs: mpmath.fprod(xs)),
    "cumulative_prod": (lambda x: pb.sum(pb.cumulative_prod(x)), lambda a, b, c: a + a * b + a * b * c),
    "logsumexp": (pb.logsumexp, log_sum),
    "softmax": (lambda x: pb.softmax(x)[1], lambda *xs: mpmath.exp(xs[1] - log_sum(*xs))),
    "log_softmax": (lambda x: pb.log_softmax(x)[0], lambda *xs: xs[0] - log_sum(*xs)),
    "cross_entropy": (lambda x: nn.functional.cross_entropy(x, 2), lambda *xs: log_sum(*xs) - xs[2]),
    "var": (pb.var, mean_square),
    "norm": (lambda x: pb.linalg.norm(x), power_sums),
    "std": (pb.std, lambda *xs: mpmath.sqrt(mean_square(*xs))),
}
TIES = [(0.0, 3.0, 2.0), (0.0, 0.0, 2.0), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), (1.0, 1.0, -2.0), (5.0, -0.0, 5.0)]


@pytest.mark.parametrize("name", VECTORS)
def test_functions_of_a_vector_at_ties_and_zeros(name: str) -> None:
    f, true = VECTORS[name]
    for point in TIES:
        if (name == "norm" and not any(point)) or (name == "std" and len(set(point)) == 1):
            continue  # These points are kinks.
        x, found = pb.tensor(point, dtype="float64"), []
        for of in (pb.grad(f), pb.hessian(f), pb.jacobian(pb.hessian(f), mode="reverse")):
            found.append(host(of(x)))
        for order, got in zip(ORDERS, found):
            wanted = np.empty((3,) * order)
            for places in np.ndindex(*wanted.shape):
                wanted[places] = truth(true, point, tuple([places.count(k) for k in range(3)]))
            np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-10, err_msg=f"{name}, order {order}, at {point}")


def test_a_logarithm_of_a_sum_leaves_what_is_minus_infinity_out() -> None:
    x = pb.tensor([-math.inf, 0.0, 0.0], dtype="float64")
    close(pb.grad(pb.logsumexp)(x), [0, 0.5, 0.5])
    close(pb.hessian(pb.logsumexp)(x), [[0, 0, 0], [0, 0.25, -0.25], [0, -0.25, 0.25]])
