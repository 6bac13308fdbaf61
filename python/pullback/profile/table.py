"""The table that print(prof) shows: phases as rows, and the kernels that took longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..door import PHASES
from .figures import Figures

if TYPE_CHECKING:
    from .session import Profile

COLUMNS = ("", "FLOPs", "in products", "special", "read", "written", "time", "launches")
MOST_KERNELS = 12


def quantity(x: float, unit: str = "") -> str:
    """A number with three digits and a decimal prefix: 12.3 M, 4.50 kB."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= factor:
            return f"{x / factor:.3g} {prefix}{unit}"
    return f"{x:.3g} {unit}".strip()


def duration(seconds: float) -> str:
    """Seconds with three digits, in s, ms or us."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def cells(name: str, f: Figures) -> tuple[str, ...]:
    """One row of the table."""
    return (
        name, quantity(f.flops), quantity(f.matmul_flops), quantity(f.special_ops), quantity(f.bytes_read, "B"),
        quantity(f.bytes_written, "B"), duration(f.seconds), str(f.launches),
    )  # fmt: skip


def phase_rows(prof: Profile) -> list[tuple[str, ...]]:
    """A row for each phase in which something ran, then the total."""
    phases = [(name, getattr(prof, name)) for name in PHASES]
    return [cells(name, f) for name, f in phases if f.launches] + [cells("total", prof.total)]


def _kernel_rows(prof: Profile) -> list[tuple[str, ...]]:
    groups: dict[str, list[object]] = {}
    for launch in prof.launches:
        groups.setdefault(launch.kernel, []).append(launch)
    figures = sorted([(name, Figures.of(group)) for name, group in groups.items()], key=lambda row: -row[1].seconds)  # type: ignore[arg-type]
    rows = [cells(name, f) for name, f in figures[:MOST_KERNELS]]
    if len(figures) > MOST_KERNELS:
        rows.append((f"and {len(figures) - MOST_KERNELS} more kernels", *[""] * (len(COLUMNS) - 1)))
    return rows


def phase_table(prof: Profile) -> str:
    """The phases, the kernels, and the share of launches whose cost is known."""
    phases, kernels = phase_rows(prof), _kernel_rows(prof)
    widths = [max([len(row[i]) for row in (COLUMNS, *phases, *kernels)]) for i in range(len(COLUMNS))]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    lines = [_line(COLUMNS, widths), rule, *[_line(row, widths) for row in phases], rule, *[_line(row, widths) for row in kernels]]
    unknown = f"; not known: {', '.join(prof.unknown)}" if prof.unknown else ""
    return "\n".join([*lines, rule, f"cost known for {prof.coverage:.1%} of launches{unknown}"])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join([row[0].ljust(widths[0]), *[cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]]).rstrip()
