"""What stands in the place of an array where an op sees one example of a batch."""

from __future__ import annotations

import math
from typing import Any, Final

from ..errors import VmapError


class _Flags:
    c_contiguous = True


class Example:
    """What a Batched tensor has in the place of an array: the facts of one example, and no elements."""

    __slots__ = ("dtype", "shape")

    flags: Final = _Flags  # reshape: the batching rule looks at the strides

    def __init__(self, batch: Any) -> None:
        self.shape: tuple[int, ...] = batch.shape[1:]
        self.dtype = batch.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.elements  # raises: NumPy would make an array of one object

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise VmapError(
            f"vmap: the elements of this tensor, of shape {self.shape} for each example, cannot be read here, because they "
            f"differ from example to example. Keep to pb.* functions inside (pb.where instead of if), or return the tensor "
            f"and read it outside."
        )
