"""Figures: what a group of launches cost together. Rows: the same by kernel, op, module, line, order and dtype."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

AXES: Final = ("op", "module", "line", "kernel", "order", "dtype")


@dataclass(frozen=True)
class Figures:
    """Sums over launches. A multiply-add is two FLOPs; exp, log, tanh, sqrt and division are special ops, counted apart."""

    adds: int = 0  # and subtractions, by the textbook formula, as all but executed_flops
    multiplies: int = 0
    fmas: int = 0  # multiply-adds
    matmul_flops: int = 0  # the part in products
    executed_flops: int = 0  # what the kernels really did: with the padding of tiles, and what is computed again
    special_ops: int = 0
    integer_ops: int = 0  # arithmetic on integers, as of sums of them; not the addressing
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0  # of a phase: from where it begins to where the next does; of anything else: inside its launches
    launches: int = 0

    @property
    def flops(self) -> int:
        """Algorithmic: what the textbook's formulas of the ops say."""
        return self.adds + self.multiplies + 2 * self.fmas

    @property
    def bytes(self) -> int:
        """Read and written."""
        return self.bytes_read + self.bytes_written

    def __add__(self, other: Figures) -> Figures:
        return total([self, other])

    def as_dict(self) -> dict[str, Any]:
        """All of them by name, flops too."""
        return {"flops": self.flops, **{name: getattr(self, name) for name in FIELDS}}


FIELDS: Final = tuple([field.name for field in fields(Figures)])


def total(figures: Iterable[Figures]) -> Figures:
    """Their sum."""
    columns: Any = zip(*[[getattr(f, name) for name in FIELDS] for f in figures])
    sums: list[Any] = [sum(column) for column in columns]
    return Figures(*sums)


class Row(NamedTuple):
    """Launches of one kernel that are alike in all that they are charged to.

    Attributes:
        kernel: the native kernel or the reference that ran.
        op: the op that was called, in a backward pass the one that is pulled back.
        module: the path of the Module that called it, "" outside of all.
        line: '"file.py", line 12, in train', or "" where it is not known.
        order: of the derivative: 0 forward, 1 of its gradient, 2 of the gradient of that.
        dtype: what it computes in: "float32", "tf32" for float32 rounded by tensor cores, …
        phase: one of door.PHASES.
        known: whether a formula tells the cost.
    """

    kernel: str
    op: str
    module: str
    line: str
    order: int
    dtype: str
    phase: str
    known: bool
    figures: Figures


class Group(NamedTuple):
    """The rows that are alike along one axis: its name there, the figures by phase (only phases that it ran in), all together."""

    name: str
    phases: dict[str, Figures]
    total: Figures


def grouped(rows: Iterable[Row], axis: str) -> list[Group]:
    """The rows by one of AXES, in the order in which they ran first."""
    found: dict[str, dict[str, list[Figures]]] = {}
    for row in rows:
        found.setdefault(str(getattr(row, axis)), {}).setdefault(row.phase, []).append(row.figures)
    phases = {name: {phase: total(parts) for phase, parts in of.items()} for name, of in found.items()}
    return [Group(name, of, total(of.values())) for name, of in phases.items()]
