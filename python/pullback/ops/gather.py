"""Ops that read at indices along an axis, and the additions that transpose them: take and scatter_add, take_along_axis, one_hot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..autodiff.batching import Batched, over_all
from ..autodiff.primitive import ZERO, Op, apply
from ..errors import DTypeError, ShapeError, check_room
from ..launch import capturing
from ..tensors import devices, dtypes
from ..tensors.nested import as_indices, has_tensor
from ..tensors.operand import as_tensor, over, steady
from ..tensors.ranges import arange
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, DTypeLike
from ._shapes import Shape, broadcast_shapes, length as checked_length, normalize_axis
from .batch_rules import leading, shifted
from .by_name import all_on, reshaped, view
from .declare import no_flops, normal, op
from .elementwise import greater_equal, less, logical_or, minimum, where
from .kinds import LINEAR, OWN
from .shape import SLICE, broadcast_to, flatten, moveaxis, reshape

# ---- references. Updates at repeated indices are applied in order.


def at(ufunc: Any, target: Any, indices: Any, updates: Any, axis: int) -> Any:
    """Runs ufunc.at along one axis of a contiguous target. It is reshaped to three axes: NumPy crashes for more than 32."""
    lead, n, trail = math.prod(target.shape[:axis]), target.shape[axis], math.prod(target.shape[axis + 1 :])
    flat = target.reshape(lead, n, trail)
    ufunc.at(flat, (slice(None), indices.reshape(-1)), updates.reshape(lead, indices.size, trail))
    return target


_SUM_BLOCK: Final = 32  # updates of one target that are added up in float32


def added(xp: Any, target: Any, indices: Any, updates: Any, axis: int) -> Any:
    """Returns a contiguous target with the updates added along one axis, in blocks as csrc/families/scatter.h says."""
    if target.dtype.itemsize == 2 and target.dtype.kind in "fV":
        wide, more = target.astype(np.float32), updates.astype(np.float32)
        return added(xp, wide, indices, more, axis).astype(target.dtype)
    places = indices.reshape(-1)
    length = target.shape[axis]
    if target.dtype != np.float32 or places.size <= _SUM_BLOCK:
        return at(xp.add, target, indices, updates, axis)
    rank = _ranks(xp, places % length)
    blocks = int(rank.max()) // _SUM_BLOCK + 1
    if blocks == 1:
        return at(xp.add, target, indices, updates, axis)
    # The later blocks of a target have sums of their own, which follow the target along the axis.
    block = places % length * blocks + rank // _SUM_BLOCK
    later = xp.unique(block[rank >= _SUM_BLOCK])
    rows = xp.where(rank < _SUM_BLOCK, places % length, length + xp.searchsorted(later, block))
    shape = (*target.shape[:axis], later.size, *target.shape[axis + 1 :])
    sums = at(xp.add, xp.concatenate([target, xp.zeros(shape, target.dtype)], axis=axis), rows, updates, axis)
    first, rest = xp.split(sums.astype(np.float64), [length], axis=axis)
    return at(xp.add, xp.ascontiguousarray(first), later // blocks, rest, axis).astype(target.dtype)


def _ranks(xp: Any, places: Any) -> Any:
    """Returns for each update the number of updates before it that go to the same place."""
    order = xp.argsort(places, kind="stable")
    ordered, ranks = places[order], xp.empty_like(order)
    ranks[order] = xp.arange(places.size) - xp.searchsorted(ordered, ordered)
    return ranks


def _added_along(xp: Any, updates: Any, shape: Shape, indices: Any, axis: int) -> Any:
    lead, n, trail = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    target = xp.zeros(lead * n * trail, updates.dtype)
    rows = indices.astype(xp.int64).reshape(lead, indices.shape[axis], trail)
    rows = xp.where(rows < 0, rows + n, rows) + xp.arange(lead).reshape(-1, 1, 1) * n
    return added(xp, target, rows * trail + xp.arange(trail), updates, 0).reshape(shape)


# ---- batching rules. If each example has its own table, the tables are joined one after the other, and indices count all rows.


def tables(x: Tensor, axis: int) -> tuple[Tensor, int]:
    """Returns the slices of all examples along the axis, joined example by example, and the number of slices per example."""
    rows = moveaxis(x, axis + 1, 1)
    return reshaped(rows, (rows.shape[0] * rows.shape[1], *rows.shape[2:])), rows.shape[1]


def numbered(indices: Tensor, length: int, *, from_end: bool = True) -> Tensor:
    """Returns indices into the examples' tables, each of this length, as indices into the joined tables.

    from_end: negative indices count from the end of a table. Otherwise they are out of range.
    """
    first = arange(indices.shape[0], device=indices.device) * length
    found = within(indices, length, 2 * first.size * length + 1, from_end=from_end)
    return found + reshape(first, (-1, *(1,) * (indices.ndim - 1)))


LARGEST_INT64: Final = 2**63 - 1


def in_int64(indices: Tensor) -> Tensor:
    """Returns the indices as int64. Those of 2^63 or more, which would become negative, become the largest int64."""
    if indices.dtype == dtypes.uint64:
        indices = minimum(indices, LARGEST_INT64)
    return indices.astype(dtypes.int64)


def within(indices: Tensor, length: int, beyond: int, *, from_end: bool = True) -> Tensor:
    """Returns the indices as int64, with those from the end counted from the front.

    Indices on a GPU have not been checked yet, nor have those of a replay. Those out of range become `beyond`, because the kernel
    checks them against the longer axis of the joined tables (or of joined axes), where they could be valid.
    """
    indices = in_int64(indices)
    if indices.device == "cpu" and capturing.thread.recording is None:
        return indices
    if from_end:
        indices = where(less(indices, 0), indices + length, indices)
    return where(logical_or(less(indices, 0), greater_equal(indices, length)), beyond, indices)


def back(rows: Tensor, size: int, length: int, axis: int) -> Tensor:
    """Undoes `tables`: splits the joined slices into examples and moves them back to the axis."""
    return moveaxis(reshaped(rows, (size, length, *rows.shape[1:])), 1, axis + 1)


def indexed_first(updates: Tensor, axis: int, count: int) -> Tensor:
    """Moves the `count` axes of the indices, which start at `axis` in one example's updates, to the front of each example."""
    return moveaxis(updates, list(range(axis + 1, axis + 1 + count)), list(range(1, 1 + count)))


