"""Makes the tables that print(prof) shows: phases, then forward against backward by op and by module."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ..launch.door import PHASES
from ..printable import printable
from .figures import Axis, Figures, Group, Phases, total
from .ratio import ratio_explained, short_line
from .units import duration, quantity, three_digits

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable
    from rich.table import Table
    from rich.text import Text

    from .session import Profile

COLUMNS: Final = ("", "FLOPs", "in products", "special", "read", "written", "time", "launches")
MOST_GROUPS: Final = 12  # rows of a table by op or module; the cheapest ones beyond that are summed in one row
# A phase without launches gets a row if it took more than this share of the time. A remark names the FLOPs that were executed if
# they differ from the formulas' FLOPs by more than this share.
NOTICED: Final = 0.01
WIDE: Final = 160  # the width of a plain table that is not shown in a terminal
WIDEST: Final = 1000  # the most characters of a line of text
NARROW: Final = 80  # the least width of the tables, in characters
LONG_NAME: Final = 21  # characters that a narrow terminal leaves for the name of an op or a module
PASSES: Final = ("forward", "backward")


# ---- rows


def cells(name: str, f: Figures) -> tuple[str, ...]:
    """Returns the cells of COLUMNS for these figures."""
    return (
        name, quantity(f.flops), quantity(f.matmul_flops), quantity(f.special_ops), quantity(f.bytes_read, "B"),
        quantity(f.bytes_written, "B"), duration(f.seconds), str(f.launches),
    )


def phase_rows(prof: Profile) -> list[tuple[str, ...]]:
    """Returns a row of COLUMNS for each phase in which a launch ran or time was spent, then a row for the total."""
    phases = [(name, getattr(prof, name)) for name in PHASES]
    worth_telling = NOTICED * prof.total.seconds
    return [cells(name, f) for name, f in phases if f.launches or f.seconds > worth_telling] + [cells("total", prof.total)]


def _against(group: Group, timed: bool) -> tuple[str, ...]:
    """Returns a row with forward and backward figures next to each other. Cells of a pass that did not run are blank."""
    forward, backward = sides = [group.phases.get(phase) for phase in PASSES]
    flops = ["" if f is None else quantity(f.flops) for f in sides]
    ratio = three_digits(backward.flops / forward.flops) if forward and backward and forward.flops else ""
    times = ["" if f is None else duration(f.seconds) for f in sides] if timed else []
    launches = ["" if f is None else str(f.launches) for f in sides]
    return (short_line(group.name) or "outside", *flops, ratio, *times, *launches)


def _passes(groups: Sequence[Group]) -> list[Group]:
    """Returns the groups that ran forward or backward, without their other phases."""
    kept = [(group.name, Phases({phase: group.phases[phase] for phase in PASSES if phase in group.phases})) for group in groups]
    return [Group(name, phases, total(phases.values())) for name, phases in kept if phases]


def _costliest(groups: Sequence[Group], axis: str) -> list[Group]:
    """Returns at most MOST_GROUPS groups: the costliest ones, and the sum of the others as the last group.

    Modules come in the order in which they ran, then what ran outside all modules. Groups of other axes come by cost.
    """
    if axis == "module":
        groups = _cut(groups)
    ranked = sorted(groups, key=lambda group: (group.total.seconds, group.total.flops, group.total.launches), reverse=True)
    kept = ranked if len(ranked) <= MOST_GROUPS else ranked[: MOST_GROUPS - 1]
    rest = ranked[len(kept) :]
    if axis == "module":
        kept = sorted(kept, key=lambda group: (group.name == "", groups.index(group)))
    return [*kept, *([_sum(rest, f"{len(rest)} more {axis}s")] if rest else [])]


def _cut(modules: Sequence[Group]) -> Sequence[Group]:
    """Merges modules with a common prefix while there are more than MOST_GROUPS: "encoder.0.*" is encoder.0 and all inside it."""
    for parts in range(max([module.name.count(".") for module in modules]), 0, -1):
        if len(modules) <= MOST_GROUPS:
            break
        same: dict[str, list[Group]] = {}
        for module in modules:
            same.setdefault(".".join(module.name.removesuffix(".*").split(".")[:parts]), []).append(module)
        modules = [_sum(inside, f"{name}.*") if len(inside) > 1 else inside[0] for name, inside in same.items()]
    return modules


def _sum(groups: Sequence[Group], name: str) -> Group:
    ran = [phase for phase in PASSES if any([phase in group.phases for group in groups])]
    phases = Phases({phase: total([group.phases[phase] for group in groups]) for phase in ran})
    return Group(name, phases, total(phases.values()))


# ---- tables


def grid(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, gap: int = 2, names: int = 0, last_is_total: bool = False
) -> Table:
    """Returns a table whose first column holds names, wrapped if too long, and whose other columns hold numbers.

    Numbers are aligned to the right and never cut. stdout can encode all cells.

    Args:
        gap: the number of blanks between columns.
        names: the least width of the first column.
        last_is_total: the last row is bold, and a rule stands above it.
    """
    from rich.box import Box
    from rich.table import Table

    rule = Box("    \n    \n -- \n    \n -- \n    \n    \n    \n", ascii=True)
    table = Table(box=rule, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for k, column in enumerate(columns):
        table.add_column(column, justify="right" if k else "left", no_wrap=k > 0, overflow="fold", min_width=0 if k else names)
    for k, row in enumerate(rows):
        is_total = last_is_total and k == len(rows) - 1
        table.add_row(*map(printable, row), style="bold" if is_total else None, end_section=last_is_total and k == len(rows) - 2)
    return table


def _by(prof: Profile, axis: Axis) -> Table | None:
    """Returns the table of forward against backward along one axis; None if neither ran."""
    groups = _passes(prof.by(axis))
    if not groups:
        return None
    timed = prof.kernel_seconds > 0
    shown = [*_costliest(groups, axis), _sum(groups, "total")]
    rows = [_against(group, timed) for group in shown]
    times = (" time in\n forward", "kernels\nbackward") if timed else ()
    columns = (f"\nby {axis}", "\nforward", "FLOPs\nbackward", "\nratio", *times, "\n forward", "launches\nbackward")
    return grid(columns, rows, gap=1, names=LONG_NAME, last_is_total=True)


def _remarks(prof: Profile) -> Iterator[Text]:
    from rich.text import Text

    if reason := ratio_explained(prof):
        yield Text(printable(reason))
    if prof.total.seconds and prof.kernel_seconds > 0:
        outside = max(0.0, 1 - prof.kernel_seconds / prof.total.seconds)
        yield Text(f"{outside:.1%} of the time is outside kernels (launch gaps)")
    if _is_padded(prof):
        flops, executed = prof.total.flops, prof.total.executed_flops
        yield Text(f"kernels executed {quantity(executed)} FLOPs for these {quantity(flops)}")
    unknown = ", ".join([f"{kernel} ({launches})" for kernel, launches in prof.unknown.items()])
    known = f"cost known for {prof.coverage:.1%} of launches"
    yield Text(f"{known}; not known: {unknown}", style="yellow") if unknown else Text(known)
    if prof.elsewhere:
        yield Text(_elsewhere(prof))


def _is_padded(prof: Profile) -> bool:
    return abs(prof.total.executed_flops - prof.total.flops) > NOTICED * prof.total.flops


def _elsewhere(prof: Profile) -> str:
    return f"{prof.elsewhere} launch(es) of other threads are not in these figures: a profile is that of one thread"


def _legend(prof: Profile, axes: Sequence[str]) -> Text:
    """Explains the words of the tables and the remarks, those that appear."""
    from rich.text import Text

    words = ["in products: the part of FLOPs in matrix products", "special: exp, log, tanh, sqrt, divisions, counted apart"]
    if "module" in axes and any([not row.module for row in prof.rows]):
        words.append("outside: of no module")
    if _is_padded(prof):
        words.append("executed: what kernels really compute, with padding and repeated work")
    return Text("; ".join(words))


def renderable(prof: Profile, by: Sequence[Axis] = ()) -> ConsoleRenderable:
    """Returns the tables of a profile as an object that rich prints.

    by: the axes of the tables of forward against backward. If it is empty, they are op, and module if any Module was called. The
        first table is always by phase.

    There are no columns of times if nothing was timed.
    """
    from rich.console import Group as Stack
    from rich.text import Text

    if not prof.total.launches:
        return Text(f"nothing ran in this thread; {_elsewhere(prof)}" if prof.elsewhere else "nothing ran in this profile")
    phases, columns = phase_rows(prof), COLUMNS
    if not prof.total.seconds:
        at = columns.index("time")
        columns, phases = columns[:at] + columns[at + 1 :], [row[:at] + row[at + 1 :] for row in phases]
    axes = by or (("op", "module") if any([row.module for row in prof.rows]) else ("op",))
    tables = [grid(columns, phases, last_is_total=True), *[_by(prof, axis) for axis in axes if axis != "phase"]]
    parts = [part for table in tables if table for part in (table, Text())]
    return Stack(*parts, _legend(prof, axes), *_remarks(prof))


def as_text(shown: ConsoleRenderable, whole_words: bool = False) -> str:
    """Renders an object of rich as text without colours and trailing blanks, as wide as the terminal, but at least 80 columns.

    whole_words: the text is wider where the longest name in a table needs it. Otherwise the name is folded.
    """
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(file=io.StringIO(), width=WIDEST, color_system=None, force_jupyter=False, force_terminal=False)
    needed = Measurement.get(console, console.options, shown).minimum if whole_words else 0
    console.width = max(NARROW, shutil.get_terminal_size((NARROW, 24)).columns, needed)
    with console.capture() as captured:
        console.print(shown)
    return printable("\n".join([line.rstrip() for line in captured.get().splitlines()]))


def phase_table(prof: Profile, by: Sequence[Axis] = ()) -> str:
    """Returns the text that print(prof) shows."""
    return as_text(renderable(prof, by))


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> str:
    """Returns a table without rules as text, as wide as the terminal. With a title, all columns but the first are numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if title and i else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout is not None and sys.stdout.isatty() else WIDE)
    with console.capture() as captured:
        console.print(table)
    return printable(captured.get().rstrip("\n"))
