# Written by tools/generate.py from gamma.py.
# ruff: noqa
from pullback.tensors.tensor import Tensor
from pullback.typing import ArrayLike
from typing import Any

def digamma(x: ArrayLike, /) -> Tensor:
    """Returns the derivative of `lgamma`, element by element: -+infinity at +-0, and NaN at -1, -2, ... and at -infinity."""

def lgamma(x: ArrayLike, /) -> Tensor:
    """Returns log |gamma(x)|, element by element: infinity at 0, -1, -2, ... Its derivative is `digamma`."""

def polygamma(n: int, x: Any, /) -> Tensor:
    """Returns the n-th derivative of `digamma`, element by element.

    It is (-1)^(n+1) n! times Hurwitz's zeta function of n + 1 and x, here a sum of powers and an Euler-Maclaurin series. Below 1/2
    it is reflected. Raises ShapeError for an n that is negative or not an integer, PullbackError for n > 170, whose n! exceeds
    float64."""