def _take_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For take(x, indices, axis, from_end)."""
    (x, indices), (axis, from_end) = xs, params
    if not on[1]:
        return apply(op, (x, indices), (axis + 1, from_end))
    if not on[0]:
        return moveaxis(apply(op, (x, indices), (axis, from_end)), axis, 0)
    rows, length = tables(x, axis)
    y = apply(op, (rows, numbered(indices, length, from_end=from_end)), (0, from_end))
    there = list(range(axis + 1, axis + indices.ndim))
    return moveaxis(y, list(range(1, indices.ndim)), there)


def _scatter_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For scatter_add(updates, indices, shape, axis)."""
    (updates, indices), (shape, axis) = xs, params
    if not on[1]:
        return apply(op, (updates, indices), shifted(op, size, params))
    updates = indexed_first(all_on(size, xs, on)[0], axis, indices.ndim - 1)
    length, rest = shape[axis], updates.shape[indices.ndim :]
    flat = reshaped(updates, (indices.size, *rest))
    y = apply(op, (flat, flatten(numbered(indices, length))), ((size * length, *rest), 0))
    return back(y, size, length, axis)


# ---- ops. Indices are integer tensors that `checked` has found in range; no gradient flows through them.


def _reads(*values: Any) -> dict[str, int]:
    """Returns the cost of a gather: it reads the indices and as many bytes as it writes, but at most the whole table."""
    x, indices, y = values[0], values[1], values[-1]
    return {"bytes_read": int(min(y.nbytes, x.nbytes) + indices.nbytes)}


def _table_factors(of_all: Any, g: Tensor, x_shape: Shape, indices: Tensor, axis: int, from_end: bool) -> Any:
    if axis:
        return None
    at, values = of_all(indices), of_all(g)
    at = reshape(at, (at.shape[0], indices.size))
    return Rows(at, reshape(values, (*at.shape, math.prod(x_shape[1:]))), x_shape[0])


_take = op("take", example=normal((4, 3), np.array([[0, 3], [1, 0]]), params=(0, True)), inputs=2, batch=_take_each,
           factors={0: _table_factors},
           kind=LINEAR, reference=lambda xp, x, indices, axis, from_end: xp.take(x, indices, axis=axis), cost=_reads,
           pullback=(lambda g, x_shape, indices, axis, from_end: scatter_add(g, indices, x_shape, axis), None))
