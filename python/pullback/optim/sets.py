"""The table of sets: all numbers that an update reads besides the tensors, as float64 in the memory of the parameters' device.

A set belongs to one parameter, or to one member of a parameter whose leading axis is that of several networks; those of a parameter
are adjacent. The first rows of the table (table.py) are the parameters * members sets, and the rest is the program of the schedules
(program.py). A step reads and advances the sets on the device. No step therefore waits for the host, and a captured step can be
replayed.
csrc/math/settings.h defines the layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from ..errors import PullbackError

SIZE: Final = 32
BYTES: Final = 8 * SIZE
WRITTEN_AT_ONCE: Final = 8  # the most settings that one launch can write
STEP, RATE, CLOCK, STATE = range(4)
RATIO: Final = STATE + 3  # the trust ratio of LAMB
CLIP_FACTOR, CLIP_VALUE, GRADIENT_NORM, CLIP_NORM, GRADIENT_SCALE, LEAST, MOST, KEEP = range(7, 15)
RATE_SCALE, SCHEDULE, BASE_RATE, ARGUMENT = range(15, 19)
HYPER: Final = ARGUMENT + 7  # after the most arguments of a schedule


def runs(entries: Iterable[int]) -> list[tuple[int, int]]:
    """Returns the runs of consecutive numbers in `entries`, which ascend, as (first, count)."""
    found: list[tuple[int, int]] = []
    for entry in entries:
        if found and sum(found[-1]) == entry:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((entry, 1))
    return found


def check(name: str, numbers: Sequence[float]) -> None:
    """Raises PullbackError unless the numbers are a set. name: of its parameter."""
    steps = numbers[STEP]
    if not (np.isfinite(steps) and steps >= 0 and steps == np.floor(steps)):
        raise PullbackError(f'load_state_dict: the settings of "{name}" are damaged: {steps} is not a valid number of steps.')
    own = [*numbers[STATE:CLIP_FACTOR], numbers[CLOCK], numbers[RATE_SCALE]]
    if not (np.all(np.isfinite(own)) and numbers[RATE_SCALE] >= 0 and numbers[CLOCK] >= steps and numbers[CLOCK] < 2**53):
        raise PullbackError(f'load_state_dict: the settings of "{name}" are damaged: their numbers are no state of an optimizer.')
