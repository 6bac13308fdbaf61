"""Calls of a captured function under tapes, batches and forward mode: each listener is served by a recording.

The innermost listener is served first. The function that runs for it (`Forward`, `ForBatch`, …) runs the captured function under a
listener of the same kind, and returns also what the listener needs to know. This function is captured, too, and is called under
the listeners that are left, which are served in the same way. So the recording at the end runs without listeners from outside.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from ..autodiff.batching import Batch, Batched, belongs
from ..autodiff.kept import Listening
from ..autodiff.listeners import listeners
from ..autodiff.primitive import ZERO
from ..autodiff.tape import Tape
from ..backends import kernels_on
from ..launch import capturing
from ..ops.random import drawn
from ..tensors import devices
from ..tensors.operand import own
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..tensors.views import OutsideView, StaleView
from ..transforms.calls import Reads
from ..transforms.checkpoint import Noted
from ..transforms.jvp import Forward as ForwardMode
from ..tree import flatten, unflatten
from .replayed import Replayed
from .signature import is_array
from .trace import Constant, Inside, Trace

# ---- the call


class Unserved(Exception):
    """A recording cannot serve the listeners, and the function has to run eagerly under them."""


class _Thread(threading.local):
    unserved: bool = False  # True if a call was served in a way that later calls cannot be


thread: Final = _Thread()


def call(captured: Any, args: Any, options: Any, counted: Any) -> Any:
    """Calls a captured function under the present listeners."""
    given, spec = flatten((args, options))
    leaves = [_leaf(x) for x in given]
    device = next((x.device for x in leaves if isinstance(x, Tensor)), None) or devices.default_device()
    kinds = tuple([_kind(listener) for listener in listeners.stack])
    if captured.stepped or kernels_on(device) is None or captured.runs_eagerly(kinds):
        return captured.eagerly(args, options, counted)
    if captured.is_derived:
        return _served(captured, leaves, spec)
    states: dict[Any, Any] = {}
    try:
        with Noted(states, {}):
            value = _served(captured, leaves, spec)
        if thread.unserved:
            captured.run_eagerly(kinds)
    except Unserved:
        for generator, state in states.items():
            generator.load_state_dict(state)
        captured.run_eagerly(kinds)
        return captured.eagerly(args, options, counted)
    finally:
        thread.unserved = False
    if counted is not None:
        counted.done += 1
    return value


def _served(captured: Any, leaves: list[Any], spec: Any) -> Any:
    serve = _SERVE.get(_kind(listeners.stack[-1]))
    if serve is None:
        raise Unserved
    return serve(captured, listeners.stack[-1], leaves, spec)


def _kind(listener: Any) -> type:
    return next((kind for kind in _SERVE if isinstance(listener, kind)), type(listener))


def _leaf(x: Any) -> Any:
    """Returns an argument as a tensor that no other code can write to, if it is an array."""
    if isinstance(x, (OutsideView, StaleView)):
        _ = x.array  # raises for a stale view, and turns an outside view into a plain tensor
    return own(x) if is_array(x) else x


class _Served:
    """A function that runs for calls under one kind of listener.

    Args:
        function: the captured function, uncaptured.
        alike: for each argument leaf, the position of the first leaf that is the same object.
    """

    __slots__ = ("__name__", "_alike", "_function", "_now")

    def __init__(self, function: Callable[..., Any], alike: Sequence[int]) -> None:
        self._function, self._alike = function, alike
        self._now = threading.local()  # the listener that is being served, as `listener`
        self.__name__ = getattr(function, "__name__", "f")

    def serve(self, listener: Any, leaves: Sequence[Any], f: Callable[[], Any], **more: Any) -> Any:
        """Returns f(), which calls this function with these leaves for a listener, under the other listeners."""
        now, before = self._now.__dict__, dict(self._now.__dict__)
        now.update(more, listener=listener, serials=[x.serial if isinstance(x, Tensor) else 0 for x in leaves])
        stack = listeners.truncate(len(listeners.stack) - 1)
        try:
            return f()
        finally:
            listeners.restore(stack)
            now.clear()
            now.update(before)

    def _leaves(self, args: Any, options: Any) -> tuple[list[Any], Any]:
        leaves, spec = flatten((args, options))
        for x, serial in zip(leaves, self._now.serials):
            if serial:
                x.serial = serial  # what listeners from outside know of the argument, those inside know of its stand-in
        return [leaves[i] for i in self._alike], spec


def _alike(leaves: Sequence[Any]) -> tuple[int, ...]:
    first: dict[int, int] = {}
    return tuple([first.setdefault(id(x), i) if isinstance(x, Tensor) else i for i, x in enumerate(leaves)])


def _guard(served: _Served, watched: Sequence[Any], unwatched: Sequence[Any]) -> None:
    """Makes the recording valid only for listeners that know the first tensors, and not the second ones (weak references)."""
    now = served._now
    recording: Any = capturing.thread.recording

    def holds() -> bool:
        knows = now.listener.knows
        return all([knows(x) for x in watched]) and not any([(x := found()) is not None and knows(x) for found in unwatched])

    recording.guard(holds, holds)


# ---- tapes


class Forward(_Served):
    """Runs the function under a tape. Returns its results and the values that pullbacks keep, and a Replayed."""

    __slots__ = ("_capture",)

    def __init__(self, function: Callable[..., Any], alike: Sequence[int], capture: Callable[[Any], Any]) -> None:
        super().__init__(function, alike)
        self._capture = capture

    def __call__(self, *args: Any, **options: Any) -> list[Any]:
        leaves, spec = self._leaves(args, options)
        args, options = unflatten(spec, leaves)
        inside = Inside(self._now.listener)
        with inside:
            outputs, form = flatten(self._function(*args, **options))
        trace = Trace(self.__name__, inside, leaves, outputs, form)
        given = {x.serial for x in leaves if isinstance(x, Tensor)}
        ids = {id(x) for x in leaves}
        watched = [x for serial, x in inside.outside.items() if serial not in given]
        _guard(self, watched, [found for key, found in inside.unwatched.items() if key not in ids])
        replayed = Replayed(trace, self._capture)
        if not trace.closed:
            self._now.open.append((inside, outputs, form))
        return [*trace.results, replayed]


def _under_tape(captured: Any, tape: Tape, leaves: list[Any], spec: Any) -> Any:
    watched = tuple([isinstance(x, Tensor) and tape.knows(x) for x in leaves])
    alike, found = _alike(leaves), []
    key = ("tape", watched, alike, tape.watch_parameters, tape.persistent)
    derived = captured.derived(key, lambda f, capture: Forward(f, alike, capture))
    args, options = unflatten(spec, leaves)
    *results, replayed = derived.__wrapped__.serve(tape, leaves, lambda: derived(*args, **options), open=found)
    if not replayed.trace.closed:
        return _taken_over(tape, leaves, found)
    replayed.tell(tape, leaves, results)
    return unflatten(replayed.trace.form, replayed.value(leaves, results))


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
    tape.cuts += inside.cuts
    tape.scopes.update(inside.scopes)
    tape.has_dead = tape.has_dead or inside.has_dead
    for x in inside.outside.values():
        tape.knows(x)
    own = {x.serial: x for x in leaves if isinstance(x, Tensor) and x.serial}
    return unflatten(form, [own.get(y.serial, y) if isinstance(y, Tensor) else y for y in outputs])


# ---- results that are told apart


class _Told:
    """The value of a function that runs for a batch or for forward mode: its leaves are results, arguments or constants.

    Attributes:
        leaves, form: as in a Trace.
        marks: for each result, what the listener has to know about it.
        more: more for the listener.
    """

    def __init__(self, value: Any, given: Sequence[Any]) -> None:
        outputs, self.form = flatten(value)
        places: dict[int, int] = {}
        for i, x in enumerate(given):
            if isinstance(x, Tensor) and not isinstance(x, Parameter):
                places.setdefault(id(x), ~i)
        self.results: list[Any] = []
        self.leaves: list[Any] = []
        for y in outputs:
            if not isinstance(y, Tensor) or isinstance(y, Parameter):
                self.leaves.append(Constant(y))
                continue
            if id(y) not in places:
                places[id(y)] = len(self.results)
                self.results.append(y)
            self.leaves.append(places[id(y)])
        self.marks: list[Any] = []
        self.more: Any = None

    def value(self, given: Sequence[Any], results: Sequence[Any]) -> Any:
        leaves = [
            leaf.value if leaf.__class__ is Constant else results[leaf] if leaf >= 0 else given[~leaf] for leaf in self.leaves
        ]
        return unflatten(self.form, leaves)

    def returned(self, *more: Any) -> list[Any]:
        """Returns the results, more tensors, and this object, which the recording keeps without the results."""
        found = [*self.results, *more, self]
        self.results = []
        return found


# ---- batches


class ForBatch(_Served):
    """Runs the function for one example of a batch. Takes and returns all examples."""

    __slots__ = ("_on",)

    def __init__(self, function: Callable[..., Any], alike: Sequence[int], on: Sequence[bool]) -> None:
        super().__init__(function, alike)
        self._on = on

    def __call__(self, *args: Any, **options: Any) -> list[Any]:
        leaves, spec = self._leaves(args, options)
        outer, before = self._now.listener, drawn.alike
        with Batch(outer.size, directions=outer.directions) as batch:
            drawn.alike = (*before, batch) if outer in before else before
            try:
                one: dict[int, Any] = {id(x): Batched(batch, x) for x, on in zip(leaves, self._on) if on}
                inside = [one.get(id(x), x) for x in leaves]
                args, options = unflatten(spec, inside)
                told = _Told(self._function(*args, **options), inside)
            finally:
                drawn.alike = before
        told.marks = [belongs(y, batch) for y in told.results]
        told.results = [y.value if belongs(y, batch) else y for y in told.results]
        return told.returned()


def _under_batch(captured: Any, batch: Batch, leaves: list[Any], spec: Any) -> Any:
    on = tuple([belongs(x, batch) for x in leaves])
    alike = _alike(leaves)
    key = ("batch", on, alike, batch.size, batch.directions, batch in drawn.alike)
    derived = captured.derived(key, lambda f, capture: ForBatch(f, alike, on))
    args, options = unflatten(spec, [x.value if flag else x for x, flag in zip(leaves, on)])
    *results, told = derived.__wrapped__.serve(batch, [x.value if flag else x for x, flag in zip(leaves, on)], lambda: derived(*args, **options))
    return told.value(leaves, [Batched(batch, y) if mark else y for y, mark in zip(results, told.marks)])


# ---- forward mode


class InsideForward(ForwardMode):
    """Stands for a Forward while a function that is called under it is recorded."""

    def __init__(self, outer: ForwardMode) -> None:
        super().__init__()
        self.outer = outer
        self.unknown: dict[int, Any] = {}

    def of(self, x: Any) -> Tensor | None:
        found = super().of(x)
        if found is None and isinstance(x, Tensor) and x.serial and self.outer.of(x) is not None:
            raise Unserved  # a tensor from outside has a tangent
        return found

    def add(self, op: Any, y: Tensor, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        for x in inputs:
            if isinstance(x, Tensor) and super().of(x) is None:
                self.unknown[id(x)] = weakref.ref(x)
        super().add(op, y, inputs, params)


class ForForward(_Served):
    """Runs the function and computes tangents. Takes a list of tangents before the function's own arguments.

    Args:
        on: for each argument leaf, True if it has a tangent.
        parameters: the Parameters that are not arguments, and have a tangent.
    """

    __slots__ = ("_on", "_parameters")

    def __init__(self, function: Any, alike: Sequence[int], on: Sequence[bool], parameters: Sequence[Any]) -> None:
        super().__init__(function, alike)
        self._on, self._parameters = on, parameters

    def __call__(self, tangents: Any, /, *args: Any, **options: Any) -> list[Any]:
        leaves, spec = self._leaves(args, options)
        args, options = unflatten(spec, leaves)
        with InsideForward(self._now.listener) as inside:
            for x, t in zip([*[x for x, on in zip(leaves, self._on) if on], *self._parameters], tangents):
                inside.give(x, t)
            given = inside.bytes
            told = _Told(self._function(*args, **options), leaves)
            found = [inside.of(y) for y in told.results]
        _guard(self, [], list(inside.unknown.values()))
        told.marks = [t is not None for t in found]
        there = [t for t in found if t is not None]
        told.more = inside.bytes - given - sum([t.array.nbytes for t in there]), inside.used
        return told.returned(*there)


def _under_forward(captured: Any, forward: ForwardMode, leaves: list[Any], spec: Any) -> Any:
    alike = _alike(leaves)
    on = tuple([isinstance(x, Tensor) and forward.knows(x) and alike[i] == i for i, x in enumerate(leaves)])
    ids = {id(x) for x in leaves}
    parameters = [p for p in forward.living() if isinstance(p, Parameter) and id(p) not in ids]
    key = ("forward", on, alike, tuple(map(id, parameters)))
    derived = captured.derived(key, lambda f, capture: ForForward(f, alike, on, parameters))
    args, options = unflatten(spec, leaves)
    tangents = [forward.of(x) for x in [*[x for x, flag in zip(leaves, on) if flag], *parameters]]
    *found, told = derived.__wrapped__.serve(forward, leaves, lambda: derived(tangents, *args, **options))
    results, there = found[: len(told.marks)], iter(found[len(told.marks) :])
    bytes_inside, used = told.more
    forward.bytes += bytes_inside
    forward.used = forward.used or used
    for y, mark in zip(results, told.marks):
        if mark:
            forward.give(y, next(there))
    return told.value(leaves, results)


# ---- reads


class ForReads(_Served):
    """Runs the function and notes which tensors it reads."""

    __slots__ = ()

    def __call__(self, *args: Any, **options: Any) -> list[Any]:
        leaves, spec = self._leaves(args, options)
        args, options = unflatten(spec, leaves)
        with Noticed() as noticed:
            told = _Told(self._function(*args, **options), leaves)
        places = {id(x): i for i, x in enumerate(leaves)}
        told.more = (
            [(places[key], live) for key, live in noticed.live.items() if key in places],
            [(noticed.read[key], live) for key, live in noticed.live.items() if key not in places],
        )
        return told.returned()


class Noticed(Listening):
    """Notes the tensors that ops read and did not make, and whether a derivative passes."""

    def __init__(self) -> None:
        self.read: dict[int, weakref.ref[Any]] = {}
        self.live: dict[int, bool] = {}
        self._made: dict[int, Any] = {}

    def add(self, op: Any, y: Tensor, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        passes = op.pullback is not None and op.pullback is not ZERO
        for place, x in enumerate(inputs):
            if isinstance(x, Tensor) and id(x) not in self._made:
                self.read.setdefault(id(x), weakref.ref(x))
                self.live[id(x)] = self.live.get(id(x), False) or (passes and place not in op.dead)
        self._made[id(y)] = weakref.ref(y, partial(self._made.pop, id(y)))

    def on_escape(self, x: Tensor, how: str) -> None:
        """Does nothing: capture refuses what reads a value."""


def _under_reads(captured: Any, reads: Reads, leaves: list[Any], spec: Any) -> Any:
    alike = _alike(leaves)
    derived = captured.derived(("reads", alike), lambda f, capture: ForReads(f, alike))
    args, options = unflatten(spec, leaves)
    *results, told = derived.__wrapped__.serve(reads, leaves, lambda: derived(*args, **options))
    for place, live in told.more[0]:
        reads.see(leaves[place], live=live)
    for found, live in told.more[1]:
        if (x := found()) is not None:
            reads.see(x, live=live)
    return told.value(leaves, results)


_SERVE: Final[dict[type, Callable[..., Any]]] = {
    Tape: _under_tape, Batch: _under_batch, ForwardMode: _under_forward, Reads: _under_reads,
}  # fmt: skip
