"""Checks of the arguments of losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autodiff.batching import whole
from ..errors import ArgumentError, ShapeError
from ..launch import capturing
from ..ops.operands import as_tensors
from ..tensors import devices
from ..tensors.tensor import Tensor


def factors_of(name: str, argument: str, given: Any, x: Tensor) -> Tensor:
    """Returns the factors of elements as a tensor. Raises ShapeError if they do not broadcast to the shape of x."""
    _, factors = as_tensors(name, x, given)
    if factors.ndim > x.ndim or any([m not in (1, n) for m, n in zip(factors.shape[::-1], x.shape[::-1])]):
        raise ShapeError(f"{name}: {argument} has shape {factors.shape}, which does not broadcast to the input's, {x.shape}.")
    return factors


def check_shares(argument: str, x: Tensor, remedy: str) -> None:
    """Raises ArgumentError if a number of x is outside of [0, 1], unless the host cannot see them now. NaN passes."""
    x = whole(x)
    if capturing.thread.recording is not None or not devices.on_host(x.array):
        return
    all_inside = not x.size or (x.array.min() >= 0 and x.array.max() <= 1)
    for position in [] if all_inside else np.argwhere((x.array < 0) | (x.array > 1)).tolist():
        found = f"{argument} is {x.array[tuple(position)]} at position {position}"
        raise ArgumentError(f"binary_cross_entropy: {found}; it must be from 0 to 1. {remedy}")
