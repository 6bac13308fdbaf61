"""Indexing: `t[...]` with NumPy's semantics, `t.at[...]`, nonzero.

A basic index (ints, slices, None, ...) gives a view. An advanced index (arrays, masks) is converted to positions in the flattened
tensor by indexing an array of positions. Every read is then one gather and every write one scatter, whatever the index is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..autodiff.batching import Batched
from ..autodiff.primitive import apply
from ..errors import DTypeError, ShapeError, VmapError
from ..interop.unknown_names import attach_hints
from ..interop.wrong_calls import explain_call
from ..launch import capturing, door
from ..tensors import devices, dtypes
from ..tensors.operand import as_tensor, converted, operand, steady
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, IndexLike
from .by_name import in_dtype, view
from .conversion import copy
from .elementwise import less, where
from .gather import checked, gathered, within
from .kinds import check_numbers
from .movement import stack
from .scatter import index_add, index_max, index_min, index_set
from .shape import SLICE, broadcast_to, flatten, reshape


def nonzero(x: ArrayLike, /) -> tuple[Tensor, ...]:
    """Returns the int64 indices of the elements that are not zero, one tensor per axis. Raises ShapeError for a 0-d tensor."""
    x = as_tensor(x)
    if not x.ndim:
        raise ShapeError("nonzero: a 0-d tensor has no axes; reshape it to (1,) first.")
    with devices.working(x.device):
        found = door.run_counted("nonzero", x.array.nonzero, lambda found: door.copy_cost(*found, of=x.array))
    return tuple([Tensor(i) for i in found])


def argwhere(x: ArrayLike, /) -> Tensor:
    """Returns the int64 indices of the elements that are not zero: one row per element. Raises ShapeError for a 0-d tensor."""
    return stack(nonzero(x), axis=-1)


# ---- t[...] and t.at[...]


_BASIC = (int, slice, type(None), type(Ellipsis))


def _plain(item: Any) -> Any:
    """Returns an index item in plain form: a tensor as its array, a 0-d integer as an int, a batched tensor as it is."""
    if isinstance(item, Batched):
        return item
    if isinstance(item, Tensor):
        item = (item if item.storage is None else copy(item)).array
        if capturing.thread.recording is not None:
            return item  # a 0-d item stays an array too: its value may differ at a replay
    elif isinstance(item, np.ndarray):
        item = steady(item)
    elif hasattr(item, "__dlpack__") and not devices.on_device(item):  # an array of another library
        item = as_tensor(item).array
    if isinstance(item, list):
        item = np.asarray([x.numpy() if isinstance(x, Tensor) else x for x in item])
        item = item.astype(np.int64) if item.size == 0 else item
    if isinstance(item, np.generic) or (hasattr(item, "ndim") and item.ndim == 0 and item.dtype.kind in "iu"):
        return int(devices.move(item, "cpu") if devices.on_device(item) else item) if item.dtype.kind in "iu" else item
    return item


def _key(index: Any) -> tuple[tuple[Any, ...], bool]:
    """Returns the index as a tuple, and True if it is basic. Raises DTypeError for an item that is not a valid index."""
    items = tuple([_plain(i) for i in index]) if isinstance(index, tuple) else (_plain(index),)
    basic = True
    for item in items:
        if isinstance(item, bool) or not isinstance(item, _BASIC):
            basic = False
            if not isinstance(item, bool) and getattr(getattr(item, "dtype", None), "kind", "") not in "iub":
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
        except IndexError as error:
            raise IndexError(f"index {_shown(key)} of a tensor of shape {x.shape}: {error}.") from None
    rows, indices = _places(x, key)
    return gathered(rows, indices, 0)


def _places(x: Tensor, key: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Returns a tensor and indices into its first axis that select x[key]. The tensor is x or, if necessary, x reshaped."""
    if len(key) == 1 and getattr(key[0], "dtype", np.dtype(bool)).kind in "iu" and x.ndim:
        return x, checked("index", key[0], x.shape[0], 0, x.device)
    if any([isinstance(item, Batched) for item in key]) or (capturing.thread.recording is not None and _numbers_only(x, key)):
        return _numbered(x, key)
    if any([hasattr(item, "dtype") for item in key]):
        capturing.refuse("a mask, or an index after a slice,", "Use integers for the first axes, pb.take, or pb.where for a mask.")
    return flatten(x), Tensor(_positions(x, key))


