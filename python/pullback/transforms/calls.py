"""Records the call of a function as one node on the listening tapes, whatever the function computes inside."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np

from ..autodiff.backward import total
from ..autodiff.batching import Batch, Batched, belongs
from ..autodiff.facts import Facts
from ..autodiff.kept import Heard
from ..autodiff.listeners import listeners, new_serial
from ..autodiff.primitive import ZERO, Op, Rule
from ..autodiff.tape import Tape
from ..ops.by_name import of_all, spread
from ..ops.kinds import OWN
from ..ops.reduce import sum
from ..tensors.creation import zeros
from ..tensors.tensor import Tensor
from .linearity import Transposing
from .passage import OF_OUTPUT, Passage

Pull = Callable[[list[Any]], Sequence[Any]]  # maps the outputs' cotangents to the inputs' gradients; None stands for a missing one

_NOTHING: Final = np.empty(0, np.float32)
NOT_KEPT: Final = "its function is not kept"
INSIDE_VMAP: Final = "it was called for one example inside a vmap that this tape is outside of"


class Cotangents:
    """The cotangent (or tangent) of a call: the cotangents of its outputs received so far, by the outputs' positions.

    They are tensors, or in a backward pass sums that have a total().

    Its `shape`, `size` and `itemsize` are those of the call's value, which is empty.
    """

    __slots__ = ("of",)
    array: Final = _NOTHING
    shape, size, itemsize = _NOTHING.shape, _NOTHING.size, _NOTHING.itemsize

    def __init__(self, of: dict[int, Any]) -> None:
        self.of = of

    def add(self, more: Cotangents) -> None:
        self.of.update(more.of)  # each output sends its cotangent once, when it is complete

    def total(self) -> Cotangents:
        return Cotangents({position: total(g) for position, g in self.of.items()})


class Again(NamedTuple):
    """A recorded call that can run again at other values, as `tape.check` does.

    Attributes:
        inputs: the tensors that receive gradients; None if the derivative is the same whatever their values are.
        run: returns the outputs, and their pullback, for tensors in place of `inputs`.
    """

    inputs: Sequence[Tensor] | None
    run: Callable[[Sequence[Tensor]], tuple[Sequence[Any], Pull]]


class Call(Op):
    """One call, as an op. Its value is an empty tensor that stands for all outputs; each output is an op on this tensor.

    Args:
        name: the name of the call in errors and reports.
        inputs: the tensors that receive gradients.
        outputs: the values that the call returned; only floating-point tensors among them have cotangents.
        pull: returns the gradients of the inputs, given the cotangents of the outputs.
        keeps: True if a tape keeps all inputs; if False it keeps only those that can change in place, to detect a change.
        dead: the positions of the inputs whose derivative is zero everywhere.
        call: if it is given, tapes pull cotangents back by it instead of calling `pull`.
        again: how to run the call again, or the reason why that is not possible.
        formula: True if the user wrote the pullback.
        closed: False if a copy of the call (see `copied`) would not compute the same derivative from other values.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Any],
        pull: Pull,
        *,
        keeps: bool = False,
        dead: Sequence[int] = (),
        call: Passage | None = None,
        again: Again | str = NOT_KEPT,
        formula: bool = False,
        closed: bool = True,
    ) -> None:
        facts = [(y.shape, y.dtype, y.device) if is_real(y) else None for y in outputs]

        def complete(cotangents: dict[int, Tensor]) -> list[Any]:
            return [cotangents[i] if i in cotangents else fact and _zeros(*fact) for i, fact in enumerate(facts)]

        def tangent(op: Any, inputs: Any, y: Any, params: Any, tangents: Sequence[Any]) -> Cotangents:
            return _transposed(pull, complete({}), tangents)

        rule = Rule(lambda g, *_: pull(complete(g.of)), name, (), 0)
        positions = [position for position, x in enumerate(inputs) if keeps or x.storage is not None]
        rule.names = tuple([f"input {position}" for position in positions])

        def edges(inputs: Sequence[Any], y: Any, params: Sequence[Any], serials: Sequence[int]) -> Sequence[Any]:
            kept = tuple([inputs[position] for position in positions])
            return ((serials, rule, kept, [x.shape if serial else None for x, serial in zip(inputs, serials)]),)

        names = tuple([f"input {position}" for position in range(len(inputs))])
        super().__init__(
            name, kind=OWN, names=names, rules=(rule,), pullback=pull, joint=True, tangent=tangent,
            facts=Facts(sys.intern(name), names[:2]),  # interned, because scopes are looked up by it
        )
        self.dead, self.edges, self.call = tuple(dead), edges, call
        self.again, self.formula, self.closed = again, formula, closed

    def copied(self, copy_of: Callable[[Any], Any]) -> Call:
        """Returns this call with functions that refer to other values, to be walked back over: copy_of(f) is such a copy of f."""
        call, rule = copy.copy(self), cast("Rule", copy.copy(self.rules[0]))
        rule.definition = rule.fused = copy_of(rule.definition)
        call.rules, call.pullback = (rule,), copy_of(self.pullback)
        call.call, call.again = self.call and self.call.copied(copy_of), copy_of(self.again)
        call.edges = call.tangent = _recorded_already
        return call


