"""Elementwise functions that are composed of elementwise ops. Their derivatives, batching rules and costs are those of the ops."""

from __future__ import annotations

import math
from typing import Any, Final

from ..autodiff.scalars import common_dtype
from ..tensors import dtypes
from ..tensors.creation import asarray
from ..tensors.operand import Number, as_tensor
from ..tensors.tensor import Tensor
from ._shapes import epsilon
from .by_name import in_dtype, in_float, widened
from .elementwise import (
    abs,
    atanh,
    clip,
    copysign,
    equal,
    greater,
    isnan,
    less,
    less_equal,
    log,
    log1p,
    logical_and,
    logical_or,
    maximum,
    minimum,
    not_equal,
    remainder,
    round,
    sin,
    square,
    where,
)
from .operands import operands
from .promotion import check_devices, check_numbers

# The coefficients of sin(u) / u in u².
SINC: Final = [(-1) ** k / math.factorial(2 * k + 1) for k in range(7)]


def _operands(name: str, *values: Any, floating: bool = True) -> list[Tensor]:
    """Returns tensors of the dtype that the values promote to (float32 if `floating` and that would be integers).

    Raises DTypeError for a Python number that does not fit the dtype, DeviceError for tensors on two devices.
    """
    found = operands(name, *values)
    check_devices(name, found)
    dtype = common_dtype(found)
    dtype = dtype if dtypes.is_float(dtype) or not floating else dtypes.DEFAULT
    check_numbers(name, dtype, found)
    device = next((x.device for x in found if isinstance(x, Tensor)), None)
    return [asarray(x.array, dtype=dtype, device=device) if isinstance(x, Number) else in_dtype(x, dtype) for x in found]


# ---- extremes and remainders


def fmax(x1: Any, x2: Any, /) -> Tensor:
    """Returns the larger of x1 and x2, or the other one if one is NaN, with broadcasting. Ties share the gradient evenly."""
    a, b = _operands("fmax", x1, x2, floating=False)
    larger = maximum(a, b)
    return where(isnan(a), b, where(isnan(b), a, larger)) if dtypes.is_float(a.dtype) else larger


def fmin(x1: Any, x2: Any, /) -> Tensor:
    """Returns the smaller of x1 and x2, or the other one if one is NaN, with broadcasting. Ties share the gradient evenly."""
    a, b = _operands("fmin", x1, x2, floating=False)
    smaller = minimum(a, b)
    return where(isnan(a), b, where(isnan(b), a, smaller)) if dtypes.is_float(a.dtype) else smaller


def fmod(x1: Any, x2: Any, /) -> Tensor:
    """Returns x1 minus the multiple of x2 that is next to it in the direction of 0, as C's fmod. The result has the sign of x1.

    The derivative by x1 is 1, and by x2 it is minus the multiple. `remainder` has the sign of x2.
    """
    a, b = _operands("fmod", x1, x2, floating=False)
    if dtypes.is_float(a.dtype):
        return remainder(a, copysign(b, a))
    r = remainder(a, b)
    return where(logical_and(not_equal(r, 0), not_equal(less(a, 0), less(b, 0))), r - b, r)


# ---- steps


def heaviside(x1: Any, x2: Any, /) -> Tensor:
    """Returns 0 where x1 is negative, x2 where it is 0, and 1 where it is positive, with broadcasting.

    The derivative by x1 is zero everywhere.
    """
    x, at_zero = _operands("heaviside", x1, x2)
    return where(equal(x, 0), at_zero, where(isnan(x), math.nan, in_dtype(greater(x, 0), x.dtype)))


# ---- logarithms


def xlogy(x1: Any, x2: Any, /) -> Tensor:
    """Returns x1 * log(x2), and 0 where x1 is 0 and x2 is not NaN, with broadcasting.

    Where x1 is 0 and x2 is 0, negative or infinite, both derivatives are 0.
    """
    x, y = _operands("xlogy", x1, x2)
    flat = logical_and(equal(x, 0), logical_or(less_equal(y, 0), equal(y, math.inf)))
    return _product_with_log(x, log(where(flat, 1.0, widened(y))), flat)


def xlog1py(x1: Any, x2: Any, /) -> Tensor:
    """Returns x1 * log(1 + x2), and 0 where x1 is 0 and x2 is not NaN, with broadcasting.

    Where x1 is 0 and x2 is -1, less or infinite, both derivatives are 0.
    """
    x, y = _operands("xlog1py", x1, x2)
    flat = logical_and(equal(x, 0), logical_or(less_equal(y, -1), equal(y, math.inf)))
    return _product_with_log(x, log1p(where(flat, 0.0, widened(y))), flat)


def _product_with_log(x: Tensor, logarithm: Tensor, flat: Tensor) -> Tensor:
    return in_dtype(where(flat, 0.0, widened(x) * logarithm), x.dtype)


def logit(x: Any, /, eps: float | None = None) -> Tensor:
    """Returns log(x / (1 - x)), the inverse of `sigmoid`: ∓infinity at 0 and 1, and NaN outside [0, 1].

    eps: if given, x is first limited to [eps, 1 - eps], as in PyTorch. Raises DTypeError if eps is not a number.
    """
    x = in_float(as_tensor(x))
    p = widened(x)
    if eps is not None:
        p = clip(p, epsilon("logit", eps), 1.0 - eps)
    close = less(abs(p - 0.5), 0.25)  # here the difference of the logarithms would cancel
    return in_dtype(where(close, 2.0 * atanh(2.0 * p - 1.0), log(p) - log1p(-p)), x.dtype)


# ---- angles


def sinc(x: Any, /) -> Tensor:
    """Returns sin(pi x) / (pi x), and 1 at 0, element by element."""
    x = in_float(as_tensor(x))
    wide = widened(x)
    small = less(abs(wide), 0.125)  # here a series has accurate derivatives, which the quotient has not
    z = square(math.pi * where(small, wide, 0.0))
    series = SINC[-1] * z + SINC[-2]
    for c in SINC[-3::-1]:
        series = series * z + c
    far = where(small, 1.0, wide)
    turns = round(far)
    sign = 1.0 - 2.0 * remainder(turns, 2.0)  # sin(pi x) = ±sin(pi (x - n)) for the whole number n
    return in_dtype(where(small, series, sign * sin(math.pi * (far - turns)) / (math.pi * far)), x.dtype)


def deg2rad(x: Any, /) -> Tensor:
    """Returns angles in radians, given in degrees."""
    return in_float(as_tensor(x)) * (math.pi / 180)


def rad2deg(x: Any, /) -> Tensor:
    """Returns angles in degrees, given in radians."""
    return in_float(as_tensor(x)) * (180 / math.pi)
