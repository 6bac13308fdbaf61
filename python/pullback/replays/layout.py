"""The layouts of arrays that lie in a larger block of memory, so that a replay can rebuild them without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..tensors import devices, gpu
from ..tensors.tensor import Tensor
from .signature import apart, dense


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
    while getattr(owner, "base", None) is not None:
        owner = owner.base
    if type(owner) is not type(array) or not (owner.flags.c_contiguous or owner.flags.f_contiguous):
        return None
    return owner


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


def _argument(x: Tensor, steps: int | None) -> Any:
    """Returns the array that a plan reads for an argument. A view of a Parameter is copied, because the plan may write to it."""
    array = x.array if x.storage is None else apart(x.array)
    return array if array.flags.c_contiguous else dense(array, steps)


def arrays_of(leaves: Sequence[Any], steps: int | None, whole: bool) -> tuple[list[Any], tuple[Layout | None, ...]]:
    """Returns the arrays that a plan reads for the tensors among the leaves, and the layouts of those that are parts of these.

    If no array is a part of another one, there are no layouts. whole: parts of larger blocks are not copied.
    """
    if not whole:
        return [_argument(x, steps) for x in leaves if x.__class__ is Tensor], ()
    arrays: list[Any] = []
    layouts: list[Layout | None] = []
    for x in leaves:
        if x.__class__ is Tensor:
            owner = None if x.array.flags.c_contiguous or x.storage is not None or not x.size else owner_of(x.array)
            arrays.append(_argument(x, None) if owner is None else owner)
            layouts.append(None if owner is None else layout_in(owner, x.array))
    return arrays, tuple(layouts) if any(layouts) else ()