_scatter_add = op("scatter_add", example=normal((2, 2, 3), np.array([[0, 3], [0, 1]]), params=((4, 3), 0)),
                  kind=LINEAR, inputs=2, batch=_scatter_each,
                  pullback=(lambda g, indices, axis: gathered(g, indices, axis), None),
                  reference=lambda xp, g, indices, shape, axis: added(xp, xp.zeros(shape, g.dtype), indices, g, axis),
                  cost=lambda updates, indices, shape, axis, y: {"adds": updates.size})
_take_along = op("take_along_axis", example=normal((3, 4), np.array([[0, 3], [1, 1], [2, 0]]), params=(1,)),
                 kind=LINEAR, inputs=2, cost=_reads,
                 reference=lambda xp, x, indices, axis: xp.take_along_axis(x, indices, axis),
                 pullback=(lambda g, x_shape, indices, axis: along_axis_add(g, indices, x_shape, axis), None))
_along_add = op("along_axis_add", example=normal((3, 2), np.array([[0, 3], [1, 1], [2, 0]]), params=((3, 4), 1)),
                kind=LINEAR, inputs=2, cost=lambda updates, indices, shape, axis, y: {"adds": updates.size},
                reference=lambda xp, updates, indices, shape, axis: _added_along(xp, updates, shape, indices, axis),
                pullback=(lambda g, indices, axis: apply(_take_along, (g, indices), (axis,)), None))
_one_hot = op("one_hot", example=lambda rng, dtype: ((np.array([[0, 2], [1, 1]]),), (3, dtypes.float32)),
              kind=OWN, pullback=ZERO, cost=no_flops, batch=leading,
              reference=lambda xp, x, depth, dtype: (x[..., None] == xp.arange(depth)).astype(dtype))


class Rows:
    """Per-example gradients of a table as factors: values (batch, rows, n), added into (length, n) at indices (batch, rows).

    A table of another rank is treated as the matrix of its rows, so the gradients must be compared element by element.
    """

    def __init__(self, indices: Tensor, values: Tensor, length: int) -> None:
        self.indices, self.values = indices, values
        self.shape = (indices.shape[0], length, values.shape[2])

    def formed(self, some: slice) -> Tensor:
        """Returns the gradients of these examples, formed by one scatter into their joined tables."""
        values, indices = view(SLICE, self.values, (some,)), view(SLICE, self.indices, (some,))
        return _scatter_each(_scatter_add, indices.shape[0], (values, indices), (True, True), (self.shape[1:], 0))

    def total(self) -> Tensor:
        """Returns the sum over all examples."""
        values = reshape(self.values, (self.indices.size, self.values.shape[2]))
        return scatter_add(values, flatten(self.indices), self.shape[1:], 0)


