"""Where in the user's code something happens: kept as a code object and an offset, made into words for a message."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Final

Site = tuple[CodeType, int]
current_frame: Final[Callable[[int], FrameType]] = sys._getframe  # pyright: ignore[reportPrivateUsage]
# Our context managers run below frames of contextlib, and `__dlpack__` below a function of PyTorch that is written in Python.
_OURS: Final = (__name__.partition(".")[0] + ".", "contextlib", "torch.utils.dlpack")


def user_frame(frame: FrameType) -> FrameType:
    """The nearest frame from this one outwards that is not pullback's own, nor one that Python code puts between."""
    while frame.f_globals.get("__name__", "").startswith(_OURS) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def call_site() -> Site:
    """The user's line that runs now, as a code object and an instruction offset (words are made of it only in a report)."""
    frame = user_frame(current_frame(1))
    return frame.f_code, frame.f_lasti


def warn(message: str, category: type[Warning]) -> None:
    """Issues a warning for the user's line, from any depth, so that Python shows it once per line and filters see his module."""
    frame = user_frame(current_frame(1))
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, names.get("__name__"), registry)


def line_of(site: Site) -> str:
    """ '"file.py", line 12, in train' """
    return f'"{site[0].co_filename}", line {number_of_line(site)}, in {site[0].co_name}'


def number_of_line(site: Site) -> int:
    code, offset = site
    return next((n for start, end, n in code.co_lines() if n and start <= offset < end), code.co_firstlineno)
