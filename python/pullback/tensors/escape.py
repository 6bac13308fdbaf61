"""Reports values that leave pullback to the tapes that watch them, because gradients stop there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ..autodiff.listeners import listeners
from ..launch import capturing

if TYPE_CHECKING:
    from .tensor import Tensor

_RETURN: Final = (
    "Keep to pb's functions inside (pb.stack joins tensors, t.at[i].set(v) writes into one), or return the tensor from the "
    "function and read it outside."
)
_INSTEAD: Final = {  # by how the value is read
    "bool()": "A branch or a loop would always go the way that it went in this run. Choose between values with pb.where(condition, "
    "a, b), repeat steps with pb.scan or a fixed range, or leave the `if` outside of the captured function.",
    "repr()": "Return the tensor from the function, and print it outside.",
    "formatting": "Return the tensor from the function, and print it outside.",
}


def report_escape(t: Tensor, how: str, read: Callable[[], Any] | None = None) -> Any:
    """Reports that a value is read outside pullback. Tapes that watch it record the line for their messages.

    read: returns the number or the array that the user's code gets, which this function then returns. Tapes notice if it comes
    back as a constant.

    Raises CaptureError inside a captured function, because a replay could not repeat the read.
    """
    if capturing.thread.recording is not None:
        capturing.refuse(f"{how}, which reads a value on the host,", _INSTEAD.get(how, _RETURN))
    value = None if read is None else read()
    if t.serial:
        for listener in listeners.stack:
            listener.on_escape(t, how, value)
    return value


def is_watched(x: Tensor) -> bool:
    """True if a tape or a forward pass of this thread watches the tensor."""
    return any([listener.knows(x) for listener in listeners.stack if hasattr(listener, "knows")])
