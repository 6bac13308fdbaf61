"""A backward pass to look at: it frees nothing, calls no hooks, records nothing, and shows what every op passes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..autodiff import error_text as explain
from ..autodiff.backward import Sums, pull_jointly, total
from ..autodiff.listeners import listeners
from ..autodiff.primitive import Op
from ..autodiff.tape import GradientTape, Node
from ..errors import PullbackError
from ..launch import door
from ..launch.refusal import Refused
from ..ops import accumulate
from ..ops.shape import concat, same_dtype
from ..tensors.tensor import Tensor
from ..transforms.calls import Cotangents, Output


class Visit(NamedTuple):
    """An op that a cotangent reached: the cotangent, and what the op passes on: (serial of an input, its contribution).

    The call of a user's function is one op. Where it has several results, their cotangents are in one axis, one after another.
    """

    node: Node
    g: Tensor
    passed: list[tuple[int, Tensor]]


class unheard(door.charged_to):
    """What runs inside is told to no tape, and charged to no pass."""

    def __init__(self) -> None:
        super().__init__(door.OTHER)
        self._heard = listeners.stack

    def _begin(self) -> None:
        super()._begin()
        listeners.stack = ()

    def _end(self) -> None:
        listeners.stack = self._heard
        super()._end()


def visits(tape: GradientTape, targets: Sequence[Tensor], seeds: Sequence[Tensor], sums: Sums) -> Iterator[Visit]:
    """The ops that a cotangent of the targets reaches, from the last to the first. `sums` then has those of the leaves."""
    for target, seed in zip(targets, seeds):
        sums.add(target.serial, seed)
    for node in reversed(tape.nodes):
        op, y, _, edges, _, *site = node
        if y not in sums.of:
            continue
        g: Any = total(sums.of.pop(y))
        try:
            passed = list(_passed(op, edges, g, tape.values))
        except PullbackError as error:
            error.args = (f"{error} (in the backward pass of {explain.op_at(op, site)})", *error.args[1:])
            raise
        if not isinstance(op, Output):  # which hands its cotangent to the call that it is a result of
            yield Visit(node, _joined(g) if isinstance(g, Cotangents) else g, passed)
        for x, gx in passed:
            sums.add(x, gx)


def _joined(cotangents: Cotangents) -> Tensor:
    parts = list(cotangents.of.values())
    return parts[0] if len(parts) == 1 else concat(same_dtype(parts), axis=None)


def _passed(op: Op, edges: Sequence[Any], g: Tensor, values: set[int]) -> Iterator[tuple[int, Tensor]]:
    if op.joint:
        found = Sums("add_n")
        pull_jointly(edges, g, values, True, found)
        yield from [(x, total(gx)) for x, gx in found.of.items()]
        return
    for x, rule, kept, shape in edges:
        try:
            gx = rule.fused(g, *kept)
        except Refused:
            gx = rule.definition(g, *kept)
        yield x, gx if shape is None or gx.shape == shape else accumulate.unbroadcast(gx, shape)
