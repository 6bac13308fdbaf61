"""Where a Loader stands, also while a captured function works on its next batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from ..errors import PullbackError
from ..tensors.tensor import Tensor

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


def read(state: Any, split: Mapping[str, int]) -> tuple[int, int, int]:
    """Returns the epoch, the number of its batches that are done, and the seed, from the state of a Loader. Raises PullbackError.

    split: what decides which rows a batch has. In the middle of an epoch another split would leave rows out, or repeat them.
    """
    names = {"epoch", "batches", "seed"}
    if not isinstance(state, Mapping) or set(state) not in (names, names | set(split)):
        what = sorted(map(str, state)) if isinstance(state, Mapping) else f"the type {type(state).__name__}"
        raise PullbackError(f"Loader: the state has {what}; it must be a dict of batches, epoch and seed.")
    epoch, done, seed = [_whole(name, state[name]) for name in ("epoch", "batches", "seed")]
    for name, here in split.items():
        if done and name in state and (there := _whole(name, state[name])) != here:
            there = bool(there) if isinstance(here, bool) else there
            raise PullbackError(
                f"Loader: the state is of a Loader with {name}={there}, and here it is {here}, so that rows of the epoch would "
                f"be left out or come twice. Make the Loader as it was; only between two epochs may it change."
            )
    return epoch, done, seed


def _whole(name: str, value: Any) -> int:
    """Returns an entry of a Loader's state as an integer. Raises PullbackError."""
    try:
        number = value.item() if isinstance(value, (Tensor, np.ndarray)) else value
        if number == int(number):
            return int(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise PullbackError(f'Loader: "{name}" of the state is {value!r:.80}; it must be an integer, as state_dict() returns it.')
