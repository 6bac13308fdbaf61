"""A batch axis that an op does not see: `Batched` is one example of many, `Batch` the axis it belongs to.

An op on a Batched value finds no kernel for it, and comes to `run`: the op's batching rule issues it again, on all examples
at once, below the batch that the value belongs to. So tapes and other batches around it see ops on what is wrapped, and
those inside it see ops on one example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .errors import VmapError
from .example import Example
from .listeners import listeners
from .tensor import Tensor

if TYPE_CHECKING:
    from .primitive import Op


class Batch:
    """The batch axis of one vmap, while it runs: a listener, so that the stack orders it among tapes and other batches.

    Args:
        size: the number of examples.
        directions: they are directions of one derivative, for which random numbers are the same.
    """

    __slots__ = ("__weakref__", "directions", "size")

    def __init__(self, size: int, *, directions: bool = False) -> None:
        self.size, self.directions = size, directions

    def __enter__(self) -> Batch:
        listeners.stack = (*listeners.stack, self)
        return self

    def __exit__(self, *_: object) -> None:
        listeners.stack = tuple([listener for listener in listeners.stack if listener is not self])

    def add(self, op: Op, y: Any, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        """What is done to values that are not of this batch is not its business."""

    def cut(self, x: Tensor, how: str) -> None:
        """As add."""


class Batched(Tensor):
    """One example of a batch: a tensor with the shape of one, whose `value` holds all, along its first axis."""

    __slots__ = ("batch", "value")

    def __init__(self, batch: Batch, value: Tensor) -> None:
        super().__init__(Example(value.array))
        self.batch = batch
        self.value = value

    @property
    def device(self) -> str:
        return self.value.device

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array.elements

    def __repr__(self) -> str:
        return f"tensor(one of {self.batch.size} examples, shape={self.shape}, dtype={self.dtype})"


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
    on = [x.__class__ is Batched and x.batch is batch for x in inputs]
    values = [x.value if b else x for x, b in zip(inputs, on)]
    listeners.stack = stack[:place]
    try:
        y = Batched(batch, op.batch(op, batch.size, values, on, params))
    finally:
        listeners.stack = stack
    for listener in stack[place + 1 :]:
        listener.add(op, y, inputs, params)
    return y


def per_example(x: Tensor, but: Sequence[Batch] = ()) -> Tensor:
    """A tensor of no batch as one of every batch that is running, the same for all examples: what is drawn from it differs.

    Not so in a batch of directions, nor in those of `but`.
    """
    for listener in listeners.stack:
        if isinstance(listener, Batch) and not listener.directions and listener not in but:
            x = Batched(listener, spread(x, listener.size))
    return x


def over_all(x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """f, which keeps the shape, of the elements of all examples at once, as one of the same batches."""
    return Batched(x.batch, over_all(x.value, f)) if isinstance(x, Batched) else f(x)


def spread(x: Tensor, size: int) -> Tensor:
    """x repeated along a new first axis, without copying."""
    from .ops.shape import broadcast_to

    return broadcast_to(x, (size, *x.shape))
