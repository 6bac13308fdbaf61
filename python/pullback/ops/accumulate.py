"""Strategies that sum the contributions to one gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from ..autodiff.batching import Batched
from ..autodiff.block_cotangent import BlockCotangent, complete
from ..autodiff.listeners import listeners
from ..backends import kernel_for
from ..launch.refusal import Refused
from ..tensors import dtypes
from ..tensors.creation import zeros
from ..tensors.tensor import Tensor
from .by_name import in_dtype
from .elementwise import add
from .movement import concat, stack
from .reduce import sum

_add_into, _ = kernel_for("add_into")

Contribution: TypeAlias = "Tensor | BlockCotangent"


class Accumulate:
    """Adds each contribution to one buffer as it arrives. Neighbouring blocks are first joined into a whole tensor."""

    def __init__(self, a: Contribution, b: Contribution) -> None:
        self._sum: Tensor | None = None
        self._own = False  # False: other gradients may share the memory of the sum
        self._blocks: list[BlockCotangent] = []
        self.add(a)
        self.add(b)

    def add(self, g: Contribution) -> None:
        if isinstance(g, BlockCotangent):
            self._blocks.append(g)
            return
        self._add_blocks()
        self._add(g)

    def total(self) -> Tensor:
        self._add_blocks()
        assert self._sum is not None  # there were two contributions
        return self._sum

    def _add_blocks(self) -> None:
        blocks, self._blocks = self._blocks, []
        joined = _joined(blocks) if len(blocks) > 1 else None
        if joined is not None:
            self._add(add(joined.total(), 0.0))  # -0 becomes 0, as it does in a sum of padded blocks
            return
        for block in blocks:
            self._add(block.total())

    def _add(self, g: Tensor) -> None:
        before = self._sum
        if before is None:
            self._sum = g
            return
        if self._own and self._added_in_place(before, g):
            return
        self._sum, self._own = add(before, g), True

    @staticmethod
    def _added_in_place(into: Tensor, more: Tensor) -> bool:
        if _add_into is not None and not listeners.differentiates:
            while isinstance(into, Batched) and isinstance(more, Batched) and into.batch is more.batch:
                into, more = into.value, more.value
            if type(into.array) is type(more.array):
                try:
                    _add_into(into.array, more.array)
                    return True
                except Refused:
                    pass
        return False


def _joined(blocks: Sequence[BlockCotangent]) -> BlockCotangent | None:
    """Returns one block that holds all, or None if two of them overlap or they differ in more than one axis."""
    first = blocks[0]
    axes = {axis for block in blocks for axis, n in enumerate(block.before) if n != first.before[axis]}
    axes |= {axis for block in blocks for axis, n in enumerate(block.after) if n != first.after[axis]}
    if len(axes) != 1:
        return None
    (axis,) = axes
    ordered = sorted([block for block in blocks if block.value.shape[axis]], key=lambda block: block.before[axis]) or [first]
    pieces: list[Tensor] = []
    for i, block in enumerate(ordered):
        if i:
            gap = block.before[axis] - ordered[i - 1].before[axis] - ordered[i - 1].value.shape[axis]
            if gap < 0:
                return None
            if gap:
                shape = tuple([gap if k == axis else n for k, n in enumerate(block.value.shape)])
                pieces.append(zeros(shape, dtype=block.value.dtype, device=block.value.device))
        pieces.append(block.value)
    return BlockCotangent(concat(pieces, axis), ordered[0].before, ordered[-1].after)


class AddN:
    """Keeps all contributions, and sums them in one n-ary sum when the last one has arrived."""

    def __init__(self, a: Contribution, b: Contribution) -> None:
        self._parts = [complete(a), complete(b)]

    def add(self, g: Contribution) -> None:
        self._parts.append(complete(g))

    def total(self) -> Tensor:
        return sum(stack(self._parts), axis=0)


class Tree:
    """Sums pairs, then pairs of pairs, and so on, in the next wider dtype if there is one: this rounds least.

    A sum of 2^r contributions has the rank r. Two sums of one rank are added as soon as both are there, so that at most one sum of
    each rank is kept, as one digit of a binary counter.
    """

    def __init__(self, a: Contribution, b: Contribution) -> None:
        first = complete(a)
        self._dtype = first.dtype
        self._wide = dtypes.float32 if first.dtype.itemsize == 2 else dtypes.float64
        self._sums: list[tuple[int, Tensor]] = [(0, first)]  # (rank, sum), the ranks descend; those of rank 0 are not wide
        self.add(b)

    def add(self, g: Contribution) -> None:
        more, rank = complete(g), 0
        while self._sums and self._sums[-1][0] == rank:
            more = self._added(self._sums.pop()[1], more)
            rank += 1
        self._sums.append((rank, more))

    def total(self) -> Tensor:
        *larger, (_, g) = self._sums
        for _, before in reversed(larger):
            g = self._added(before, g)
        return in_dtype(g, self._dtype)

    def _added(self, a: Tensor, b: Tensor) -> Tensor:
        return add(in_dtype(a, self._wide), in_dtype(b, self._wide))


AGGREGATIONS: Final[dict[str, Callable[[Any, Any], Any]]] = {"accumulate": Accumulate, "add_n": AddN, "tree": Tree}
