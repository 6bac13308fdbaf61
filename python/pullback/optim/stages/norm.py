"""The stage of `clip_norm`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .. import launches, sets as c
from ..table import SetTable
from .stage import Limit, Step, one_positive


class NormClipping(Limit):
    """The largest joint norm of the gradients. Turning clipping on or off makes a captured step record itself again."""

    name = "clip_norm"
    in_sets = True

    def write(self, table: SetTable) -> None:
        table.write_all(c.CLIP_NORM, math.inf if self.value is None else self.value)
        table.write_all(c.CLIP_FACTOR, 1.0)

    def before(self, step: Step) -> None:
        if not step.normed:
            memory = step.memory
            launches.clip_norm(memory.kernels, step.grads, step.table, memory.members, None, check=memory.check_device)
            step.normed = True

    def found(self, state: Mapping[str, Any], sets: Any) -> float | None:
        return self.checked("load_state_dict", one_positive(self.name, sets[:, c.CLIP_NORM]))
