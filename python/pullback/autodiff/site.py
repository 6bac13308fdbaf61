"""Sites: positions in the user's code, kept as a code object and an instruction offset until a message needs the line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from .primitive import Op

Site = tuple[CodeType, int]
current_frame: Final[Callable[[int], FrameType]] = sys._getframe  # pyright: ignore[reportPrivateUsage]
# The modules whose frames are not the user's. Between the user's frame and pullback's there are frames of contextlib for
# pullback's context managers, a frame of PyTorch's Python code for `__dlpack__`, and frames of NumPy that convert a tensor.
_PACKAGE: Final = __name__.partition(".")[0] + "."
_OURS: Final = (_PACKAGE, "contextlib", "torch.utils.dlpack", "numpy.")


def user_frame(frame: FrameType) -> FrameType:
    """Returns the nearest frame, from this one outwards, that belongs neither to pullback nor to another module of _OURS."""
    while is_ours(frame) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def is_ours(frame: FrameType) -> bool:
    """True if the frame belongs to pullback or to another module of _OURS."""
    return bool(frame.f_globals.get("__name__", "").startswith(_OURS))


class Origin(NamedTuple):
    """How an op came to be called, for messages that name what the user knows.

    Attributes:
        codes: pullback's code, from the op outwards to the function that the user called.
        pulled: the op whose pullback called the op, and its site; None if no backward pass was running.
    """

    codes: tuple[CodeType, ...]
    pulled: tuple[Op, Site] | None


NOWHERE: Final = Origin((), None)  # that of an op in a replay of a captured function


def origin_of(frame: FrameType, backward: CodeType) -> Origin:
    """Returns the origin of the op that this frame called. backward: the code of the loop that runs the pullbacks of ops."""
    codes, pulled = [], None
    while is_ours(frame) and frame.f_back is not None:
        codes.append(frame.f_code)
        if frame.f_code is backward and pulled is None:
            names = frame.f_locals
            pulled = names["op"], (names["code"], names["offset"])
        frame = frame.f_back
    return Origin(tuple(codes), pulled)


def reading_frame(readers: frozenset[str]) -> FrameType | None:
    """Returns the user's frame if it, or NumPy's code that it called, called one of pullback's modules `readers`.

    Returns None if another module of pullback called it.
    """
    frame: FrameType | None = current_frame(1)
    while frame is not None and frame.f_globals.get("__name__", "").removeprefix(_PACKAGE) in readers:
        frame = frame.f_back
    while frame is not None and frame.f_globals.get("__name__", "").startswith("numpy."):
        frame = frame.f_back
    return None if frame is None or is_ours(frame) else frame


def call_site() -> Site:
    """Returns the site of the user's line that is running. Only a report turns it into text (`line_of`).

    A line of Python's modules `copy` and `copyreg` is not the user's.
    """
    frame = user_frame(current_frame(1))
    while frame.f_globals.get("__name__") in ("copy", "copyreg") and frame.f_back is not None:
        frame = user_frame(frame.f_back)
    return frame.f_code, frame.f_lasti


def warn(message: str, category: type[Warning]) -> None:
    """Issues a warning for the user's line, from any call depth.

    Python then shows the warning once per line, and warning filters match the user's module.
    """
    frame = user_frame(current_frame(1))
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, names.get("__name__"), registry)


def line_of(site: Site) -> str:
    """Returns a site as text, such as '"file.py", line 12, in train'."""
    return f'"{site[0].co_filename}", line {number_of_line(site)}, in {site[0].co_name}'


def number_of_line(site: Site) -> int:
    code, offset = site
    return next((n for start, end, n in code.co_lines() if n and start <= offset < end), code.co_firstlineno)
