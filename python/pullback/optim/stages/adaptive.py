"""The stage of `clip_adaptive`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...tensors import devices
from .. import launches
from ..table import SetTable
from .stage import Limit, Step


class AdaptiveClipping(Limit):
    """The largest ratio of the norm of a unit's gradient to that of its weights (Brock et al. 2021, eq. 3).

    Turning it on or off makes a captured step record itself again.
    """

    name = "clip_adaptive"

    def __init__(self, rule: str, given: Any) -> None:
        super().__init__(rule, given)
        self._share: Any = np.array([self._bound()])  # in the device's memory

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_share": np.array([self._bound()])}

    def _bound(self) -> float:
        return math.inf if self.value is None else self.value

    def make(self, device: str) -> None:
        self._share = devices.move(self._share, device)

    def write(self, table: SetTable) -> None:
        devices.write(self._share, devices.move(np.array([self._bound()]), devices.device_of(self._share)))

    def before(self, step: Step) -> None:
        memory = step.memory
        weights = [p.array for p in memory.parameters]
        given = step.grads, weights, step.table, self._share, bool(memory.lead)
        step.grads, step.normed = launches.clip_adaptive(memory.kernels, *given, check=memory.check_device), False
