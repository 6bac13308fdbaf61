"""A backward pass that passes each gradient on as soon as it is complete, so that an update can use it and free it.

A gradient is complete, and its source is free to change, once the walk has passed the first recorded op that uses the source or
keeps it for its pullback. The walk is that of `backward.py` in pieces: the contributions to every gradient arrive in the same order
as in a backward pass that returns all gradients at its end, so the gradients have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, Any

from ..errors import StaleValueError
from ..launch import door
from ..tensors import creation
from ..tensors.tensor import Tensor
from .backward import Sums, run_hooks, total, walk
from .kept import Kept
from .node import needed_by
from .request import connected, seeds_for
from .site import call_site, line_of

if TYPE_CHECKING:
    from .node import Recorded
    from .tape import Tape

Receive = Callable[[int, Tensor], None]  # takes the position of a source, and its gradient


def sweep_each(tape: Tape, target: Tensor, sources: Sequence[Any], receive: Receive) -> None:
    """Calls receive(position, gradient) for each source, a Parameter, as soon as its gradient is complete. Frees the tape's record.

    From then on no recorded op reads the source, so `receive` may change it. A user's function that reads it later in the backward
    pass (a hook, a pullback) raises StaleValueError.
    """
    (seed,) = seeds_for([target], [None])
    needed = needed_by(tape, [target])
    serials, reach, _ = connected(tape, [target], list(sources), "error", needed)
    sums = Sums("accumulate")
    if target.serial in reach:
        sums.add(target.serial, seed)
    tape.consumed = True
    with _Gate(tape, sources, receive, sums) as gate:
        _walk(tape, tape.nodes, gate, serials, reach, set(gate.waiting), needed)
        gate.pass_on(set(gate.waiting))
        for serial, g in sums.of.items():  # gradients of other leaves, which have hooks
            run_hooks(tape.hooks.get(serial, ()), total(g))


def _walk(
    tape: Tape, nodes: list[Recorded], gate: _Gate, serials: set[int], reach: set[int], first: set[int], needed: set[int] | None
) -> None:
    """Walks all nodes back, and passes on the gradients of the sources `first`, which no earlier node uses.

    A checkpointed call did not record its inside. If it is the first to use a source, its nodes are walked in the same way.
    """
    for index, here in gate.first_uses(nodes, first, needed):
        call = nodes[index][0].call
        opens = call is not None and call.recompute is not None
        part = nodes[index + opens :]
        del nodes[index + opens :]
        walk(tape, part, reach, serials, gate.sums)
        if opens:
            inside: list[Recorded] = []
            walk(tape, [nodes.pop()], reach, serials, gate.sums, inside)
            _walk(tape, inside, gate, serials, reach, here, None)
        gate.pass_on(here)
    walk(tape, nodes, reach, serials, gate.sums)


class _Gate(Kept):
    """Passes complete gradients on, and refuses to let an op read a source after that.

    Attributes:
        waiting: the sources whose gradients are not complete, as serial -> position.
        sums: the cotangents that have arrived.
    """

    def __init__(self, tape: Tape, sources: Sequence[Any], receive: Receive, sums: Sums) -> None:
        self.waiting = {p.serial: position for position, p in enumerate(sources)}
        self.sums = sums
        self._tape, self._sources, self._receive = tape, sources, receive
        self._serials = {id(p.storage): p.serial for p in sources}
        self._changed: set[int] = set()  # the ids of the storages of sources that may have changed
        self._receiving = False
        self._scope = door.scope_now() if door.profiling else 0
        self._observer = door.state.observer

    def _begin(self) -> None:
        self._observer = door.state.observer
        door.observe_by(self._observe)

    def _end(self) -> None:
        door.observe_by(self._observer)

    def first_uses(self, nodes: Sequence[Recorded], of: set[int], needed: set[int] | None) -> list[tuple[int, set[int]]]:
        """Returns (index of a node, the sources that it is the first to use), the last node first. of: the serials of the sources.

        needed: the values that the target depends on, because the walk skips all others; None if that is not known.
        """
        left, found = set(of), []
        for index, (_, y, inputs, _, versions, *_) in enumerate(nodes):
            if needed is None or y in needed:
                here = left.intersection([*inputs, *[self._serials.get(id(storage), 0) for storage, _ in versions]])
                if here:
                    found.append((index, here))
                    left -= here
        return found[::-1]

    def pass_on(self, serials: Set[int]) -> None:
        """Passes on the gradients of these sources that still wait: zeros for a source that no cotangent has reached."""
        for serial in sorted(serials & self.waiting.keys(), key=self.waiting.__getitem__):
            position = self.waiting.pop(serial)
            p, g = self._sources[position], self.sums.of.pop(serial, None)
            g = run_hooks(self._tape.hooks.get(serial, ()), creation.zeros_like(p) if g is None else total(g))
            if self._tape.scopes:
                door.leave_scope(self._scope)
            self._receiving = True
            try:
                self._receive(position, g)
            finally:
                self._receiving = False
            self._changed.add(id(p.storage))

    def _observe(self, op: Any, y: Any, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        """Receives the ops that run. Raises StaleValueError for one that reads a source that may have changed."""
        if self._observer is not None:
            self._observer(op, y, inputs, params)
        if self._changed and not self._receiving:
            for x in inputs:
                storage = getattr(x, "storage", None)
                if storage is not None and id(storage) in self._changed:
                    raise StaleValueError(
                        f"gradient: {op.name}, called in the backward pass at {line_of(call_site())}, reads "
                        f'{storage.label()}, which gate="op" has updated already, as no op of the forward pass needs it any more. '
                        f'Read it in the forward pass, or use gate="graph", which updates after the whole backward pass.'
                    )
