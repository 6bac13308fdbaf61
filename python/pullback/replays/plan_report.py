"""The reports that `stats()` and `explain()` of a captured function return."""

from __future__ import annotations

from html import escape
from typing import Any, NamedTuple

from ..launch import door
from ..report.table import html_table
from .replay import Replay


class Stats(NamedTuple):
    """Counts that `stats()` of a captured function returns.

    Attributes:
        captures: the number of recordings made so far.
        replays: the number of replays of the recordings that are kept. A call with K steps counts once.
        kernels_per_replay: the number of kernels that a replay of the last used recording runs.
        arena_bytes: the bytes of temporaries of the last used recording.
        recordings: the number of recordings that are kept.
        launches: the number of launches of the eager run that those kernels perform.
        graph_nodes: the number of nodes of that recording's newest CUDA graph; 0 on the CPU and before the first replay.
    """

    captures: int
    replays: int
    kernels_per_replay: int
    arena_bytes: int
    recordings: int
    launches: int
    graph_nodes: int


class Kernel(NamedTuple):
    """One kernel of a replay.

    Attributes:
        launches: names of the launches of the eager run that the kernel performs.
        phase: the phase of the first of these launches.
        result: the dtype and shape of the last launch's output.
        alone: why the kernel was not fused with the one before it. None for the plan's first kernel, or if fusion is off.
    """

    launches: tuple[str, ...]
    phase: str
    result: str
    alone: str | None


class Explanation:
    """The plan of a recording. It prints as a table.

    Attributes:
        kernels: the data of the table, one Kernel per kernel of a replay.
        recorded: the number of launches that were recorded.
        dead: the number of launches that were left out, because nothing reads their results.
        launches: the number of launches that a replay performs.
        arena_bytes: the bytes of temporaries.
        graphs: the number of CUDA graphs that are kept; 0 on the CPU.
        graph_nodes: the number of nodes of the newest CUDA graph; 0 on the CPU.
        why_single: why a GPU's kernels are launched one by one and not as a graph; None if they are a graph.
    """

    def __init__(self, name: str, fusion: str, replay: Replay) -> None:
        self.name, self.fusion = name, fusion
        self.recorded, self.dead, self.launches, _, self.arena_bytes = replay.facts()
        self.graphs, self.graph_nodes, _, self.why_single = replay.state()
        groups: dict[int, list[Any]] = {}
        for row in replay.rows():
            groups.setdefault(row[1], []).append(row)
        self.kernels = [_kernel(rows) for rows in groups.values()]

    def __str__(self) -> str:
        lines = [self._head(), f"{'':>4}  {'phase':9}  {'writes':24}  kernel"]
        for i, kernel in enumerate(self.kernels):
            reason = f"   [{kernel.alone}]" if kernel.alone else ""
            lines.append(f"{i:4}  {kernel.phase:9}  {kernel.result:24}  {_words(kernel.launches)}{reason}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Returns the table as HTML, for notebooks."""
        rows = [((str(i),), (k.phase,), (k.result,), (_words(k.launches),), (k.alone or "",)) for i, k in enumerate(self.kernels)]
        head = escape(self._head()).replace("\n", "<br>")
        return f"<p>{head}</p>\n{html_table(('', 'phase', 'writes', 'kernel', 'not fused because'), rows)}"

    def _head(self) -> str:
        head = (
            f'{self.name}, fusion="{self.fusion}": {self.recorded} launches were recorded, {self.dead} of them are not needed, '
            f"{len(self.kernels)} kernels run the rest; temporaries take {self.arena_bytes:,} bytes."
        )
        if self.why_single:
            head += f"\nThe GPU's kernels are launched one by one: {self.why_single}."
        elif self.graphs:
            head += f"\nOn the GPU they are {self.graph_nodes} nodes of a CUDA graph; {self.graphs} graph(s) are kept."
        return head


def _kernel(rows: list[Any]) -> Kernel:
    first, last = rows[0], rows[-1]
    return Kernel(tuple([name for row in rows for name in row[0]]), door.PHASES[first[2]], f"{last[3]} {last[4]}", first[5])


def _words(names: tuple[str, ...]) -> str:
    """Joins names to "tanh + add". A long list is cut after four names and ends with the number of launches."""
    if len(names) <= 6:
        return " + ".join(names)
    return f"{' + '.join(names[:4])} + … ({len(names)} launches in one pass)"
