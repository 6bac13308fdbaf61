"""A batch axis that an op does not see: `Batched` is one example of many, `Batch` the axis it belongs to.

An op on a Batched value finds no kernel for it, and comes to `run`: the op's batching rule issues it again, on all examples
at once, below the batch that the value belongs to. So tapes and other batches around it see ops on what is wrapped, and
those inside it see ops on one example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from ..errors import VmapError
from ..launch.refusal import Refused
from ..tensors.tensor import Tensor
from ..tree import LEAVES
from .example import Example
from .kept import Listening
from .listeners import listeners

if TYPE_CHECKING:
    from .primitive import Op, Rule


class Batch(Listening):
    """The batch axis of one vmap, while it runs: a listener, so that the stack orders it among tapes and other batches.

    Args:
        size: the number of examples.
        directions: they are directions of one derivative, for which random numbers are the same.
    """

    add: Final = None  # what is done to values that are not of this batch is not its business

    def __init__(self, size: int, *, directions: bool = False) -> None:
        self.size, self.directions = size, directions

    def on_escape(self, x: Tensor, how: str) -> None:
        """Nothing is to be remembered of what leaves."""


class Batched(Tensor):
    """One example of a batch: a tensor with the shape of one, whose `value` holds all, along its first axis."""

    __slots__ = ("batch", "value")

    def __init__(self, batch: Batch, value: Tensor) -> None:
        self.array = Example(value.array)
        self.serial = 0
        self.storage = None
        self.batch = batch
        self.value = value

    @property
    def device(self) -> str:
        return self.value.device

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array.elements

    def __repr__(self) -> str:
        return f"tensor(one of {self.batch.size} examples, shape={self.shape}, dtype={self.dtype})"


LEAVES.add(Batched)


def belongs(x: Any, batch: Batch) -> TypeGuard[Batched]:
    """True if x is one of this batch's examples."""
    return x.__class__ is Batched and x.batch is batch


def innermost(inputs: Sequence[Any]) -> int:
    """The place on the stack of the innermost batch that a value among the inputs belongs to; -1 where there is none."""
    place = -1
    for x in inputs:
        if x.__class__ is Batched:
            try:
                place = max(place, listeners.stack.index(x.batch))
            except ValueError:
                raise VmapError(
                    "vmap: a tensor of one example was used after its vmap had ended. Return it from the function instead of "
                    "keeping it."
                ) from None
    return place


def run(op: Op, inputs: Sequence[Any], params: Sequence[Any], place: int) -> Tensor:
    """An op of which some inputs are Batched, the innermost by the batch at that place on the stack."""
    stack = listeners.stack
    batch: Batch = stack[place]
    values, on = _opened(inputs, batch)
    inside = stack[place + 1 :]
    if not inside:  # nobody is to be kept from what is done to all examples
        return Batched(batch, op.batch(op, batch.size, values, on, params))
    before = listeners.truncate(place)
    try:
        y = Batched(batch, op.batch(op, batch.size, values, on, params))
    finally:
        listeners.restore(before)
    for listener in inside:
        if listener.add is not None:
            listener.add(op, y, inputs, params)
    return y


def _opened(inputs: Sequence[Any], batch: Batch) -> tuple[list[Any], list[bool]]:
    """The inputs with all examples of this batch, and which of them have its axis."""
    values: list[Any] = []
    on: list[bool] = []
    for x in inputs:
        if belongs(x, batch):
            on.append(True)
            values.append(x.value)
        else:
            on.append(False)
            values.append(x)
    return values, on


def pull(rule: Rule, g: Tensor, *kept: Any) -> Any:
    """Pulls g back by a rule: by one kernel for all examples if nobody is told of what it does, otherwise by its definition.

    A joint rule is given `needs` last.
    """
    if listeners.differentiates or rule.fused is rule.definition:
        return rule.definition(g, *kept)
    place = innermost((g, *kept)) if listeners.batches else -1
    if place < 0:
        try:
            return rule.fused(g, *kept)
        except Refused:
            return rule.definition(g, *kept)
    if rule.batch is None:
        return rule.definition(g, *kept)
    batch: Batch = listeners.stack[place]
    opened, on = _opened((g, *kept), batch)
    found = rule.batch(rule, batch.size, opened, on)
    return Batched(batch, found) if isinstance(found, Tensor) else [gx if gx is None else Batched(batch, gx) for gx in found]


def over_all(x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """f, which keeps the shape, of the elements of all examples at once, as one of the same batches."""
    return Batched(x.batch, over_all(x.value, f)) if isinstance(x, Batched) else f(x)
