"""Adaptive clipping: each unit's gradient is bounded by a share of the norm of the unit's weights (Brock et al. 2021, eq. 3)."""

from __future__ import annotations

import math
from typing import Any

from ..launch import capturing
from ..launch.refusal import Refused
from ..tensors import devices
from . import reference


def clipped(opt: Any, grads: list[Any]) -> list[Any]:
    """Returns the gradients, with the norm of each unit scaled down to at most clip_adaptive times that of its weights.

    The rows along the first axis of a parameter of two axes or more are units; a vector or a scalar is one unit, and each member
    has separate units. One launch clips the gradients of all parameters. It reads the share from the device's memory.
    """
    whole = opt._of or opt
    clips = whole._share != math.inf
    if capturing.thread.recording is not None:
        capturing.thread.recording.guard(whole._groups, lambda: (whole._share != math.inf) == clips)
    if not clips:
        return grads
    weights = [p.array for p in opt._parameters]
    if opt._kernels is not None:
        try:
            return opt._kernels.clip_adaptive(grads, weights, opt._sets, opt._limit, bool(opt._lead))
        except Refused:
            pass
    opt._same_device(grads)
    capturing.refuse_opaque("adaptive clipping without native kernels", "Return the gradients, and call step() outside.")
    with devices.working(opt._device):
        return reference.clip_adaptive(grads, weights, opt._sets, opt._limit, bool(opt._lead))
