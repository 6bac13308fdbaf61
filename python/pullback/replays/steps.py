"""The steps of a captured function, and their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import ShapeError
from ..ops.movement import concat
from ..ops.shape import expand_dims
from ..tensors.operand import own
from ..tensors.tensor import Tensor
from .replay import Replay


def length_of(name: str, steps: int | None, arrays: Sequence[Any]) -> int | None:
    """Returns the number of steps; None without steps=. Raises ShapeError if the first axis of an argument is not that long.

    name: the captured function's name, for messages.
    """
    if steps is None:
        return None
    if not arrays:
        raise ShapeError(f"{name} with steps={steps}: there is no tensor among the arguments to take steps over.")
    for array in arrays:
        if not array.ndim or array.shape[0] != steps:
            raise ShapeError(
                f"{name} with steps={steps}: an argument has shape {array.shape}; its first axis must have one entry for each of "
                f"the {steps} steps."
            )
    return steps


def stacked(replay: Replay, place: int, leaves: Sequence[Any], first: Any, rest: Any, steps: int) -> Any:
    """Stacks one result of the first step and of the rest. A returned argument already has the axis of steps."""
    if (given := replay.argument_at(place)) is not None:
        return own(leaves[given])
    if not isinstance(first, Tensor):
        return first
    return concat([expand_dims(first, axis=0), rest]) if steps > 1 else expand_dims(first, axis=0)


def run_step(function: Callable[..., Any], args: Any, options: Any, counted: Any) -> Any:
    """Runs one step eagerly, and counts it."""
    value = function(*args, **options)
    if counted is not None:
        counted.done += 1
    return value
