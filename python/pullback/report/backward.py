"""Runs a backward pass for inspection. It frees nothing, calls no hooks, records nothing, and yields what every op passes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..autodiff import error_text
from ..autodiff.backward import Sums, pull_jointly, total
from ..autodiff.batching import pull
from ..autodiff.listeners import listeners
from ..autodiff.node import Node, named
from ..autodiff.tape import Tape
from ..errors import PullbackError
from ..launch import door
from ..ops.by_name import unbroadcast
from ..ops.conversion import same_dtype
from ..ops.movement import concat
from ..tensors.tensor import Tensor
from ..transforms.calls import Cotangents, Output


class Visit(NamedTuple):
    """An op that a cotangent reached.

    The call of a user's function is one op.

    Attributes:
        node: the op on the tape.
        g: the cotangent of the op's result. If a user's function has several results, their cotangents are flattened and joined.
        passed: (serial of an input, the op's contribution to the cotangent of that input).
    """

    node: Node
    g: Tensor
    passed: list[tuple[int, Tensor]]


class without_listeners(door.charged_to):
    """Runs the body of a `with` statement without listeners, and charges its launches to the phase "other"."""

    def __init__(self) -> None:
        super().__init__(door.OTHER)
        self._stack_before = listeners.stack

    def _begin(self) -> None:
        super()._begin()
        listeners.stack = ()

    def _end(self) -> None:
        listeners.stack = self._stack_before
        super()._end()


def visits(tape: Tape, targets: Sequence[Tensor], seeds: Sequence[Tensor], sums: Sums) -> Iterator[Visit]:
    """Yields the ops that a cotangent of the targets reaches, last to first. Afterwards `sums` holds the leaves' cotangents."""
    for target, seed in zip(targets, seeds):
        sums.add(target.serial, seed)
    for node in named(reversed(tape.nodes)):
        if node.y not in sums.of:
            continue
        g: Any = total(sums.of.pop(node.y))
        try:
            passed = list(contributions(node, g, tape.values))
        except PullbackError as error:
            error.args = (f"{error} (in the backward pass of {error_text.op_at(node.op, node.site)})", *error.args[1:])
            raise
        if not isinstance(node.op, Output):  # An Output only passes its cotangent to the call that it is a result of.
            yield Visit(node, _joined(g) if isinstance(g, Cotangents) else g, passed)
        for x, gx in passed:
            sums.add(x, gx)


def _joined(cotangents: Cotangents) -> Tensor:
    parts = list(cotangents.of.values())
    return parts[0] if len(parts) == 1 else concat(same_dtype(parts), axis=None)


def contributions(node: Node, g: Any, values: set[int]) -> Iterator[tuple[int, Tensor]]:
    if node.op.joint:
        found = Sums("add_n")
        pull_jointly(node.edges, g, values, found)
        yield from [(x, total(gx)) for x, gx in found.of.items()]
        return
    for edge in node.named_edges():
        gx = pull(edge.rule, g, *edge.kept)
        yield edge.x, gx if edge.shape is None or gx.shape == edge.shape else unbroadcast(gx, edge.shape)
