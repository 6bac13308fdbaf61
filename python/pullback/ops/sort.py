"""Sorting along an axis, and the functions that rely on an order: topk, unique values, searching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ..autodiff.primitive import ZERO, Op, apply
from ..errors import ShapeError, room_for
from ..launch import door
from ..tensors import devices, dtypes
from ..tensors.dtypes import promote
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from ._shapes import flag, length, normalize_axis
from .batch_rules import along_axes
from .by_name import in_dtype, reshaped, spread
from .declare import distinct, no_flops, op
from .elementwise import isnan, less_equal, logical_not, logical_or
from .gather import along_axis_add, take, take_along_axis
from .kinds import OWN
from .operands import as_tensors
from .reduce import sum
from .shape import expand_dims


def _order(xp: Any, x: Any, axis: int, descending: bool, stable: bool, nan_last: bool = True) -> Any:
    """Returns the indices that sort along the axis. In both directions equal elements keep their order.

    nan_last: True if NaN comes last in both directions, False if NaN is larger than every number.
    """
    if not descending:
        return xp.argsort(x, axis=axis, kind="stable")
    turned = xp.flip(x, axis)
    order = xp.flip(xp.argsort(turned, axis=axis, kind="stable"), axis)
    order = x.shape[axis] - 1 - order
    if not nan_last or x.dtype.kind not in "fV":
        return order
    last = xp.argsort(xp.take_along_axis(xp.isnan(x), order, axis), axis=axis, kind="stable")
    return xp.take_along_axis(order, last, axis)


_argsort = op(
    "argsort",
    example=distinct((3, 5), params=(1, False, True)),
    kind=OWN,
    reference=_order,
    pullback=ZERO,
    cost=no_flops,
    batch=along_axes,
)
_sort = op(
    "sort", example=distinct((3, 5), params=(1, True, True)),
    kind=OWN, cost=no_flops, batch=along_axes,
    reference=lambda xp, x, axis, descending, stable: xp.take_along_axis(x, _order(xp, x, axis, descending, stable), axis),
    pullback=lambda g, x, axis, descending, stable: _unsorted(g, x, axis, descending, stable),
)
_topk_indices = op(
    "topk_indices", example=distinct((3, 5), params=(2, 1, True)),
    kind=OWN, pullback=ZERO, cost=no_flops, batch=along_axes,
    reference=lambda xp, x, k, axis, largest: xp.take(_order(xp, x, axis, largest, True, False), xp.arange(k), axis=axis),
)


def _search_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For searchsorted(x1, x2, right). If x1 is batched, counts for each element of x2 the elements of x1 that come before it.

    NaN comes after every number, so that a comparison with it, which is false, is not enough.
    """
    x1, x2 = xs
    if not on[0]:
        return apply(op, (x1, x2), tuple(params))
    x2 = x2 if on[1] else spread(x2, size)
    table = reshaped(x1, (size, *(1,) * (x2.ndim - 1), x1.shape[1]))
    x2, right = expand_dims(x2, axis=-1), params[0]
    reached = less_equal(table, x2) if right else less_equal(x2, table)
    if dtypes.is_float(x1.dtype):
        reached = logical_or(reached, isnan(x2 if right else table))
    return sum(reached if right else logical_not(reached), axis=-1)


_searchsorted = op("searchsorted", example=lambda rng, dtype: _searched(rng, dtype),
                   kind=OWN, inputs=2, pullback=ZERO, cost=no_flops, batch=_search_each,
                   reference=lambda xp, x1, x2, right: xp.searchsorted(x1, x2, "right" if right else "left"))


def _searched(rng: Any, dtype: Any) -> Any:
    (x1, x2), _ = distinct((6,), (2, 3))(rng, dtype)
    return (np.sort(x1), x2), (False,)


def _unsorted(g: Tensor, x: Tensor, axis: int, descending: bool, stable: bool) -> Tensor:
    """g with each element moved back to its position before sorting."""
    order = apply(_argsort, (x,), (axis, descending, stable))
    return along_axis_add(g, order, x.shape, axis)


