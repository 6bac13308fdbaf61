"""Variance and standard deviation over axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..autodiff.batching import pull
from ..autodiff.primitive import Rule, apply
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from ._shapes import kept, kept_dims, normalize_axes, real
from .by_name import all_on, in_dtype, in_float, reshaped, widened
from .declare import normal, op
from .kinds import ROWS
from .reduce import cells, centred, mean, sum
from .roots import along, pull_length, pull_length_natively
from .row_references import centred_rows, nearness, wide
from .rows import joined_rows, rows_cost
from .shape import expand_dims


def _reference(xp: Any, x: Any) -> Any:
    z = centred_rows(xp, wide(xp, x))
    c = nearness(xp, (z * z).mean(axis=-1, keepdims=True))
    z = z * c
    return ((z * z).mean(axis=-1) / c[..., 0] / c[..., 0]).astype(x.dtype)


def _deviation_reference(xp: Any, x: Any, factor: float) -> Any:
    z = centred_rows(xp, wide(xp, x))
    c = nearness(xp, (z * z).mean(axis=-1, keepdims=True) * factor)
    z = z * c
    return (xp.sqrt((z * z).mean(axis=-1) * factor) / c[..., 0]).astype(x.dtype)


def _pullback(g: Tensor, x: Tensor) -> Tensor:
    return expand_dims(g * (2 / x.shape[-1]), axis=-1) * centred(x, (x.ndim - 1,))


_variance = op("variance", kind=ROWS, reference=_reference, takes="float", pullback=_pullback,
               cost=lambda x, y: rows_cost(x, (3, 1, 0), (-2, 2, 2)), example=normal((4, 5)))


def _directions(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return centred(x, (x.ndim - 1,)), expand_dims(y, axis=-1)


def _deviation_pullback(g: Tensor, x: Tensor, y: Tensor, factor: float) -> Tensor:
    """As that of a length, y² = factor / n times the sum of the squared distances."""
    return pull_length(_shares(g, x, factor), *_directions(x, y))


def _deviation_fused(g: Tensor, x: Tensor, y: Tensor, factor: float) -> Tensor:
    assert pull_length_natively is not None
    return pull_length_natively(_shares(g, x, factor), *_directions(x, y))


def _shares(g: Tensor, x: Tensor, factor: float) -> Tensor:
    return expand_dims(g * (factor / x.shape[-1]), axis=-1)


def _pull_deviation_each(rule: Rule, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    return pull(rule, *all_on(size, values[:3], on), values[3])


def _deviation_tangent(op: Any, inputs: Any, y: Tensor, params: Any, tangents: Any) -> Tensor:
    parts = along(tangents[0], *_directions(inputs[0], y), True)
    return sum(parts, axis=-1) * (params[0] / inputs[0].shape[-1])


_deviation = op("deviation", kind=ROWS, reference=_deviation_reference, takes="float", pullback=_deviation_pullback,
                fused=_deviation_fused, pull=_pull_deviation_each, tangent=_deviation_tangent,
                cost=lambda x, factor, y: rows_cost(x, (3, 1, 0), (-2, 3, 3)),
                pull_cost=lambda g, x, y, factor: rows_cost(x, (4, 1, 0), (-1, 1, 3)),  # centred twice, and pulled back
                example=normal((4, 5), params=(1.25,)))


def var(x: ArrayLike, axis: int | Sequence[int] | None = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Returns the variance over the axes: the sum of squared distances from the mean, over n - correction; 0 if all are equal.

    Half precision is computed in float32, because a mean rounded to half precision can be off by more than the deviations from
    it. Raises ShapeError, DTypeError for a correction that is not a number.
    """
    x, keepdims = in_float(as_tensor(x)), kept("var", keepdims)
    return in_dtype(_spread(x, axis, correction, keepdims), x.dtype)


def std(x: ArrayLike, axis: int | Sequence[int] | None = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Returns the square root of `var`, of numbers of any size. Where all elements are equal, its gradient is 0 and its second
    derivative NaN.

    Raises ShapeError, DTypeError.
    """
    x, keepdims = in_float(as_tensor(x)), kept("std", keepdims)
    z, axes = widened(x), normalize_axes("std", axis, x.ndim)
    n = cells(x.shape, axes)
    factor = _unbiased(n, real("std", "correction", correction))
    if x.size:
        rows = joined_rows("std", z, axes) if axes else expand_dims(z, axis=-1)
        y = apply(_deviation, (rows,), (factor,)) if factor < math.inf else apply(_deviation, (rows,), (1.0,)) * factor
        y = reshaped(y, kept_dims(x.shape, axes)) if keepdims else y
    else:
        y = mean(z, axis=axes, keepdims=keepdims)
    return in_dtype(y, x.dtype)


def _unbiased(n: int, correction: float) -> float:
    """Returns what makes a mean over n a sum over n - correction."""
    return 1.0 if not correction else n / (n - correction) if n > correction else math.inf


def _spread(x: Tensor, axis: Any, correction: float, keepdims: bool) -> Tensor:
    """Returns the variance of floats, in float32 for half precision."""
    x = widened(x)
    axes = normalize_axes("var", axis, x.ndim)
    n, correction = cells(x.shape, axes), real("var", "correction", correction)
    y = apply(_variance, (joined_rows("var", x, axes),)) if x.size and axes else mean(x - x, axis=axes)
    y = reshaped(y, kept_dims(x.shape, axes)) if keepdims else y
    return y * _unbiased(n, correction) if correction else y
