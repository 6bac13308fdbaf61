"""Variance and standard deviation over axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..autodiff.primitive import apply
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from ._shapes import kept, kept_dims, normalize_axes, real
from .by_name import in_dtype, in_float, reshaped, widened
from .declare import normal, op
from .kinds import ROWS
from .reduce import cells, centred, mean
from .roots import deviation, squeezed
from .row_references import centred_rows, wide
from .rows import joined_rows, rows_cost
from .shape import expand_dims


def _reference(xp: Any, x: Any) -> Any:
    z = centred_rows(xp, wide(xp, x))
    return (z * z).mean(axis=-1).astype(x.dtype)


def _pullback(g: Tensor, x: Tensor) -> Tensor:
    return expand_dims(g * (2 / x.shape[-1]), axis=-1) * centred(x, (x.ndim - 1,))


_variance = op("variance", kind=ROWS, reference=_reference, takes="float", pullback=_pullback,
               cost=lambda x, y: rows_cost(x, (3, 1, 0), (-2, 2, 2)), example=normal((4, 5)))


def var(x: ArrayLike, axis: int | Sequence[int] | None = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Returns the variance over the axes: the sum of squared distances from the mean, over n - correction; 0 if all are equal.

    Half precision is computed in float32, because a mean rounded to half precision can be off by more than the deviations from
    it. Raises ShapeError, DTypeError for a correction that is not a number.
    """
    x, keepdims = in_float(as_tensor(x)), kept("var", keepdims)
    return in_dtype(_spread(x, axis, correction, keepdims), x.dtype)


def std(x: ArrayLike, axis: int | Sequence[int] | None = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Returns the square root of `var`. Where all elements are equal, its gradient is zero and its second derivative is NaN.

    The squares are not scaled: those of float32 deviations below 1e-19 are 0, and those above 1e19 infinite, and so is the result.

    Raises ShapeError, DTypeError.
    """
    x, keepdims = in_float(as_tensor(x)), kept("std", keepdims)
    axes = normalize_axes("std", axis, x.ndim)
    y = deviation(_spread(x, axes, correction, True), widened(x), axes)
    return in_dtype(y if keepdims else squeezed(y, axes), x.dtype)


def _spread(x: Tensor, axis: Any, correction: float, keepdims: bool) -> Tensor:
    """Returns the variance of floats, in float32 for half precision."""
    x = widened(x)
    axes = normalize_axes("var", axis, x.ndim)
    n, correction = cells(x.shape, axes), real("var", "correction", correction)
    y = apply(_variance, (joined_rows("var", x, axes),)) if x.size and axes else mean(x - x, axis=axes)
    y = reshaped(y, kept_dims(x.shape, axes)) if keepdims else y
    return y * (n / (n - correction) if n > correction else math.inf) if correction else y
