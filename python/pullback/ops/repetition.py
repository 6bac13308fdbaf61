"""Elements and arrays several times over."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import OutOfMemoryError, ShapeError, check_room
from ..launch import capturing
from ..tensors import devices
from ..tensors.operand import as_tensor, own
from ..tensors.tensor import Tensor
from ._shapes import ints, normalize_axis
from .index import take
from .shape import broadcast_to, flatten, reshape, settled


def tile(x: Any, repetitions: int | Sequence[int], /) -> Tensor:
    """x repeated as a whole along each axis, as NumPy's tile."""
    x = own(x)
    reps = tuple(ints("tile", "repetitions", repetitions))
    if any([r < 0 for r in reps]):
        raise ShapeError(f"tile: {repetitions} repetitions; they cannot be negative.")
    shape = (1,) * (len(reps) - x.ndim) + x.shape
    reps = (1,) * (len(shape) - len(reps)) + reps
    repeated = tuple([r * n for r, n in zip(reps, shape)])
    check_room("tile", repeated, x.array.itemsize)
    spread = reshape(x, tuple([m for n in shape for m in (1, n)]))
    spread = broadcast_to(spread, tuple([m for r, n in zip(reps, shape) for m in (r, n)]))
    return settled(reshape(spread, repeated))


def repeat(x: Any, repeats: int | Any, /, *, axis: int | None = None) -> Tensor:
    """Each element repeated along an axis (of the flattened tensor where None): `repeats` times, or one count for each."""
    x = as_tensor(x)
    if axis is None:
        x, axis = flatten(x), 0
    axis = normalize_axis("repeat", axis, x.ndim)
    if isinstance(repeats, Tensor):
        capturing.refuse("repeat by counts in a tensor, which reads them on the host,", "Give the counts as a list of ints.")
    counts = devices.move(repeats.array, "cpu") if isinstance(repeats, Tensor) else np.asarray(repeats)
    if counts.dtype.kind not in "iu" or (counts < 0).any():
        raise ShapeError(f"repeat: repeats={repeats!r}; they must be integers, and not negative.")
    total = builtins.sum(counts.reshape(-1).tolist()) * (x.shape[axis] if counts.size == 1 else 1)
    check_room("repeat", (*x.shape[:axis], total, *x.shape[axis + 1 :]), builtins.max(x.array.itemsize, counts.itemsize))
    try:
        positions = np.repeat(np.arange(x.shape[axis]), counts)
    except MemoryError as error:
        raise OutOfMemoryError(f"repeat: {total} elements do not fit in memory ({error}).") from error
    except ValueError:
        raise ShapeError(f"repeat: {counts.size} counts for axis {axis} of length {x.shape[axis]}; give one for each.") from None
    return take(x, positions, axis=axis)
