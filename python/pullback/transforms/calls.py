"""The call of a function as one node of the tapes that listen, whatever it computes inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ..listeners import listeners
from ..ops.kinds import OWN
from ..ops.shape import stop_gradient
from ..primitive import ZERO, Op, Rule
from ..tensor import Tensor, new_serial

_NOTHING: Final = np.empty(0, np.float32)


class Cotangents:
    """The cotangents of a call's outputs that have come so far, by the place of the output: the cotangent of the call.

    To those who ask it has the size of the call's value, which is empty.
    """

    __slots__ = ("of",)
    array: Final = _NOTHING
    shape, size, itemsize = _NOTHING.shape, _NOTHING.size, _NOTHING.itemsize

    def __init__(self, of: dict[int, Tensor]) -> None:
        self.of = of

    def add(self, more: Cotangents) -> None:
        self.of.update(more.of)  # each output sends its cotangent once, when it is complete

    def total(self) -> Cotangents:
        return self


class Call(Op):
    """One call, as an op. Its value is an empty tensor that stands for all outputs; each output is an op on that.

    Args:
        name: what errors and reports call it.
        inputs: what gradients go to.
        pull: from the cotangents of the outputs, by place, to the gradients of the inputs, None where there is none.
        keeps: whether a tape keeps the inputs; otherwise only those that can change in place, to see that they did not.
        dead: the places of inputs whose derivative is zero everywhere.
        again: from the serials of the inputs that are watched (0 for others) and the inputs to a tape of the ops inside and
            the outputs; then tapes walk these ops instead of calling `pull`.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Tensor],
        pull: Callable[[dict[int, Tensor]], Sequence[Any]],
        *,
        keeps: bool = False,
        dead: Sequence[int] = (),
        again: Callable[[Sequence[int], Sequence[Tensor]], Any] | None = None,
    ) -> None:
        rule = Rule(lambda g, *_: pull(g.of), name, (), 0)
        places = [place for place, x in enumerate(inputs) if keeps or x.storage is not None]
        rule.names = tuple([f"input {place}" for place in places])
        self.name, self.kind, self.joint, self.rules, self.dead = name, OWN, True, (rule,), tuple(dead)
        self.pullback, self.cost, self.params, self.again = pull, None, 0, again
        self.names = tuple([f"input {place}" for place in range(len(inputs))])

        def edges(inputs: Sequence[Any], y: Any, params: Sequence[Any], serials: Sequence[int]) -> Sequence[Any]:
            kept = tuple([inputs[place] for place in places])
            return ((serials, rule, kept, [x.shape if serial else None for x, serial in zip(inputs, serials)]),)

        self.edges = edges


class Output(Op):
    """One output of a call."""

    def __init__(self, place: int) -> None:
        def placed(g: Tensor) -> Cotangents:
            """The cotangent, at its place among those of the call's outputs"""
            return Cotangents({place: g})

        rule = Rule(placed, "output", (), 0)
        self.name, self.kind, self.joint, self.rules, self.dead = "output", OWN, False, (rule,), ()
        self.pullback, self.cost, self.names, self.params = placed, None, ("call",), 0
        self.edges = lambda inputs, y, params, serials: ((serials[0], rule, (), None),)


_outputs: Final[list[Output]] = []


def record(call: Call, inputs: Sequence[Tensor], outputs: Sequence[Any]) -> None:
    """Tells the listeners that the call made these outputs; only those that are floating-point tensors have derivatives."""
    tell = listeners.record
    if tell is None:
        return
    whole = Tensor(_NOTHING)
    tell(call, whole, tuple(inputs), ())
    for place, y in enumerate(outputs):
        if is_real(y):
            while len(_outputs) <= place:
                _outputs.append(Output(len(_outputs)))
            tell(_outputs[place], y, (whole,), ())


def is_real(x: Any) -> bool:
    """Whether it is a tensor that can have a gradient."""
    return isinstance(x, Tensor) and x.dtype.kind in "fV"


def unrecorded(values: Sequence[Any]) -> list[Any]:
    """The values as tensors that no tape knows yet; what is no tensor as it is."""
    return silently((), lambda: [stop_gradient(y) if isinstance(y, Tensor) else y for y in values])


def silently(stack: tuple[Any, ...], f: Callable[[], Any]) -> Any:
    """f(), with these listeners instead of those that listen now."""
    before = listeners.stack
    listeners.stack = stack
    try:
        return f()
    finally:
        listeners.stack = before


def called(f: Any) -> str:
    """What messages call a user's function."""
    return getattr(f, "__name__", type(f).__name__)


class Reads:
    """Listens while a function runs, and notes what its ops read that was there before: arguments, Parameters, closures.

    Attributes:
        values: by serial, the tensors that tapes may know.
        live: the serials of those that were read by an op with a derivative.
    """

    def __init__(self) -> None:
        self.since = new_serial()
        self.values: dict[int, Tensor] = {}
        self.live: set[int] = set()
        self._memories: dict[int, Tensor] = {}  # by storage: views of Parameters that no tape knows

    def add(self, op: Op, y: Tensor, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        passes = op.pullback is not None and op.pullback is not ZERO
        for place, x in enumerate(inputs):
            self.see(x, live=passes and place not in op.dead)

    def see(self, x: Any, *, live: bool) -> None:
        if 0 < x.serial < self.since:
            self.values[x.serial] = x
            if live:
                self.live.add(x.serial)
        elif x.storage is not None:
            self._memories[id(x.storage)] = x

    def cut(self, x: Tensor, how: str) -> None:
        """A value that leaves pullback has been read by an op before, or matters to no gradient."""

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors that were read, and one view of each memory that can change in place and was read through views only."""
        known = {id(x.storage) for x in self.values.values()}
        return [*self.values.values(), *[x for storage, x in self._memories.items() if storage not in known]]

    @property
    def dead(self) -> list[int]:
        """The places among the inputs of those from which no derivative comes."""
        return [place for place, x in enumerate(self.inputs) if x.serial not in self.live]
