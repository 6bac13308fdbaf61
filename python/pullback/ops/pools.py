"""Pools: the maximum or the mean of each window of the last two axes.

A maximum is a gather at its position, so its pullback is a scatter, and the second derivative gathers again. A mean is linear, and
its pullback spreads cotangents over their windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ..autodiff.batching import pull
from ..autodiff.primitive import ZERO, Op, Rule, apply
from ..tensors.tensor import Tensor
from ._shapes import Shape
from .batch_rules import leading
from .by_name import all_on, in_dtype, reshaped, widened
from .declare import no_flops, normal, op
from .gather import along_axis_add, gathered_along
from .kinds import LINEAR, OWN
from .row_references import wide
from .rows import fused

INSIDE, PADDED, ADAPTIVE = 0, 1, 2  # what a sum is divided by, Divisor in csrc/families/pool.h

Window = tuple[int, ...]  # the ints of a launch in csrc/families/pool.h


class AxisWindows(NamedTuple):
    """The windows along one axis: where each begins and ends, cut at the plane, and the lengths that a mean is divided by."""

    begin: list[int]
    end: list[int]
    length: list[int]


def spans(window: Window, axis: int, n: int, count: int) -> AxisWindows:
    """Returns the windows of a mean along the axis of H (0) or W (1), whose length is n."""
    if window[6] == ADAPTIVE:
        begin, end = [o * n // count for o in range(count)], [-(-(o + 1) * n // count) for o in range(count)]
        return AxisWindows(begin, end, [b - a for a, b in zip(begin, end)])
    size, stride, padding = window[axis], window[2 + axis], window[4 + axis]
    starts = [o * stride - padding for o in range(count)]
    stops = [min(start + size, n + padding) for start in starts]
    begin, end = [max(start, 0) for start in starts], [min(stop, n) for stop in stops]
    padded = window[6] == PADDED
    return AxisWindows(begin, end, [b - a for a, b in (zip(starts, stops) if padded else zip(begin, end))])


def _positions(xp: Any, window: Window, axis: int, n: int, count: int) -> Any:
    """Returns the positions (count, elements) of the windows of a maximum along the axis of H (0) or W (1), whose length is n.

    Some may lie in the padding. Elements that lie there in all windows are left out.
    """
    size, stride, padding, dilation = window[axis::2]
    starts = xp.arange(count) * stride - padding
    first, last = max(0, -((padding - (count - 1) * stride) // -dilation)), min(size, (n - 1 + padding) // dilation + 1)
    return starts[:, None] + xp.arange(first, max(first, last)) * dilation


# ---- references


def _maxima(xp: Any, x: Any, window: Window, lengths: Shape) -> tuple[Any, Any]:
    """Returns the maximum of each window and its position in the plane. The first of equal elements counts, and the last NaN."""
    h, w = x.shape[-2:]
    z = wide(xp, x)
    rows, columns = [_positions(xp, window, axis, x.shape[axis - 2], count) for axis, count in enumerate(lengths)]
    inside = ((rows >= 0) & (rows < h))[:, None, :, None] & ((columns >= 0) & (columns < w))[None, :, None, :]
    at = rows[:, None, :, None] * w + columns[None, :, None, :]
    flat = (*lengths, rows.shape[1] * columns.shape[1])
    at, inside = xp.where(inside, at, 0).reshape(flat), inside.reshape(flat)
    if not x.size:
        return xp.zeros((*x.shape[:-2], *lengths), x.dtype), xp.zeros((*x.shape[:-2], *lengths), xp.int64)
    taken = z.reshape(*x.shape[:-2], h * w)[..., at]
    taken = xp.where(inside, taken, -xp.inf)
    missing = xp.isnan(taken)
    top = taken.max(axis=-1, keepdims=True)
    first = ((taken == top) & inside).argmax(axis=-1)
    last = flat[-1] - 1 - missing[..., ::-1].argmax(axis=-1)
    which = xp.where(missing.any(axis=-1), last, first)
    places = xp.take_along_axis(xp.broadcast_to(at, taken.shape), which[..., None], -1)[..., 0]
    return top[..., 0].astype(x.dtype), places.astype(xp.int64)


def _divisors(xp: Any, window: Window, shape: Shape, lengths: Shape, dtype: Any) -> tuple[AxisWindows, AxisWindows, Any]:
    h, w = [spans(window, axis, n, count) for axis, (n, count) in enumerate(zip(shape[-2:], lengths))]
    if window[7]:
        return h, w, xp.full(tuple(lengths), window[7], dtype)
    rows, columns = [xp.asarray(span.length, xp.float64) for span in (h, w)]  # their products may exceed int64
    return h, w, (rows[:, None] * columns[None, :]).astype(dtype)


def _avg_pool_reference(xp: Any, x: Any, window: Window, lengths: Shape) -> Any:
    z = xp.ascontiguousarray(wide(xp, x))  # because the order of NumPy's sums depends on the layout
    h, w, divisors = _divisors(xp, window, x.shape, lengths, z.dtype)
    y = xp.zeros((*x.shape[:-2], *lengths), z.dtype)
    for i in range(lengths[0]):
        for j in range(lengths[1]):
            y[..., i, j] = z[..., h.begin[i] : h.end[i], w.begin[j] : w.end[j]].sum(axis=(-2, -1))
    return (y / divisors).astype(x.dtype)


def _avg_unpool_reference(xp: Any, x: Any, window: Window, lengths: Shape) -> Any:
    shape = (*x.shape[:-2], *lengths)
    h, w, divisors = _divisors(xp, window, shape, x.shape[-2:], wide(xp, x).dtype)
    shares, y = wide(xp, x) / divisors, xp.zeros(shape, wide(xp, x).dtype)
    for i in range(x.shape[-2]):
        for j in range(x.shape[-1]):
            y[..., h.begin[i] : h.end[i], w.begin[j] : w.end[j]] += shares[..., i : i + 1, j : j + 1]
    return y.astype(x.dtype)


# ---- pullbacks by definition, tangents


def _flat(x: Tensor) -> Tensor:
    return reshaped(x, (*x.shape[:-2], math.prod(x.shape[-2:])))


def _max_pullback(g: Tensor, x: Tensor, window: Window) -> Tensor:
    """Adds each cotangent at the position of its maximum."""
    at, shape = _flat(max_pool_indices(x, window, g.shape[-2:])), (*x.shape[:-2], math.prod(x.shape[-2:]))
    return in_dtype(reshaped(along_axis_add(_flat(widened(g)), at, shape, len(shape) - 1), x.shape), x.dtype)


def _max_tangent(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """Gathers the tangent at the positions of the maxima."""
    window, lengths = params
    at = _flat(max_pool_indices(inputs[0], window, lengths))
    return reshaped(gathered_along(_flat(tangents[0]), at, at.ndim - 1), y.shape)


def _pull_each(rule: Rule, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    """Runs the pullback of max_pool on the planes of all examples."""
    return pull(rule, *all_on(size, values[:2], on), *values[2:])


# ---- costs


def _elements(plane: Any, windows: Any, window: Window) -> int:
    """Returns the number of elements of all windows of means that are in their plane."""
    h, w = [spans(window, axis, n, count) for axis, (n, count) in enumerate(zip(plane.shape[-2:], windows.shape[-2:]))]
    rows, columns = [sum(s.end) - sum(s.begin) for s in (h, w)]
    return math.prod(plane.shape[:-2]) * rows * columns


def _avg_cost(x: Any, window: Window, lengths: Shape, y: Any) -> dict[str, int]:
    return {"adds": _elements(x, y, window) - y.size, "special_ops": y.size}


def _unpool_cost(x: Any, window: Window, lengths: Shape, y: Any) -> dict[str, int]:
    return {"adds": _elements(y, x, window), "special_ops": x.size}


# ---- declarations

EXAMPLE: Final = (2, 3, 1, 2, 1, 0, 1, 1)  # windows of 2 × 3, one apart along H and two along W, with padding along H

_max_pool = op("max_pool", kind=OWN, batch=leading, tangent=_max_tangent, pull=_pull_each, takes="float",
               reference=lambda xp, x, window, lengths: _maxima(xp, x, window, lengths)[0],
               pullback=_max_pullback, fused=fused("max_pool"), cost=no_flops,
               example=normal((2, 4, 7), params=(EXAMPLE, (5, 3))))
_max_pool_indices = op("max_pool_indices", kind=OWN, batch=leading, takes="float",
                       reference=lambda xp, x, window, lengths: _maxima(xp, x, window, lengths)[1],
                       pullback=ZERO, cost=no_flops,
                       example=normal((2, 4, 7), params=(EXAMPLE, (5, 3))))
_avg_pool = op("avg_pool", kind=LINEAR, takes="float", reference=_avg_pool_reference,
               pullback=lambda g, x_shape, window: avg_unpool(g, window, x_shape[-2:]), cost=_avg_cost,
               example=normal((2, 4, 7), params=((*EXAMPLE[:6], PADDED, 0), (5, 3))))
_avg_unpool = op("avg_unpool", kind=LINEAR, takes="float", reference=_avg_unpool_reference,
                 pullback=lambda g, x_shape, window: avg_pool(g, window, x_shape[-2:]), cost=_unpool_cost,
                 example=normal((2, 5, 3), params=((*EXAMPLE[:6], PADDED, 0), (4, 7))))


def max_pool(x: Tensor, window: Window, lengths: Shape) -> Tensor:
    """Returns the maximum of each window of planes (…, H, W), with `lengths` windows along the last two axes."""
    return apply(_max_pool, (x,), (window, tuple(lengths)))


def max_pool_indices(x: Tensor, window: Window, lengths: Shape) -> Tensor:
    """Returns the positions i * W + j of the maxima of max_pool, int64."""
    return apply(_max_pool_indices, (x,), (window, tuple(lengths)))


def avg_pool(x: Tensor, window: Window, lengths: Shape) -> Tensor:
    """Returns the mean of each window of planes (…, H, W), with `lengths` windows along the last two axes."""
    return apply(_avg_pool, (x,), (window, tuple(lengths)))


def avg_unpool(x: Tensor, window: Window, lengths: Shape) -> Tensor:
    """Returns planes of `lengths`, in which each number of x is spread evenly over its window: the transpose of avg_pool."""
    return apply(_avg_unpool, (x,), (window, tuple(lengths)))
