"""The reports that `stats()` and `explain()` of a captured function return."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape
from typing import Any, NamedTuple

from ..launch import door
from ..printable import printable
from ..report.table import html_table
from .replay import Replay


class CaptureStats(NamedTuple):
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
    """The plan of a recording, or those of a forward and a backward pass. It prints as a table.

    Attributes:
        kernels: the data of the table, one Kernel per kernel of a replay.
        recorded: the number of launches that were recorded.
        dead: the number of launches that were left out, because nothing reads their results.
        launches: the number of launches that a replay performs.
        arena_bytes: the bytes of temporaries.
        graphs: the number of CUDA graphs that are kept; 0 on the CPU.
        graph_nodes: the number of nodes of the newest CUDA graph; 0 on the CPU.
        why_single: why a GPU's kernels are launched one by one and not as a graph; None if they are a graph.
        facts: what the function read in Python, with the values; a change of one starts a new recording.
    """

    def __init__(self, name: str, fusion: str, replays: Sequence[Replay]) -> None:
        self.name, self.fusion = name, fusion
        facts, states = [replay.counts() for replay in replays], [replay.state() for replay in replays]
        self.recorded, self.dead, self.launches, _, self.arena_bytes = map(sum, zip(*facts))
        self.graphs, self.graph_nodes = sum([state[0] for state in states]), sum([state[1] for state in states])
        self.why_single: str | None = next((state[3] for state in states if state[3]), None)
        groups: dict[tuple[int, int], list[Any]] = {}
        for k, replay in enumerate(replays):
            for row in replay.rows():
                groups.setdefault((k, row[1]), []).append(row)
        self.kernels = [_kernel(rows) for rows in groups.values()]
        self.facts = sorted({line for replay in replays for line in replay.facts().lines()})

    def __str__(self) -> str:
        lines = [self._head(), f"{'':>4}  {'phase':9}  {'writes':24}  kernel"]
        for i, kernel in enumerate(self.kernels):
            reason = f"   [{kernel.alone}]" if kernel.alone else ""
            lines.append(f"{i:4}  {kernel.phase:9}  {kernel.result:24}  {_words(kernel.launches)}{reason}")
        if self.facts:
            lines += ["It is recorded again when one of these changes:", *[f"      {fact}" for fact in self.facts]]
        return printable("\n".join(lines))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Returns the table as HTML, for notebooks."""
        rows = [((str(i),), (k.phase,), (k.result,), (_words(k.launches),), (k.alone or "",)) for i, k in enumerate(self.kernels)]
        head = escape(self._head()).replace("\n", "<br>")
        facts = f"<p>It is recorded again when one of these changes: {escape('; '.join(self.facts))}</p>" if self.facts else ""
        return f"<p>{head}</p>\n{html_table(('', 'phase', 'writes', 'kernel', 'not fused because'), rows)}{facts}"

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


class Parts(NamedTuple):
    """What a captured function consists of.

    Attributes:
        captures: the number of its recordings so far.
        replays: the recordings that it keeps; `last` is the last used one.
        derived: the captured functions that run for calls under tapes and other listeners, the last used at the end.
    """

    captures: int
    replays: list[Replay]
    last: Replay | None
    derived: Collection[Any]


def stats_of(captured: Any) -> CaptureStats:
    """Returns the CaptureStats of a captured function, which count the recordings for calls under tapes and transforms too."""
    everything = [part.parts() for part in _all(captured)]
    replays = [replay for parts in everything for replay in parts.replays]
    last = last_of(captured)
    facts, nodes = [replay.counts() for replay in last], sum([replay.state()[1] for replay in last])
    _, _, launches, kernels, arena = map(sum, zip(*facts)) if facts else (0, 0, 0, 0, 0)
    captures, runs = sum([parts.captures for parts in everything]), sum([replay.runs for replay in replays])
    return CaptureStats(captures, runs, kernels, arena, len(replays), launches, nodes)


def _all(captured: Any) -> list[Any]:
    """Returns a captured function and all that are derived from it."""
    parts = captured.parts()
    below = [*parts.derived, *[backward for replay in parts.replays for backward in replay.backward()]]
    return [captured, *[one for part in below for one in _all(part)]]


def last_of(captured: Any) -> list[Replay]:
    """Returns the last used recording of a captured function; with that of its backward pass if it ran under a tape."""
    parts = captured.parts()
    if parts.last is None:
        return last_of(list(parts.derived)[-1]) if parts.derived else []
    backward = [found for part in parts.last.backward() if (found := last_of(part))]
    return [parts.last, *(backward[-1] if backward else ())]


def _kernel(rows: list[Any]) -> Kernel:
    first, last = rows[0], rows[-1]
    return Kernel(tuple([name for row in rows for name in row[0]]), door.PHASES[first[2]], f"{last[3]} {last[4]}", first[5])


def _words(names: tuple[str, ...]) -> str:
    """Joins names to "tanh + add". A long list is cut after four names and ends with the number of launches."""
    if len(names) <= 6:
        return " + ".join(names)
    return f"{' + '.join(names[:4])} + ... ({len(names)} launches in one pass)"
