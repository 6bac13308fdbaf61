"""Figures: the summed costs of a group of launches. Rows: figures by kernel, op, module, line, order, dtype and phase."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, NamedTuple, get_args

from ..launch.ledger import PHASES

Axis = Literal["op", "module", "line", "kernel", "order", "dtype", "phase"]
AXES: Final[tuple[Axis, ...]] = get_args(Axis)


@dataclass(frozen=True)
class Figures:
    """Sums over launches.

    A multiply-add counts as two FLOPs. exp, log, tanh, sqrt and division are special ops and count separately. All counts but
    executed_flops follow the textbook formulas of the ops.
    """

    adds: int = 0  # additions and subtractions
    multiplies: int = 0
    fmas: int = 0  # multiply-adds, each of them once
    matmul_flops: int = 0  # the part of flops in matrix products
    executed_flops: int = 0  # FLOPs that the kernels really executed, padding of tiles and repeated work included
    special_ops: int = 0
    integer_ops: int = 0  # arithmetic on integer elements, such as sums; address computations do not count
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0  # for a phase, from its start to the next phase's start; otherwise the time inside launches
    launches: int = 0

    @property
    def flops(self) -> int:
        """The algorithmic FLOPs, by the textbook formulas of the ops."""
        return self.adds + self.multiplies + 2 * self.fmas

    @property
    def bytes(self) -> int:
        """The bytes read and written."""
        return self.bytes_read + self.bytes_written

    def __add__(self, other: Figures) -> Figures:
        return total([self, other])

    def as_dict(self) -> dict[str, Any]:
        """Returns all figures by name, `flops` included."""
        return {"flops": self.flops, **{name: getattr(self, name) for name in FIELDS}}


FIELDS: Final = tuple([field.name for field in fields(Figures)])


def total(figures: Iterable[Figures]) -> Figures:
    """Returns the sum of these figures, field by field."""
    columns: Any = zip(*[[getattr(f, name) for name in FIELDS] for f in figures])
    sums: list[Any] = [sum(column) for column in columns]
    return Figures(*sums)


class Row(NamedTuple):
    """The launches of one kernel that share op, module, line, order, dtype and phase.

    Attributes:
        kernel: the native kernel that ran, or the op of the reference backend.
        op: the op that was called; in a backward pass, the op that is pulled back.
        module: the path of the Module that called the op; "" if none did.
        line: the user's line, as '"file.py", line 12, in train'; "" if it is not known.
        order: the order of the derivative: 0 in a forward pass, 1 in the pass of its gradient, 2 in the pass of that gradient's
            gradient.
        dtype: the dtype of the computation: "float32", "tf32" for float32 rounded by tensor cores, …
        phase: one of door.PHASES.
        known: true if a formula gives the cost.
        figures: the sums over these launches.
        without: in a backward pass, the factors of the op (see Facts.multiplied) that got no gradient, because none was asked for.
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
    without: tuple[str, ...] = ()


class Phases(dict[str, "Figures"]):
    """The figures by phase, of the phases in which some launch ran. Those of any other phase are zero."""

    def __missing__(self, phase: str) -> Figures:
        if phase in PHASES:
            return Figures()
        raise KeyError(f"{phase!r} is none of {', '.join(PHASES)}")


class Group(NamedTuple):
    """The rows that are equal along one axis.

    Attributes:
        name: the value that these rows share on the axis.
        phases: the figures by phase: an iteration yields the phases in which some launch ran, and those of another phase are zero.
        total: the sum over all phases.
    """

    name: str
    phases: Phases
    total: Figures

    # the figures of one phase, as of a Profile
    forward = property(lambda self: self.phases["forward"])
    backward = property(lambda self: self.phases["backward"])
    recompute = property(lambda self: self.phases["recompute"])
    optimizer = property(lambda self: self.phases["optimizer"])
    data = property(lambda self: self.phases["data"])
    other = property(lambda self: self.phases["other"])
    solver = property(lambda self: self.phases["solver"])


def grouped(rows: Iterable[Row], axis: str) -> list[Group]:
    """Groups the rows by one of AXES. The groups come in the order in which they ran first."""
    found: dict[str, dict[str, list[Figures]]] = {}
    for row in rows:
        found.setdefault(str(getattr(row, axis)), {}).setdefault(row.phase, []).append(row.figures)
    phases = {name: Phases({phase: total(parts) for phase, parts in of.items()}) for name, of in found.items()}
    return [Group(name, of, total(of.values())) for name, of in phases.items()]
