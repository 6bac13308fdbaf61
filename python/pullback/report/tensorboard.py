"""Writes TensorBoard's files with the package tensorboardX, which is imported when the first file is written."""

from __future__ import annotations

import importlib
import os
from typing import Any

from ..errors import PullbackError


def writer(directory: str | os.PathLike[str]) -> Any:
    """Returns a tensorboardX.SummaryWriter for this directory. Raises PullbackError if the package is not installed."""
    try:
        module = importlib.import_module("tensorboardX")
    except ImportError as error:
        raise PullbackError(
            f"to_tensorboard: the package that writes TensorBoard's files cannot be imported ({error}). Install it with: "
            f"pip install 'pullback[tensorboard]'"
        ) from error
    return module.SummaryWriter(os.fspath(directory))
