"""Reads a profile that `prof.to_json(path)` wrote, to compare it with another one."""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from typing import Any, Final

from ..errors import FileFormatError, PullbackError
from ..launch.door import PHASES
from ..regular_files import read_regular
from .figures import FIELDS, Figures, Group, Row, grouped
from .record import VERSION

GZIP = b"\x1f\x8b"  # the first bytes of a compressed file
MOST: Final = 2**31  # bytes of a file
UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError, EOFError, OSError, zlib.error)


class Recorded:
    """The figures of a profile in a file, with the attributes of a Profile that `compare` uses.

    Attributes:
        rows, total, forward, backward, …, kernel_seconds: as of a Profile.
        spans: the recorded spans as dicts; empty if phases were not timed.
    """

    def __init__(self, record: dict[str, Any]) -> None:
        self.rows = [_row(row) for row in record["rows"]]
        self.spans: list[Any] = record["spans"]
        self.total = _figures(record["total"])
        self.kernel_seconds: float = math.nan if record["kernel_seconds"] is None else record["kernel_seconds"]
        for phase in PHASES:
            setattr(self, phase, _figures(record["phases"][phase]))

    def by(self, axis: str) -> list[Group]:
        """Returns the rows in groups that are equal along one of AXES, as of a Profile."""
        return grouped(self.rows, axis)


def read(path: str | os.PathLike[str]) -> Recorded:
    """Reads a file by `to_json`, compressed or not. Raises PullbackError if it cannot be read or is no such file."""
    try:
        data = read_regular(path, MOST)
    except OSError as error:
        words = f'"{os.fspath(path)}" cannot be read: {error.strerror}. Give a file that pullback profile --json wrote.'
        raise PullbackError(words) from error
    try:
        record = json.loads(gzip.decompress(data) if data.startswith(GZIP) else data)
        version = record["version"]
        if version == VERSION:
            return Recorded(record)
    except UNREADABLE as error:
        raise FileFormatError(
            f'"{os.fspath(path)}" is not the JSON of a profile. Write one with pullback profile --json PATH, or prof.to_json(PATH).'
        ) from error
    raise FileFormatError(f'"{os.fspath(path)}" is of version {version} of the format, and this pullback reads version {VERSION}.')


def _figures(fields: dict[str, Any]) -> Figures:
    return Figures(**{name: fields[name] for name in FIELDS})


def _row(row: dict[str, Any]) -> Row:
    values = {name: row[name] for name in Row._fields if name not in ("figures", "without")}
    return Row(**values, figures=_figures(row), without=tuple(row.get("without", ())))
