"""`tape.explain` lists, for each op before a target, its pullback rule, the values kept for it, and the size of its Jacobian."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Final

from ..autodiff.backward import Sums
from ..autodiff.node import Edge, Node, named, needed_by
from ..autodiff.primitive import Op
from ..autodiff.request import seeds_for
from ..autodiff.site import number_of_line
from ..autodiff.tape import Tape
from ..profiling.units import quantity
from ..tensors.creation import ones_like
from ..tensors.tensor import Tensor
from ..transforms.calls import Call
from ..tree import flatten
from .backward import visits, without_listeners
from .memory import Holdings, closed_over
from .rule_text import rule_text
from .table import html_table, table
from .walk import kept_by_name

WIDTH: Final = 60  # characters of the column with the rules
COLUMNS: Final = ("op", "line", "result", "pullback of g", "keeps", "bytes", "held by", "dense Jacobian")
NUMBERS: Final = ("bytes", "dense Jacobian")


@dataclass(frozen=True)
class Kept:
    """An array that is kept for a pullback.

    Attributes:
        name: an input or a parameter of the op, or "y", its result.
        shape, dtype: the shape and dtype of the array.
        bytes: the size of the memory behind the array. A view keeps the whole array that it is a view of.
        alone: true if only the tape holds this memory, so that it is freed with the tape. Memory that the user's variables, a
            model or another tape refer to would exist without this tape.
        again: true if an entry above keeps the same memory, and its bytes are counted there.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    alone: bool
    again: bool


@dataclass(frozen=True)
class ExplainedOp:
    """One op of the tape.

    Attributes:
        op: the name of the op.
        file, line, function: where the user's code called it.
        shape: the shape of its result.
        rules: for each input that a gradient goes to, the pullback rule in words.
        kept: the arrays that are kept for these rules.
        jacobian_bytes: the size that dense Jacobians with respect to these inputs would have. None is ever formed.
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
        """The bytes of memory kept for this op and not already for a row above it."""
        return sum([k.bytes for k in self.kept if not k.again])

    @property
    def tape_bytes(self) -> int:
        """The part of `bytes` that only the tape holds."""
        return sum([k.bytes for k in self.kept if k.alone and not k.again])


class Explanation:
    """The result of `tape.explain`: `rows`, in the order in which the ops ran. It prints as a table."""

    def __init__(self, rows: Sequence[ExplainedOp]) -> None:
        self.rows = list(rows)

    @property
    def bytes(self) -> int:
        """The bytes of memory that the pullbacks refer to; each block counts once."""
        return sum([row.bytes for row in self.rows])

    @property
    def tape_bytes(self) -> int:
        """The part of `bytes` that only the tape holds, and that is freed with the tape."""
        return sum([row.tape_bytes for row in self.rows])

    @property
    def jacobian_bytes(self) -> int:
        """The bytes that the dense Jacobians of all rows would take."""
        return sum([row.jacobian_bytes for row in self.rows])

    def __str__(self) -> str:
        return f"{table(COLUMNS, [_cells(row) for row in self.rows], right=NUMBERS)}\n{self._sums()}"

    def _sums(self) -> str:
        return (
            f"kept: {self.bytes:,} bytes, of which the tape alone holds {self.tape_bytes:,}. Dense Jacobians would "
            f"take {quantity(self.jacobian_bytes, 'B')}; none is formed."
        )

    def _repr_html_(self) -> str:
        """Returns the table as HTML, for notebooks."""
        return f"{html_table(COLUMNS, [_cells(row) for row in self.rows], right=NUMBERS)}\n<p>{self._sums()}</p>"

    def __repr__(self) -> str:
        return f"Explanation({len(self.rows)} ops, {self.bytes} bytes kept, {self.tape_bytes} by the tape alone)"


def explain(tape: Tape, target: Any) -> Explanation:
    """Returns the Explanation of a tape, for GradientTape.explain."""
    sizes, seen = _sizes(tape, flatten(target)[0]), set[int]()
    holdings = Holdings(tape)
    rows: list[ExplainedOp] = []
    for node in named(tape.nodes):
        if node.y in sizes:
            rules, kept = dict([_rule(node.op, edge) for edge in node.named_edges()]), _kept(node, holdings, seen)
            shape, jacobian_bytes = sizes[node.y]
            file, line, function = node.code.co_filename, number_of_line(node.site), node.code.co_name
            rows.append(ExplainedOp(node.op.name, file, line, function, shape, rules, kept, jacobian_bytes))
    return Explanation(rows)


def _sizes(tape: Tape, targets: list[Any]) -> dict[int, tuple[tuple[int, ...], int]]:
    """Returns (shape of the result, bytes of the dense Jacobians) of each op before the targets, by the result's serial."""
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
    """Returns the names of the inputs that a rule serves, and the rule in words."""
    rule = edge.rule
    if not op.joint:
        return op.names[op.rules.index(rule)], rule_text(op, rule)
    inputs = op.names[: len(op.names) - op.params]
    watched = [name for name, serial in zip(inputs, edge.x) if serial] if len(edge.x) == len(inputs) else inputs
    return ", ".join(watched), rule_text(op, rule)


def _kept(node: Node, holdings: Holdings, seen: set[int]) -> tuple[Kept, ...]:
    values = kept_by_name(node)
    if isinstance(node.op, Call):
        values += closed_over(node.op.pullback, set())
    found: list[Kept] = []
    for name, value in values:
        for array, block in holdings.blocks(value):
            found.append(Kept(name, array.shape, str(array.dtype), block.bytes, block.alone, block.key in seen))
            seen.add(block.key)
    return tuple(found)


def _cells(row: ExplainedOp) -> tuple[tuple[str, ...], ...]:
    """Formats a row of the table. An array that several rules of the op keep is shown once."""
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
