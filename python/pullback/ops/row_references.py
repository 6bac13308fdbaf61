"""Definitions in NumPy or CuPy of the ops on rows, over the last axis, and of lengths. Half precision is computed in float32."""

from __future__ import annotations

from typing import Any

from ..tensors.dtypes import finfo
from ._shapes import Shape


def wide(xp: Any, x: Any) -> Any:
    return x.astype(xp.float32) if x.dtype.itemsize == 2 else x


def softmax_reference(xp: Any, x: Any) -> Any:
    if not x.shape[-1]:
        return x
    z, e = below_top(xp, wide(xp, x))[:2]
    return (xp.exp(z) / e.sum(axis=-1, keepdims=True)).astype(x.dtype)


def below_top(xp: Any, z: Any) -> tuple[Any, Any, Any]:
    """Returns z - top, exp(z - top) and top, the largest elements of the rows.

    z - top is a limit if top is infinite: 0 for an element that alone is +inf, -inf for the elements next to it. It is NaN where
    there is none: for each of several +inf, and in a row of -inf. But exp(z - top) is 1 wherever z is top.
    """
    top = z.max(axis=-1, keepdims=True)
    largest, endless = z == top, xp.isinf(top)
    below = xp.where(endless, -xp.inf, z - xp.where(endless, 0, top)).astype(z.dtype)
    below = xp.where(xp.isnan(z), z, xp.where(largest, 0, below)).astype(z.dtype)
    lone = (largest.sum(axis=-1, keepdims=True) == 1) & (top > 0)
    return xp.where(endless & largest & ~lone, xp.nan, below).astype(z.dtype), xp.exp(below), top


def log_sum(xp: Any, z: Any) -> tuple[Any, Any, Any]:
    """Returns (a, b, below) with log(sum(exp(z))) = a + b, the axis kept. b is the largest element: adding it would round a away.

    An empty row gives a = -inf and b = 0. below: z - b.
    """
    if not z.shape[-1]:
        return xp.full((*z.shape[:-1], 1), -xp.inf, z.dtype), xp.zeros((*z.shape[:-1], 1), z.dtype), z
    below, e, top = below_top(xp, z)
    # The largest is left out, because the others may be far below the rounding of its exponential, which is 1.
    others = xp.where(z == top, 0, e).sum(axis=-1, keepdims=True, dtype=z.dtype)
    return xp.log1p((xp.sum(z == top, axis=-1, keepdims=True) - 1).astype(z.dtype) + others), top, below


def log_softmax_reference(xp: Any, x: Any) -> Any:
    total, _, below = log_sum(xp, wide(xp, x))
    return (below - total).astype(x.dtype)


def logsumexp_reference(xp: Any, x: Any) -> Any:
    total, top, _ = log_sum(xp, wide(xp, x))
    return (total + top)[..., 0].astype(x.dtype)


def layer_norm_reference(xp: Any, x: Any, weight: Any, bias: Any, eps: float) -> Any:
    if not x.shape[-1]:
        return x
    return _affine(xp, x, normalized_rows(xp, wide(xp, x), eps), weight, bias)


def centred_rows(xp: Any, z: Any) -> Any:
    """Returns rows minus their means, by the steps of ops.reduce.centred."""
    first = z.mean(axis=-1, keepdims=True)
    pivot = xp.where(xp.isfinite(first), first, z[..., :1])
    return z - (pivot + (z - pivot).mean(axis=-1, keepdims=True))


def normalized_rows(xp: Any, z: Any, eps: float) -> Any:
    """Returns rows minus their means, over their deviations. A row with a distance that overflows is NaN."""
    z = centred_rows(xp, z)
    return over_size(xp, xp.where(xp.isinf(z), xp.nan, z).astype(z.dtype), eps)


def rms_norm_reference(xp: Any, x: Any, weight: Any, eps: float) -> Any:
    if not x.shape[-1]:
        return x
    return _affine(xp, x, over_size(xp, wide(xp, x), eps), weight, None)


def over_size(xp: Any, z: Any, eps: float) -> Any:
    """Returns rows over the root of their mean squares plus eps."""
    c = nearness(xp, (z * z).mean(axis=-1, keepdims=True) + eps)
    z = z * c
    return z / xp.sqrt((z * z).mean(axis=-1, keepdims=True) + eps * c * c)


def length_reference(xp: Any, x: Any, axes: Shape) -> Any:
    if not x.size:
        return xp.sqrt(x.sum(axis=axes, keepdims=True))
    z = wide(xp, x)
    c = nearness(xp, (z * z).mean(axis=axes, keepdims=True))
    z = z * c
    return (xp.sqrt((z * z).sum(axis=axes, keepdims=True)) / c).astype(x.dtype)


def nearness(xp: Any, square: Any) -> Any:
    """Returns a power of two that scales rows whose squares overflow, or are so small that they have lost digits; 1 for others."""
    limits = finfo(square.dtype)
    far = 2.0 ** (96 if limits.bits == 32 else 768)
    scale = xp.where(xp.isinf(square), 1 / far, xp.where(square < limits.smallest_normal / limits.eps, far, 1.0))
    return scale.astype(square.dtype)


def _affine(xp: Any, x: Any, y: Any, weight: Any, bias: Any) -> Any:
    y = y if weight is None else y * wide(xp, weight)
    return (y if bias is None else y + wide(xp, bias)).astype(x.dtype)