def _recorded_already(*arguments: Any) -> Any:
    raise AssertionError("the copy of a call is not recorded again")


def _zeros(shape: tuple[int, ...], dtype: Any, device: str) -> Tensor:
    return zeros(shape, dtype=dtype, device=device)


def _transposed(pull: Pull, at: list[Any], tangents: Sequence[Any]) -> Cotangents:
    """Returns the tangents of the outputs. A pullback is linear, so its own pullback, at any point, is its transpose."""
    positions = [i for i, u in enumerate(at) if u is not None]
    with Transposing() as tape:
        tape.watch([at[i] for i in positions])
        gradients = pull(at)
    pairs = [(gx, t) for gx, t in zip(gradients, tangents) if gx is not None and t is not None]
    if not pairs:
        return Cotangents({i: at[i] for i in positions})
    sources = [at[i] for i in positions]
    pulled = tape.gradient([gx for gx, _ in pairs], sources, [t for _, t in pairs], unconnected="zero")
    return Cotangents(dict(zip(positions, pulled)))


class Output(Op):
    """One output of a call, the one at `position`."""

    def __init__(self, position: int) -> None:
        self.position = position

        def placed(g: Tensor) -> Cotangents:
            """The cotangent, at its position among those of the call's outputs"""
            return Cotangents({position: g})

        rule = Rule(placed, "output", (), 0)
        super().__init__(
            "output", kind=OWN, names=("call",), rules=(rule,), pullback=placed,
            tangent=lambda op, inputs, y, params, tangents: tangents[0].of[position],
        )
        self.call = OF_OUTPUT


_outputs: Final[list[Output]] = []


def tell(to: Sequence[Any], call: Call, inputs: Sequence[Tensor], outputs: Sequence[Any]) -> None:
    """Passes the call, which made these outputs, to the listeners in `to`."""
    whole = Tensor(_NOTHING)
    for listener in to:
        listener.add(call, whole, tuple(inputs), ())
    for position, y in enumerate(outputs):
        if is_real(y):
            while len(_outputs) <= position:
                _outputs.append(Output(len(_outputs)))
            for listener in to:
                listener.add(_outputs[position], y, (whole,), ())


def record(
    name: str, pull: Pull, inputs: Sequence[Tensor], outputs: Sequence[Any], to: Sequence[Any] | None = None,
    again: Again | str = NOT_KEPT, formula: bool = False,
) -> None:
    """Passes a call that made these outputs to the listeners, or only to those in `to`, at the batch level of each listener.

    Listeners outside a batch receive all its examples at once. The pullback they receive runs inside the batch, on one example.
    `again`, `formula`: see `Call`.
    """
    for level in levels([*inputs, *outputs]):
        receivers = [x for x in level.listeners if to is None or x in to]
        if receivers:
            seen, made = level.lowered(inputs), level.lowered(outputs)
            how = INSIDE_VMAP if level.above else again
            call = Call(name, seen, made, level.pull(pull, inputs), again=how, formula=formula)
            tell(receivers, call, seen, made)


def is_real(x: Any) -> bool:
    """True if x is a tensor that can have a gradient."""
    return isinstance(x, Tensor) and x.dtype.kind in "fV"


# ---- batches


class Level:
    """The listeners between two batches on the stack.

    Attributes:
        listeners: the tapes and other listeners at this level.
        above: the batches inside this level that the values belong to, from the outer to the inner.
    """

    def __init__(self, here: Sequence[Any], above: Sequence[Batch]) -> None:
        self.listeners, self.above = tuple(here), tuple(above)

    def lowered(self, values: Sequence[Any]) -> list[Any]:
        """Returns the values at this level, where a value holds all examples of the batches inside."""
        return lowered(values, self.above)

    def pull(self, pull: Pull, inputs: Sequence[Tensor]) -> Pull:
        """Returns the pullback of the call for values of this level."""
        inputs = list(inputs)
        for batch in reversed(self.above):
            pull = _over(batch, pull, [belongs(x, batch) for x in inputs])
            inputs = [x.value if belongs(x, batch) else x for x in inputs]
        return pull


def levels(values: Sequence[Any]) -> list[Level]:
    """Returns the listeners as levels, separated by the batches that any of the values belongs to."""
    batches = batches_of(values)
    found: list[Level] = []
    here: list[Any] = []
    for listener in listeners.stack:
        if listener in batches:
            found.append(Level(here, batches[len(found) :]))
            here = []
        elif not isinstance(listener, Batch):
            here.append(listener)
    return [*found, Level(here, ())]


def lowered(values: Sequence[Any], batches: Sequence[Batch]) -> list[Any]:
    """Returns the values outside of these batches, where a value holds all examples. The batches are listed from outer to inner."""
    found = list(values)
    for batch in reversed(batches):
        found = [x.value if belongs(x, batch) else x for x in found]
    return found


