"""Where parameters and slots live: one flat piece of memory per dtype for the parameters that nobody placed before."""

from __future__ import annotations

import math
from typing import Any

from ..backends import kernels_on
from ..launch import door
from ..tensors import devices, dtypes
from ..tensors.parameter import Parameter

ALIGN_BYTES = 256  # every tensor of an arena begins at a multiple: whole cache lines on a CPU, whole packs on a GPU


def offsets_of(sizes: list[int], itemsize: int) -> tuple[list[int], int]:
    """Where each tensor begins, in elements, and the elements of the whole."""
    step = max(1, ALIGN_BYTES // itemsize)
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += math.ceil(size / step) * step
    return offsets, end


def place(params: list[Parameter]) -> None:
    """Moves the parameters that are where they were made into one arena per dtype and device."""
    groups: dict[Any, list[Parameter]] = {}
    for p in params:
        if p.storage.placement == 0:
            groups.setdefault((p.dtype, p.device), []).append(p)
    for (dtype, device), group in groups.items():
        for p, array in zip(group, arrays_like(group, dtype, device)):
            p.place(array)


def arrays_like(params: list[Parameter], dtype: Any, device: str) -> list[Any]:
    """Zeros of the parameters' shapes, side by side in one allocation."""
    sizes = [p.size for p in params]
    offsets, total = offsets_of(sizes, dtype.itemsize)
    kernels = kernels_on(device)  # whose memory begins with a cache line, as NumPy's does not
    flat = devices.full(device, (total,), 0, dtype, "zeros") if kernels is None else kernels.fill((total,), dtype, 0)
    if door.profiling:
        door.charge("zeros")
    return [flat[start : start + size].reshape(p.shape) for p, start, size in zip(params, offsets, sizes)]


def slot_dtype(p: Parameter) -> Any:
    """float32 for half precision, otherwise the parameter's dtype."""
    return p.dtype if p.dtype.itemsize > 2 else dtypes.float32


def slots_like(params: list[Parameter]) -> list[Any]:
    """One slot of every parameter, in the order given."""
    result: list[Any] = [None] * len(params)
    groups: dict[Any, list[int]] = {}
    for i, p in enumerate(params):
        groups.setdefault((slot_dtype(p), p.device), []).append(i)
    for (dtype, device), members in groups.items():
        for i, array in zip(members, arrays_like([params[i] for i in members], dtype, device)):
            result[i] = array
    return result
