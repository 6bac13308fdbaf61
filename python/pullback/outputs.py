"""The outputs of a command: checks, before long work begins, that results can be written, and what happens to a broken stdout."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterable
from typing import Final

CLOSED_PIPE: Final = 128 + getattr(signal, "SIGPIPE", 13)  # the exit status that a shell shows for a program ended by SIGPIPE
ROOM: Final = 1 << 20  # bytes that must fit on the disk


def why_not_folder(folder: str, names: Iterable[str] = ()) -> str | None:
    """Makes the folder, and returns None if files of these names can be written there, otherwise the reason in words."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(bytes(ROOM))
            trial.flush()
    except OSError as error:
        return _words(error)
    return next((f'"{name}": {reason}' for name in names if (reason := why_not_file(os.path.join(folder, name)))), None)


def why_not_file(path: str) -> str | None:
    """Returns None if the file can be written or replaced, otherwise the reason in words. Does not change it."""
    if os.path.isdir(path):
        return "it is a folder"
    if os.path.exists(path):
        return None if os.access(path, os.W_OK) else "it is write-protected"
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        return "its folder does not exist; make it first"
    return None if os.access(folder, os.W_OK | os.X_OK) else "its folder is write-protected"


def _words(error: OSError) -> str:
    """Returns the system's words for the error as the middle of a sentence."""
    if isinstance(error, FileExistsError):
        return "it is a file, and not a folder"
    words = error.strerror or str(error)
    return words[:1].lower() + words[1:]


# ---- stdout


def flush() -> None:
    """Writes what stdout has buffered. Raises BrokenPipeError if its reader has closed the pipe, OSError if the disk is full."""
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def discard() -> None:
    """Connects a broken stdout or stderr to the null device, because Python writes what it has buffered when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