def gathered(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Runs take with indices that are already checked."""
    return apply(_take, (x, indices), (axis, True))


def gathered_along(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Returns the elements of x at valid indices along an axis, one for each position of `indices`."""
    return apply(_take_along, (x, indices), (axis,))


def scatter_add(updates: Tensor, indices: Tensor, shape: Shape, axis: int) -> Tensor:
    """Returns zeros of `shape` with the updates added in order at the indices along the axis: the transpose of take."""
    return apply(_scatter_add, (updates, indices), (shape, axis))


def along_axis_add(updates: Tensor, indices: Tensor, shape: Shape, axis: int) -> Tensor:
    """Returns zeros of `shape` with each update added at its index along the axis: the transpose of take_along_axis."""
    return apply(_along_add, (updates, indices), (shape, axis))


# ---- public functions

_NO_LAST_ID: Final = " Negative ids and classes do not count from the end: give missing ones a number of their own."


def checked(name: str, indices: Any, length: int, axis: int, device: str, *, from_end: bool = True) -> Tensor:
    """Returns integer indices on the device, in [0, length). Raises DTypeError, or IndexError naming the first invalid index.

    Indices on a GPU are checked by the kernel that uses them, so that the host does not wait.

    from_end: negative indices count from the end. Otherwise they are out of range.
    """
    if has_tensor(indices):
        indices = as_tensor(indices)
    if isinstance(indices, Batched):
        return over_all(indices, lambda all_of_them: checked(name, all_of_them, length, axis, device, from_end=from_end))
    array = indices.array if isinstance(indices, Tensor) else indices if devices.on_device(indices) else as_indices(indices)
    if capturing.thread.recording is not None and array.dtype.kind in "iu":
        return over(indices, devices.move(array, device))  # the kernel checks them at every replay
    if array.size == 0:
        return Tensor(devices.cast(devices.move(array, device), np.dtype(np.int64)))
    if array.dtype.kind not in "iu":
        raise DTypeError(f"{name}: indices have dtype {array.dtype}; they must be integers. Convert with .astype(pb.int64).")
    if devices.on_host(array) and array.size:
        once = array  # one copy of each element: a broadcast view can be larger than memory
        if 0 in array.strides:
            once = array[tuple([slice(None) if stride else slice(1) for stride in array.strides])]
        low, high, least = int(once.min()), int(once.max()), -length if from_end else 0
        if low < least or high >= length:
            wrong = np.argwhere((once < least) | (once >= length))[0].tolist()
            index = int(once[tuple(wrong)])
            raise IndexError(
                f"{name}: index {index} at position {wrong} is out of range for axis {axis} of length {length} "
                f"(from {least} to {length - 1}).{_NO_LAST_ID if index < 0 and not from_end else ''}"
            )
        if low < 0:
            array = np.broadcast_to(np.where(once < 0, once.astype(np.int64) + length, once), array.shape)
    return over(indices, devices.move(array, device))


def take(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> Tensor:
    """Returns the slices at the indices along an axis; the shape of the indices replaces the axis.

    `axis` may be left out for a vector. Raises IndexError naming the index, ShapeError, DTypeError.
    """
    x = as_tensor(x)
    if axis is None:
        if x.ndim != 1:
            raise ShapeError(f"take: axis= is needed for a tensor of shape {x.shape}.")
        axis = 0
    axis = normalize_axis("take", axis, x.ndim)
    return gathered(x, checked("take", steady(indices), x.shape[axis], axis, x.device), axis)


def rows_of_ids(name: str, table: Tensor, ids: ArrayLike) -> Tensor:
    """Returns the rows of a table (n, …) at ids from 0 to n - 1. Negative ids do not count from the end.

    name: that of the caller, for errors. Raises IndexError naming the id, DTypeError.
    """
    found = checked(name, steady(ids), table.shape[0], 0, table.device, from_end=False)
    return apply(_take, (as_tensor(table), found), (0, False))


def take_along_axis(x: ArrayLike, indices: ArrayLike, axis: int = -1) -> Tensor:
    """Returns, for each position of `indices`, the element of x at that index along the axis. Raises IndexError, ShapeError."""
    x = as_tensor(x)
    axis = normalize_axis("take_along_axis", axis, x.ndim)
    found = checked("take_along_axis", steady(indices), x.shape[axis], axis, x.device)
    if found.ndim != x.ndim:
        raise ShapeError(f"take_along_axis: indices have shape {found.shape}, x {x.shape}; both need the same number of axes.")
    others = broadcast_shapes("take_along_axis", [_but(x.shape, axis), _but(found.shape, axis)])
    indices = broadcast_to(found, others[:axis] + (found.shape[axis],) + others[axis + 1 :])
    x = broadcast_to(x, others[:axis] + (x.shape[axis],) + others[axis + 1 :])
    return apply(_take_along, (x, indices), (axis,))


def _but(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + (1,) + shape[axis + 1 :]


def one_hot(indices: ArrayLike, depth: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """Returns 1 at the index and 0 elsewhere, along a new last axis of length `depth`; float32 if no dtype is given.

    Raises IndexError naming the index, also a negative one: classes do not count from the end. Raises ShapeError for a negative
    depth, DTypeError.
    """
    depth = checked_length("one_hot", "depth", depth)
    place = indices.device if isinstance(indices, Tensor) else devices.default_device()
    check_room("one_hot", (depth,), 4)
    found = checked("one_hot", indices, depth, -1, place, from_end=False)
    wanted = dtypes.DEFAULT if dtype is None else dtypes.as_dtype(dtype)
    return apply(_one_hot, (found,), (depth, wanted))
