"""Writes to memory that is updated in place: that of Parameters and Buffers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autodiff.stand_in import refuse_examples
from ..backends import kernels_on
from ..duck import attribute
from ..errors import ShapeError, TapeError
from ..launch import capturing, door
from ..launch.refusal import Refused
from ..tensors import devices
from ..tensors.creation import asarray
from ..tensors.escape import is_watched
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from .conversion import COPY


def write(target: Any, value: Any, *, shares: bool = False) -> None:
    """Performs target[...] = value for arrays on one device and of one shape. The value is converted to the target's dtype.

    A value that shares memory with the target, as its transpose does, is copied first, so that it is read as it was before the
    write. On a GPU the caller must pass shares=True for such a value.
    """
    kernels = kernels_on(devices.device_of(target))
    if shares or (devices.on_host(target) and np.may_share_memory(target, value)):
        value = _copied(value)
    if kernels is not None:
        try:
            kernels.assign(target, value)
            if door.profiling:
                door.charge("assign")
            return
        except Refused:
            pass
    capturing.refuse_opaque("writing to memory without a native kernel", "Keep the Parameter contiguous, and on one device.")
    door.in_place("assign", lambda: devices.write(target, value), lambda _: door.copy_cost(target, of=value))


def assign(p: Parameter, value: Any) -> Parameter:
    """Implements `p.assign(value)`: sets the value of a Parameter in place and returns it. Raises ShapeError, TapeError."""
    _refuse_watched(p, value)
    refuse_examples(f"assign: the new value of {p.label()}", value)
    source = value.array if isinstance(value, Tensor) else asarray(value).array
    if source.shape != p.shape:
        raise ShapeError(
            f"assign: {p.label()} has shape {p.shape}, the value {source.shape}. Give it the same shape "
            f"(pb.broadcast_to says so explicitly)."
        )
    capturing.keep(p)
    write(p.array, devices.move(source, p.device), shares=attribute(value, "storage", None) is p.storage)
    p.storage.changed()
    return p


def _refuse_watched(p: Parameter, value: Any) -> None:
    """Raises TapeError if a tape or a jvp of this thread watches the value that is to be written into the Parameter."""
    if isinstance(value, Tensor) and is_watched(value):
        raise TapeError(
            f"assign: a tape that records watches the new value of {p.label()}, and gradients would stop there: a Parameter "
            f"holds a value, and not where it came from. For gradients through the update write w = w - lr * g, and use that w "
            f"from then on. Otherwise update after the tape's `with` block, or assign pb.stop_gradient(value)."
        )


def _copied(value: Any) -> Any:
    """Returns a copy of an array, made by a kernel if there is one, because a replay can repeat only kernels."""
    try:
        return COPY.kernel(value)
    except Refused:
        return devices.copied(value)
