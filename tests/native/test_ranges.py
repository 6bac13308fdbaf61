"""Every float op over its whole range, against higher precision: log-spaced numbers of both signs, subnormals, special points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import pullback as pb
from conftest import host

pytestmark = pytest.mark.usefixtures("native")

Wide = Any  # an array of long double
LN2: Final = np.log(np.longdouble(2))


def _acosh(x: Wide) -> Wide:
    return np.where(x > 1e9, np.log(x) + LN2, np.arccosh(np.minimum(x, 1e9)))


def _sigmoid(x: Wide) -> Wide:
    return 1 / (1 + np.exp(-x))


def _by_digits(f: Callable[[Any], Any]) -> Callable[[Wide], Wide]:
    """Turns a function of mpmath, on finite numbers, into a function of arrays."""

    def one(x: Any) -> Any:
        with mpmath.workprec(160):
            y = f(mpmath.mpf(float(x)))
            return np.longdouble(mpmath.nstr(y, 25, min_fixed=1, max_fixed=0)) if mpmath.isfinite(y) else np.longdouble(float(y))

    return np.vectorize(one, otypes=[np.longdouble])


# op: (definition in long double, highest error in ulps). exp2 and pow use log2, whose error grows with the result.
BOUNDS: Final[dict[str, tuple[Callable[[Wide], Wide], float]]] = {
    "sqrt": (np.sqrt, 0.5), "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5), "reciprocal": (lambda x: 1 / x, 0.5),
    "square": (lambda x: x * x, 0.5),
    "exp": (np.exp, 2), "exp2": (np.exp2, 2), "expm1": (np.expm1, 2),
    "log": (np.log, 1), "log1p": (np.log1p, 1), "log2": (np.log2, 3), "log10": (np.log10, 3),
    "asin": (np.arcsin, 3), "acos": (np.arccos, 3), "atan": (np.arctan, 3),
    "sinh": (np.sinh, 3), "cosh": (np.cosh, 3), "tanh": (np.tanh, 3),
    "asinh": (np.arcsinh, 4), "acosh": (_acosh, 4), "atanh": (np.arctanh, 4),
    "sigmoid": (_sigmoid, 3), "silu": (lambda x: x * _sigmoid(x), 4), "softplus": (lambda x: np.logaddexp(x, np.longdouble(0)), 3),
}
# op: (definition, highest error in ulps, largest |x|). mpmath is slow, so these ops are tested at fewer points.
SLOW: Final[dict[str, tuple[Callable[[Wide], Wide], float, float]]] = {
    "erf": (_by_digits(mpmath.erf), 1.5, 1e3), "erfc": (_by_digits(mpmath.erfc), 4, 30),
    "erfinv": (_by_digits(mpmath.erfinv), 4, 1), "gelu": (_by_digits(lambda x: x * mpmath.ncdf(x)), 4, 40),
}
TWO: Final[dict[str, tuple[Callable[[Wide, Wide], Wide], float]]] = {
    "divide": (np.divide, 0.5), "hypot": (np.hypot, 2), "atan2": (np.arctan2, 3), "pow": (np.power, 2),
}
SPECIAL: Final = (0.4, 0.41421356, 0.5, 0.6, 0.70710678, 1.0, 2.0, 2.41421356, 2.0**12, 2.0**13, 2.0**28, 2.0**43)


def numbers(dtype: Any) -> Any:
    """Returns numbers of both signs from the smallest subnormal to the largest number, with the neighbours of special points."""
    info = np.finfo(dtype)
    rng = np.random.default_rng(5)
    spread = np.exp2(rng.uniform(float(np.log2(info.smallest_subnormal)), info.maxexp - 1e-3, 8000))
    near = np.concatenate([np.exp2(rng.uniform(-12, 12, 4000)), 1 + np.exp2(rng.uniform(-info.nmant, 0, 500))])
    points = np.concatenate([np.nextafter(np.array(SPECIAL, dtype), dtype(way)) for way in (0, np.inf)])
    x = np.concatenate([a.astype(dtype) for a in (spread, near, points, np.array(SPECIAL))])
    return np.concatenate([x, -x])


def ulps(y: Any, exact: Wide, flushes: bool) -> Any:
    """Returns the error of y in ulps of the exact result. Where the exact result is NaN or infinite, y must equal it."""
    info = np.finfo(y.dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(y.dtype)
        space = np.spacing(np.maximum(np.abs(rounded), info.smallest_normal)).astype(np.longdouble)
        off = np.abs(y.astype(np.longdouble) - exact) / space
    same = (rounded == y) | (np.isnan(rounded) & np.isnan(y))
    if y.dtype == np.float32 or flushes:  # results below the smallest normal number may be zero
        same |= (y == 0) & (np.abs(exact) < info.smallest_normal)
    edge = np.abs(exact) > info.max * (1 - 4 * float(info.eps))  # the last few numbers before infinity
    return np.where(same | (edge & np.isinf(y)), 0, off)


def normal_only(x: Any) -> Any:
    """Returns x without the subnormal operands that float32 flushes to 0, and without those whose half or quarter is subnormal."""
    return x if x.dtype == np.float64 else x[np.abs(x) >= 4 * np.finfo(x.dtype).smallest_normal]


def check(name: str, bound: float, *xs: Any, exact: Any) -> None:
    y = getattr(pb, name)(*map(pb.tensor, xs)).numpy()
    with np.errstate(all="ignore"):
        off = ulps(y, exact(*[x.astype(np.longdouble) for x in xs]), False)
    worst = int(np.nanargmax(np.where(np.isnan(off), np.inf, off)))
    assert off[worst] <= bound, f"{name}({', '.join([repr(x[worst]) for x in xs])}) = {y[worst]!r} is {off[worst]:.3g} ulp off"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", BOUNDS)
def test_an_op_is_within_its_bound_over_its_whole_range(name: str, dtype: Any) -> None:
    exact, bound = BOUNDS[name]
    check(name, bound, normal_only(numbers(dtype)), exact=exact)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SLOW)
def test_a_special_function_is_within_its_bound(name: str, dtype: Any) -> None:
    exact, bound, end = SLOW[name]
    x = normal_only(numbers(dtype))
    x = np.concatenate([x[::10], np.random.default_rng(6).uniform(-end, end, 1000).astype(dtype)])
    check(name, bound, x[np.abs(x) <= end], exact=exact)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", TWO)
def test_an_op_of_two_is_within_its_bound(name: str, dtype: Any) -> None:
    exact, bound = TWO[name]
    rng = np.random.default_rng(7)
    x = rng.permutation(normal_only(numbers(dtype)))
    near = (x * (1 + rng.uniform(-1, 1, x.size))).astype(dtype)
    for a, b in ((x, rng.permutation(x)), (x, normal_or(near, x))):
        check(name, bound, a, b, exact=exact)


def normal_or(x: Any, instead: Any) -> Any:
    return np.where(np.abs(x) >= 4 * np.finfo(x.dtype).smallest_normal, x, instead)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logaddexp_is_exact_to_the_last_places_of_its_parts(dtype: Any) -> None:
    x = normal_only(numbers(dtype))
    for spread in (1e-3, 1, 30):
        near = normal_or((x + spread * np.random.default_rng(8).uniform(-1, 1, x.size)).astype(dtype), x)
        y = pb.logaddexp(pb.tensor(x), pb.tensor(near)).numpy()
        exact = np.logaddexp(x.astype(np.longdouble), near.astype(np.longdouble))
        apart = np.abs(x.astype(np.longdouble) - near)
        # The larger number and the logarithm may nearly cancel. The logarithm carries the rounding of the distance.
        size = np.maximum(np.maximum(np.abs(np.maximum(x, near)), np.abs(exact)), apart * np.exp(-apart))
        place = np.spacing(np.maximum(size.astype(dtype), np.finfo(dtype).smallest_normal))
        assert (np.abs(y - exact) / place).max() <= 3


def test_small_numbers_are_their_own_expm1() -> None:
    tiny = np.finfo(np.float32).smallest_normal
    x = np.array([tiny * np.float32(1.5), -tiny, tiny / 2, -tiny / 4, 0.0, -0.0], np.float32)
    y = pb.expm1(pb.tensor(x)).numpy()
    assert_array_equal(y.view(np.uint32), x.view(np.uint32))


def test_the_slope_of_expm1_keeps_its_digits_where_the_value_is_close_to_minus_one() -> None:
    x = np.linspace(-80, 5, 500).astype(np.float32)
    slope = pb.grad(lambda t: pb.sum(pb.expm1(t)))(pb.tensor(x))
    np.testing.assert_allclose(host(slope), np.exp(x.astype(np.float64)), rtol=4e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["acosh", "atan", "rsqrt"])
def test_slopes_at_huge_arguments(name: str, dtype: Any) -> None:
    x = np.exp2(np.linspace(2, np.finfo(dtype).maxexp - 1, 500)).astype(dtype)
    wide = x.astype(np.longdouble)
    exact = {"acosh": 1 / np.sqrt((wide - 1) * (wide + 1)), "atan": 1 / (1 + wide * wide),
             "rsqrt": -1 / (2 * wide * np.sqrt(wide))}[name]
    slope = pb.grad(lambda x: pb.sum(getattr(pb, name)(x)))(pb.tensor(x)).numpy()
    with np.errstate(all="ignore"):
        off = ulps(slope, exact, True)
    assert off.max() <= 6, (x[off.argmax()], slope[off.argmax()])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_slopes_of_an_angle_over_the_whole_range(dtype: Any) -> None:
    rng, tiny = np.random.default_rng(9), np.finfo(dtype).smallest_normal
    x = rng.permutation(numbers(dtype))
    x = x[np.abs(x) >= 4 * tiny]
    for a, b in ((x, rng.permutation(x)), (x, normal_or((x * rng.uniform(-1, 1, x.size)).astype(dtype), x))):
        wide_a, wide_b = a.astype(np.longdouble), b.astype(np.longdouble)
        square = wide_a**2 + wide_b**2
        exact = [wide_b / square, -wide_a / square, -2 * wide_a * wide_b / square**2, 2 * wide_a * wide_b / square**2]
        slopes = pb.grad(lambda a, b: pb.sum(pb.atan2(a, b)), argnums=(0, 1))
        first = slopes(pb.tensor(a), pb.tensor(b))
        curved = [pb.grad(lambda *ab, k=k, f=slopes: pb.sum(f(*ab)[k]), argnums=k) for k in (0, 1)]
        second = [f(pb.tensor(a), pb.tensor(b)) for f in curved]
        for found, wanted in zip((*first, *second), exact):
            with np.errstate(all="ignore"):
                off = ulps(found.numpy(), wanted, True)
            small = np.abs(wanted) < 2**24 * tiny  # some factors of these are below the smallest normal number
            assert (np.abs(found.numpy()[small]) <= 2**25 * tiny).all()
            off = np.where(small, 0, off)
            assert off.max() <= 12, (a[off.argmax()], b[off.argmax()], found.numpy()[off.argmax()], wanted[off.argmax()])


# Rows of x, sin(x), cos(x), tan(x) in 100-digit arithmetic. Long double cannot serve here: it reduces x by a pi of 66 bits.
FAR: Final = (
    (8796093022208.0, -0.19906887541578028, -0.9799855013420844, 0.20313451080975853),
    (10000000000000.5, 0.2054639184968876, 0.9786646914014546, 0.20994311974478394),
    (1000000000000000.2, 0.7046250079258086, -0.7095798744366656, -0.9930171828579685),
    (2251799813685248.0, 0.8618395638813006, 0.5071809993768396, 1.699274154473888),
    (1e16, 0.7796880066069788, -0.6261681981330862, -1.2451734357184063),
    (1e22, -0.8522008497671888, 0.523214785395139, -1.6287782256068988),
    (5.319372648326541e255, 1.0, -4.687165924254628e-19, -2.133485385753704e18),
    (1.152921504606847e18, -0.8306492176372546, -0.5567960822766417, 1.4918373962705977),
    (1.2676506002282294e30, -0.8721836054182673, 0.48917865697472146, -1.782955149376719),
    (7.729178919452902e28, 1.0, -1.6147697982476211e-09, -619283318.9506139),
    (1e300, -0.8178819121159085, -0.5753861119575491, 1.4214488238747245),
    (1.7976931348623157e308, 0.004961954789184062, -0.9999876894265599, -0.004962015874444895),
    (3.3999999521443642e38, -0.24408487440838297, 0.9697538729415026, -0.2516977567390511),
    (1.0000000150474662e30, -0.7911634385219837, -0.6116047854178966, 1.2935860826880194),
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sin_cos_and_tan_of_numbers_of_any_size(dtype: Any) -> None:
    x, *exact = np.array([row for row in FAR if dtype == np.float64 or row[0] == float(np.float32(row[0]))]).T
    for function, wanted in zip((pb.sin, pb.cos, pb.tan), exact):
        for sign in (1, -1):
            y = function(pb.tensor(sign * np.resize(x, 1500), dtype=dtype)).numpy()[: len(x)]
            flip = 1 if function is pb.cos else sign
            off = np.abs(y.astype(np.float64) - flip * wanted) / np.spacing(np.abs(wanted).astype(dtype))
            assert off.max() <= 3.5, (x[off.argmax()], y[off.argmax()], wanted[off.argmax()])


def test_gradients_of_far_angles_are_those_of_the_formulas() -> None:
    x = pb.tensor([0.5, 1e16, 2.0**60, -1e22], dtype="float64")
    for function, slope in ((pb.sin, pb.cos), (pb.cos, lambda x: -pb.sin(x)), (pb.tan, lambda x: 1 + pb.square(pb.tan(x)))):
        assert_array_equal(pb.grad(lambda x, f=function: pb.sum(f(x)))(x).numpy(), slope(x).numpy())


def test_infinite_angles_have_no_sine() -> None:
    assert np.isnan(pb.sin(pb.tensor([np.inf, -np.inf, np.nan])).numpy()).all()
