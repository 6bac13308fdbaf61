"""The backward pass over a tape: runs the pullbacks from the targets to the sources, and sums the cotangents."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..backends import modes
from ..errors import PullbackError, TapeError
from ..launch import door
from ..launch.refusal import Refused
from ..tensors import creation
from ..tensors.attached import attached
from ..tensors.operand import own
from ..tensors.tensor import Tensor
from . import batching, error_text
from .block_cotangent import BlockCotangent
from .facts import pulling
from .listeners import listeners
from .primitive import same
from .request import check_versions, connected, open_calls

if TYPE_CHECKING:
    from .node import Recorded
    from .tape import Tape


def sweep(
    tape: Tape, targets: list[Tensor], seeds: list[Tensor], sources: list[Any], unconnected: str, aggregation: str, free: bool
) -> list[Any]:
    """Returns the gradient of each source. `free`: each node is released as soon as its pullback has run."""
    sums = Sums(aggregation)
    if aggregation != "accumulate":
        open_calls(tape)  # a sum then has the terms of the eager run: each contribution, and not sums of some of them
    serials, reach, missing = connected(tape, targets, sources, unconnected)
    for target, seed in zip(targets, seeds):
        if target.serial in reach:
            sums.add(target.serial, seed)
    tape.consumed = free
    # The walk pops the cotangent of each node. `sums.of` then has those of leaves, and those of sources that `_complete` put back.
    left = walk(tape, tape.nodes if free else tape.nodes[:], reach, serials, sums)
    gradients = {serial: run_hooks(left.get(serial, ()), total(g)) for serial, g in sums.of.items()}
    empty = creation.zeros_like if unconnected != "none" else lambda x: None if x.serial in missing else creation.zeros_like(x)
    return [gradients[x.serial] if x.serial in gradients else empty(x) for x in sources]


def walk(
    tape: Tape, pending: list[Recorded], reach: set[int], sources: set[int], sums: Sums, inside: list[Recorded] | None = None
) -> dict[int, Any]:
    """Pops the nodes from the last to the first, and runs the pullbacks of those that a cotangent reached.

    Products in the pullback of an op round their factors as they did in the op. Returns the hooks that did not run.
    inside: receives the nodes of checkpointed calls, which are computed again. If it is None they are walked, too.
    """
    before = modes.precision()
    try:
        return _walk(tape, pending, reach, sources, sums, inside, before)
    finally:
        modes.switch(before)


def _walk(tape: Tape, pending: list[Recorded], reach: set[int], sources: set[int], sums: Sums, inside: Any, before: Any) -> Any:
    fused, batches = not listeners.differentiates, listeners.batches  # no listener needs a pullback's ops, so one kernel may run
    # `reach` is the tape's own set if every value is needed (request.reachable); the walk then looks nothing up in it.
    hooks, scopes, cotangents, everything = dict(tape.hooks), tape.scopes, sums.of, reach is tape.values
    shown = hooks.keys() | sources.difference(tape.leaves)  # computed values whose complete cotangent is needed
    while pending:
        op, y, _, edges, versions, code, offset, _ = pending.pop()  # a Node
        if (g := cotangents.pop(y, None)) is None:
            continue
        g = g if g.__class__ is Tensor or (op.call is not None and op.call.takes_sums) else total(g)
        if shown and y in shown:
            g = _complete(cotangents if y in sources else {}, y, g, hooks, before)
        if scopes:  # a profile runs: the cost of a layer's backward pass is attributed to the layer
            door.leave_scope(pulling(scopes.get(y, 0), op, edges, reach))
        if versions:
            check_versions(op, versions, (code, offset))
        if modes.used:
            modes.switch(tape.precisions.get(y, "float32"))
        try:
            if op.joint:
                more = pull_jointly(edges, g, reach, sums) if op.call is None else op.call.pull(tape, edges, g, reach, sums)
                (pending if inside is None else inside).extend(more)
                continue
            for x, rule, kept, shape in edges:  # Edges
                if everything or x in reach:
                    pull = rule.fused if fused else rule.definition
                    try:  # batching.pull, inlined: most of the walk's time is spent here
                        gx = g if pull is same else batching.pull(rule, g, *kept) if batches else pull(g, *kept)
                    except Refused:
                        gx = rule.definition(g, *kept)
                    if shape is not None and gx.array.shape != shape:
                        gx = attached.unbroadcast(gx, shape)
                    if x in cotangents:
                        sums.add(x, gx)
                        gx = None  # frees a contribution that is in a sum before the next one is computed
                    else:
                        cotangents[x] = gx
        except PullbackError as error:
            error.args = (f"{error} (in the backward pass of {error_text.op_at(op, (code, offset))})", *error.args[1:])
            raise
    return hooks


WALK: Final = _walk.__code__


def _complete(gradients: dict[int, Any], y: int, g: Any, hooks: dict[int, Any], precision: modes.Precision) -> Tensor:
    """Returns a complete cotangent after its hooks, which run with the program's precision, and keeps it in `gradients`."""
    modes.switch(precision)
    gradients[y] = g = run_hooks(hooks.pop(y, ()), total(g))
    return g


def pull_jointly(edges: Sequence[Any], g: Tensor, reach: Container[int], sums: Sums) -> Sequence[Recorded]:
    """Computes the gradients of all inputs by one rule. Its last argument lists which of them are needed. Returns no nodes."""
    for inputs, rule, kept, shapes in edges:
        needs = [x in reach for x in inputs]
        for x, need, shape, gx in zip(inputs, needs, shapes, batching.pull(rule, g, *kept, needs)):
            if need and gx is not None:
                sums.add(x, gx if gx.array.shape == shape else attached.unbroadcast(gx, shape))
    return ()


class Sums:
    """The cotangents received so far, by serial. `aggregation` selects how several contributions to one value are summed."""

    def __init__(self, aggregation: str) -> None:
        if aggregation not in attached.aggregations:
            raise TapeError(f"gradient: aggregation={aggregation!r}; use {', '.join(map(repr, attached.aggregations))}.")
        self.aggregation = aggregation
        self.of: dict[int, Any] = {}  # a tensor, or a BlockCotangent, or after several contributions possibly a sum, with a total()
        self._aggregate: Callable[[Any, Any], Any] = attached.aggregations[aggregation]

    def add(self, serial: int, g: Tensor | BlockCotangent) -> None:
        so_far = self.of.get(serial)
        if so_far is None:
            self.of[serial] = g
        elif isinstance(so_far, (Tensor, BlockCotangent)):
            self.of[serial] = self._aggregate(so_far, g)
        else:
            so_far.add(g)


def total(g: Any) -> Tensor:
    return g if isinstance(g, Tensor) else g.total()


def run_hooks(hooks: Sequence[Callable[[Tensor], Any]], g: Tensor) -> Tensor:
    """Passes a complete gradient to the user's functions in turn. If one returns a value, that value replaces the gradient."""
    for hook in hooks:
        changed = hook(g)
        if changed is not None:
            changed = own(changed, dtype=g.dtype)
            if changed.shape != g.shape:
                raise TapeError(f"on_gradient: a hook returned shape {changed.shape} for a gradient of shape {g.shape}.")
            g = changed
    return g
