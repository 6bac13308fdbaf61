"""The steps of a captured function, and their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import ShapeError
from ..function_wrapper import Unhidden
from ..ops.movement import concat
from ..ops.shape import expand_dims
from ..tensors.operand import own
from ..tensors.tensor import Tensor
from ..tree import flatten, unflatten
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


def rest(
    replay: Replay | None, firsts: Sequence[Any], arrays: Sequence[Any], leaves: Sequence[Any], steps: int, counted: Any
) -> Any:
    """Replays the steps after the first ones, whose values are given, and returns the values of all, stacked along a new axis."""
    done, form = len(firsts), flatten(firsts[-1])[1]
    parts = [flatten(value)[0] for value in firsts]
    if replay is not None and steps > done:
        parts.append(flatten(replay.run([a[done:] for a in arrays], leaves, steps - done, counted))[0])
    results = []
    for place, (first, *more) in enumerate(zip(*parts)):
        given = None if replay is None else replay.argument_at(place)
        if given is not None:  # a returned argument has the axis of steps already
            results.append(own(leaves[given]))
        elif not isinstance(first, Tensor):
            results.append(first)
        else:
            rows = [expand_dims(y, axis=0) for y in (first, *more[: done - 1])] + more[done - 1 :]
            results.append(concat(rows) if len(rows) > 1 else rows[0])
    return unflatten(form, results)


def run_step(function: Callable[..., Any], args: Any, options: Any, counted: Any) -> Any:
    """Runs one step eagerly, and counts it."""
    with Unhidden():
        value = function(*args, **options)
    if counted is not None:
        counted.done += 1
    return value
