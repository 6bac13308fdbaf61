"""Quantiles and medians along axes: elements of the sorted tensor, and interpolation between them."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from ..errors import PullbackError
from ..tensors import dtypes
from ..tensors.creation import asarray
from ..tensors.nested import has_tensor
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from . import elementwise
from ._shapes import kept, kept_dims, normalize_axes
from .by_name import in_dtype, in_float, widened
from .elementwise import greater_equal, isfinite, isinf, isnan, less_equal, logical_and, logical_not, maximum, not_equal, where
from .gather import take_along_axis
from .reduce import mean, sum
from .shape import flatten, moveaxis, permute_dims, reshape
from .sort import sort

METHODS: Final = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(x: Any, /, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False) -> Tensor:
    """Returns the q-th quantiles over the axes (None: all axes), and NaN where an element is NaN.

    Args:
        q: numbers in [0, 1], of any shape. The derivative by a tensor q is that of the interpolation.
        method: "linear" interpolates between the two elements next to the position q (n - 1) in the sorted order; "lower",
            "higher" and "nearest" take one of them, and "midpoint" their mean. Next to an infinity the result is infinite, and
            between two of different sign NaN; NumPy's is NaN for many more.

    Returns: the shape of q, followed by that of x without the axes (with length 1 for each, if keepdims).
    Raises: ShapeError; PullbackError for another method or a q outside [0, 1], for which a tensor q gives NaN.
    """
    return _quantile("quantile", x, q, axis, method, keepdims)


def percentile(x: Any, /, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False) -> Tensor:
    """Returns the q-th percentiles: `quantile` for q / 100. Its arguments and errors are those of `quantile`."""
    return _quantile("percentile", x, q, axis, method, keepdims, whole=100)


def median(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    """Returns the median over the axes (None: all axes), and NaN where an element is NaN. Raises ShapeError.

    It is the element in the middle of the sorted order, or the mean of the two in the middle, as in NumPy.
    """
    return _quantile("median", x, 0.5, axis, "linear", keepdims)


def nanquantile(x: Any, /, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False) -> Tensor:
    """Returns the q-th quantiles of the elements that are not NaN, and NaN if all are. Arguments are those of `quantile`."""
    return _quantile("nanquantile", x, q, axis, method, keepdims)


def nanpercentile(x: Any, /, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False) -> Tensor:
    """Returns the q-th percentiles of the elements that are not NaN, and NaN if all are. Arguments are those of `quantile`."""
    return _quantile("nanpercentile", x, q, axis, method, keepdims, whole=100)


def nanmedian(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    """Returns the median of the elements that are not NaN, and NaN if all are. Raises ShapeError."""
    return _quantile("nanmedian", x, 0.5, axis, "linear", keepdims)


def _quantile(name: str, x: Any, q: Any, axis: Any, method: str, keepdims: bool, whole: int = 1) -> Tensor:
    given: Any = method
    if not isinstance(given, str) or method not in METHODS:
        raise PullbackError(f"{name}: method={method!r}; use {', '.join(map(repr, METHODS))}.")
    x = in_float(as_tensor(x))
    axes = normalize_axes(name, axis, x.ndim)
    share, inside = _shares(name, q, whole, x.device)
    others = [i for i in range(x.ndim) if i not in axes]
    lengths, n = [x.shape[i] for i in others], math.prod([x.shape[i] for i in axes])
    rows = reshape(permute_dims(widened(x), (*others, *axes)), (*lengths, n))
    y = _of_rows(rows, flatten(share), method, skip_nan=name.startswith("nan"))
    y = y if inside is None else where(flatten(inside), y, math.nan)
    shape = kept_dims(x.shape, axes) if kept(name, keepdims) else tuple(lengths)
    return in_dtype(reshape(moveaxis(y, -1, 0), (*share.shape, *shape)), x.dtype)


def _shares(name: str, q: Any, whole: int, device: str) -> tuple[Tensor, Tensor | None]:
    """Returns q / whole in float64, and for a tensor q where it is in [0, 1]. Raises PullbackError for a number outside."""
    if isinstance(q, Tensor) or has_tensor(q):
        share = as_tensor(q, dtype=dtypes.float64) / whole
        inside = logical_and(greater_equal(share, 0), less_equal(share, 1))
        return where(inside, share, 0.0), inside
    try:
        given = np.asarray(q)
        # The casting "same_kind" refuses complex numbers and strings. Objects may be numbers, such as fractions and large integers.
        numbers = given.astype(np.float64, casting="unsafe" if given.dtype == object else "same_kind") / whole
    except OverflowError:
        numbers = np.asarray(math.inf)
    except (TypeError, ValueError):
        raise PullbackError(f"{name}: q={q!r} is not a real number or an array of real numbers.") from None
    if not ((numbers >= 0) & (numbers <= 1)).all():
        raise PullbackError(f"{name}: q={q!r} is not in [0, {whole}].")
    return asarray(numbers, device=device), None


def _of_rows(rows: Tensor, share: Tensor, method: str, skip_nan: bool) -> Tensor:
    """Returns the quantiles (…, m) of the last axis of rows (…, n) for shares (m,) in float64."""
    if not rows.shape[-1]:
        return mean(rows, axis=-1, keepdims=True) + in_dtype(share * 0.0, rows.dtype)  # NaN
    ordered = sort(rows, axis=-1)  # NaN last
    count: Any = rows.shape[-1]
    if skip_nan:
        count = maximum(sum(in_dtype(logical_not(isnan(rows)), share.dtype), axis=-1, keepdims=True), 1.0)
    position = share * (count - 1.0)
    low, high = elementwise.floor(position), elementwise.ceil(position)
    if method == "nearest":
        low = high = elementwise.round(position)
    elif method in ("lower", "higher"):
        low = high = low if method == "lower" else high
    lead = (1,) * (rows.ndim - low.ndim)
    a, b = [take_along_axis(ordered, in_dtype(reshape(i, (*lead, *i.shape)), dtypes.int64), axis=-1) for i in (low, high)]
    weight = in_dtype(position - low if method == "linear" else 0.5 * (high - low), rows.dtype)
    # An infinity stays what it is next to any number but the other infinity, for which NaN is right.
    gap = b - a
    y = a + where(logical_and(isinf(a), not_equal(a, -b)), 0.0, gap) * weight
    too_far = logical_and(isinf(gap), logical_and(isfinite(a), isfinite(b)))  # large numbers of opposite sign
    y = where(too_far, a * (1.0 - weight) + b * weight, y)
    last = ordered[..., -1:]
    return y if skip_nan else where(isnan(last), last, y)