def sort(x: ArrayLike, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Tensor:
    """Returns the elements sorted along the axis, NaN last. Equal elements keep their order. Raises ShapeError."""
    x = as_tensor(x)
    descending, stable = flag("sort", "descending", descending), flag("sort", "stable", stable)
    return apply(_sort, (x,), (normalize_axis("sort", axis, x.ndim), descending, stable))


def argsort(x: ArrayLike, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Tensor:
    """Returns the int64 indices that sort along the axis, NaN last. Equal elements keep their order. Raises ShapeError."""
    x = as_tensor(x)
    descending, stable = flag("argsort", "descending", descending), flag("argsort", "stable", stable)
    return apply(_argsort, (x,), (normalize_axis("argsort", axis, x.ndim), descending, stable))


class TopK(NamedTuple):
    """The result of `topk`: the elements, and their int64 indices along the axis."""

    values: Tensor
    indices: Tensor


def topk(x: ArrayLike, k: int, axis: int = -1, *, largest: bool = True) -> TopK:
    """Returns the k largest (or smallest) elements along the axis, in order, and their int64 indices.

    NaN is larger than every number, as in PyTorch and JAX: it comes first among the largest. Raises ShapeError.
    """
    x = as_tensor(x)
    axis = normalize_axis("topk", axis, x.ndim)
    if length("topk", "k", k) > x.shape[axis]:
        raise ShapeError(f"topk: k={k}, but axis {axis} of shape {x.shape} has {x.shape[axis]} elements.")
    indices = apply(_topk_indices, (x,), (k, axis, flag("topk", "largest", largest)))
    return TopK(take_along_axis(x, indices, axis=axis), indices)


def searchsorted(x1: ArrayLike, x2: ArrayLike, side: Literal["left", "right"] = "left", sorter: ArrayLike | None = None) -> Tensor:
    """Returns the int64 position at which each element of x2 would be inserted into the sorted vector x1.

    side: "left" inserts before equal elements, "right" after them. NaN comes after every number and is equal to NaN, as in `sort`.
    sorter: the indices that sort x1, if x1 is not sorted. Raises ShapeError.
    """
    x1, x2 = as_tensors("searchsorted", x1, x2, compared=True)
    if x1.ndim != 1 or side not in ("left", "right"):
        raise ShapeError(f'searchsorted: x1 must be a sorted vector, not of shape {x1.shape}, and side "left" or "right".')
    if sorter is not None:
        x1 = take(x1, sorter)
    common = promote(x1.dtype, x2.dtype)
    return apply(_searchsorted, (in_dtype(x1, common), in_dtype(x2, common)), (side == "right",))


class Unique(NamedTuple):
    """The result of `unique_all`. `inverse_indices` has the shape of x; the other fields have one element per distinct value."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The result of `unique_counts`: the distinct elements and how often each occurs."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The result of `unique_inverse`. `inverse_indices` has the shape of x."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: ArrayLike, /) -> Unique:
    """Returns the distinct elements in order, the first index of each, the index of each element's value among them, and counts.

    Every NaN counts as distinct from every other NaN, as the array API requires.
    """
    x = as_tensor(x)
    xp = devices.array_module(x.device)
    wide = in_dtype(x, dtypes.float32) if x.dtype.kind == "V" else x  # CuPy does not sort bfloat16
    with devices.working(x.device), room_for("unique: the distinct elements"):
        values, first, inverse, counts = door.run_counted(
            "unique",
            lambda: xp.unique(wide.array, return_index=True, return_inverse=True, return_counts=True, equal_nan=False),
            lambda found: door.copy_cost(*found, of=x.array),
        )
    return Unique(in_dtype(Tensor(values), x.dtype), Tensor(first), Tensor(inverse.reshape(x.shape)), Tensor(counts))


def unique_values(x: ArrayLike, /) -> Tensor:
    """Returns the distinct elements, in order."""
    return unique_all(x).values


def unique_counts(x: ArrayLike, /) -> UniqueCounts:
    """Returns the distinct elements in order, and how often each occurs."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: ArrayLike, /) -> UniqueInverse:
    """Returns the distinct elements in order, and for each element of x the index of its distinct value."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)
