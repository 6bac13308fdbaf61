"""Strategies that sum the contributions to one gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..autodiff.batching import Batched
from ..autodiff.listeners import listeners
from ..backends import kernel_for
from ..launch.refusal import Refused
from ..tensors import dtypes
from ..tensors.tensor import Tensor
from .by_name import in_dtype
from .elementwise import add
from .movement import stack
from .reduce import sum

_add_into, _ = kernel_for("add_into")


class Accumulate:
    """Adds each contribution to one buffer as it arrives."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self._sum = add(a, b)  # a new buffer, because other gradients may share the memory of a or b

    def add(self, g: Tensor) -> None:
        if _add_into is not None and not listeners.differentiates:
            into, more = self._sum, g
            while isinstance(into, Batched) and isinstance(more, Batched) and into.batch is more.batch:
                into, more = into.value, more.value
            if type(into.array) is type(more.array):
                try:
                    _add_into(into.array, more.array)
                    return
                except Refused:
                    pass
        self._sum = add(self._sum, g)

    def total(self) -> Tensor:
        return self._sum


class AddN:
    """Keeps all contributions, and sums them in one n-ary sum when the last one has arrived."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self._parts = [a, b]

    def add(self, g: Tensor) -> None:
        self._parts.append(g)

    def total(self) -> Tensor:
        return sum(stack(self._parts), axis=0)


class Tree:
    """Sums pairs, then pairs of pairs, and so on, in the next wider dtype if there is one: this rounds least.

    A sum of 2^r contributions has the rank r. Two sums of one rank are added as soon as both are there, so that at most one sum of
    each rank is kept, as one digit of a binary counter.
    """

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self._dtype = a.dtype
        self._wide = dtypes.float32 if a.dtype.itemsize == 2 else dtypes.float64
        self._sums: list[tuple[int, Tensor]] = [(0, a)]  # (rank, sum), the ranks descend; those of rank 0 are not wide
        self.add(b)

    def add(self, g: Tensor) -> None:
        rank = 0
        while self._sums and self._sums[-1][0] == rank:
            g = self._added(self._sums.pop()[1], g)
            rank += 1
        self._sums.append((rank, g))

    def total(self) -> Tensor:
        *larger, (_, g) = self._sums
        for _, before in reversed(larger):
            g = self._added(before, g)
        return in_dtype(g, self._dtype)

    def _added(self, a: Tensor, b: Tensor) -> Tensor:
        return add(in_dtype(a, self._wide), in_dtype(b, self._wide))


AGGREGATIONS: Final[dict[str, Callable[[Tensor, Tensor], Any]]] = {"accumulate": Accumulate, "add_n": AddN, "tree": Tree}
