"""The logarithm of the gamma function and its derivatives: lgamma, digamma and polygamma."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..backends.reference import special
from ..errors import PullbackError
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from ._shapes import length
from .by_name import in_float
from .declare import unary
from .elementwise import less, pow, round, tan, where

PI: Final = np.longdouble("3.14159265358979323846264338327950288")
BERNOULLI: Final = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)  # B_2, B_4, …, B_16
MOST_DERIVATIVES: Final = 170
STEPS: Final = 16  # arguments are shifted up by this number, from where Stirling's series is exact to 20 digits


# ---- references, in NumPy's widest floating-point type


def _reference(name: str, above: Callable[[Any], Any], reflected: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns the reference of a function.

    above: the function for numbers of at least 1/2.
    reflected: the function below 1/2, of x, the angle pi x without its half turns, and the value of `above` at 1 - x.
    """

    def reference(xp: Any, x: Any) -> Any:
        if xp.__name__ == "cupy":
            return special(xp, "polygamma")(1, x) if name == "trigamma" else special(xp, name)(x)
        wide = x.astype(np.longdouble)
        below = wide < 0.5
        turn = PI * xp.where(abs(wide) < 0.5, wide, wide - xp.round(wide))  # keeps the sign of -0
        y = above(xp.where(below, 1 - wide, wide))
        return xp.where(below, reflected(wide, turn, y), y).astype(x.dtype)

    return reference


def _lgamma(z: Any) -> Any:
    w = z + STEPS
    series = sum([b / (2 * k * (2 * k - 1)) * w ** (1 - 2 * k) for k, b in enumerate(BERNOULLI, 1)])
    y = (w - 0.5) * np.log(w) - w + 0.5 * np.log(2 * PI) + series - sum([np.log(z + k) for k in range(STEPS)])
    return np.where((z == 1) | (z == 2), 0, np.where(np.isinf(z), z, y))


def _digamma(z: Any) -> Any:
    w = z + STEPS
    series = sum([b / (2 * k) * w ** (-2 * k) for k, b in enumerate(BERNOULLI, 1)])
    return np.log(w) - 0.5 / w - series - sum([1 / (z + k) for k in range(STEPS)])


def _trigamma_above(z: Any) -> Any:
    w = z + STEPS
    series = sum([b * w ** (-2 * k - 1) for k, b in enumerate(BERNOULLI, 1)])
    return 1 / w + 0.5 / w**2 + series + sum([1 / (z + k) ** 2 for k in range(STEPS)])


# ---- ops

_REFERENCES: Final = {
    "gammaln": _reference(
        "gammaln", _lgamma, lambda x, turn, y: np.where(np.isinf(x), np.inf, np.log(PI / np.abs(np.sin(turn))) - y)
    ),
    "digamma": _reference("digamma", _digamma, lambda x, turn, y: np.where((turn == 0) & (x != 0), np.nan, y - PI / np.tan(turn))),
    "trigamma": _reference("trigamma", _trigamma_above, lambda x, turn, y: (PI / np.sin(turn)) ** 2 - y),
}
lgamma = unary(
    "lgamma",
    reference=_REFERENCES["gammaln"],
    pullback=lambda g, x: g * digamma(x),
    domain=(0.1, 6),
    doc="Returns log |gamma(x)|, element by element: infinity at 0, -1, -2, ... Its derivative is `digamma`.",
)
digamma = unary(
    "digamma",
    reference=_REFERENCES["digamma"],
    pullback=lambda g, x: g * _trigamma(x),
    domain=(0.1, 6),
    doc="Returns the derivative of `lgamma`, element by element: -+infinity at +-0, and NaN at -1, -2, ... and at -infinity.",
)
_trigamma = unary("trigamma", reference=_REFERENCES["trigamma"], pullback=lambda g, x: g * polygamma(2, x), domain=(0.1, 6))


def polygamma(n: int, x: Any, /) -> Tensor:
    """Returns the n-th derivative of `digamma`, element by element.

    It is (-1)^(n+1) n! times Hurwitz's zeta function of n + 1 and x, here a sum of powers and an Euler-Maclaurin series. Below 1/2
    it is reflected. Raises ShapeError for an n that is negative or not an integer, PullbackError for n > 170, whose n! exceeds
    float64.
    """
    n, x = length("polygamma", "n", n), in_float(as_tensor(x))
    if n < 2:
        return _trigamma(x) if n else digamma(x)
    if n > MOST_DERIVATIVES:
        raise PullbackError(f"polygamma: n={n}; it can be at most {MOST_DERIVATIVES}, because n! exceeds float64 beyond.")
    s = n + 1
    below = less(x, 0.5)
    z = where(below, 1.0 - x, x)
    w = z + float(STEPS)
    total = pow(w, 1.0 - s) / n + 0.5 * pow(w, -float(s))
    for k, b in enumerate(BERNOULLI, 1):
        total = total + b * math.perm(s + 2 * k - 2, 2 * k - 1) / math.factorial(2 * k) * pow(w, 1.0 - s - 2 * k)
    for k in reversed(range(STEPS)):
        total = total + pow(z + float(k), -float(s))
    y = total * ((-1) ** s * float(math.factorial(n)))
    cot = 1.0 / tan(math.pi * (x - round(x)))
    return where(below, (-1) ** n * y - math.pi * _cot_derivative(n, cot), y)


def _cot_derivative(n: int, cot: Tensor) -> Tensor:
    """Returns the n-th derivative of cot(pi x), which is a polynomial in cot(pi x), because cot' = -(1 + cot²)."""
    coefficients = [0.0, 1.0]
    for _ in range(n):
        slopes = [k * c for k, c in enumerate(coefficients)][1:]
        coefficients = [-math.pi * (a + b) for a, b in zip([*slopes, 0.0, 0.0], [0.0, 0.0, *slopes])]
    y = coefficients[-1] * cot
    for c in coefficients[-2:0:-1]:
        y = (y + c) * cot
    return y + coefficients[0]


__all__ = ["digamma", "lgamma", "polygamma"]
