"""What writing at indices means to NumPy and CuPy: the references of scatters. Repeated indices act in order."""

from __future__ import annotations

import math
from typing import Any

from ._shapes import Shape


def copied(xp: Any, x: Any) -> Any:
    """A contiguous copy to write to. NumPy would keep the order of a transposed x, whose reshaped form is another copy."""
    return xp.array(x, order="C")


def at(ufunc: Any, target: Any, indices: Any, updates: Any, axis: int) -> Any:
    """ufunc.at along one axis of a contiguous target, as one of three: NumPy's crashes for more than 32."""
    lead, n, trail = math.prod(target.shape[:axis]), target.shape[axis], math.prod(target.shape[axis + 1 :])
    flat = target.reshape(lead, n, trail)
    ufunc.at(flat, (slice(None), indices.reshape(-1)), updates.reshape(lead, indices.size, trail))
    return target


def added(xp: Any, target: Any, indices: Any, updates: Any, axis: int) -> Any:
    return at(xp.add, target, indices, updates, axis)


def put(target: Any, indices: Any, updates: Any, axis: int) -> Any:
    target[(slice(None),) * axis + (indices,)] = updates
    return target


def added_along(xp: Any, updates: Any, shape: Shape, indices: Any, axis: int) -> Any:
    lead, n, trail = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    target = xp.zeros(lead * n * trail, updates.dtype)
    rows = indices.astype(xp.int64).reshape(lead, indices.shape[axis], trail)
    rows = xp.where(rows < 0, rows + n, rows) + xp.arange(lead).reshape(-1, 1, 1) * n
    xp.add.at(target, (rows * trail + xp.arange(trail)).reshape(-1), updates.reshape(-1))
    return target.reshape(shape)
