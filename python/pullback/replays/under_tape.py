"""Calls of a captured function under a tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from ..autodiff.kept import Heard
from ..autodiff.listeners import listeners
from ..autodiff.tape import Tape
from ..backends import modes
from ..launch import capturing
from ..launch.refusal import Refused
from ..tensors import devices
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..tree import flatten, unflatten
from .replay import Replay
from .replayed import Replayed
from .served import Served, Unserved, alike_of, guard, thread
from .trace import Inside, Trace, Within


class ForTape(Served):
    """Runs the function under a tape. Returns its results and the values that pullbacks keep, and a Replayed."""

    __slots__ = ("_capture",)

    def __init__(self, function: Callable[..., Any], alike: Sequence[int], capture: Callable[[Any], Any]) -> None:
        super().__init__(function, alike)
        self._capture = capture

    def __call__(self, *args: Any, **options: Any) -> list[Any]:
        leaves, spec = self._leaves(args, options)
        args, options = unflatten(spec, leaves)
        inside = Inside(self.now.listener)
        with inside, Heard((*listeners.stack, Within(inside))):
            outputs, form = flatten(self.function(*args, **options))
        trace = Trace(self.__name__, inside, leaves, outputs, form)
        given = {x.serial for x in leaves if isinstance(x, Tensor)}
        ids = {id(x) for x in leaves}
        watched = [x for serial, x in inside.outside.items() if serial not in given]
        replayed = Replayed(trace, self._capture, watched, [found for key, found in inside.unwatched.items() if key not in ids])
        replayed.guard = guard(self, replayed.watched, replayed.unwatched)
        if not trace.closed:
            self.now.open.append((inside, outputs, form))
        results, trace.results = trace.results, []
        return [*results, replayed]


def under_tape(captured: Any, tape: Tape, leaves: list[Any], spec: Any) -> Any:
    watched = tuple([isinstance(x, Tensor) and tape.knows(x) for x in leaves])
    alike, found = alike_of(leaves), []
    key = ("tape", watched, alike, tape.watch_parameters, tape.persistent)
    derived = captured.derived(key, lambda f, capture: ForTape(f, alike, capture))
    args, options = unflatten(spec, leaves)
    *results, replayed = derived.__wrapped__.serve(tape, leaves, lambda: derived(*args, **options), open=found)
    if not replayed.trace.closed:
        return _taken_over(tape, leaves, found)
    for x in replayed.watched:
        tape.knows(x)  # a Parameter becomes watched when it is first used
    replayed.tell(tape, leaves, results)
    if len(listeners.stack) == 1 and not captured.is_derived and spec == flatten((tuple(leaves), {}))[1]:
        replay: Any = derived.last_used()
        different = len(set(map(id, leaves))) == len(leaves)
        usual = different and all([x.__class__ is Tensor for x in leaves])
        if replay is not None and replay.constant() is replayed and usual:  # not the recording of another thread
            captured.under_tape = QuickUnderTape(replay, replayed, tape, leaves)
        else:
            captured.under_tape = None
    return replayed.value(leaves, results)


def _taken_over(tape: Tape, leaves: list[Any], found: list[Any]) -> Any:
    """Lets the tape take the ops of the first run, whose pullbacks keep values of this run in ways that are not known here.

    Later calls run eagerly. Only tapes can take ops; if there are other listeners, the function has to run once more.
    """
    if not found or not all([isinstance(listener, Tape) for listener in listeners.stack]):
        raise Unserved
    thread.unserved = True
    inside, outputs, form = found[0]
    tape.nodes += inside.nodes
    tape.values |= inside.values
    tape.journal.cuts += inside.journal.cuts
    tape.scopes.update(inside.scopes)
    tape.precisions.update(inside.precisions)
    tape.dead.update(inside.dead)
    for x in inside.outside.values():
        tape.knows(x)
    own = {x.serial: x for x in leaves if isinstance(x, Tensor) and x.serial}
    return unflatten(form, [own.get(y.serial, y) if isinstance(y, Tensor) else y for y in outputs])


class QuickUnderTape:
    """The recording that the last call under a tape used. It serves calls whose arguments are all tensors, under one tape.

    Args:
        tape: the tape, the only listener.
        args: the arguments of the call, which are different tensors.
    """

    def __init__(self, replay: Replay, replayed: Replayed, tape: Tape, args: Sequence[Any]) -> None:
        self._replay, self._replayed = replay, replayed
        self._of_tape = tape.watch_parameters, tape.persistent
        self._on = [x.serial in tape.values for x in args]
        self._around = devices.default_device(), modes.rounding()
        automatic = [x for x in replayed.watched if tape.watch_parameters and isinstance(x, Parameter) and x.trainable]
        self._leaves: dict[int, ref[Tensor]] = {p.serial: ref(p) for p in automatic}
        self._watched = {x.serial for x in replayed.watched} - self._leaves.keys()
        self._unwatched = [found for found in replayed.unwatched if found() is not None]

    def value(self, args: Sequence[Any]) -> tuple[Any] | None:
        """Returns the function's value in a tuple, and records the call. Returns None if the recording does not serve the call."""
        replay, stack = self._replay, listeners.stack
        if len(stack) != 1 or len(args) != len(self._on) or capturing.thread.recording is not None:
            return None
        tape = stack[0]
        if not isinstance(tape, Tape) or (tape.watch_parameters, tape.persistent) != self._of_tape:
            return None
        values = tape.values
        for x, on in zip(args, self._on):
            if x.__class__ is not Tensor or (x.serial in values) is not on:
                return None
        if not self._holds(values) or (len(args) > 1 and len(set(map(id, args))) != len(args)):
            return None
        try:
            results, replayed = replay.told(args)
        except Refused:
            return None
        if not self._leaves.keys() <= values:
            values.update(self._leaves)
            tape.leaves.update(self._leaves)
        replayed.tell(tape, args, results)
        return (replayed.value(args, results),)

    def _holds(self, values: set[int]) -> bool:
        return (
            self._replay.holds_but(self._replayed.guard)
            and self._watched <= values
            and not any([(x := found()) is not None and x.serial in values for found in self._unwatched])
            and self._around == (devices.default_device(), modes.rounding())
        )
