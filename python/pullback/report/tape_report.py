"""`tape.explain`: for each op on the way to a target its pullback rule, what was kept for it, and what its Jacobian would take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Final

from ..autodiff.backward import Sums, seeds_for
from ..autodiff.node import Edge, Node, named, needed_by
from ..autodiff.primitive import Op
from ..autodiff.site import number_of_line
from ..autodiff.tape import Tape
from ..profiling.table import quantity
from ..tensors.creation import ones_like
from ..tensors.tensor import Tensor
from ..transforms.calls import Call
from ..tree import flatten
from .backward import visits, without_listeners
from .memory import Holdings, closed_over
from .rule_text import rule_text
from .table import table

WIDTH: Final = 60  # of the column with the rules

@dataclass(frozen=True)
class Kept:
    """An array that is kept for a pullback.

    Attributes:
        name: an input or a parameter of the op, or "y", its result.
        shape, dtype: of the array.
        bytes: of the memory behind it; a view keeps the whole array that it is a view of.
        alone: whether the tape alone holds this memory, so that it is free when the tape is. What the user's variables, a
            model or another tape refer to would be there anyway.
        again: whether a row above keeps the same memory, where it has been counted.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    alone: bool
    again: bool


@dataclass(frozen=True)
class Row:
    """One op: its line, the shape of its result, the rule for each input that gradients go to, and what was kept for them.

    `jacobian_bytes` is what the dense Jacobians by these inputs would take, which are never formed.
    """

    op: str
    file: str
    line: int
    function: str
    shape: tuple[int, ...]
    rules: dict[str, str]
    kept: tuple[Kept, ...]
    jacobian_bytes: int

    @property
    def bytes(self) -> int:
        """Of the memory kept for this op and for none above it."""
        return sum([k.bytes for k in self.kept if not k.again])

    @property
    def tape_bytes(self) -> int:
        """Of these, those that the tape alone holds."""
        return sum([k.bytes for k in self.kept if k.alone and not k.again])


class Explanation:
    """What `tape.explain` found: `rows`, in the order in which the ops ran; printed, a table."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)

    @property
    def bytes(self) -> int:
        """The memory that the pullbacks refer to, each block once."""
        return sum([row.bytes for row in self.rows])

    @property
    def tape_bytes(self) -> int:
        """The part of it that the tape alone holds, and which is free when the tape is."""
        return sum([row.tape_bytes for row in self.rows])

    @property
    def jacobian_bytes(self) -> int:
        """What the dense Jacobians of all rows would take."""
        return sum([row.jacobian_bytes for row in self.rows])

    def __str__(self) -> str:
        columns = ("op", "line", "result", "pullback of g", "keeps", "bytes", "held by", "dense Jacobian")
        body = table(columns, [_cells(row) for row in self.rows], right=("bytes", "dense Jacobian"))
        return (
            f"{body}\nkept: {self.bytes:,} bytes, of which the tape alone holds {self.tape_bytes:,}. Dense Jacobians would "
            f"take {quantity(self.jacobian_bytes, 'B')}; none is formed."
        )

    def __repr__(self) -> str:
        return f"Explanation({len(self.rows)} ops, {self.bytes} bytes kept, {self.tape_bytes} by the tape alone)"


def explain(tape: Tape, target: Any) -> Explanation:
    """What GradientTape.explain returns."""
    sizes, seen = _sizes(tape, flatten(target)[0]), set[int]()
    holdings = Holdings(tape)
    rows: list[Row] = []
    for node in named(tape.nodes):
        if node.y in sizes:
            rules, kept = dict([_rule(node.op, edge) for edge in node.named_edges()]), _kept(node, holdings, seen)
            shape, jacobian_bytes = sizes[node.y]
            file, line, function = node.code.co_filename, number_of_line(node.site), node.code.co_name
            rows.append(Row(node.op.name, file, line, function, shape, rules, kept, jacobian_bytes))
    return Explanation(rows)


def _sizes(tape: Tape, targets: list[Any]) -> dict[int, tuple[tuple[int, ...], int]]:
    """(shape of the result, bytes of the dense Jacobians) of each op on the way to the targets, by the result's serial."""
    sizes: dict[int, tuple[tuple[int, ...], int]] = {}
    with without_listeners():
        seeds = seeds_for(targets, [ones_like(t) if isinstance(t, Tensor) else None for t in targets])
        needed = needed_by(tape, targets, through_zero=True)
        for visit in visits(tape, targets, seeds, Sums("accumulate")):
            if visit.node.y in needed:
                cells = sum([gx.size for _, gx in visit.passed])
                sizes[visit.node.y] = visit.g.shape, visit.g.size * cells * visit.g.itemsize
    return sizes


def _rule(op: Op, edge: Edge) -> tuple[str, str]:
    """The inputs that a rule is for, and its words."""
    rule = edge.rule
    if not op.joint:
        return op.names[op.rules.index(rule)], rule_text(op, rule)
    inputs = op.names[: len(op.names) - op.params]
    watched = [name for name, serial in zip(inputs, edge.x) if serial] if len(edge.x) == len(inputs) else inputs
    return ", ".join(watched), rule_text(op, rule)


def _kept(node: Node, holdings: Holdings, seen: set[int]) -> tuple[Kept, ...]:
    values = node.kept_by_name()
    if isinstance(node.op, Call):
        values += closed_over(node.op.pullback, set())
    found: list[Kept] = []
    for name, value in values:
        for array, block in holdings.blocks(value):
            found.append(Kept(name, array.shape, str(array.dtype), block.bytes, block.alone, block.key in seen))
            seen.add(block.key)
    return tuple(found)


def _cells(row: Row) -> tuple[tuple[str, ...], ...]:
    """A row of the table; an array that several rules of the op keep is shown once."""
    shown = list({k.name: k for k in reversed(row.kept)}.values())[::-1]
    rules = [line for name, words in row.rules.items() for line in wrap(f"{name}: {words}", WIDTH)]
    return (
        (row.op,),
        (f"{os.path.basename(row.file)}:{row.line} {row.function}",),
        (str(row.shape),),
        tuple(rules) or ("zero everywhere",),
        tuple([f"{k.name} {k.shape} {k.dtype}" for k in shown]) or ("nothing",),
        tuple([f"{k.bytes:,}" if not k.again else "" for k in shown]),
        tuple(["counted above" if k.again else "the tape alone" if k.alone else "others too" for k in shown]),
        (quantity(row.jacobian_bytes, "B"),) if row.jacobian_bytes else (),
    )
