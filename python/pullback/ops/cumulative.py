"""Cumulative sums, products, extremes and log-sums along an axis, and differences of neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ..autodiff.listeners import listeners
from ..autodiff.primitive import apply
from ..autodiff.tape import Tape
from ..errors import ShapeError
from ..tensors import dtypes
from ..tensors.creation import full, zeros_like
from ..tensors.operand import as_tensor, own
from ..tensors.ranges import arange
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, DTypeLike
from ._shapes import flag, length, normalize_axis
from .batch_rules import along_axes
from .by_name import in_dtype, in_float, widened
from .conversion import settled, stop_gradient
from .declare import distinct, no_flops, normal, op
from .elementwise import (
    equal,
    exp,
    greater,
    isfinite,
    isnan,
    log1p,
    logaddexp,
    logical_or,
    maximum,
    multiply,
    not_equal,
    subtract,
    where,
)
from .gather import along_axis_add, take_along_axis
from .kinds import LINEAR, OWN
from .movement import concat
from .operands import as_tensors
from .shape import part_of, reshape

# ---- ops: (x, axis, reverse)


def _reference(name: str) -> Any:
    def scan(xp: Any, x: Any, axis: int, reverse: bool) -> Any:
        kind = dtypes.accumulated(x.dtype)
        wide = x.astype(kind if kind.itemsize > 2 else dtypes.float32)
        turned = xp.flip(wide, axis) if reverse else wide
        y = getattr(xp, name)(turned, axis=axis)
        return (xp.flip(y, axis) if reverse else y).astype(kind)

    return scan


def _one_each(figure: str) -> Any:
    return lambda x, axis, reverse, y: {figure: x.size - (x.size // x.shape[axis] if x.size else 0)}


_cumulative_sum = op(
    "cumulative_sum", example=normal((3, 5), params=(1, False)),
    kind=LINEAR, reference=_reference("cumsum"), cost=_one_each("adds"),
    pullback=lambda g, axis, reverse: apply(_cumulative_sum, (g,), (axis, not reverse)),
)
_cumulative_prod = op(
    "cumulative_prod", example=normal((3, 5), params=(1, True)),
    kind=OWN, reference=_reference("cumprod"), cost=_one_each("multiplies"), batch=along_axes,
    pullback=lambda g, x, axis, reverse: _product_scan_pullback(g, x, axis, reverse),
)


def _extreme_reference(name: str) -> Any:
    def scan(xp: Any, x: Any, axis: int, reverse: bool) -> Any:
        y = getattr(xp, name).accumulate(xp.flip(x, axis) if reverse else x, axis=axis)
        return xp.flip(y, axis) if reverse else y

    return scan


_cumulative_max = op(
    "cumulative_max", example=distinct((3, 5), params=(1, False)),
    kind=OWN, reference=_extreme_reference("maximum"), cost=no_flops, batch=along_axes,
    pullback=lambda g, x, y, axis, reverse: along_axis_add(g, _places(x, y, axis, reverse), x.shape, axis),
)
_cumulative_min = op(
    "cumulative_min", example=distinct((3, 5), params=(1, True)),
    kind=OWN, reference=_extreme_reference("minimum"), cost=no_flops, batch=along_axes,
    pullback=lambda g, x, y, axis, reverse: along_axis_add(g, _places(x, y, axis, reverse), x.shape, axis),
)


def _places(x: Tensor, y: Tensor, axis: int, reverse: bool) -> Tensor:
    """Returns for each element of the running extremes y of x its index along the axis: of equal ones that which came last."""
    n = x.shape[axis]
    index = reshape(arange(n, device=x.device), tuple([n if i == axis else 1 for i in range(x.ndim)]))
    hit = logical_or(equal(x, y), isnan(x)) if dtypes.is_float(x.dtype) else equal(x, y)
    if reverse:
        return apply(_cumulative_min, (where(hit, index, n),), (axis, True))
    return apply(_cumulative_max, (where(hit, index, 0),), (axis, False))


def _product_scan_pullback(g: Tensor, x: Tensor, axis: int, reverse: bool) -> Tensor:
    """g pulled back through the same product written as log2(n) differentiable steps, which is exact even if elements are zero."""
    with Tape(watch_parameters=False) as tape:
        tape.watch(x)
        y = _doubling(multiply, 1.0, x * 1.0, axis, reverse)
    return tape.gradient(y, x, output_gradients=g)


def _doubling(combine: Callable[[Tensor, Tensor], Tensor], first: float, y: Tensor, axis: int, reverse: bool) -> Tensor:
    """Returns a running reduction by Hillis & Steele's scan: after k steps an element combines 2^k neighbours.

    first: the neutral element of `combine`.
    """
    n, step = y.shape[axis], 1
    while step < n:
        kept = part_of(y, axis, slice(step, None) if reverse else slice(0, n - step))
        border = full(tuple([step if i == axis else m for i, m in enumerate(y.shape)]), first, dtype=y.dtype, device=y.device)
        y = combine(y, concat([kept, border] if reverse else [border, kept], axis=axis))
        step *= 2
    return y


def product_of_others(rows: Tensor) -> Tensor:
    """Returns for each element of a row the product of all others: that of the elements before it times that of those after it."""
    n = rows.shape[-1]
    one = full((*rows.shape[:-1], 1), 1.0, dtype=rows.dtype, device=rows.device)
    axis = rows.ndim - 1
    before = concat([one, apply(_cumulative_prod, (rows[..., : n - 1],), (axis, False))], axis=-1) if n else rows
    after = concat([apply(_cumulative_prod, (rows[..., 1:],), (axis, True)), one], axis=-1) if n else rows
    return before * after


# ---- public functions


def _axis(name: str, axis: int | None, x: Tensor) -> int:
    """Returns the axis counted from the front. Raises ShapeError if it does not exist, or is missing and x is not a vector."""
    if axis is None and x.ndim != 1:
        raise ShapeError(f"{name}: axis= is needed for a tensor of shape {x.shape}; only for one axis it may be left out.")
    return normalize_axis(name, 0 if axis is None else axis, x.ndim)


def _scan(op: Any, first: float, x: Any, axis: int | None, dtype: Any, include_initial: bool) -> Tensor:
    x = as_tensor(x) if dtype is None else in_dtype(x, dtype)
    axis = _axis(op.name, axis, x)
    y = apply(op, (x,), (axis, False))
    y = y if dtype is None else in_dtype(y, dtype)
    if not flag(op.name, "include_initial", include_initial):
        return y
    start = full(tuple([1 if i == axis else n for i, n in enumerate(x.shape)]), first, dtype=y.dtype, device=y.device)
    return concat([start, y], axis=axis)


def cumulative_sum(
    x: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, *, include_initial: bool = False
) -> Tensor:
    """Returns, for each element, the sum of all elements up to and including it along the axis. Integers are summed in 64 bits.

    `include_initial` puts a 0 first. `axis` may be left out for a vector. Raises ShapeError.
    """
    return _scan(_cumulative_sum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, *, include_initial: bool = False
) -> Tensor:
    """Returns, for each element, the product of all elements up to and including it along the axis.

    `include_initial` puts a 1 first. `axis` may be left out for a vector. Raises ShapeError.
    """
    return _scan(_cumulative_prod, 1, x, axis, dtype, include_initial)


class Running(NamedTuple):
    """The result of `cummax` and `cummin`: the running extremes, and their int64 indices along the axis."""

    values: Tensor
    indices: Tensor


def cummax(x: ArrayLike, /, axis: int | None = None) -> Running:
    """Returns, for each element, the largest element up to and including it along the axis, and the index of that element.

    Of equal elements the last one counts: it has the index and gets the gradient, as in PyTorch. From a NaN on all are NaN. `axis`
    may be left out for a vector. Raises ShapeError.
    """
    return _extremes("cummax", _cumulative_max, x, axis)


def cummin(x: ArrayLike, /, axis: int | None = None) -> Running:
    """Returns, for each element, the smallest element up to and including it along the axis, and the index of that element.

    Of equal elements the last one counts: it has the index and gets the gradient, as in PyTorch. From a NaN on all are NaN. `axis`
    may be left out for a vector. Raises ShapeError.
    """
    return _extremes("cummin", _cumulative_min, x, axis)


def _extremes(name: str, op: Any, x: Any, axis: int | None) -> Running:
    x = as_tensor(x)
    along = _axis(name, axis, x)
    indices = _places(x, apply(op, (x,), (along, False)), along, False)
    return Running(take_along_axis(x, indices, axis=along), indices)


def logcumsumexp(x: ArrayLike, /, axis: int | None = None) -> Tensor:
    """Returns, for each element, log(sum(exp)) of all elements up to and including it along the axis, without overflow.

    `axis` may be left out for a vector. Raises ShapeError. Cost: log2(n) times that of some ops on x for an axis of length n.
    """
    x = in_float(own(x))
    along = _axis("logcumsumexp", axis, x)
    wide = widened(x)
    y = _log_of_sums(stop_gradient(wide), along)
    if listeners.differentiates:  # the value is as above, and the derivative that of the logaddexp of neighbours
        moving = _doubling(logaddexp, -math.inf, wide, along, False)
        y = where(isfinite(moving), y + (moving - stop_gradient(moving)), moving)
    return settled(in_dtype(y, x.dtype))


def _log_of_sums(x: Tensor, axis: int) -> Tensor:
    """Returns the running log(sum(exp)). What others add to the largest element is summed without it, so that it has its digits.

    The elements of a scan are the largest number so far, and the sum of exp(number - largest) minus 1.
    """
    n, step = x.shape[axis], 1
    largest, others = x, where(equal(x, -math.inf), -1.0, zeros_like(x))
    while step < n:
        before = slice(0, n - step)
        shape = tuple([step if i == axis else m for i, m in enumerate(x.shape)])
        borders = [full(shape, first, dtype=x.dtype, device=x.device) for first in (-math.inf, -1.0)]
        a, of_a = [concat([border, part_of(t, axis, before)], axis=axis) for border, t in zip(borders, (largest, others))]
        above = greater(a, largest)
        share = where(equal(a, largest), 1.0, exp(where(above, largest - a, a - largest)))
        others = where(above, of_a + share * (1.0 + others), others + share * (1.0 + of_a))
        largest = maximum(a, largest)
        step *= 2
    return largest + log1p(others)


def diff(x: ArrayLike, n: int = 1, axis: int = -1, prepend: ArrayLike | None = None, append: ArrayLike | None = None) -> Tensor:
    """Returns the n-th differences of neighbours along the axis. Joins `prepend` and `append` to x first. Raises ShapeError."""
    times = length("diff", "n", n)
    x, *ends = as_tensors("diff", x, optional=(prepend, append)) if times else (own(x), None, None)  # own, because x is the result
    axis = normalize_axis("diff", axis, x.ndim)
    parts = [p for p in (ends[0], x, ends[1]) if p is not None]
    x = concat(parts, axis=axis) if len(parts) > 1 else x
    difference = not_equal if x.dtype == dtypes.bool_ else subtract
    for _ in range(min(times, x.shape[axis])):  # after that many steps the axis is empty
        x = difference(part_of(x, axis, slice(1, None)), part_of(x, axis, slice(0, -1)))
    return settled(x)
