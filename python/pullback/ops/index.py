"""Indexing: `t[...]` with NumPy's semantics, `t.at[...]`, nonzero.

A basic index (ints, slices, None, ...) gives a view. An advanced index (arrays, masks) is converted to positions in the flattened
tensor by indexing an array of positions. Every read is then one gather and every write one scatter, whatever the index is. Only a
write to all elements of a mask, of values whose shape does not depend on their number, selects each element instead.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..autodiff.batching import Batched
from ..autodiff.primitive import apply
from ..errors import DTypeError, ShapeError, VmapError, room_for
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
from .gather import LARGEST_INT64, checked, gathered, within
from .movement import stack
from .promotion import check_numbers
from .scatter import index_add, index_max, index_min, index_set
from .shape import SLICE, broadcast_to, flatten, reshape


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
    elif hasattr(item, "__dlpack__") and not devices.on_device(item):  # an array of another library
        item = as_tensor(item).array
    if isinstance(item, list):
        listed = as_indices(item)
        if listed.dtype == bool:
            return item
        item = listed.astype(np.int64) if listed.size == 0 else listed
    if isinstance(item, np.bool_):
        return bool(item)
    if getattr(item, "dtype", None) == np.uint64 and capturing.thread.recording is None:  # NumPy would let 2^63 be negative
        item = item.clip(None, np.uint64(LARGEST_INT64)).astype(np.int64)
    number = hasattr(item, "ndim") and item.ndim == 0 and item.dtype.kind in "iu" and capturing.thread.recording is None
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
            if not isinstance(item, (bool, list)) and getattr(getattr(item, "dtype", None), "kind", "") not in "iub":
                raise DTypeError(
                    f"index: {type(item).__name__} {getattr(item, 'dtype', '')} cannot index a tensor; use integers, slices, "
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
            raise IndexError(f"index {_shown(key)} of a tensor of shape {x.shape}: {_reason(error)}.") from None
    return gathered(*_places(x, key))


def _places(x: Tensor, key: tuple[Any, ...]) -> tuple[Tensor, Tensor, int]:
    """Returns a tensor, and indices into one of its axes that select x[key]. The tensor is x or, if necessary, x reshaped."""
    if len(key) == 1 and _kind(key[0]) in ("i", "u") and x.ndim:
        return x, checked("index", key[0], x.shape[0], 0, x.device), 0
    lead, axes, _ = _leading(x, key)
    if lead and _kind(lead[-1]) in ("i", "u") and all([_is_full(item) for item in lead[:-1]]) and axes[-1] <= x.ndim:
        axis = axes[-2]
        return x, checked("index", lead[-1], x.shape[axis], axis, x.device), axis
    if capturing.thread.recording is not None or any([isinstance(item, Batched) for item in key]):
        return *_computed(x, key), 0
    return flatten(x), Tensor(_positions(x, key)), 0


def _computed(x: Tensor, key: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Returns x reshaped, and indices into its first axis that ops compute from arrays that differ by example or by replay.

    The positions are those of the key with zeros in place of such arrays, plus each index times the stride of its axis.
    """
    key, axes, shape = _leading(x, key)
    recording = capturing.thread.recording is not None
    masks = [item for item in key if _kind(item) == "b"]
    if any([recording or isinstance(item, Batched) for item in masks]):
        capturing.refuse(_MASK, "Use pb.where(mask, x, 0), or x.at[mask].set(value).")
        raise VmapError(
            f"index {_shown(key)} of a tensor of shape {x.shape} under vmap: the number of elements that a mask selects differs "
            f"from example to example. Use pb.where(mask, x, 0), or x.at[mask].set(value)."
        )
    varying = {axes[k]: k for k, item in enumerate(key) if _kind(item) in ("i", "u")}  # by their axes
    fixed: list[Any] = [devices.move(item, "cpu") if devices.on_device(item) else item for item in key]
    for k in varying.values():
        fixed[k] = np.broadcast_to(0, key[k].shape)
    first = _at(x, shape, fixed)  # the part of the positions that does not vary
    for n in range(len(shape)):
        if n not in varying:
            first += _steps(shape, n, shape[n])[tuple(fixed)] * math.prod(shape[n + 1 :])
    terms: list[Any] = []
    for n, k in varying.items():
        index = within(checked("index", key[k], shape[n], n, x.device), shape[n], 2 * math.prod(shape) + 1)
        index = index * math.prod(shape[n + 1 :]) if n + 1 < len(shape) else index
        if index.shape not in ((), first.shape):
            numbers = np.arange(index.size).reshape(index.shape)  # of the elements of the array: which one each position uses
            used = _steps(shape, n, index.size)[(*fixed[:k], numbers, *fixed[k + 1 :])]
            index = gathered(flatten(index), Tensor(devices.move(used, x.device)), 0)
        terms.append(index)
    if bool((first != 0).any()) or first.shape not in [term.shape for term in terms]:
        terms.append(Tensor(devices.move(first, x.device)))
    return reshape(x, (math.prod(shape), *x.shape[len(shape) :])), functools.reduce(operator.add, terms)


