"""Reductions and running sums that leave out NaN. Elements that are NaN get no gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..tensors import dtypes
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from ._shapes import Shape, kept, normalize_axes, real
from .by_name import in_dtype, in_float, widened
from .conversion import stop_gradient
from .cumulative import cumulative_prod, cumulative_sum
from .elementwise import equal, greater, isfinite, isnan, logical_not, sqrt, square, where
from .reduce import all, any, argmax, max, min, prod, sum
from .roots import length, squeezed
from .shape import flatten


def _filled(x: Tensor, value: float) -> Tensor:
    """Returns x with NaN replaced by the value."""
    return where(isnan(x), value, x) if dtypes.is_float(x.dtype) else x


def nansum(x: Any, /, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Tensor:
    """Returns the sum of the elements that are not NaN over the axes (None: all axes), and 0 if there are none.

    Raises ShapeError for an axis that does not exist.
    """
    return sum(_filled(as_tensor(x), 0.0), axis=axis, dtype=dtype, keepdims=keepdims)


def nanprod(x: Any, /, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Tensor:
    """Returns the product of the elements that are not NaN over the axes (None: all axes), and 1 if there are none.

    Raises ShapeError for an axis that does not exist.
    """
    return prod(_filled(as_tensor(x), 1.0), axis=axis, dtype=dtype, keepdims=keepdims)


def nanmax(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    """Returns the largest element that is not NaN over the axes (None: all axes), and NaN if all are. Ties share the gradient.

    Raises ShapeError for an axis that does not exist or is empty.
    """
    return _extreme(max, -math.inf, x, axis, keepdims)


def nanmin(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    """Returns the smallest element that is not NaN over the axes (None: all axes), and NaN if all are. Ties share the gradient.

    Raises ShapeError for an axis that does not exist or is empty.
    """
    return _extreme(min, math.inf, x, axis, keepdims)


def _extreme(reduction: Callable[..., Tensor], last: float, x: Any, axis: Any, keepdims: bool) -> Tensor:
    x = as_tensor(x)
    y = reduction(_filled(x, last), axis=axis, keepdims=keepdims)
    return where(all(isnan(x), axis=axis, keepdims=keepdims), math.nan, y) if dtypes.is_float(x.dtype) else y


def nanmean(x: Any, /, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Tensor:
    """Returns the mean of the elements that are not NaN over the axes (None: all axes), and NaN if there are none.

    Half precision is computed in float32, and integers are averaged in float32. Raises ShapeError.
    """
    x = in_float(as_tensor(x) if dtype is None else in_dtype(x, dtype))
    return in_dtype(_mean(widened(x), axis, keepdims), x.dtype)


def _mean(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    return sum(_filled(x, 0.0), axis=axis, keepdims=keepdims) / _count(x, axis, keepdims)


def _count(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    """Returns the number of elements that are not NaN, in the dtype of x."""
    return sum(in_dtype(logical_not(isnan(x)), x.dtype), axis=axis, keepdims=keepdims)


def nanvar(
    x: Any, /, axis: Any = None, dtype: Any = None, *, ddof: float = 0, keepdims: bool = False, correction: float | None = None
) -> Tensor:
    """Returns the variance of the elements that are not NaN over the axes: the squared distances from their mean, over n - ddof.

    `correction` is the array API's name for ddof. The result is NaN if n is at most ddof. For a tensor of integers it is that of
    `var`, which is infinite there unless all elements are equal. Half precision is computed in float32.
    Raises ShapeError, DTypeError.
    """
    given, distances, n, axes, kind = _distances("nanvar", x, axis, dtype, ddof if correction is None else correction)
    total = sum(square(distances), axis=axes, keepdims=True)
    v = where(greater(n, 0), total / where(greater(n, 0), n, 1.0), _without_enough(given, total))
    return in_dtype(v if kept("nanvar", keepdims) else squeezed(v, axes), kind)


def nanstd(
    x: Any, /, axis: Any = None, dtype: Any = None, *, ddof: float = 0, keepdims: bool = False, correction: float | None = None
) -> Tensor:
    """Returns the square root of `nanvar`, of numbers of any size. Where all elements are equal, its gradient is 0 and its second
    derivative NaN.

    Raises ShapeError, DTypeError.
    """
    given, distances, n, axes, kind = _distances("nanstd", x, axis, dtype, ddof if correction is None else correction)
    total = length(distances, axes)
    y = where(greater(n, 0), total / sqrt(where(greater(n, 0), n, 1.0)), _without_enough(given, total))
    return in_dtype(y if kept("nanstd", keepdims) else squeezed(y, axes), kind)


def _distances(name: str, x: Any, axis: Any, dtype: Any, ddof: float) -> tuple[Tensor, Tensor, Tensor, Shape, Any]:
    """Returns x as a tensor, the distances from its mean, for half precision in float32, their number less ddof, the axes, and the
    result's dtype.
    """
    given = as_tensor(x)
    result = in_float(given if dtype is None else in_dtype(given, dtype))
    x, axes = widened(result), normalize_axes(name, axis, given.ndim)
    distances = where(isnan(x), 0.0, _centred(x, axis))
    return given, distances, _count(x, axis, True) - real(name, "ddof", ddof), axes, result.dtype


def _without_enough(given: Tensor, total: Tensor) -> Any:
    """As NumPy, which takes var where there is no NaN."""
    return math.nan if dtypes.is_float(given.dtype) else total * math.inf


def _centred(x: Tensor, axis: Any) -> Tensor:
    """Returns x minus its mean, as `ops.reduce.centred` does; NaN takes no part in the mean."""
    if not x.size:
        return x
    constant = stop_gradient(x)
    first = _mean(constant, axis, True)
    pivot = where(isfinite(first), first, max(_filled(constant, -math.inf), axis=axis, keepdims=True))
    return x - (pivot + _mean(x - pivot, axis, True))


# ---- places


def nanargmax(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Returns the int64 index of the first largest element that is not NaN along the axis (None: in the flattened tensor).

    It is -1 if all elements are NaN, for which NumPy raises an error. Raises ShapeError.
    """
    return _place(nanmax, x, axis, keepdims)


def nanargmin(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Returns the int64 index of the first smallest element that is not NaN along the axis (None: in the flattened tensor).

    It is -1 if all elements are NaN, for which NumPy raises an error. Raises ShapeError.
    """
    return _place(nanmin, x, axis, keepdims)


def _place(extreme: Callable[..., Tensor], x: Any, axis: int | None, keepdims: bool) -> Tensor:
    x = as_tensor(x)
    hit = equal(x, extreme(x, axis, keepdims=True))
    return where(any(hit, axis=axis, keepdims=keepdims), argmax(hit, axis=axis, keepdims=keepdims), -1)


# ---- running sums


def nancumsum(x: Any, /, axis: int | None = None, dtype: Any = None) -> Tensor:
    """Returns the running sum along the axis (None: of the flattened tensor), in which NaN counts as 0. Raises ShapeError."""
    x = _filled(as_tensor(x), 0.0)
    return cumulative_sum(flatten(x) if axis is None else x, axis=axis, dtype=dtype)


def nancumprod(x: Any, /, axis: int | None = None, dtype: Any = None) -> Tensor:
    """Returns the running product along the axis (None: of the flattened tensor), in which NaN counts as 1. Raises ShapeError."""
    x = _filled(as_tensor(x), 1.0)
    return cumulative_prod(flatten(x) if axis is None else x, axis=axis, dtype=dtype)
