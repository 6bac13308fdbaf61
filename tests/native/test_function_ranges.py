"""Every elementary function at powers of ten over the whole range of its dtype, against 60 digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.nn import functional as F

mp: Any = pytest.importorskip("mpmath", reason="mpmath is not installed: there are no digits to compare with")


def exactly(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def of_number(x: Any) -> Any:
        with mp.workdps(60):
            return f(mp.mpf(float(x)))

    return of_number


def softplus(x: Any) -> Any:
    return mp.log1p(mp.exp(x)) if x > -700 else mp.exp(x)


def log_gamma(x: Any) -> Any:
    return mp.log(abs(mp.gamma(x))) if x < 100 else mp.loggamma(x).real


def digamma(x: Any) -> Any:
    return mp.log(x) - 1 / (2 * x) if x > 1e10 else mp.digamma(x)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(mp, name) for name in ("exp", "expm1", "log", "log1p", "log10", "sin", "cos", "tan", "asin", "acos", "atan",
                                            "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sqrt", "erf", "erfc")},
    "log2": lambda x: mp.log(x, 2), "exp2": lambda x: mp.power(2, x), "rsqrt": lambda x: 1 / mp.sqrt(x), "lgamma": log_gamma,
    "digamma": digamma, "sigmoid": lambda x: 1 / (1 + mp.exp(-x)), "softplus": softplus,
    "square": lambda x: x * x, "reciprocal": lambda x: 1 / x, "silu": lambda x: x / (1 + mp.exp(-x)),
    "gelu": lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2, "mish": lambda x: x * mp.tanh(softplus(x)),
    "deg2rad": lambda x: x * mp.pi / 180, "rad2deg": lambda x: x * 180 / mp.pi,
}
ULPS = {"digamma": 8.0}  # 4 for the other functions; digamma has a zero between every two poles, where its terms cancel


def numbers(dtype: str) -> Any:
    """Returns numbers of both signs at every power of ten, the ends of the range, and numbers next to 1."""
    limits = np.finfo(dtype)
    powers = np.arange(np.ceil(np.log10(float(limits.tiny))), np.floor(np.log10(float(limits.max))) + 1)
    powers = powers if dtype == "float32" else powers[::5]
    x = np.concatenate([10.0**powers, 3.7 * 10.0 ** powers[:-1], [float(limits.tiny), float(limits.max), 1.0]]).astype(dtype)
    x = np.concatenate([x, np.nextafter(np.array([1, 1], dtype), np.array([0, 2], dtype)), np.linspace(0.05, 12, 60).astype(dtype)])
    return np.concatenate([x, -x])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_right_over_their_range(name: str, dtype: str, native: None) -> None:
    f, limits, x, ulps = exactly(FUNCTIONS[name]), np.finfo(dtype), numbers(dtype), ULPS.get(name, 4.0)
    y = (getattr(pb, name, None) or getattr(F, name))(pb.tensor(x)).numpy()
    compared = 0
    for at, got in zip(x, y):
        if np.isnan(got) or (
            abs(at) > 1e4 and name in ("exp", "exp2", "expm1", "sinh", "cosh", "erfc", "gelu", "mish", "softplus")
        ):
            continue  # outside the domain; digits of numbers that are 0, x or infinite
        try:
            wanted = f(at)
        except (ValueError, ZeroDivisionError, OverflowError):  # a pole, or a number that mpmath cannot take
            continue
        size = abs(wanted)
        if isinstance(wanted, mp.mpc) or size < float(limits.tiny):
            continue  # the square root of a negative number, which is NaN; denormal numbers of float32 are flushed to zero
        compared += 1
        if size > float(limits.max):
            assert np.isinf(got) or abs(got) > limits.max * (1 - ulps * limits.eps), (at, got)
            continue
        assert np.isfinite(got), (at, got)
        error = abs(mp.mpf(float(got)) - wanted) / float(np.spacing(np.array(float(size), dtype)))
        assert error <= ulps, (at, got, float(wanted), float(error))
    assert compared > 20