def _steps(shape: tuple[int, ...], axis: int, length: int) -> Any:
    """Returns 0, 1, … along one axis, to which this length is given, of an array of the shape. It is a view of one row."""
    row = np.arange(length).reshape(-1, *(1,) * (len(shape) - axis - 1))
    return np.broadcast_to(row, (*shape[:axis], length, *shape[axis + 1 :]))


_MASK = "a mask, whose result has a shape that depends on values,"


def _leading(x: Tensor, key: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int], tuple[int, ...]]:
    """Returns the key without full slices at its end, the axis of x at which each item begins, and the shape that the key indexes.

    The shape is that of the first axes of x: the key leaves the remaining ones as they are. An invalid key is returned as it is.
    """
    lengths = [_axes_of(item) for item in key]
    dots = [k for k, item in enumerate(key) if item is Ellipsis]
    if dots:
        lengths[dots[0]] = max(0, x.ndim - sum(lengths) + len(dots))
    if len(dots) < 2 and sum(lengths) <= x.ndim:
        while key and _is_full(key[-1]):
            key = key[:-1]
    axes = [sum(lengths[:k]) for k in range(len(key) + 1)]
    return key, axes, x.shape[: axes[-1]]


def _axes_of(item: Any) -> int:
    """Returns the number of axes that an item of a key indexes: all axes of a mask (an array or a list of bools), or one."""
    if isinstance(item, list) or _kind(item) == "b":
        return np.ndim(item) if isinstance(item, list) else len(item.shape)
    return 0 if item is None or isinstance(item, bool) else 1


def _kind(item: Any) -> str:
    """Returns the kind of an array's dtype, "" for an item without a dtype."""
    return getattr(getattr(item, "dtype", None), "kind", "")


def _shown(key: tuple[Any, ...]) -> str:
    names = {type(Ellipsis): "...", type(None): "None"}
    return "[" + ", ".join([names.get(type(k), str(k)) for k in key]) + "]"


def _positions(x: Tensor, key: tuple[Any, ...]) -> Any:
    """Returns the positions of the elements of x[key] in the flattened tensor. Raises IndexError, ShapeError."""
    xp = devices.array_module(x.device)
    key = tuple([np.asarray(item) if isinstance(item, list) else item for item in key])
    if x.device != "cpu" and not any([devices.on_device(item) for item in key]):
        _at(x, x.shape, key)  # raises for an invalid index, as a GPU would not
    places = tuple([devices.move(item, x.device) if hasattr(item, "dtype") else item for item in key])
    with devices.working(x.device), room_for(f"index: the positions of a tensor of shape {x.shape}"):
        return xp.asarray(_indexed(x, xp.arange(x.array.size).reshape(x.shape), places))


def _at(x: Tensor, shape: tuple[int, ...], key: Sequence[Any]) -> Any:
    """Returns zeros of the shape that the key selects from the first axes of x, of this shape. Raises IndexError, ShapeError."""
    return np.zeros(_indexed(x, np.broadcast_to(0, shape), tuple(key)).shape, np.int64)


def _indexed(x: Tensor, array: Any, key: tuple[Any, ...]) -> Any:
    """Returns array[key], with errors that tell the shape of x."""
    try:
        return array[key]
    except (IndexError, OverflowError) as error:
        raise IndexError(f"index of a tensor of shape {x.shape}: {_reason(error)}.") from None
    except ValueError as error:
        raise ShapeError(f"index of a tensor of shape {x.shape}: {error}.") from None


def _reason(error: Exception) -> str:
    return "an index exceeds int64" if isinstance(error, OverflowError) else str(error)


def _is_full(item: Any) -> bool:
    """True for the items `:` and `...` of a key."""
    return item is Ellipsis or (isinstance(item, slice) and item == slice(None))


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
        rows, indices, axis = _places(x, _key(self._index)[0])
        shape = (*rows.shape[:axis], *indices.shape, *rows.shape[axis + 1 :])
        try:
            updates = broadcast_to(updates, shape)
        except ShapeError:
            raise ShapeError(
                f"at[...].{how}: the index selects shape {shape}, the values have shape {updates.shape}. They must broadcast to it."
            ) from None
        return reshape(apply(op, (rows, updates, indices), (axis,)), x.shape)

    def _masked(self, how: str, values: Tensor) -> Tensor | None:
        """Returns the result for a mask by ops on all elements, None for other indices.

        The mask is the only item but full slices and `...`, and the axis of the elements that it selects has length 1 in the
        values or is missing: one value serves them all. So the shape of the result is known before the mask is.
        """
        x = self._x
        items: Any = self._index if isinstance(self._index, tuple) else (self._index,)
        masks = [k for k, item in enumerate(items) if _kind(item) == "b"]
        if len(masks) != 1 or not all([k == masks[0] or _is_full(item) for k, item in enumerate(items)]):
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
