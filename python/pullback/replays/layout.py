"""The layouts of arrays that lie in a larger block of memory, so that a replay can rebuild them without a copy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..tensors import devices, gpu


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
