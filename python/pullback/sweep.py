"""The walk back over a tape: runs pullbacks from the targets to the sources, and sums what arrives."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Callable, Iterable, Sequence

from . import creation, explain
from .errors import PullbackError, StaleValueError, TapeError, UnconnectedError, ZeroGradientWarning
from .ops import accumulate
from .primitive import ZERO, listeners
from .tensor import Tensor

if TYPE_CHECKING:
    from .tape import GradientTape, Node


def sweep(
    tape: GradientTape, targets: list[Tensor], seeds: list[Tensor], sources: list[Any], unconnected: str, aggregation: str
) -> list[Any]:
    """The gradient of each source. Frees what a tape that is not persistent kept, as it goes."""
    sums = Sums(aggregation)
    serials = {x.serial for x in _checked(sources)}
    reach = dependents(tape, [*serials, *tape.hooks])
    blocked = set() if len(serials) == 1 and targets[0].serial in reach else serials - needed_by(tape, targets)
    missing = blocked and blocked - needed_by(tape, targets, through_zero=True)
    if missing and unconnected == "error":
        raise UnconnectedError(explain.missing(tape, [x if x.serial in missing else None for x in sources]))
    for x in sources:
        if x.serial in blocked and x.serial not in missing:
            warnings.warn(explain.zero(tape, x), ZeroGradientWarning, stacklevel=3)
    for target, seed in zip(targets, seeds):
        if target.serial in reach:
            sums.add(target.serial, seed)
    walk(tape, reach, serials, sums)
    empty = creation.zeros_like if unconnected != "none" else lambda x: None if x.serial in missing else creation.zeros_like(x)
    return [sums.get(x.serial) if x.serial in sums else empty(x) for x in sources]


def walk(tape: GradientTape, reach: set[int], sources: set[int], sums: Sums) -> None:
    """Visits the nodes from the last to the first; those that no cotangent reached are skipped."""
    fused = not listeners.stack  # nobody records this sweep, so a pullback may be one opaque kernel
    nodes, shapes, hooks = tape.nodes, tape.shapes, dict(tape.hooks)
    tape.consumed = free = not tape.persistent
    for i in range(len(nodes) - 1, -1, -1):
        node = nodes[i]
        if free:
            nodes[i] = None
        y = node.y
        if y not in sums:
            continue
        if y in hooks:
            run_hooks(hooks.pop(y), y, sums)
        g = sums.get(y) if y in sources else sums.pop(y)
        for storage, version in node.versions:
            if storage.version != version:
                raise StaleValueError(explain.stale(node, storage, version))
        try:
            gradients = pull_back(node, g, reach, fused)
        except PullbackError as error:
            raise type(error)(f"{error} (in the backward pass of {explain.op_at(node)})") from error
        for x, gx in zip(node.inputs, gradients):
            if gx is not None and x in reach:
                sums.add(x, gx if gx.array.shape == shapes[x] else accumulate.unbroadcast(gx, shapes[x]))
    for serial in hooks:
        if serial in sums:
            run_hooks(hooks[serial], serial, sums)


def pull_back(node: Node, g: Tensor, reach: set[int], fused: bool) -> Iterable[Any]:
    """The gradient for each input of a node, None where it is not wanted."""
    op = node.op
    if op.joint:
        rule = op.rules[0]
        return (rule.fused if fused else rule.definition)(g, *node.kept[0], [x in reach for x in node.inputs])
    return [
        (rule.fused if fused else rule.definition)(g, *args) if args is not None and x in reach else None
        for x, rule, args in zip(node.inputs, op.rules, node.kept)
    ]


class Sums:
    """The cotangents so far, by serial. `aggregation` says how several contributions to one value are summed."""

    def __init__(self, aggregation: str) -> None:
        if aggregation not in accumulate.AGGREGATIONS:
            raise TapeError(f"gradient: aggregation={aggregation!r}; use {', '.join(map(repr, accumulate.AGGREGATIONS))}.")
        self._first: dict[int, Tensor] = {}
        self._more: dict[int, Any] = {}  # only where a second contribution came
        self._aggregate: Callable[[Tensor, Tensor], Any] = accumulate.AGGREGATIONS[aggregation]

    def __contains__(self, serial: int) -> bool:
        return serial in self._first

    def add(self, serial: int, g: Tensor) -> None:
        if serial not in self._first:
            self._first[serial] = g
        elif serial in self._more:
            self._more[serial].add(g)
        else:
            self._more[serial] = self._aggregate(self._first[serial], g)

    def pop(self, serial: int) -> Tensor:
        g = self._first.pop(serial)
        return self._more.pop(serial).total() if serial in self._more else g

    def get(self, serial: int) -> Tensor:
        self._first[serial] = g = self.pop(serial)
        return g

    def replace(self, serial: int, g: Tensor) -> None:
        self.pop(serial)
        self._first[serial] = g


def run_hooks(hooks: Sequence[Callable[[Tensor], Any]], serial: int, sums: Sums) -> None:
    """Shows a complete gradient to the user's functions; what one returns replaces it."""
    for hook in hooks:
        g = sums.get(serial)
        changed = hook(g)
        if changed is not None:
            changed = creation.asarray(changed, dtype=g.dtype)
            if changed.shape != g.shape:
                raise TapeError(f"on_gradient: a hook returned shape {changed.shape} for a gradient of shape {g.shape}.")
            sums.replace(serial, changed)


# ---- who depends on whom


def _checked(sources: list[Any]) -> list[Tensor]:
    for x in sources:
        if not isinstance(x, Tensor):
            raise TapeError(f"gradient: a source is a {type(x).__name__}, not a tensor. Wrap it with pb.tensor and watch it.")
    return sources


def dependents(tape: GradientTape, serials: Iterable[int], through_zero: bool = False) -> set[int]:
    """These values and all that depend on them, not counting ops whose derivative is zero everywhere."""
    reach = {serial for serial in serials if serial in tape.shapes}
    for node in tape.nodes:
        if not reach.isdisjoint(node.inputs) and (node.op.pullback is not ZERO or through_zero):
            reach.add(node.y)
    return reach


def needed_by(tape: GradientTape, targets: list[Tensor], through_zero: bool = False) -> set[int]:
    """The values that the targets depend on, themselves included."""
    needed = {t.serial for t in targets if t.serial in tape.shapes}
    for node in reversed(tape.nodes):
        if node.y in needed and (node.op.pullback is not ZERO or through_zero):
            needed.update(node.inputs)
    return needed
