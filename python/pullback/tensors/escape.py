"""Reports values that leave pullback to the tapes that watch them, because gradients stop there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..launch import capturing

if TYPE_CHECKING:
    from .tensor import Tensor

_RETURN: Final = "Return the tensor from the function, and read it outside."
LIST: Final = "a list of tensors that became one array (pb.stack keeps gradients)"
_INSTEAD: Final = {  # by how the value is read
    "bool()": "A branch or a loop would always go the way that it went in this run. Choose between values with pb.where(condition, "
    "a, b), repeat steps with pb.scan or a fixed range, or leave the `if` outside of the captured function.",
    LIST: "Join tensors with pb.stack([a, b]).",
    "repr()": "Return the tensor from the function, and print it outside.",
    "formatting": "Return the tensor from the function, and print it outside.",
}

escape_listeners: Final[list[Callable[[Tensor, str], None]]] = []  # autodiff/tape.py appends one


def report_escape(t: Tensor, how: str) -> None:
    """Reports that a value is read outside pullback. Tapes that watch it record the line for their error messages.

    Raises CaptureError inside a captured function, because a replay could not repeat the read.
    """
    if capturing.thread.recording is not None:
        capturing.refuse(f"{how}, which reads a value on the host,", _INSTEAD.get(how, _RETURN))
    if t.serial:
        for listener in escape_listeners:
            listener(t, how)
