"""The program: the rows of an optimizer's table that follow its sets. Schedules of several pieces, lists of rates and the states of
reduce-on-plateau are in these rows, to which the settings of a set refer. csrc/math/schedule.h defines the layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ..errors import PullbackError
from . import sets as c
from .schedules import composed, simple
from .schedules.schedule import Schedule

NUMBERS, WATCH = 18, 19  # the kinds of rows that are no piece of a schedule
BEST, BAD, RESTING, MEMBER = range(c.STATE, c.STATE + 4)  # in the state of reduce-on-plateau
SPARE: Final = 8  # the free rows of a new table, for schedules that are set later
DEEPEST: Final = 2  # a product of sequences
LEAST_CHANGE: Final = 1e-8  # a smaller reduction on a plateau is not done

_CLASSES: Final = (Schedule, *Schedule.__subclasses__())
_OF_KIND: Final[dict[int, Callable[..., Schedule]]] = {
    **{cls.kind: cls.of for cls in _CLASSES},
    simple.MANY_STEPS: simple.MultiStep.of_many,
}


class Placed(NamedTuple):
    """A schedule, the settings that hold it (from c.SCHEDULE to the last argument), and the rows to which they refer."""

    schedule: Schedule
    settings: list[float]
    rows: frozenset[int]


class Program:
    """The rows of a program, and which of them the schedules of the optimizer's groups use.

    It is the host's copy. On the device the states of reduce-on-plateau change.

    Attributes:
        rows: an array of shape (rows, c.SIZE). It only grows.
        placed: for each group of parameters (by its number) the schedules of its members.
        present: True for a copy of the device's rows that is only read: a ReduceOnPlateau is then read as its present rate.
    """

    def __init__(self, rows: Any, members: int, *, present: bool = False) -> None:
        self.rows, self.present = rows, present
        self.placed: dict[int, list[Placed]] = {}
        self._members, self._member, self._start = members, 0, 0
        self._used: set[int] = set()  # the rows that cannot be given away, while schedules are placed
        self._touched: set[int] = set()  # the rows of the schedule that is read or placed
        self._depth = 0

    @property
    def observes(self) -> bool:
        """True if a schedule depends on observations."""
        return any([placed.schedule.observes for group in self.placed.values() for placed in group])

    @property
    def used(self) -> bool:
        """True if a schedule refers to rows."""
        return any([placed.rows for group in self.placed.values() for placed in group])

    # ---- placing schedules

    def place(self, new: Mapping[int, Sequence[Schedule]]) -> list[int]:
        """Gives the schedules of some groups rows: {number of the group: one schedule for each member}. Equal schedules share rows,
        but each member has its own state of reduce-on-plateau, which starts anew.

        Returns the rows that have changed, in ascending order. Rows that nothing refers to any more become zeros.
        """
        before = self._rows_in_use()
        self.placed = {group: placed for group, placed in self.placed.items() if group not in new}
        shared: dict[tuple[Schedule, int | None], Placed]
        shared = {(p.schedule, None): p for group in self.placed.values() for p in group if not p.schedule.observes}
        self._used, changed = self._rows_in_use(), set[int]()
        for group, schedules in new.items():
            self.placed[group] = []
            for member, schedule in enumerate(schedules):
                key = schedule, member if schedule.observes else None
                if key not in shared:
                    self._touched, self._member = set(), member
                    settings = schedule.settings(self)
                    shared[key] = Placed(schedule, settings, frozenset(self._touched))
                    changed |= self._touched
                self.placed[group].append(shared[key])
        freed = before - self._rows_in_use()
        self.rows[list(freed - changed)] = 0
        return sorted(changed | freed)

    def _rows_in_use(self) -> set[int]:
        return {row for group in self.placed.values() for placed in group for row in placed.rows}

    def _take(self, count: int) -> int:
        """Returns the first of `count` free rows, which are adjacent. If there are not enough, the program grows."""
        free = 0
        for row in range(len(self.rows)):
            free = 0 if row in self._used else free + 1
            if free == count:
                break
        else:
            row = len(self.rows) - free + count - 1
            self.rows = np.concatenate([self.rows, np.zeros((count - free + SPARE, c.SIZE))])
        taken = range(row - count + 1, row + 1)
        self.rows[taken.start : taken.stop] = 0
        self._used |= {*taken}
        self._touched |= {*taken}
        return taken.start

    def put_pieces(self, pieces: Sequence[tuple[int, Schedule]]) -> int:
        first, outer = self._take(len(pieces)), self._start
        for k, (start, piece) in enumerate(pieces):
            self._start = outer + start
            settings = piece.settings(self)
            self.rows[first + k, c.CLOCK] = start
            self.rows[first + k, c.SCHEDULE : c.HYPER] = settings
        self._start = outer
        return first

    def put_numbers(self, numbers: Sequence[float]) -> int:
        count = -(-len(numbers) // c.SCHEDULE)
        first = self._take(count)
        padded = [*numbers, *[0.0] * (count * c.SCHEDULE - len(numbers))]
        self.rows[first : first + count, : c.SCHEDULE] = np.reshape(padded, (count, c.SCHEDULE))
        self.rows[first : first + count, c.SCHEDULE] = NUMBERS
        return first

    def put_plateau(self, base: float, arguments: Sequence[float], best: float) -> int:
        first = self._take(1)  # This may replace the rows.
        row = self.rows[first]
        row[c.SCHEDULE], row[c.BASE_RATE], row[c.ARGUMENT : c.HYPER] = WATCH, base, arguments
        row[c.RATE], row[BEST], row[MEMBER], row[c.CLOCK] = base, best, self._member, self._start
        return first

    # ---- reading schedules

    def read(self, settings: Sequence[float]) -> Placed:
        """Returns the schedule that these settings hold. Raises PullbackError if they or their rows are damaged."""
        self._touched, self._depth = set(), 0
        return Placed(self._schedule(settings), list(settings), frozenset(self._touched))

    def _schedule(self, settings: Sequence[float]) -> Schedule:
        kind, base, *arguments = settings
        of = _OF_KIND.get(kind)  # type: ignore[call-overload]
        inner = kind == composed.Product.kind and self._depth > 0
        if of is None or inner or not all([math.isfinite(x) for x in arguments]):
            raise PullbackError(f"load_state_dict: the settings hold no schedule of this version (kind {kind}).")
        return of(float(base), arguments, self)

    def _part(self, row: float, count: float, kind: int | None = None) -> Any:
        """Returns `count` rows. Raises PullbackError unless they exist and are of this kind."""
        whole = row >= 0 and count >= 1 and row % 1 == 0 and count % 1 == 0 and row + count <= len(self.rows)
        if not whole or (kind is not None and not (self.rows[int(row) : int(row + count), c.SCHEDULE] == kind).all()):
            raise PullbackError(f"load_state_dict: the program of the schedules is damaged: it has no {count} rows from {row} on.")
        self._touched |= {*range(int(row), int(row + count))}
        return self.rows[int(row) : int(row + count)]

    def pieces(self, row: float, count: float) -> list[tuple[int, Schedule]]:
        self._depth += 1
        if self._depth > DEEPEST:
            raise PullbackError("load_state_dict: the program of the schedules is damaged: pieces of pieces have pieces.")
        found = [(int(part[c.CLOCK]), self._schedule(part[c.SCHEDULE : c.HYPER].tolist())) for part in self._part(row, count)]
        self._depth -= 1
        return found

    def numbers(self, row: float, count: float) -> list[float]:
        part = self._part(row, -(-count // c.SCHEDULE), NUMBERS)
        return part[:, : c.SCHEDULE].ravel()[: int(count)].tolist()

    def plateau(self, row: float) -> Schedule:
        (state,) = self._part(row, 1, WATCH)
        if self.present:
            return Schedule(float(state[c.RATE]))
        counts = state[[BAD, RESTING, MEMBER, c.CLOCK]]
        whole = np.isfinite(counts) & (counts >= 0) & (counts % 1 == 0)
        if not whole.all() or counts[2] >= self._members or not 0 <= state[c.RATE] < math.inf or math.isnan(state[BEST]):
            raise PullbackError("load_state_dict: the program of the schedules is damaged: a ReduceOnPlateau has no valid state.")
        return composed.ReduceOnPlateau.of_row(float(state[c.BASE_RATE]), state[c.ARGUMENT : c.HYPER].tolist())


def observe(row: Any, metric: float) -> None:
    """Moves the state of a ReduceOnPlateau by one observation."""
    factor, patience, threshold, cooldown, end, maximizes, relative = row[c.ARGUMENT : c.HYPER].tolist()
    margin = threshold if maximizes else -threshold
    bound = row[BEST] * (1 + margin) if relative else row[BEST] + margin
    row[BAD] += 1
    if metric > bound if maximizes else metric < bound:
        row[BEST], row[BAD] = metric, 0
    if row[RESTING] > 0:
        row[RESTING] -= 1
        row[BAD] = 0
    if row[BAD] > patience:
        reduced = max(row[c.RATE] * factor, end)
        if row[c.RATE] - reduced > LEAST_CHANGE:
            row[c.RATE] = reduced
        row[RESTING], row[BAD] = cooldown, 0
