"""Calls of a captured function under batches, forward mode, and the listeners of checkpoints."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..autodiff.batching import Batch, Batched, belongs
from ..autodiff.kept import Listening
from ..autodiff.primitive import ZERO
from ..ops.random import drawn
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..transforms.calls import Call, Reads
from ..transforms.jvp import Forward as ForwardMode
from ..tree import unflatten
from .served import Served, Told, Unserved, alike_of, guard

# ---- batches


class ForBatch(Served):
    """Runs the function for one example of a batch. Takes and returns all examples."""

    __slots__ = ("_on",)

    def __init__(self, function: Callable[..., Any], alike: Sequence[int], on: Sequence[bool]) -> None:
        super().__init__(function, alike)
        self._on = on

    def __call__(self, *args: Any, **options: Any) -> list[Any]:
        leaves, spec = self._leaves(args, options)
        outer, before = self.now.listener, drawn.alike
        with Batch(outer.size, directions=outer.directions) as batch:
            drawn.alike = (*before, batch) if outer in before else before
            try:
                one: dict[int, Any] = {id(x): Batched(batch, x) for x, on in zip(leaves, self._on) if on}
                inside = [one.get(id(x), x) for x in leaves]
                args, options = unflatten(spec, inside)
                told = Told(self.function(*args, **options), inside)
            finally:
                drawn.alike = before
        told.marks = [belongs(y, batch) for y in told.results]
        told.results = [y.value if belongs(y, batch) else y for y in told.results]
        return told.returned()


def under_batch(captured: Any, batch: Batch, leaves: list[Any], spec: Any) -> Any:
    on = tuple([belongs(x, batch) for x in leaves])
    alike = alike_of(leaves)
    key = ("batch", on, alike, batch.size, batch.directions, batch in drawn.alike)
    derived = captured.derived(key, lambda f, capture: ForBatch(f, alike, on))
    args, options = unflatten(spec, [x.value if flag else x for x, flag in zip(leaves, on)])
    *results, told = derived.__wrapped__.serve(
        batch, [x.value if flag else x for x, flag in zip(leaves, on)], lambda: derived(*args, **options)
    )
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
        if isinstance(op, Call) and op.formula and any([x.device != "cpu" for x in inputs]):
            raise Unserved  # a recording on a GPU reads nothing, so that it could not refuse a pullback that is not linear
        for x in inputs:
            if isinstance(x, Tensor) and super().of(x) is None:
                self.unknown[id(x)] = weakref.ref(x)
        super().add(op, y, inputs, params)


class ForForward(Served):
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
        with InsideForward(self.now.listener) as inside:
            for x, t in zip([*[x for x, on in zip(leaves, self._on) if on], *self._parameters], tangents):
                inside.give(x, t)
            given = inside.bytes
            told = Told(self.function(*args, **options), leaves)
            found = [inside.of(y) for y in told.results]
        guard(self, [], list(inside.unknown.values()))
        told.marks = [t is not None for t in found]
        there = [t for t in found if t is not None]
        told.more = inside.bytes - given - sum([t.array.nbytes for t in there]), inside.used
        return told.returned(*there)


def under_forward(captured: Any, forward: ForwardMode, leaves: list[Any], spec: Any) -> Any:
    alike = alike_of(leaves)
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


class ForReads(Served):
    """Runs the function and notes which tensors it reads."""

    __slots__ = ()

    def __call__(self, *args: Any, **options: Any) -> list[Any]:
        leaves, spec = self._leaves(args, options)
        args, options = unflatten(spec, leaves)
        with Noticed() as noticed:
            told = Told(self.function(*args, **options), leaves)
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

    def on_escape(self, x: Tensor, how: str, given: Any = None) -> None:
        """Does nothing: capture refuses what reads a value."""


def under_reads(captured: Any, reads: Reads, leaves: list[Any], spec: Any) -> Any:
    alike = alike_of(leaves)
    derived = captured.derived(("reads", alike), lambda f, capture: ForReads(f, alike))
    args, options = unflatten(spec, leaves)
    *results, told = derived.__wrapped__.serve(reads, leaves, lambda: derived(*args, **options))
    for place, live in told.more[0]:
        reads.see(leaves[place], live=live)
    for found, live in told.more[1]:
        if (x := found()) is not None:
            reads.see(x, live=live)
    for y in results:
        reads.make(y)
    return told.value(leaves, results)
