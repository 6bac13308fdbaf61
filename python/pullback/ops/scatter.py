"""Ops that write at indices along an axis: index_set, index_add, index_max, index_min. Updates are applied in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autodiff.primitive import Op, apply, same
from ..tensors.creation import zeros
from ..tensors.ranges import arange
from ..tensors.tensor import Tensor
from .by_name import all_on, in_dtype, reshaped
from .declare import distinct, no_flops, normal, op
from .elementwise import equal
from .gather import added, at, back, gathered, indexed_first, numbered, scatter_add, tables
from .kinds import OWN
from .shape import flatten, reshape
from .tangents import linear


def _copied(xp: Any, x: Any) -> Any:
    """Returns a row-major copy to write to. In the order of a transposed x, which NumPy would keep, reshape would copy again."""
    return xp.array(x, order="C")


def _put(target: Any, indices: Any, updates: Any, axis: int) -> Any:
    target[(slice(None),) * axis + (indices,)] = updates
    return target


def _write_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For index_<how>(x, updates, indices, axis)."""
    (axis,) = params
    x, updates, _ = all_on(size, xs, on)
    indices = xs[2]
    if not on[2]:
        return apply(op, (x, updates, indices), (axis + 1,))
    rows, length = tables(x, axis)
    updates = indexed_first(updates, axis, indices.ndim - 1)
    flat = reshaped(updates, (indices.size, *updates.shape[indices.ndim :]))
    return back(apply(op, (rows, flat, flatten(numbered(indices, length))), (0,)), size, length, axis)


index_add = op("index_add", example=normal((4, 3), (3, 3), np.array([1, 1, 3]), params=(0,)),
                kind=OWN, inputs=3, batch=_write_each, tangent=linear,
                cost=lambda x, updates, indices, axis, y: {"adds": updates.size},
                reference=lambda xp, x, updates, indices, axis: added(xp, _copied(xp, x), indices, updates, axis),
                pullback=(same, lambda g, indices, axis: gathered(g, indices, axis), None))
index_set = op("index_set", example=normal((4, 3), (3, 3), np.array([1, 1, 3]), params=(0,)),
                kind=OWN, inputs=3, batch=_write_each, tangent=linear, cost=no_flops,
                reference=lambda xp, x, updates, indices, axis: _put(_copied(xp, x), indices, updates, axis),
                pullback=(lambda g, indices, axis: _without(g, indices, axis),
                          lambda g, indices, axis: _last_writes(g, indices, axis), None))


def _without(g: Tensor, indices: Tensor, axis: int) -> Tensor:
    """g with zeros where an update was written."""
    zero = zeros(g.shape[:axis] + indices.shape + g.shape[axis + 1 :], dtype=g.dtype, device=g.device)
    return apply(index_set, (g, zero, indices), (axis,))


def _last_writes(g: Tensor, indices: Tensor, axis: int) -> Tensor:
    """g at each update's index; of several updates to one position only the last one gets it, the others get 0."""
    flat, order = flatten(indices), arange(indices.size, device=g.device)
    writer = apply(index_set, (zeros((g.shape[axis],), dtype=order.dtype, device=g.device), order, flat), (0,))
    last = equal(gathered(writer, flat, 0), order)
    mask = reshape(last, indices.shape + (1,) * (g.ndim - axis - 1))
    return gathered(g, indices, axis) * in_dtype(mask, g.dtype)


def _share(g: Tensor, x: Tensor, updates: Tensor, indices: Any, axis: int, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the cotangent of each update's result divided by the number of elements of x and updates that attain it.

    And for each update, whether the element of x attains it, and whether the update does, as numbers.
    """
    result = gathered(y, indices, axis)
    held, won = _hits(gathered(x, indices, axis), result), _hits(updates, result)
    writers = gathered(scatter_add(won, indices, y.shape, axis), indices, axis)
    return gathered(g, indices, axis) / (held + writers), held, won


def _hits(x: Tensor, y: Tensor) -> Tensor:
    return in_dtype(equal(x, y), y.dtype)


def _held(g: Tensor, x: Tensor, updates: Tensor, indices: Any, axis: int, y: Tensor) -> Tensor:
    share, held, _ = _share(g, x, updates, indices, axis, y)
    return apply(index_set, (g, share * held, indices), (axis,))


def _winners(g: Tensor, x: Tensor, updates: Tensor, indices: Any, axis: int, y: Tensor) -> Tensor:
    share, _, won = _share(g, x, updates, indices, axis, y)
    return share * won


def _extreme(name: str, ufunc: str) -> Any:
    return op(name, example=distinct((4, 3), (3, 3), np.array([1, 2, 3]), params=(0,)),
              kind=OWN, inputs=3, batch=_write_each, cost=no_flops,
              reference=lambda xp, x, updates, indices, axis: at(getattr(xp, ufunc), _copied(xp, x), indices, updates, axis),
              pullback=(_held, _winners, None))


index_max, index_min = _extreme("index_max", "maximum"), _extreme("index_min", "minimum")
