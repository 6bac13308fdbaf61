"""Normalization of (N, C, …) tensors with a weight and a bias for each channel: batch, group and instance norm."""

from __future__ import annotations

import math
from typing import Any

from ..autodiff.primitive import apply
from ..tensors.tensor import Tensor
from .by_name import in_dtype, reshaped, widened
from .linear import ABSENT
from .rows import LAYER_NORM
from .shape import inverse, permute_dims, reshape


def channel_norm(x: Tensor, weight: Any, bias: Any, groups: int | None, eps: float) -> Tensor:
    """Subtracts means, divides by standard deviations, then scales and shifts each channel.

    Args:
        x: (N, C, …) float tensor.
        weight, bias: (C,) or None.
        groups: the number of groups of neighbouring channels of an example that share a mean; it divides C. None shares the mean of
            each channel over the batch and over all positions.
        eps: added to the variance.

    Half precision is computed in float32 and rounded once.
    """
    wide, channels = widened(x), x.shape[1]
    y = _over_batch(wide, eps) if groups is None else _over_groups(wide, groups, eps)
    for k, value in enumerate((weight, bias)):
        if value is not None:
            value = reshape(widened(value), (channels, *(1,) * (x.ndim - 2)))
            y = y * value if k == 0 else y + value
    return in_dtype(y, x.dtype)


def _over_groups(x: Tensor, groups: int, eps: float) -> Tensor:
    rows = reshaped(x, (x.shape[0], groups, math.prod(x.shape[1:]) // groups))
    return reshaped(_plain(rows, eps), x.shape)


def _over_batch(x: Tensor, eps: float) -> Tensor:
    order = (1, 0, *range(2, x.ndim))
    turned = permute_dims(x, order)
    rows = reshape(turned, (x.shape[1], math.prod(turned.shape[1:])))
    return permute_dims(reshaped(_plain(rows, eps), turned.shape), inverse(order))


def _plain(rows: Tensor, eps: float) -> Tensor:
    return apply(LAYER_NORM, (rows, ABSENT, ABSENT), (eps,))
