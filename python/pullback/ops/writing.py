"""Writing to memory that stays where it is: Parameters and Buffers."""

from __future__ import annotations

from typing import Any

from .. import capturing, devices, door
from ..backends import kernels_on
from ..refusal import Refused


def write(target: Any, value: Any) -> None:
    """target[...] = value, arrays of one device and shape; converted to the target's dtype."""
    kernels = kernels_on(devices.device_of(target))
    if kernels is not None:
        try:
            kernels.assign(target, value)
            return
        except Refused:
            pass
    capturing.refuse_opaque("writing to memory without a native kernel", "Keep the Parameter contiguous, and on one device.")
    door.in_place("assign", lambda: devices.write(target, value), lambda _: door.moved(target, of=value))
