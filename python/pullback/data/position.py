"""Where a Loader stands, also while a captured function works on its next batches."""

from __future__ import annotations

from typing import Final, NamedTuple

Place = tuple[int, int]  # the number of an epoch, and how many of its batches are done


class Steps:
    """Counts the completed steps of one call of a captured function, which begins at a place and has one batch for each step.

    Attributes:
        done: the completed steps. A replay adds to it in native code, where no signal arrives between a step and its count.
    """

    def __init__(self, start: Place, length: int) -> None:
        self.done = 0
        self._start: Final = start
        self._length: Final = length  # batches of an epoch

    def place(self) -> Place:
        """Returns the place after the completed steps."""
        return after(self._start, self.done, self._length)


class Position(NamedTuple):
    """Where a Loader stands. It is replaced as a whole, so that Ctrl-C leaves the old or the new one.

    Attributes:
        next: the epoch that the next `for` begins, and the number of its batches to skip.
        at: the epoch of the iteration that advanced last, and the number of batches it has yielded.
        steps: the last call of a captured function with the Loader, whose completed steps count in addition; otherwise None.
    """

    next: Place
    at: Place
    steps: Steps | None = None

    def now(self) -> Position:
        """Returns the position in which the completed steps are included."""
        if self.steps is None or not self.steps.done:
            return Position(self.next, self.at)
        place = self.steps.place()
        return Position(place, place)


def after(place: Place, count: int, length: int) -> Place:
    """Returns the place that is `count` batches later, if an epoch has `length` batches."""
    epochs, batch = divmod(place[1] + count, max(1, length))
    return place[0] + epochs, batch
