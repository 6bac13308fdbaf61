"""Opens regular files only: to read a pipe or a device may wait for ever, or never come to an end."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Returns the file, opened for reading. Raises OSError, whose `strerror` says what is wrong, also if it is no regular file."""
    name = os.fspath(path)
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)  # so that a pipe without a writer does not wait
    try:
        refuse_others(os.stat(name).st_mode, name)  # before it is opened: that alone moves the tape of some devices
        descriptor = os.open(name, flags)
    except ValueError:
        raise OSError(errno.EINVAL, "a path has no null characters", name) from None
    file = os.fdopen(descriptor, "rb")
    try:
        refuse_others(os.fstat(descriptor).st_mode, name)
    except OSError:
        file.close()
        raise
    return file


def refuse_others(mode: int, name: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", name)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file, and a pipe or a device may never end. Copy it to a file first", name)


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """Returns the contents of a file of at most that many bytes. Raises OSError as open_regular() does."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", os.fspath(path))
    return data
