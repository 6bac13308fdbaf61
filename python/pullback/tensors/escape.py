"""Values that leave pullback: the tapes that watch them are told, because gradients stop there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..launch import capturing

if TYPE_CHECKING:
    from .tensor import Tensor

escape_listeners: Final[list[Callable[[Tensor, str], None]]] = []  # the tape adds its own


def report_escape(t: Tensor, how: str) -> None:
    """Tells the tapes which value leaves, and how. Raises CaptureError in a captured function, which could not repeat it."""
    if capturing.thread.recording is not None:
        capturing.refuse(f"{how}, which reads a value on the host,", "Return the tensor from the function, and read it outside.")
    if t.serial:
        for listener in escape_listeners:
            listener(t, how)
