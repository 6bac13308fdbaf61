"""Adaptive clipping: each unit's gradient is bounded by a share of the norm of the unit's weights."""

from __future__ import annotations

import math
from typing import Any, Final

from ..launch import capturing
from ..ops.elementwise import abs as magnitude, maximum, where
from ..ops.matrices import vector_norm
from ..tensors.tensor import Tensor
from . import arena, sets as c

LEAST_NORM: Final = 1e-3  # the norm that weights count with at least, so that weights of 0 can move


def clipped(opt: Any, grads: list[Any]) -> list[Any]:
    """Returns the gradients, with the norm of each unit scaled down to clip_adaptive * max(norm of the weights, LEAST_NORM).

    The rows along the first axis of a parameter of two axes or more are units; a vector or a scalar is one unit, and each member
    has separate units. Source: Brock et al. 2021, eq. 3, whose units are the rows that belong to one output.
    """
    share = opt._share
    if capturing.thread.recording is not None:
        capturing.thread.recording.guard(opt.groups, lambda: opt._share == share)
    if share == math.inf:
        return grads
    scale = Tensor(opt._sets)[0, c.GRADIENT_SCALE]
    first = opt._lead

    def of_unit(p: Any, g: Any) -> Any:
        if g is None or not g.size:
            return g
        axes = tuple(range(first + 1 if g.ndim - first > 1 else first, g.ndim))
        wide = arena.slot_dtype(p)
        gradient = Tensor(g).astype(wide)
        weights, norm = [
            vector_norm(x, axis=axes, keepdims=True) if axes else magnitude(x) for x in (Tensor(p.array).astype(wide), gradient)
        ]
        most, norm = share * maximum(weights, LEAST_NORM), norm * scale.astype(wide)
        factor = where(norm > most, most / maximum(norm, 1e-6), 1.0)
        return (gradient * factor).astype(g.dtype).array

    return [of_unit(p, g) for p, g in zip(opt.parameters, grads)]
