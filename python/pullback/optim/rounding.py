"""Stochastic rounding of half precision weights in NumPy. csrc/math/rounding.h defines the same bits, and gives the reasons."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..ops.draws import words
from ..tensors import devices

KEY: Final = 0x9D39247E33776D41  # of parameter 0; the keys of the others follow


def random_bits(parameter: int, step: int, size: int) -> Any:
    """Returns 16 random bits for each element of one network's parameter, in the step with this count."""
    return words(KEY + parameter, step, -(-size // 2)).astype("<u4").view("<u2")[:size]


def added_at_random(weights: Any, change: Any, parameter: int, step: int) -> Any:
    """Returns weights of bfloat16 or float16 plus a float32 change, each sum rounded up or down with probability in proportion to
    the distance. Sums beyond the largest finite number and NaN are rounded to the nearest.
    """
    dtype = weights.dtype
    change = np.asarray(change) if isinstance(change, np.generic) else change  # what NumPy computes from arrays without axes
    with np.errstate(over="ignore", invalid="ignore"):
        on_host = devices.move(weights, "cpu").astype(np.float32).reshape(-1) + devices.move(change, "cpu").reshape(-1)
        nearest = on_host.astype(dtype)
    random = random_bits(parameter, step, on_host.size).astype(np.uint32)
    largest = 0x477FE000 if dtype == np.float16 else 0x7F7F0000
    magnitude = on_host.view(np.uint32) & np.uint32(0x7FFFFFFF)
    finite = magnitude < largest
    found = (_float16 if dtype == np.float16 else _bfloat16)(np.where(finite, on_host, np.float32(0)), random).view(dtype)
    return devices.move(np.where(finite, found, nearest).reshape(weights.shape), devices.device_of(weights))


def _bfloat16(x: Any, random: Any) -> Any:
    return ((x.view(np.uint32) + random) >> 16).astype(np.uint16)


def _float16(x: Any, random: Any) -> Any:
    magnitude = x.view(np.uint32) & np.uint32(0x7FFFFFFF)
    small = magnitude < 0x38800000  # below 2^-14, where the numbers of float16 are multiples of 2^-24
    units = np.where(small, abs(x), np.float32(0)) * np.float32(2.0**24)
    whole = np.floor(units)
    subnormal = whole.astype(np.uint32) + ((units - whole) * np.float32(2.0**16) > random)
    normal = (np.where(small, np.uint32(0x38000000), magnitude) - np.uint32(0x38000000) + (random >> 3)) >> 13
    sign = (x.view(np.uint32) >> 16) & np.uint32(0x8000)
    return (np.where(small, subnormal, normal) | sign).astype(np.uint16)
