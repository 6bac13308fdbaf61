"""Formats tables with aligned columns and cells of several lines, as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..printable import printable

Cell = tuple[str, ...]  # the lines of the cell


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], right: Sequence[str] = ()) -> str:
    """Returns a table for stdout: the column names, a rule, and the rows. Columns named in `right` are aligned to the right."""
    grid = [[tuple(map(printable, cell)) for cell in row] for row in ([(name,) for name in columns], *rows)]
    widths = [max([len(line) for row in grid for line in row[i]], default=0) for i in range(len(columns))]
    lines = [line for row in grid for line in _lines(row, widths, [name in right for name in columns])]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def html_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], right: Sequence[str] = ()) -> str:
    """Returns the same table as HTML, for notebooks. All text is escaped."""
    sides = ["right" if name in right else "left" for name in columns]
    lines: list[str] = []
    for tag, row in [("th", [(name,) for name in columns]), *[("td", row) for row in rows]]:
        texts = ["<br>".join([escape(line) for line in cell]) for cell in row]
        cells = [f'<{tag} style="text-align: {side}">{text}</{tag}>' for text, side in zip(texts, sides)]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join(["<table>", *lines, "</table>"])


def _lines(row: Sequence[Cell], widths: Sequence[int], right: Sequence[bool]) -> list[str]:
    lines: list[str] = []
    for k in range(max(1, *map(len, row))):
        cells = [cell[k] if k < len(cell) else "" for cell in row]
        padded = [cell.rjust(width) if flush else cell.ljust(width) for cell, width, flush in zip(cells, widths, right)]
        lines.append("  ".join(padded).rstrip())
    return lines
