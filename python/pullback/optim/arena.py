"""Arenas: one flat allocation per dtype and device holds the parameters that no optimizer has placed yet, or a slot of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..backends import kernels_on
from ..launch import door
from ..tensors import devices, dtypes
from ..tensors.parameter import Parameter

ALIGN_BYTES = 256  # Each tensor of an arena starts at a multiple: at the start of a cache line (CPU) and of a pack (GPU).


def offsets_of(sizes: list[int], itemsize: int) -> tuple[list[int], int]:
    """Returns the offset of each tensor in an arena and the length of the arena, both in elements."""
    step = max(1, ALIGN_BYTES // itemsize)
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += math.ceil(size / step) * step
    return offsets, end


def place(params: list[Parameter]) -> None:
    """Moves parameters that have never been moved into one arena per dtype and device."""
    groups: dict[Any, list[Parameter]] = {}
    for p in params:
        if p.storage.placement == 0:
            groups.setdefault((p.dtype, p.device), []).append(p)
    for (dtype, device), group in groups.items():
        for p, array in zip(group, adjacent([p.shape for p in group], dtype, device)):
            p.place(array)


def adjacent(shapes: Sequence[tuple[int, ...]], dtype: Any, device: str, value: float = 0) -> list[Any]:
    """Returns arrays of these shapes, filled with a value and adjacent in one allocation."""
    sizes = [math.prod(shape) for shape in shapes]
    offsets, total = offsets_of(sizes, dtype.itemsize)
    array = flat(total, dtype, device, value)
    return [array[start : start + size].reshape(shape) for shape, start, size in zip(shapes, offsets, sizes)]


def flat(size: int, dtype: Any, device: str, value: float = 0) -> Any:
    """Returns an array of one axis, filled with a value."""
    kernels = kernels_on(device)  # The kernels' allocations start at a cache line; NumPy's need not.
    array = devices.full(device, (size,), value, dtype, "zeros") if kernels is None else kernels.fill((size,), dtype, value)
    if door.profiling:
        door.charge("zeros")
    return array


def slot_dtype(p: Any) -> Any:
    """Returns float32 for a Parameter or an array of half precision, otherwise its dtype."""
    return p.dtype if p.dtype.itemsize > 2 else dtypes.float32


def slots_like(params: list[Parameter], value: float = 0, shapes: Sequence[tuple[int, ...] | None] | None = None) -> list[Any]:
    """Returns one slot for each parameter, in the order of `params`, filled with a value.

    shapes: those of the slots, if they are not the shapes of the parameters. A parameter with None has no slot.
    """
    wanted = [p.shape for p in params] if shapes is None else shapes
    result: list[Any] = [None] * len(params)
    groups: dict[Any, dict[int, tuple[int, ...]]] = {}
    for i, (p, shape) in enumerate(zip(params, wanted)):
        if shape is not None:
            groups.setdefault((slot_dtype(p), p.device), {})[i] = shape
    for (dtype, device), members in groups.items():
        for i, array in zip(members, adjacent([*members.values()], dtype, device, value)):
            result[i] = array
    return result
