"""Finds the ops before a target by one backward pass, which goes on where a pullback fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..autodiff.node import Edge, Node, all_kept
from ..autodiff.request import check_versions
from ..autodiff.tape import Tape
from ..tensors.creation import ones_like, zeros
from ..tensors.tensor import Tensor
from ..transforms.calls import Cotangents
from .backward import contributions


class Walk:
    """The ops before the targets, found by one backward pass. The inside of a checkpoint takes the place of its call.

    Attributes:
        nodes: the ops, in the order in which they ran.
        known: by serial, the tensors that the tape keeps, its leaves that are alive, and the targets.
        shapes: the shape of every value, by serial.
        used: the positions of the outputs that the targets depend on, by the serial of a call.
        failed: the errors of pullbacks that raised one, by the serial of the op's result.
        missed: the results of ops that no cotangent reached, because a pullback after them raised an error.
    """

    def __init__(self, tape: Tape, targets: Sequence[Tensor]) -> None:
        self.nodes: list[Node] = []
        leaves = [leaf for reference in tape.leaves.values() if (leaf := reference()) is not None]
        self.known: dict[int, Tensor] = {t.serial: t for t in [*leaves, *_tensors(tape), *targets]}
        self.shapes: dict[int, tuple[int, ...]] = {t.serial: t.shape for t in targets}
        self.used: dict[int, Sequence[int]] = {}
        self.failed: dict[int, Exception] = {}
        self.missed: set[int] = set()
        self._cotangents: dict[int, Any] = {t.serial: ones_like(t) for t in targets if t.dtype.kind in "fV"}
        values, pending = set(tape.values), list(tape.nodes)
        while pending:
            node = Node._make(pending.pop())
            g = self._cotangents.pop(node.y, None)
            if g is None:
                if node.y in self.missed:
                    self.nodes.append(node)
                    self.missed.update(node.inputs)
                continue
            if isinstance(g, Cotangents):
                self.used[node.y] = sorted(g.of)
            try:
                if node.op.call is not None and node.op.call.recompute is not None:
                    check_versions(node.op, node.versions, node.site)  # with changed values it would compute another function
                    made, outputs = node.op.call.recompute(*node.named_edges()[0][0:3:2])
                    self._arrive([(outputs[place].serial, gy) for place, gy in g.of.items()])
                    values |= made.values
                    self.known.update({t.serial: t for t in _tensors(made)})
                    pending += made.nodes
                    continue
                found = list(contributions(node, g, values))
            except Exception as error:  # any error of a user's pullback
                self.failed[node.y] = error
                self.missed.update(node.inputs)
                found = []
            self.nodes.append(node)
            self._arrive(self._repaired(node, g, found))
        self.nodes.reverse()

    def _arrive(self, gradients: Sequence[tuple[int, Any]]) -> None:
        """Receives the cotangents of inputs. Only their shapes matter, so they are not summed."""
        for x, gx in gradients:
            if isinstance(gx, Cotangents) and x in self._cotangents:
                self._cotangents[x].add(gx)
            elif x:
                self._cotangents.setdefault(x, gx)
                self.shapes.setdefault(x, gx.shape)

    def _repaired(self, node: Node, g: Any, found: Sequence[tuple[int, Any]]) -> list[tuple[int, Any]]:
        """Returns the gradients, with zeros for those that are missing or have a wrong shape because the pullback is wrong."""
        given = dict(found)
        for edge in node.named_edges():
            for x, shape in self._shapes_of_inputs(node, edge, g):
                if x and (x not in given or given[x].shape != shape):
                    given[x] = zeros(shape, dtype=g.dtype if isinstance(g, Tensor) else None)
        return list(given.items())

    def _shapes_of_inputs(self, node: Node, edge: Edge, g: Any) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yields (serial, shape) of the inputs of an edge whose shape the tape knows."""
        if node.op.joint:
            yield from [(x, shape) for x, shape in zip(edge.x, edge.shape) if shape is not None]
        elif edge.shape is not None:
            yield edge.x, edge.shape
        elif node.op.kind.broadcasts:
            yield edge.x, g.shape
        elif edge.x in self.known:
            yield edge.x, self.known[edge.x].shape


def kept_by_name(node: Node) -> list[tuple[str, Any]]:
    """Returns the values that an op's pullbacks keep as pairs of name (in the op's reference) and value."""
    return [pair for edge in node.named_edges() for pair in zip(edge.rule.names, edge.kept)]


def _tensors(tape: Tape) -> list[Tensor]:
    """Returns the tensors that the tape keeps and that have a serial."""
    return [value for value in all_kept(tape.nodes) if isinstance(value, Tensor) and value.serial]
