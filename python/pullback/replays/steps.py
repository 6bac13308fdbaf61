"""The results of several steps of a captured function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ops.movement import concat
from ..ops.shape import expand_dims
from ..tensors.operand import own
from ..tensors.tensor import Tensor
from .replay import Replay


def stacked(replay: Replay, place: int, leaves: Sequence[Any], first: Any, rest: Any, steps: int) -> Any:
    """Stacks one result of the first step and of the rest. A returned argument already has the axis of steps."""
    if (given := replay.argument_at(place)) is not None:
        return own(leaves[given])
    if not isinstance(first, Tensor):
        return first
    return concat([expand_dims(first, axis=0), rest]) if steps > 1 else expand_dims(first, axis=0)
