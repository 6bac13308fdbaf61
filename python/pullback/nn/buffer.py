"""Buffer: a tensor of a Module that is saved and not trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ops.conversion import stop_gradient
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, DTypeLike

if TYPE_CHECKING:
    from typing_extensions import Self


class Buffer(Parameter):
    """A tensor that a module changes in place and saves with its weights, but that no tape watches and no optimizer updates."""

    __slots__ = ()

    def __init__(self, obj: ArrayLike, name: str | None = None, dtype: DTypeLike | None = None, device: str | None = None) -> None:
        super().__init__(obj, name, trainable=False, dtype=dtype, device=device)

    def assign(self, value: ArrayLike) -> Self:
        """Assigns like a Parameter, but gradients stop at the value, because Buffers hold statistics of watched values."""
        super().assign(stop_gradient(value) if isinstance(value, Tensor) else value)
        return self
