"""The cotangent of a block of a tensor, which the backward pass holds without the zeros around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..tensors.attached import attached

if TYPE_CHECKING:
    from ..tensors.tensor import Tensor


class BlockCotangent:
    """The cotangent of a tensor that is zero outside of one block.

    Several blocks of one tensor are joined by one copy (ops/accumulate.py). To pad each of n blocks with zeros, and to add them,
    would move n times as much memory: a loop that reads a sequence step by step would take quadratic time.

    Attributes:
        value: the cotangent of the block.
        before, after: the number of elements before and after the block, for each axis.
    """

    __slots__ = ("after", "before", "value")

    def __init__(self, value: Tensor, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        self.value, self.before, self.after = value, before, after

    def total(self) -> Tensor:
        return attached.padded(self.value, self.before, self.after)


def complete(g: Any) -> Any:
    """Returns what a pullback returned, with the zeros around it if it is a BlockCotangent."""
    return g.total() if g.__class__ is BlockCotangent else g
