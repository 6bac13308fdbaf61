"""Where a Loader stands, also while a captured function works on its next batches."""

from __future__ import annotations

from typing import TypeAlias

Place: TypeAlias = "tuple[int, int]"  # the number of an epoch, and how many of its batches are done


class Steps:
    """Counts the completed steps of one call of a captured function, which begins at a place and has one batch for each step.

    Attributes:
        done: the completed steps. A replay adds to it in native code, where no signal arrives between a step and its count.
    """

    __slots__ = ("_length", "_start", "done")

    def __init__(self, start: Place, length: int) -> None:
        self._start, self._length = start, length  # batches of an epoch
        self.done = 0

    def place(self) -> Place:
        """Returns the place after the completed steps."""
        return after(self._start, self.done, self._length)


# Where a Loader stands: the epoch that the next `for` begins and the number of its batches to skip, the epoch of the iteration that
# advanced last and the number of batches it has yielded, and the last call of a captured function with the Loader, whose completed
# steps count in addition. The tuple is replaced as a whole, so that Ctrl-C leaves the old or the new one.
Position: TypeAlias = "tuple[Place, Place, Steps | None]"


def now(position: Position) -> tuple[Place, Place]:
    """Returns the first two of a position, in which the completed steps are included."""
    following, at, steps = position
    if steps is not None and steps.done:
        following = at = steps.place()
    return following, at


def after(place: Place, count: int, length: int) -> Place:
    """Returns the place that is `count` batches later, if an epoch has `length` batches."""
    epoch, batch = place
    batch += count
    if batch < length:
        return epoch, batch
    return (epoch + batch // length, batch % length) if length else (epoch + count, 0)