def batches_of(values: Sequence[Any]) -> list[Batch]:
    """Returns the batches on the stack that the values belong to, from the outer to the inner."""
    found: set[int] = set()
    for x in values:
        while isinstance(x, Batched):
            found.add(id(x.batch))
            x = x.value
    return [listener for listener in listeners.stack if id(listener) in found] if found else []


def _over(batch: Batch, pull: Pull, on: Sequence[bool]) -> Pull:
    """Returns a pullback for all examples of a batch at once. on[k] is True if input k differs from example to example."""

    def for_all(cotangents: list[Any]) -> list[Any]:
        with entered([batch]):
            gradients = pull([g if g is None else Batched(batch, g) for g in cotangents])
        return [gx if gx is None else _below(gx, batch, each) for gx, each in zip(gradients, on)]

    for_all.__doc__ = pull.__doc__
    return for_all


def _below(gx: Tensor, batch: Batch, each: bool) -> Tensor:
    """Returns the gradient of each example if `each`; otherwise the sum over the examples, for a value that they share."""
    if belongs(gx, batch):
        return gx.value if each else sum(gx.value, axis=0)
    return spread(gx, batch.size) if each else gx * batch.size


def entered(batches: Sequence[Batch], *outside: Any) -> Heard:
    """Returns a context manager that makes these batches the innermost listeners, with `outside` just outside of them.

    The batches may have ended before.
    """
    return Heard((*[listener for listener in listeners.stack if listener not in batches], *outside, *batches))


def on(y: Any, batches: Sequence[Batch]) -> Any:
    """Returns a floating-point tensor as a member of each of these batches. Other values are returned unchanged."""
    if not is_real(y) or not batches:
        return y
    *outer, batch = batches
    return Batched(batch, on(of_all(y, batch), outer))


# ---- running a function


def with_listeners(stack: Sequence[Any], f: Callable[[], Any]) -> Any:
    """Returns f(), run with these listeners instead of the present ones."""
    with Heard(tuple(stack)):
        return f()


def call_recorders() -> tuple[list[Any], list[Any]]:
    """Returns the tapes that can record a call as one node, and the other listeners, which must receive every op inside.

    A tape cannot if a listener inside it computes with the ops it receives (forward mode), because the tape has to record the
    ops of that listener.
    """
    stack, first = listeners.stack, 0
    for position, listener in enumerate(stack):
        if not isinstance(listener, (Tape, Batch, Reads)):
            first = position + 1
    tapes = [listener for listener in stack[first:] if isinstance(listener, Tape)]
    return tapes, [listener for listener in stack if listener not in tapes]


def called(f: Any) -> str:
    """Returns the name of a user's function for messages."""
    return getattr(f, "__name__", type(f).__name__)


class Reads:
    """A listener that notes which earlier values the ops of a function read: arguments, Parameters, closures.

    It gives each value that an op makes a serial, which is larger than `since`.

    Attributes:
        values: by serial, the tensors read that a tape may watch.
        live: the serials of the tensors that an op with a derivative has read.
        members: for each batch, a value of one of its examples that an op has read.
        cuts: the serials of the results of ops that no gradient passes, such as stop_gradient.
    """

    def __init__(self) -> None:
        self.since = new_serial()
        self.values: dict[int, Tensor] = {}
        self.live: set[int] = set()
        self.members: dict[int, Batched] = {}
        self.cuts: set[int] = set()
        self._memories: dict[int, Tensor] = {}  # by storage: views of Parameters that no tape watches

    def add(self, op: Op, y: Tensor, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        self.make(y)
        if op.pullback is None:
            self.cuts.add(y.serial)
        passes = op.pullback is not None and op.pullback is not ZERO
        for position, x in enumerate(inputs):
            self.see(x, live=passes and position not in op.dead)

    def see(self, x: Any, *, live: bool) -> None:
        if isinstance(x, Batched):
            self.members[id(x.batch)] = x
            self.see(x.value, live=live)
        if 0 < x.serial < self.since:
            self.values[x.serial] = x
            if live:
                self.live.add(x.serial)
        elif x.storage is not None:
            self._memories.setdefault(id(x.storage), x)

    def make(self, y: Tensor) -> None:
        """Notes that an op of the function has made y."""
        y.serial = y.serial or new_serial()

    def made(self, y: Any) -> bool:
        """True if an op of the function has made y, and gradients pass. False for an argument, a Parameter or a constant."""
        return isinstance(y, Tensor) and y.serial > self.since and y.serial not in self.cuts

    def on_escape(self, x: Tensor, how: str, given: Any = None) -> None:
        """Does nothing: a value that leaves pullback has been read by an op before, or does not affect any gradient."""

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors that were read, and one view for each storage that was read only through views."""
        known = {id(x.storage) for x in self.values.values()}
        return [*self.values.values(), *[x for storage, x in self._memories.items() if storage not in known]]

    @property
    def dead(self) -> list[int]:
        """The positions of the inputs through which no derivative flows."""
        return [position for position, x in enumerate(self.inputs) if x.serial not in self.live]
