"""Batch axes that ops do not see: a `Batched` tensor stands for one example of many, and a `Batch` is the axis it belongs to.

No kernel accepts a Batched value, so an op on one comes to `run`. The op's batching rule issues the op again on all examples
at once, below the batch that the value belongs to. Tapes and batches outside this batch therefore receive ops on the wrapped
values, and those inside it receive ops on one example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from ..errors import VmapError
from ..launch.refusal import Refused
from ..tensors.tensor import Tensor
from ..tree import LEAVES
from .block_cotangent import complete
from .kept import Listening
from .listeners import listeners
from .stand_in import StandIn

if TYPE_CHECKING:
    from .primitive import Op, Rule


class Batch(Listening):
    """The batch axis of one vmap, while it runs: a listener, so that the stack orders it among tapes and other batches.

    Args:
        size: the number of examples.
        directions: the examples are directions of one derivative, so all of them draw the same random numbers.
    """

    add: Final = None  # a batch does not record ops

    def __init__(self, size: int, *, directions: bool = False) -> None:
        self.size, self.directions = size, directions

    def on_escape(self, x: Tensor, how: str, given: Any = None) -> None:
        """Does nothing: a batch keeps no record of values that leave pullback."""


class Batched(Tensor):
    """One example of a batch: a tensor with the shape of one example. Its `value` holds all examples along its first axis."""

    __slots__ = ("batch", "value")

    def __init__(self, batch: Batch, value: Tensor) -> None:
        self.array = StandIn(value.array)
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
    """Returns the position on the stack of the innermost batch that any input belongs to, or -1 if no input is Batched."""
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
    """Runs an op with Batched inputs. The batch at `place` on the stack is the innermost one that any input belongs to."""
    stack = listeners.stack
    batch: Batch = stack[place]
    values, on = _opened(inputs, batch)
    inside = stack[place + 1 :]
    if not inside:  # no listener inside the batch has to be kept from the ops on all examples
        return Batched(batch, op.batch(op, batch.size, values, on, params))
    if len(inputs) > 1 and len({x.dtype for x in inputs if isinstance(x, Tensor)}) > 1:
        promoted = op.kind.prepare(op, inputs, params)
        if promoted is not None:  # the conversions are ops, which the listeners inside record too
            return op.issue(op, promoted, params)
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
    """Returns the inputs, those of this batch replaced by all their examples, and a flag per input that marks these."""
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
    """Pulls g back by a rule: by its fused kernel if no listener records ops, otherwise by its definition.

    On Batched values one kernel runs for all examples, if the rule has a batching rule. For a joint rule the last of `kept` is
    `needs`.
    """
    if listeners.differentiates or rule.fused is rule.definition:
        return rule.definition(g, *kept)
    place = innermost((g, *kept)) if listeners.batches else -1
    if place < 0:
        try:
            return complete(rule.fused(g, *kept))
        except Refused:
            return rule.definition(g, *kept)
    if rule.batch is None:
        return rule.definition(g, *kept)
    batch: Batch = listeners.stack[place]
    opened, on = _opened((g, *kept), batch)
    found = rule.batch(rule, batch.size, opened, on)
    return Batched(batch, found) if isinstance(found, Tensor) else [gx if gx is None else Batched(batch, gx) for gx in found]


def run_on_all(f: Callable[..., Tensor], spread: Callable[..., Sequence[Any]], xs: Sequence[Any]) -> Tensor:
    """Returns f(*xs), where f runs kernels that see no batch.

    If some of xs are Batched, f receives all examples at once: spread(size, xs, on) puts them along a first axis of each operand.
    """
    place = innermost(xs) if listeners.batches else -1
    if place < 0:
        return f(*xs)
    batch: Batch = listeners.stack[place]
    opened, on = _opened(xs, batch)
    return Batched(batch, run_on_all(f, spread, spread(batch.size, opened, on)))


def whole(x: Tensor) -> Tensor:
    """Returns the tensor with all examples if x is one of a batch, otherwise x."""
    while isinstance(x, Batched):
        x = x.value
    return x


def over_all(x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """Applies f, which must keep the shape, to all examples at once; the result belongs to the same batches as x."""
    return Batched(x.batch, over_all(x.value, f)) if isinstance(x, Batched) else f(x)
