"""The stand-in for the array of a Batched tensor, whose elements an op cannot read."""

from __future__ import annotations

import math
from typing import Any, Final

from ..errors import VmapError


class _Flags:
    c_contiguous = True


class StandIn:
    """Stands in for the array of a Batched tensor: it has the shape and the dtype of one example, but no elements."""

    __slots__ = ("dtype", "shape")

    flags: Final = _Flags  # lets reshape treat the example as contiguous; its batching rule checks the real strides

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
        return self.elements  # raises VmapError; without this NumPy would make an array of one object

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise VmapError(
            f"vmap: the elements of this tensor, of shape {self.shape} for each example, cannot be read here, because they "
            f"differ from example to example. Keep to pb.* functions inside (pb.where instead of if), or return the tensor "
            f"and read it outside."
        )


def refuse_examples(what: str, value: Any) -> None:
    """Raises VmapError for the value of a Parameter that is a Batched tensor. `what`: the value, for the message."""
    if isinstance(getattr(value, "array", None), StandIn):
        raise VmapError(
            f"{what} differs from example to example, because a function of one example runs (under pb.vmap or "
            f"pb.per_example_grad), and a Parameter holds one value for all of them. Make Parameters and layers outside of the "
            f"function, or pass it tensors instead."
        )
