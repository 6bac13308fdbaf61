"""Reads `hints.txt`, which says what names of other libraries are called here."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("hints.txt")


@functools.lru_cache(maxsize=1)
def sections() -> dict[str, str]:
    """Returns the lines below each title of the file. A frozen program may lack the file: its errors then have no hints."""
    found: dict[str, str] = {}
    for part in FILE.read_text("utf-8").split("\n[")[1:] if FILE.exists() else ():
        title, _, lines = part.partition("]\n")
        found[title] = f"{found.get(title, '')}{lines}\n"
    return found


@functools.lru_cache(maxsize=200)
def hints(title: str) -> dict[str, str]:
    """Returns the hint for each name below a title; none if the file has no such title."""
    found: dict[str, str] = {}
    for line in re.sub(r"\n +", " ", sections().get(title, "")).splitlines():
        names, _, hint = line.partition(": ")
        if hint and line[0] != "#":
            found.update(dict.fromkeys(names.split(", "), hint))
    return found
