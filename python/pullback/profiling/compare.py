"""Compares two profiles by phase, op and module, and reports only the figures that differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ..launch.door import PHASES
from .figures import Axis, Figures
from .table import as_text, grid
from .units import duration, three_digits

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable

    from .recorded import Recorded
    from .session import Profile

FIGURES: Final = {"flops": "FLOPs", "seconds": "time", "bytes": "bytes", "launches": "launches"}


class Change(NamedTuple):
    """A figure that differs between two profiles.

    Attributes:
        axis: "phase", "op" or "module".
        name: the name of the phase, op or module. The phase "total" is the sum of all phases.
        figure: "flops", "seconds", "bytes" (read and written) or "launches".
        before, after: the figure in the two profiles; None if nothing of this name ran in the profile.
    """

    axis: str
    name: str
    figure: str
    before: float | None
    after: float | None

    @property
    def ratio(self) -> float:
        """The quotient after / before; inf if before is 0, nan if the name ran in only one of the two profiles."""
        if self.before is None or self.after is None:
            return math.nan
        return self.after / self.before if self.before else math.inf


@dataclass(frozen=True)
class Comparison:
    """The result of compare. It prints as a table.

    Attributes:
        rows: the figures that changed: phases first, then ops and modules in the order in which they ran.
        noise: times that differ by at most this fraction of the longer one count as equal; None if times were not compared.
    """

    rows: list[Change]
    noise: float | None

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def __repr__(self) -> str:
        return f"Comparison({len(self.rows)} changes)"

    def __rich__(self) -> ConsoleRenderable:
        from rich.console import Group
        from rich.text import Text

        times = "times were not compared" if self.noise is None else f"times within {self.noise:.0%} count as equal"
        if not self.rows:
            return Text(f"nothing changed: the same FLOPs, bytes and launches by phase, op and module ({times})")
        shown: list[ConsoleRenderable] = []
        for axis in dict.fromkeys([row.axis for row in self.rows]):
            rows = [row for row in self.rows if row.axis == axis]
            firsts = [k == 0 or rows[k - 1].name != row.name for k, row in enumerate(rows)]
            lines = [_cells(row, first) for row, first in zip(rows, firsts)]
            shown += [grid((f"by {axis}", "changed", "before", "after", "ratio"), lines), Text()]
        return Group(*shown, Text(times))


def _cells(row: Change, first: bool) -> tuple[str, ...]:
    words = duration if row.figure == "seconds" else "{:,}".format
    before, after = ["" if x is None else words(x) for x in (row.before, row.after)]
    name = row.name or "outside"
    return (name if first else "", FIGURES[row.figure], before, after, _ratio(row))


def _ratio(row: Change) -> str:
    """Formats a ratio with three digits, or with as many as it takes to differ from 1."""
    if row.before is None or row.after is None:
        return "only after" if row.before is None else "only before"
    if not row.before:
        return ""
    off = abs(row.ratio - 1)
    return f"{row.ratio:.{math.ceil(-math.log10(off))}f}" if 0 < off < 0.005 else three_digits(row.ratio)


def compare(a: Profile | Recorded, b: Profile | Recorded, *, noise: float = 0.1) -> Comparison:
    """Returns the figures that changed from profile `a` to profile `b`.

    Counts are compared exactly. A time has changed if the two times differ by more than the fraction `noise` of the longer one.
    Times of phases are compared if both profiles timed phases, and times of ops and modules if both timed launches.
    """
    timed = a.kernel_seconds > 0 and b.kernel_seconds > 0
    phases = _changes("phase", _phases(a), _phases(b), noise if a.spans and b.spans else None)
    parts = [_changes(axis, _groups(a, axis), _groups(b, axis), noise if timed else None) for axis in ("op", "module")]
    return Comparison([*phases, *parts[0], *parts[1]], noise if a.spans and b.spans else None)


def _phases(prof: Profile | Recorded) -> dict[str, Figures]:
    found: dict[str, Figures] = {name: getattr(prof, name) for name in PHASES}
    return {**{name: figures for name, figures in found.items() if figures.launches}, "total": prof.total}


def _groups(prof: Profile | Recorded, axis: Axis) -> dict[str, Figures]:
    return {group.name: group.total for group in prof.by(axis)}


def _changes(axis: str, a: dict[str, Figures], b: dict[str, Figures], noise: float | None) -> Iterator[Change]:
    for name in dict.fromkeys([*a, *b]):
        for figure in FIGURES:
            before, after = [getattr(side[name], figure) if name in side else None for side in (a, b)]
            slack = noise if figure == "seconds" else 0.0
            if slack is not None and _differ(before, after, slack):
                yield Change(axis, name, figure, before, after)


def _differ(before: float | None, after: float | None, slack: float) -> bool:
    if before is None or after is None:
        return bool(before or after)
    return abs(after - before) > slack * max(before, after)