def _numbered(x: Tensor, key: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Returns what `_places` does, for indices that differ by example or by replay. Raises VmapError unless all are integers."""
    if not _numbers_only(x, key):
        raise VmapError(
            f"index {_shown(key)} of a tensor of shape {x.shape} under vmap: where an index differs from example to example, "
            f"all of them must be integers. Slice before or after; pb.where takes the place of a mask."
        )
    flat: Any = 0
    for axis, item in enumerate(key):
        place = checked("index", item, x.shape[axis], axis, x.device)
        if capturing.thread.recording is not None:  # otherwise `checked` has already counted them from the front
            place = where(less(place, 0), place + x.shape[axis], place)
        flat = flat * x.shape[axis] + within(place, x.shape[axis], 2 * x.size)
    return reshape(x, (math.prod(x.shape[: len(key)]), *x.shape[len(key) :])), flat


def _numbers_only(x: Tensor, key: tuple[Any, ...]) -> bool:
    """True if the key consists of integers, which index the first axes."""
    return len(key) <= x.ndim and all([isinstance(k, int) or getattr(k, "dtype", np.dtype(bool)).kind in "iu" for k in key])


def _shown(key: tuple[Any, ...]) -> str:
    names = {type(Ellipsis): "...", type(None): "None"}
    return "[" + ", ".join([names.get(type(k), str(k)) for k in key]) + "]"


def _positions(x: Tensor, key: tuple[Any, ...]) -> Any:
    """Returns the positions of the elements of x[key] in the flattened tensor. Raises IndexError, ShapeError."""
    xp = devices.array_module(x.device)
    try:
        if x.device != "cpu" and not any([devices.on_device(item) for item in key]):
            np.broadcast_to(0, x.shape)[key]  # raises for an invalid index, as a GPU would not
        places = tuple([devices.move(item, x.device) if hasattr(item, "dtype") else item for item in key])
        with devices.working(x.device):
            return xp.asarray(xp.arange(x.array.size).reshape(x.shape)[places])
    except IndexError as error:
        raise IndexError(f"index of a tensor of shape {x.shape}: {error}.") from None
    except ValueError as error:
        raise ShapeError(f"index of a tensor of shape {x.shape}: {error}.") from None


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

    @explain_call
    def set(self, values: ArrayLike) -> Tensor:
        """Returns the tensor with the values, broadcast to the selection, written at the index. Raises ShapeError, DTypeError."""
        return self._write(index_set, values)

    @explain_call
    def add(self, values: ArrayLike) -> Tensor:
        """Returns the tensor with the values added at the index."""
        return self._write(index_add, values)

    @explain_call
    def max(self, values: ArrayLike) -> Tensor:
        """Returns the tensor with each selected element replaced by the larger of itself and its value."""
        return self._write(index_max, values)

    @explain_call
    def min(self, values: ArrayLike) -> Tensor:
        """Returns the tensor with each selected element replaced by the smaller of itself and its value."""
        return self._write(index_min, values)

    @explain_call
    def multiply(self, values: ArrayLike) -> Tensor:
        """Returns the tensor with the selected elements multiplied by the values."""
        return self.set(self._x[self._index] * self._converted("at[...].multiply", values))

    @explain_call
    def get(self) -> Tensor:
        """Returns the selected elements, as t[index] does."""
        return self._x[self._index]

    def _write(self, op: Any, values: Any) -> Tensor:
        x = self._x
        rows, indices = _places(x, _key(self._index)[0])
        shape = (*indices.shape, *rows.shape[1:])
        name = f"at[...].{op.name.partition('_')[2]}"
        updates = self._converted(name, values)
        try:
            updates = broadcast_to(updates, shape)
        except ShapeError:
            raise ShapeError(
                f"{name}: the index selects shape {shape}, the values have shape {updates.shape}. They must broadcast to it."
            ) from None
        return reshape(apply(op, (rows, updates, indices), (0,)), x.shape)

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
