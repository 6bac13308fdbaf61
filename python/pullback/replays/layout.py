"""The layouts of arrays that lie in a larger block of memory, so that a replay can rebuild them without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ..tensors import devices, gpu
from ..tensors.tensor import Tensor
from .signature import apart

APART: Final = 8  # the most elements of memory for each element of a view that a recording reads in place


class Layout(NamedTuple):
    """The place of an array in the contiguous array that owns its memory. offset: in bytes."""

    shape: tuple[int, ...]
    dtype: Any
    offset: int
    strides: tuple[int, ...]

    def of(self, owner: Any) -> Any:
        """Returns the array at this place in the owner, which may be another owner of the same size."""
        owner = owner if owner.flags.c_contiguous else owner.T
        if type(owner) is np.ndarray:
            return np.ndarray(self.shape, self.dtype, owner, self.offset, self.strides)
        return gpu.need().part_of(owner, self.shape, self.dtype, self.offset, self.strides)


def owner_of(array: Any) -> Any:
    """Returns the contiguous array that owns the memory of an array on the same device. Returns None if there is none."""
    owner = array
    while type(owner.base) is type(array):  # the base of an array that a kernel has made is its memory
        owner = owner.base
    return owner if owner.flags.c_contiguous or owner.flags.f_contiguous else None


def layout_in(owner: Any, array: Any) -> Layout:
    """Returns the place of an array in its owner."""
    return Layout(array.shape, array.dtype, _address(array) - _address(owner), array.strides)


def _address(array: Any) -> int:
    if devices.on_host(array):
        return int(array.__array_interface__["data"][0])
    return gpu.need().address_of(array)


class WithLayouts(NamedTuple):
    """The structure of arguments of which some lie in larger blocks of memory."""

    spec: Any
    layouts: tuple[Layout | None, ...]


def _part_of(array: Any) -> Any:
    """Returns the memory from the first to the last element of a view as a vector, so that a recording serves it at any place.

    Returns None if nothing contiguous owns the memory, and if the elements are so far apart that a copy of them is better.
    """
    owner = owner_of(array)
    if owner is None or owner.dtype != array.dtype:
        return None
    reach = [(n - 1) * stride for n, stride in zip(array.shape, array.strides)]
    first = _address(array) - _address(owner) + sum([step for step in reach if step < 0])
    start, stop = [at // array.itemsize for at in (first, first + sum(map(abs, reach)))]
    flat = owner if owner.flags.c_contiguous else owner.T
    return flat.reshape(-1)[start : stop + 1] if stop - start < APART * array.size else None


def _compact(array: Any) -> tuple[Any, Layout]:
    """Returns a copy of an array in the order of its axes in memory, with repeated elements once, and its layout in the copy.

    Products of matrices outside of a captured function, too, are rounded by that order.
    """
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    once = tuple([slice(0, 1) if stride == 0 else slice(None) for stride in array.strides])
    copy = devices.copied(array[once].transpose(order))
    strides = [0 if stride == 0 else copy.strides[order.index(axis)] for axis, stride in enumerate(array.strides)]
    return copy, Layout(array.shape, array.dtype, 0, tuple(strides))


def _argument(x: Tensor, steps: int | None) -> tuple[Any, Layout | None]:
    """Returns the array that a plan reads for an argument, and the argument's layout in it, or None if it is the argument itself.

    A view of a Parameter is copied, because the plan may write to it.
    """
    array = x.array
    if array.flags.c_contiguous or (array.flags.f_contiguous and steps is None and devices.on_host(array)):
        return array if x.storage is None else apart(array), None
    if steps is not None:
        return devices.copied(array), None
    part = None if x.storage is not None else _part_of(array)
    return _compact(array) if part is None else (part, layout_in(part, array))


def arrays_of(leaves: Sequence[Any], steps: int | None) -> tuple[list[Any], tuple[Layout | None, ...]]:
    """Returns the arrays that a plan reads for the tensors among the leaves, and the layouts of the tensors in these arrays.

    There are no layouts if each array is a tensor, as it is.
    """
    found = [_argument(x, steps) for x in leaves if x.__class__ is Tensor]
    layouts = tuple([layout for _, layout in found])
    return [array for array, _ in found], layouts if any(layouts) else ()
