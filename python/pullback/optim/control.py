"""The control block: what changes from step to step, as float64 numbers in the memory of the parameters' device.

A step reads and advances it there, so no step waits for the host, and one that was captured can be replayed. The layout is that
of csrc/math/control.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..backends import kernels_on
from ..errors import PullbackError
from ..tensors import devices
from .schedules import Schedule, from_numbers

SIZE: Final = 16
BYTES: Final = 8 * SIZE
WRITTEN_AT_ONCE: Final = 8  # numbers that one launch can change
STEP, RATE, DEBIAS1, DEBIAS2, CLIP_FACTOR, CLIP_VALUE, GRADIENT_NORM, SCHEDULE, BASE_RATE, ARGUMENT = range(10)
ARGUMENTS: Final = 4  # of a schedule, at most


def new(schedule: Schedule, clip_value: float, device: str) -> Any:
    """A control block before the first step."""
    control = np.zeros(SIZE)
    control[CLIP_FACTOR], control[CLIP_VALUE] = 1.0, clip_value
    set_schedule(control, schedule)
    return devices.move(control, device)


def set_schedule(control: Any, schedule: Schedule) -> None:
    """Changes the schedule from the next step on, without waiting for the steps before."""
    arguments = schedule.arguments()
    write(control, SCHEDULE, [schedule.kind, schedule.base, *arguments, *[0.0] * (ARGUMENTS - len(arguments))])


def write(control: Any, first: int, numbers: Sequence[float]) -> None:
    """Changes the numbers from `first` on, on a GPU after the steps before."""
    if devices.on_host(control):
        control[first : first + len(numbers)] = numbers
        return
    kernels = kernels_on(devices.device_of(control))
    if kernels is None:
        devices.write(control[first : first + len(numbers)], devices.move(np.array(numbers), devices.device_of(control)))
        return
    for i in range(0, len(numbers), WRITTEN_AT_ONCE):
        kernels.write_control(control, first + i, [float(x) for x in numbers[i : i + WRITTEN_AT_ONCE]])


def read(block: Any) -> tuple[Any, Schedule]:
    """A copy of a saved control block, and its schedule. Raises PullbackError where the numbers are none."""
    control = block.astype(np.float64)
    steps = control[STEP]
    if not (np.isfinite(steps) and steps >= 0 and steps == np.floor(steps)):
        raise PullbackError(f"load_state_dict: the control block is damaged: {steps} is no number of steps.")
    return control, from_numbers(control[SCHEDULE], control[BASE_RATE], control[ARGUMENT:])
