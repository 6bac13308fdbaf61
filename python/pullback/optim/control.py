"""The control block: what changes from step to step, as float64 numbers in the device's memory.

A captured step that is replayed reads and advances it there. The layout is that of csrc/math/update.h.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..errors import PullbackError
from .schedules import Schedule, from_numbers

SIZE: Final = 16
STEP, RATE, DEBIAS1, DEBIAS2, CLIP_FACTOR, CLIP_VALUE, GRADIENT_NORM, SCHEDULE, BASE_RATE, ARGUMENT = range(10)


def new(schedule: Schedule, clip_value: float | None) -> Any:
    """A control block before the first step."""
    control = np.zeros(SIZE)
    control[CLIP_FACTOR] = 1.0
    control[CLIP_VALUE] = np.inf if clip_value is None else clip_value
    set_schedule(control, schedule)
    return control


def set_schedule(control: Any, schedule: Schedule) -> None:
    arguments = schedule.arguments()
    control[SCHEDULE] = schedule.kind
    control[BASE_RATE] = schedule.base
    control[ARGUMENT:] = 0
    control[ARGUMENT : ARGUMENT + len(arguments)] = arguments


def read(block: Any) -> tuple[Any, Schedule]:
    """A copy of a saved control block, and its schedule. Raises PullbackError where the numbers are none."""
    control = block.astype(np.float64)
    steps = control[STEP]
    if not (np.isfinite(steps) and steps >= 0 and steps == np.floor(steps)):
        raise PullbackError(f"load_state_dict: the control block is damaged: {steps} is no number of steps.")
    return control, from_numbers(control[SCHEDULE], control[BASE_RATE], control[ARGUMENT:])
