"""Indexing: `t[...]` with NumPy's semantics, `t.at[...]`, nonzero.

A basic index (ints, slices, None, ...) gives a view. An advanced index (arrays, masks), and the index of a write, is converted to
indices into one axis of the tensor, or of the tensor with its first axes joined. Every read is then one gather and every write one
scatter, whatever the index is. Only a write to all elements of a mask, of values whose shape does not depend on their number,
selects each element instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..autodiff.batching import Batched
from ..autodiff.primitive import apply
from ..duck import attribute, has
from ..errors import DTypeError, ShapeError, room_for
from ..interop.unknown_names import attach_hints
from ..launch import capturing, door
from ..tensors import devices, dtypes
from ..tensors.nested import as_indices, has_tensor
from ..tensors.operand import as_tensor, converted, operand, steady
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, IndexLike
from .by_name import in_dtype, view
from .conversion import copy
from .elementwise import add, maximum, minimum, multiply, where
from .gather import LARGEST_INT64, gathered
from .movement import stack
from .promotion import check_numbers
from .scatter import index_add, index_max, index_min, index_set
from .selection import is_full, kind_of, reason_of, selected, shown
from .shape import SLICE, broadcast_to, reshape


def nonzero(x: ArrayLike, /) -> tuple[Tensor, ...]:
    """Returns the int64 indices of the elements that are not zero, one tensor per axis. Raises ShapeError for a 0-d tensor."""
    x = as_tensor(x)
    if not x.ndim:
        raise ShapeError("nonzero: a 0-d tensor has no axes; reshape it to (1,) first.")
    with devices.working(x.device), room_for("nonzero: the indices"):
        found = door.run_counted("nonzero", x.array.nonzero, lambda found: door.copy_cost(*found, of=x.array))
    return tuple([Tensor(i) for i in found])


def argwhere(x: ArrayLike, /) -> Tensor:
    """Returns the int64 indices of the elements that are not zero: one row per element. Raises ShapeError for a 0-d tensor."""
    return stack(nonzero(x), axis=-1)


# ---- t[...] and t.at[...]


_BASIC = (int, slice, type(None), type(Ellipsis))


def _plain(item: Any) -> Any:
    """Returns an index item in plain form: a tensor as its array, a 0-d integer as an int, a batched tensor as it is.

    In a captured function a 0-d array stays one, because its value may differ at a replay. A list's value does not, so that a list
    of bools stays a list, by which it can be told from a mask in an array.
    """
    if has_tensor(item):
        item = as_tensor(item)
    if isinstance(item, Batched):
        return item
    if isinstance(item, Tensor):
        item = (item if item.storage is None else copy(item)).array
    elif isinstance(item, np.ndarray):
        item = steady(item)
    elif has(item, "__dlpack__") and not devices.on_device(item):  # an array of another library
        item = as_tensor(item).array
    if isinstance(item, list):
        listed = as_indices(item)
        if listed.dtype == bool:
            return item
        item = listed.astype(np.int64) if listed.size == 0 else listed
    if isinstance(item, np.bool_):
        return bool(item)
    if attribute(item, "dtype", None) == np.uint64 and capturing.thread.recording is None:  # NumPy would let 2^63 be negative
        item = item.clip(None, np.uint64(LARGEST_INT64)).astype(np.int64)
    number = has(item, "ndim") and item.ndim == 0 and item.dtype.kind in "iu" and capturing.thread.recording is None
    if isinstance(item, np.generic) or number:
        return int(devices.move(item, "cpu") if devices.on_device(item) else item) if item.dtype.kind in "iu" else item
    return item


def _key(index: Any) -> tuple[tuple[Any, ...], bool]:
    """Returns the index as a tuple, and True if it is basic. Raises DTypeError for an item that is not a valid index."""
    items = tuple([_plain(i) for i in index]) if isinstance(index, tuple) else (_plain(index),)
    basic = True
    for item in items:
        if isinstance(item, bool) or not isinstance(item, _BASIC):
            basic = False
            if isinstance(item, dict) or (not isinstance(item, (bool, list)) and kind_of(item) not in "iub"):
                raise DTypeError(
                    f"index: {type(item).__name__} {attribute(item, 'dtype', '')} cannot index a tensor; use integers, slices, "
                    f"None, ..., or arrays of integers or bool."
                )
    return items, basic


def getitem(x: Tensor, index: IndexLike, /) -> Tensor:
    """Returns t[...] as NumPy does. Raises IndexError, ShapeError."""
    key, basic = _key(index)
    if basic:
        try:
            return view(SLICE, x, key)
        except (IndexError, OverflowError) as error:  # an integer above int64 is an OverflowError
            raise IndexError(f"index {shown(key)} of a tensor of shape {x.shape}: {reason_of(error)}.") from None
    return gathered(*selected(x, key))


def _neutral(x: Tensor, of_floats: float) -> Any:
    """Returns 0 or 1, the number that changes no element of x, in its kind. -0.0 does not even change the sign of a zero."""
    return of_floats if dtypes.is_float(x.dtype) else x.dtype.type(of_floats).item()


# What `t.at[mask]` does with (mask, values, x).
_MASKED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "set": where,
    "add": lambda mask, values, x: add(x, where(mask, values, _neutral(x, -0.0))),
    "multiply": lambda mask, values, x: multiply(x, where(mask, values, _neutral(x, 1.0))),
    "max": lambda mask, values, x: where(mask, maximum(x, values), x),
    "min": lambda mask, values, x: where(mask, minimum(x, values), x),
}

# The ops that combine each selected element with its value, if no element is selected twice.
_ALONE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"index_add": add, "index_max": maximum, "index_min": minimum}

_RANK = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2}  # of the kinds of dtypes: a list converts to its own kind and to higher ones


@attach_hints
class At:
    """`t.at[index]`: its methods return a new tensor with the elements at the index changed.

    Updates at repeated indices are applied in order. `multiply` however reads all elements before it writes any, as NumPy's
    `t[index] *= values` does. Python numbers, NumPy's numbers and lists of them take the tensor's dtype; DTypeError says that one
    does not fit it. Arrays of the tensor's kind of dtype are converted, too.
    """

    __slots__ = ("_index", "_x")

    def __init__(self, x: Tensor, index: IndexLike = None) -> None:
        self._x, self._index = x, index

    def __getitem__(self, index: IndexLike) -> At:
        return At(self._x, index)

    def set(self, values: ArrayLike) -> Tensor:
        """Returns the tensor with the values, broadcast to the selection, written at the index. Raises ShapeError, DTypeError."""
        return self._write(index_set, values)

    def add(self, values: ArrayLike) -> Tensor:
        """Returns the tensor with the values added at the index."""
        return self._write(index_add, values)

    def max(self, values: ArrayLike) -> Tensor:
        """Returns the tensor with each selected element replaced by the larger of itself and its value."""
        return self._write(index_max, values)

    def min(self, values: ArrayLike) -> Tensor:
        """Returns the tensor with each selected element replaced by the smaller of itself and its value."""
        return self._write(index_min, values)

    def multiply(self, values: ArrayLike) -> Tensor:
        """Returns the tensor with the selected elements multiplied by the values."""
        factors = self._converted("at[...].multiply", values)
        y = self._masked("multiply", factors)
        return self.set(self._x[self._index] * factors) if y is None else y

    def get(self) -> Tensor:
        """Returns the selected elements, as t[index] does."""
        return self._x[self._index]

    def _write(self, op: Any, values: Any) -> Tensor:
        how, x = op.name.partition("_")[2], self._x
        updates = self._converted(f"at[...].{how}", values)
        y = self._masked(how, updates)
        if y is not None:
            return y
        key, basic = _key(self._index)
        rows, indices, axis = selected(x, key)
        shape = (*rows.shape[:axis], *indices.shape, *rows.shape[axis + 1 :])
        try:
            updates = broadcast_to(updates, shape)
        except ShapeError:
            raise ShapeError(
                f"at[...].{how}: the index selects shape {shape}, the values have shape {updates.shape}. They must broadcast to it."
            ) from None
        if basic and op.name in _ALONE and x.dtype.kind in "iu":  # kernels convert all integers to int64 and back
            op, updates = index_set, _ALONE[op.name](gathered(rows, indices, axis), updates)
        return reshape(apply(op, (rows, updates, indices), (axis,)), x.shape)

    def _masked(self, how: str, values: Tensor) -> Tensor | None:
        """Returns the result for a mask by ops on all elements, None for other indices.

        The mask is the only item but full slices and `...`, and the axis of the elements that it selects has length 1 in the
        values or is missing: one value serves them all. So the shape of the result is known before the mask is.
        """
        x = self._x
        items: Any = self._index if isinstance(self._index, tuple) else (self._index,)
        masks = [k for k, item in enumerate(items) if kind_of(item) == "b"]
        if len(masks) != 1 or not all([k == masks[0] or is_full(item) for k, item in enumerate(items)]):
            return None
        mask, before, after = as_tensor(items[masks[0]], device=x.device), items[: masks[0]], items[masks[0] + 1 :]
        axis = x.ndim - mask.ndim - len(after) if Ellipsis in before else len(before)
        tail = x.ndim - mask.ndim - axis
        lead = values.ndim - tail - 1  # the axes of the values before that of the selected elements
        if mask.shape != x.shape[axis : x.ndim - tail] or (*before, *after).count(Ellipsis) > 1 or len(items) - 1 > x.ndim:
            return None
        if lead >= 0:
            if values.shape[lead] != 1:
                return None
            values = reshape(values, (*values.shape[:lead], *(1,) * mask.ndim, *values.shape[lead + 1 :]))
        if values.ndim > x.ndim or any([n not in (1, m) for n, m in zip(values.shape[::-1], x.shape[::-1])]):
            return None
        return _MASKED[how](reshape(mask, (*mask.shape, *(1,) * tail)), values, x)

    def _converted(self, name: str, values: Any) -> Tensor:
        """Returns the values in the tensor's dtype, which numbers and lists take if they fit. Raises DTypeError."""
        dtype, device = self._x.dtype, self._x.device
        if isinstance(values, (int, float)) or (isinstance(values, np.generic) and values.dtype.kind in "fiub"):
            number = operand(values, op=name)
            if dtypes.with_number(dtype, number.array) != dtype:
                raise DTypeError(f"{name}: {number.array} does not fit a tensor of dtype {dtype}. Convert the tensor with astype.")
            check_numbers(name, dtype, [number])
            return as_tensor(number.array, dtype=dtype, device=device)
        if not isinstance(values, Tensor):
            given = converted(name, "values", values, lambda v: as_tensor(v, device=device))
            listed = isinstance(values, (list, tuple)) and _RANK[given.dtype.kind] <= _RANK[dtype.kind]
            if listed or dtypes.promote(given.dtype, dtype).kind == dtype.kind:
                return converted(name, "values", values, lambda v: as_tensor(v, dtype=dtype, device=device))
            values = given
        if dtypes.promote(values.dtype, dtype) != dtype:
            raise DTypeError(
                f"{name}: values of dtype {values.dtype} do not fit a tensor of dtype {dtype}. Convert one with astype."
            )
        return in_dtype(values, dtype)
