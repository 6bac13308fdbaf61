"""The words of a plan: what `train_step.explain()` prints."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..launch import door
from .replay import Replay


class Kernel(NamedTuple):
    """One kernel of a replay.

    Attributes:
        launches: the launches of the eager run that it does, by name.
        phase: of the first.
        result: dtype and shape of what the last one writes.
        alone: why it was not fused with the kernel before it; None where it begins the plan, or fusion is off.
    """

    launches: tuple[str, ...]
    phase: str
    result: str
    alone: str | None


class Explanation:
    """Prints as a table.

    Attributes:
        kernels: the data of the table. dead: how many launches were left out, because nothing reads their results.
        graphs, graph_nodes: CUDA graphs that are kept, and nodes of the last one; 0 on the CPU.
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
        head = (
            f'{self.name}, fusion="{self.fusion}": {self.recorded} launches were recorded, {self.dead} of them are not needed, '
            f"{len(self.kernels)} kernels run the rest; temporaries take {self.arena_bytes:,} bytes."
        )
        if self.why_single:
            head += f"\nThe GPU's kernels are launched one by one: {self.why_single}."
        elif self.graphs:
            head += f"\nOn the GPU they are {self.graph_nodes} nodes of a CUDA graph; {self.graphs} graph(s) are kept."
        lines = [head, f"{'':>4}  {'phase':9}  {'writes':24}  kernel"]
        for i, kernel in enumerate(self.kernels):
            reason = f"   [{kernel.alone}]" if kernel.alone else ""
            lines.append(f"{i:4}  {kernel.phase:9}  {kernel.result:24}  {_words(kernel.launches)}{reason}")
        return "\n".join(lines)

    __repr__ = __str__


def _kernel(rows: list[Any]) -> Kernel:
    first, last = rows[0], rows[-1]
    return Kernel(tuple([name for row in rows for name in row[0]]), door.PHASES[first[2]], f"{last[3]} {last[4]}", first[5])


def _words(names: tuple[str, ...]) -> str:
    """tanh + add, with repetitions counted."""
    if len(names) <= 6:
        return " + ".join(names)
    return f"{' + '.join(names[:4])} + … ({len(names)} launches in one pass)"
