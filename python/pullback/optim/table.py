"""The table of an optimizer: the sets of its parameters, and the program of its schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..backends import kernels_on
from ..ops.movement import concat
from ..ops.writing import write
from ..tensors import devices
from ..tensors.tensor import Tensor
from . import sets as c
from .program import SPARE, Program
from .schedules.schedule import Schedule


class SetTable:
    """The sets of an optimizer's parameters, and after them the rows of the program, in one array of shape (rows, sets.SIZE).

    Attributes:
        array: the numbers, in the memory of the parameters' device. A program that needs more rows gets a longer array.
        program: the program on the host.
        members: the number of sets of each parameter, which are adjacent.
        count: the number of sets.
    """

    def __init__(self, parameters: int, members: int) -> None:
        """Makes a table of zeros on the host."""
        self.members, self.count = members, parameters * members
        self.array: Any = np.zeros((self.count, c.SIZE))
        self.program = Program(np.zeros((SPARE, c.SIZE)), members)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for pickle and deepcopy, with the numbers on the host."""
        return {**vars(self), "array": np.array(self.on_host())}

    def move_to(self, device: str) -> None:
        """Moves the array to the memory of a device."""
        self.array = devices.move(self.array, device)

    # ---- reading

    def on_host(self) -> Any:
        """Returns the numbers as a NumPy array, which may be the table's own memory. It waits for the steps."""
        return devices.move(self.array, "cpu")

    def of(self, i: int) -> Any:
        """Returns the sets of parameter i, which are a part of the array."""
        return self.array[i * self.members : (i + 1) * self.members]

    def rows_of_program(self) -> Any:
        """Returns the rows of the program, which are a part of the array."""
        return self.array[self.count :]

    def present_schedules(self, group: int) -> list[Schedule]:
        """Returns the schedules of a group's members, in which a ReduceOnPlateau is its present rate. It waits for the steps."""
        program = Program(self.on_host()[self.count :], self.members, present=True)
        return [program.read(placed.settings).schedule for placed in self.program.placed[group]]

    # ---- writing

    def write(self, entries: Iterable[int], index: int, rows: Sequence[Sequence[float]]) -> None:
        """Overwrites the settings from `index` on in the sets of some parameters. On a GPU this happens in stream order, after the
        steps launched so far, and nothing waits.

        rows: the new numbers, one row per member.
        """
        if devices.on_host(self.array):
            for first, count in c.runs(entries):
                part = self.array[first * self.members : (first + count) * self.members].reshape(count, self.members, c.SIZE)
                part[:, :, index : index + len(rows[0])] = rows
            return
        same = all([row == rows[0] for row in rows])
        for first, count in c.runs(entries):
            for member in range(1 if same else self.members):
                start, step = first * self.members + member, 1 if same else self.members
                for i in range(0, len(rows[0]), c.WRITTEN_AT_ONCE):
                    numbers = [float(x) for x in rows[member][i : i + c.WRITTEN_AT_ONCE]]
                    self._launch(range(start, start + count * self.members, step), index + i, numbers)

    def _launch(self, sets: range, index: int, numbers: list[float]) -> None:
        """Overwrites the settings from `index` on in some sets by a launch."""
        kernels = kernels_on(devices.device_of(self.array))
        if kernels is not None:
            kernels.write_settings(self.array, sets.start, sets.step, len(sets), index, numbers)
            return
        part = self.array[sets.start : sets.stop : sets.step, index : index + len(numbers)]
        devices.write(part, devices.move(np.tile(numbers, (len(sets), 1)), devices.device_of(self.array)))

    def write_all(self, index: int, number: float) -> None:
        """Overwrites one setting in all sets."""
        self.write(range(self.count // self.members), index, [[number]] * self.members)

    def launch_write(self, index: int, number: float) -> None:
        """Overwrites one setting in all sets by a launch, also on the host, which a replay repeats with this number."""
        self._launch(range(self.count), index, [number])

    def place(self, new: Mapping[int, Sequence[Schedule]]) -> None:
        """Writes the schedules of some groups into the program: {number of the group: one schedule for each member}. The array is
        made anew if it has too few rows.
        """
        changed = self.program.place(new)
        self._grow()
        for first, count in c.runs(changed):
            part = self.rows_of_program()[first : first + count]
            devices.write(part, devices.move(self.program.rows[first : first + count], devices.device_of(part)))

    def _grow(self) -> None:
        """Makes a longer array, in which new rows are zeros, if the program on the host is longer than its part of the array."""
        rows = self.count + len(self.program.rows)
        if len(self.array) < rows:
            longer = devices.full(devices.device_of(self.array), (rows, c.SIZE), 0, self.array.dtype)
            devices.write(longer[: len(self.array)], self.array)
            self.array = longer

    def load(self, sets: Sequence[Any], program: Program) -> None:
        """Replaces all numbers. sets: those of each parameter."""
        self.program = program
        self._grow()
        devices.write(self.array, devices.move(np.concatenate([*sets, program.rows]), devices.device_of(self.array)))

    # ---- the table of one parameter

    def alone(self, i: int) -> SetTable:
        """Returns the table of an optimizer that has parameter i alone. Its sets are the same memory, unless schedules refer to the
        program, whose rows have to follow them. They are then copies, and `adopt` writes the sets back.
        """
        other = object.__new__(SetTable)
        rows = self.of(i)
        if self.program.used:
            rows = concat([Tensor(rows), Tensor(self.rows_of_program())]).array
        vars(other).update(vars(self), array=rows, count=self.members)
        return other

    def adopt(self, i: int, other: SetTable) -> None:
        """Writes the sets of parameter i that are copies in `other` back."""
        if len(other.array) > self.members:
            write(self.of(i), other.array[: self.members])
