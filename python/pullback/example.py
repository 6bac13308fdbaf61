"""What stands in the place of an array where an op sees one example of a batch."""

from __future__ import annotations

from typing import Any

from .errors import VmapError


class _Flags:
    c_contiguous = True


class Example:
    """What a Batched tensor has in the place of an array: the facts of one example, and no elements."""

    __slots__ = ("dtype", "flags", "itemsize", "nbytes", "ndim", "shape", "size")

    def __init__(self, batch: Any) -> None:
        self.shape: tuple[int, ...] = batch.shape[1:]
        self.dtype = batch.dtype
        self.ndim = len(self.shape)
        self.itemsize = batch.itemsize
        self.size = 1
        for n in self.shape:
            self.size *= n
        self.nbytes = self.size * self.itemsize
        self.flags = _Flags  # reshape: the batching rule looks at the strides

    def __len__(self) -> int:
        return self.shape[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise VmapError(
            f"vmap: the elements of this tensor, of shape {self.shape} for each example, cannot be read here, because they "
            f"differ from example to example. Keep to pb.* functions inside (pb.where instead of if), or return the tensor "
            f"and read it outside."
        )
