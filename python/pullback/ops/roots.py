"""Roots of sums of squares: the step that norms and standard deviations have in common, and its derivatives at zero."""

from __future__ import annotations

import math
from typing import Any

from ..autodiff.primitive import apply
from ..tensors.creation import zeros_like
from ..tensors.dtypes import finfo
from ..tensors.tensor import Tensor
from ._shapes import Shape
from .batch_rules import pull_leading
from .by_name import aligned, all_on, repeated, reshaped, unbroadcast
from .declare import normal, op
from .elementwise import abs as absolute, equal, greater, less, logical_and, logical_or, mask_nan_gradient, where
from .kinds import REDUCE, Kind
from .row_references import length_reference
from .rows import fused


def _undefined(still: Tensor, r: Tensor, otherwise: Tensor) -> Tensor:
    """Returns NaN where r is 0, unless nothing moves there."""
    zero = equal(r, 0)
    return where(logical_and(zero, still), 0.0, where(zero, math.nan, otherwise))


def _along_each(op: Any, size: int, xs: Any, on: Any, params: Any) -> Tensor:
    """Repeats what the examples share: the kernel returns the shape of x, whatever the shapes of t and r are."""
    return apply(op, tuple(aligned(all_on(size, xs, on), [True] * len(xs))), tuple(params))


def _along_tangent(op: Any, inputs: Any, y: Tensor, params: Any, tangents: Any) -> Tensor:
    (t, x, r), (tt, tx, tr), (forward,) = inputs, tangents, params
    total = zeros_like(y)
    if tt is not None:
        total = total + along(tt, x, r, forward)
    if tx is not None:
        still = logical_or(equal(tx, 0), equal(t, 0)) if forward else equal(tx, 0)
        total = total + _undefined(still, r, mask_nan_gradient(t, tx * (t / r)))
    if tr is not None:
        total = total + _by_length(tr, t, x, r)
    return repeated(total, y.shape)


def _by_length(g: Tensor, t: Tensor, x: Tensor, r: Tensor) -> Tensor:
    return where(equal(r, 0), 0.0, mask_nan_gradient(t, -g * (along(t, x, r) / r)))


_along = op(
    "along", kind=Kind("own", batch=_along_each, tangent=_along_tangent, promotes=True, widens=True), inputs=3, takes="float",
    reference=lambda xp, t, x, r, forward: xp.where(
        (r == 0) | (t == 0), xp.where(xp.isnan(t), t, xp.zeros_like(t)), t * (x / xp.where(r == 0, xp.ones_like(r), r))
    ),
    kernel="hypot_pullback_a", adapt=lambda kernel: lambda t, x, r, forward: kernel(t, x, x, r),
    pullback=(
        lambda g, x, r, forward: _undefined(equal(g, 0), r, g * (x / r)),
        lambda g, t, r, forward: _undefined(
            equal(t, 0) if forward else logical_or(equal(t, 0), equal(g, 0)), r, mask_nan_gradient(t, g * (t / r))
        ),
        lambda g, t, x, r: _by_length(g, t, x, r),
    ),
    cost=lambda t, x, r, forward, y: {"multiplies": y.size, "special_ops": y.size},
    example=lambda rng, dtype: (tuple([rng.uniform(0.5, 2, (3, 4)).astype(dtype) for _ in "txr"]), (False,)),
)


def along(t: Tensor, x: Tensor, r: Tensor, forward: bool = False) -> Tensor:
    """Returns t x / r, for a tangent or cotangent t and a length r. Where r is 0 it is 0, or NaN if t is.

    There, x has no direction, so the derivatives by t and x are NaN, also where their cotangent is 0 for the only reason that r is:
    for r², t is 2 r in reverse mode, and in forward mode the cotangent of this tangent is 2 r. forward: t is a tangent.

    If a mode is forward, the second derivative is also NaN for a length that is not used, because it looks the same there.
    """
    return apply(_along, (t, x, r), (forward,))


def pull_length(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Returns g x / y, the pullback of a length y of x.

    The factor of a cell first, so that elements are multiplied once, unless it or its derivative has no place in the dtype.
    """
    limits, zero = finfo(y.dtype), equal(y, 0)
    size = where(zero, 1.0, y)
    slope = g / size
    bend = absolute(where(equal(g, 0), 1.0, g) / size / size)  # A length that is not used has derivatives by its cotangent.
    far = logical_or(zero, logical_or(less(bend, limits.smallest_normal / limits.eps), greater(bend, limits.max)))
    return where(far, along(g, x, y), slope * x)


pull_length_natively = fused("length")  # None if there is no kernel
_length = op(
    "length", kind=REDUCE, takes="float", reference=length_reference, pullback=pull_length, fused=pull_length_natively,
    pull=pull_leading, pull_cost=lambda g, x, y: {"multiplies": x.size, "special_ops": y.size},
    tangent=lambda op, inputs, y, params, tangents: unbroadcast(along(tangents[0], inputs[0], y, True), y.shape),
    cost=lambda x, axes, y: {"multiplies": x.size, "adds": max(0, x.size - y.size), "special_ops": y.size},
    example=normal((3, 4), params=((1,),)), ulp=16,  # the sum of the reference rounds as well
)


def length(x: Tensor, axes: Shape) -> Tensor:
    """Returns the root of the sum of squares over the axes, which are kept with length 1."""
    return apply(_length, (x,), (axes,))


def squeezed(x: Tensor, axes: Shape) -> Tensor:
    """Returns x without these axes, which have length 1."""
    return reshaped(x, tuple([n for axis, n in enumerate(x.shape) if axis not in axes]))
