"""The stage of `clip_adaptive`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..launch import capturing
from ..tensors import devices
from . import launches
from .memory import OptimizerMemory
from .table import SetTable


class AdaptiveClipping:
    """Bounds each unit's gradient by a share of the norm of the unit's weights (Brock et al. 2021, eq. 3), in one launch before all
    others. An optimizer of one of the parameters has the same stage.

    Attributes:
        share: the largest ratio of the norms, infinity for no clipping.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._limit: Any = np.array([share])  # the share in the device's memory, where steps read it

    def __getstate__(self) -> dict[str, Any]:
        return {"share": self.share, "_limit": np.array([self.share])}

    def make(self, device: str) -> None:
        """Moves the share to the memory of a device."""
        self._limit = devices.move(self._limit, device)

    def set(self, share: float) -> None:
        """Changes the share, also of captured steps, unless it turns clipping on or off. Nothing waits for the device."""
        self.share = share
        devices.write(self._limit, devices.move(np.array([share]), devices.device_of(self._limit)))

    @property
    def clips(self) -> bool:
        """True if the stage does anything, on which a recording depends."""
        return self.share != math.inf

    def before(self, memory: OptimizerMemory, table: SetTable, grads: list[Any]) -> list[Any]:
        """Returns the gradients for the launches that follow."""
        clips = self.clips
        if capturing.thread.recording is not None:
            capturing.thread.recording.guard(self, lambda: self.clips == clips)
        if not clips:
            return grads
        weights = [p.array for p in memory.parameters]
        given = grads, weights, table.array, self._limit, bool(memory.lead)
        return launches.clip_adaptive(memory.kernels, *given, check=memory.check_device)
