"""The table of sets: all numbers that an update reads besides the tensors, as float64 in the memory of the parameters' device.

A set belongs to one parameter, or to one member of a parameter whose leading axis is that of several networks; those of a parameter
are adjacent. The table has the shape (rows, SIZE). Its first rows are the parameters * members sets, and the rest is the program of
the schedules (program.py). A step reads and advances the sets on the device. No step therefore waits for the host, and a captured
step can be replayed.
csrc/math/settings.h defines the layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ..backends import kernels_on
from ..errors import PullbackError
from ..tensors import devices

SIZE: Final = 32
BYTES: Final = 8 * SIZE
WRITTEN_AT_ONCE: Final = 8  # the most settings that one launch can write
STEP, RATE, CLOCK, STATE = range(4)
RATIO: Final = STATE + 3  # the trust ratio of LAMB
CLIP_FACTOR, CLIP_VALUE, GRADIENT_NORM, CLIP_NORM, GRADIENT_SCALE, LEAST, MOST, KEEP = range(7, 15)
RATE_SCALE, SCHEDULE, BASE_RATE, ARGUMENT = range(15, 19)
HYPER: Final = ARGUMENT + 7  # after the most arguments of a schedule


def write(table: Any, entries: Iterable[int], index: int, rows: Sequence[Sequence[float]]) -> None:
    """Overwrites the settings from `index` on in the sets of some parameters. On a GPU this happens in stream order, after the
    steps launched so far, and nothing waits.

    rows: the new numbers, one row per member.
    """
    members, count = len(rows), len(rows[0])
    if devices.on_host(table):
        for first, entry_count in runs(entries):
            part = table[first * members : (first + entry_count) * members].reshape(entry_count, members, SIZE)
            part[:, :, index : index + count] = rows
        return
    kernels = kernels_on(devices.device_of(table))
    same = all([row == rows[0] for row in rows])
    for first, entry_count in runs(entries):
        for member in range(1 if same else members):
            sets = (first * members, 1, entry_count * members) if same else (first * members + member, members, entry_count)
            for i in range(0, count, WRITTEN_AT_ONCE):
                numbers = [float(x) for x in rows[member][i : i + WRITTEN_AT_ONCE]]
                if kernels is not None:
                    kernels.write_settings(table, *sets, index + i, numbers)
                    continue
                start, step, sets_count = sets
                part = table[start : start + step * sets_count : step, index + i : index + i + len(numbers)]
                devices.write(part, devices.move(np.tile(numbers, (sets_count, 1)), devices.device_of(table)))


def with_rows(table: Any, rows: int) -> Any:
    """Returns the table if it has at least this many rows, and otherwise a longer copy, in which the other rows are zeros."""
    if len(table) >= rows:
        return table
    longer = devices.full(devices.device_of(table), (rows, SIZE), 0, table.dtype)
    devices.write(longer[: len(table)], table)
    return longer


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
