"""The control block: the numbers that change from step to step, as float64 in the memory of the parameters' device.

A step reads and advances the block on the device. No step therefore waits for the host, and a captured step can be replayed. The
layout is defined in csrc/math/control.h.
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
WRITTEN_AT_ONCE: Final = 8  # the most numbers that one launch can write
STEP, RATE, DEBIAS1, DEBIAS2, CLIP_FACTOR, CLIP_VALUE, GRADIENT_NORM, SCHEDULE, BASE_RATE, ARGUMENT = range(10)
ARGUMENTS: Final = 4  # the most arguments of a schedule


def new(schedule: Schedule, clip_value: float, device: str) -> Any:
    """Returns the control block of an optimizer before its first step."""
    control = np.zeros(SIZE)
    control[CLIP_FACTOR], control[CLIP_VALUE] = 1.0, clip_value
    set_schedule(control, schedule)
    return devices.move(control, device)


def set_schedule(control: Any, schedule: Schedule) -> None:
    """Changes the schedule from the next step on, without waiting for the steps before."""
    arguments = schedule.arguments()
    write(control, SCHEDULE, [schedule.kind, schedule.base, *arguments, *[0.0] * (ARGUMENTS - len(arguments))])


def write(control: Any, first: int, numbers: Sequence[float]) -> None:
    """Overwrites the numbers from index `first` on. On a GPU this happens in stream order, after the steps launched so far."""
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
    """Returns a copy of a saved control block and its schedule. Raises PullbackError if its numbers are not valid."""
    control = block.astype(np.float64)
    steps = control[STEP]
    if not (np.isfinite(steps) and steps >= 0 and steps == np.floor(steps)):
        raise PullbackError(f"load_state_dict: the control block is damaged: {steps} is not a valid number of steps.")
    return control, from_numbers(control[SCHEDULE], control[BASE_RATE], control[ARGUMENT:])
