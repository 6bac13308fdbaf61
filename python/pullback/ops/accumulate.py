"""Sums the contributions to one gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..autodiff.batching import Batched
from ..autodiff.listeners import listeners
from ..backends import kernel_for
from ..launch.refusal import Refused
from ..tensors.tensor import Tensor
from .elementwise import add
from .movement import stack
from .reduce import sum

_add_into, _ = kernel_for("add_into")


class Accumulate:
    """One buffer, to which contributions are added as they arrive."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self._sum = add(a, b)  # a new buffer: the contributions themselves may be shared with others

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


class Collect:
    """All contributions are kept until the last one is there, then summed at once."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self._parts = [a, b]

    def add(self, g: Tensor) -> None:
        self._parts.append(g)


class AddN(Collect):
    """One n-ary sum."""

    def total(self) -> Tensor:
        return sum(stack(self._parts), axis=0)


class Tree(Collect):
    """Pairs, then pairs of pairs: the least rounding."""

    def total(self) -> Tensor:
        parts = self._parts
        while len(parts) > 1:
            parts = [add(*parts[i : i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
        return parts[0]


AGGREGATIONS: Final[dict[str, Callable[[Tensor, Tensor], Any]]] = {"accumulate": Accumulate, "add_n": AddN, "tree": Tree}
