"""Reading and writing at indices: `t[...]`, `t.at[...]`, take, take_along_axis, one_hot, nonzero.

A basic index (ints, slices, None, ...) is a view. An advanced one (arrays, masks) becomes positions in the flattened tensor,
found once by indexing an array of positions, so that reading is one gather and writing one scatter, whatever the index was.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..autodiff.batching import Batched, over_all
from ..autodiff.primitive import ZERO, apply, same
from ..errors import DTypeError, ShapeError, VmapError, check_room
from ..launch import capturing, door
from ..tensors import devices, dtypes
from ..tensors.operand import as_tensor, over, steady
from ..tensors.tensor import Tensor
from ._examples import distinct, normal
from ._scatter import added, added_along, at, copied, put
from ._shapes import Shape, broadcast_shapes, length as checked_length, normalize_axis
from .batching import gather, index_write, leading, scatter, within
from .cast import in_dtype
from .elementwise import equal, less, where
from .kinds import LINEAR, OWN, no_flops, op
from .shape import SLICE, broadcast_to, copy, flatten, reshape, stack, view
from .tangents import linear

# ---- ops. Indices are integer tensors, in range after _checked; nothing flows through them.



def _reads(x: Any, indices: Any, axis: int, y: Any) -> dict[str, int]:
    """The cost of a gather: it reads what it writes, however large the table, but no more than that, and the indices."""
    return {"bytes_read": int(min(y.nbytes, x.nbytes) + indices.nbytes)}


def _table_factors(of_all: Any, g: Tensor, x_shape: Shape, indices: Tensor, axis: int) -> Any:
    from .factors import Rows

    if axis:
        return None
    at, values = of_all(indices), of_all(g)
    at = reshape(at, (at.shape[0], indices.size))
    return Rows(at, reshape(values, (*at.shape, math.prod(x_shape[1:]))), x_shape[0])


_take = op("take", example=normal((4, 3), np.array([[0, 3], [1, 0]]), params=(0,)), inputs=2, batch=gather,
           factors={0: _table_factors},
           kind=LINEAR, reference=lambda xp, x, indices, axis: xp.take(x, indices, axis=axis), cost=_reads,
           pullback=(lambda g, x_shape, indices, axis: scatter_add(g, indices, x_shape, axis), None))  # fmt: skip
_scatter_add = op("scatter_add", example=normal((2, 2, 3), np.array([[0, 3], [0, 1]]), params=((4, 3), 0)),
                  kind=LINEAR, inputs=2, batch=scatter,
                  pullback=(lambda g, indices, axis: apply(_take, (g, indices), (axis,)), None),
                  reference=lambda xp, g, indices, shape, axis: added(xp, xp.zeros(shape, g.dtype), indices, g, axis),
                  cost=lambda updates, indices, shape, axis, y: {"adds": updates.size})  # fmt: skip
_index_add = op("index_add", example=normal((4, 3), (3, 3), np.array([1, 1, 3]), params=(0,)),
                kind=OWN, inputs=3, batch=index_write, tangent=linear,
                cost=lambda x, updates, indices, axis, y: {"adds": updates.size},
                reference=lambda xp, x, updates, indices, axis: added(xp, copied(xp, x), indices, updates, axis),
                pullback=(same, lambda g, indices, axis: apply(_take, (g, indices), (axis,)), None))  # fmt: skip
_index_set = op("index_set", example=normal((4, 3), (3, 3), np.array([1, 1, 3]), params=(0,)),
                kind=OWN, inputs=3, batch=index_write, tangent=linear, cost=no_flops,
                reference=lambda xp, x, updates, indices, axis: put(xp.array(x), indices, updates, axis),
                pullback=(lambda g, indices, axis: _without(g, indices, axis),
                          lambda g, indices, axis: _last_writes(g, indices, axis), None))  # fmt: skip
_take_along = op("take_along_axis", example=normal((3, 4), np.array([[0, 3], [1, 1], [2, 0]]), params=(1,)),
                 kind=LINEAR, inputs=2, cost=_reads,
                 reference=lambda xp, x, indices, axis: xp.take_along_axis(x, indices, axis),
                 pullback=(lambda g, x_shape, indices, axis: apply(ALONG_ADD, (g, indices), (x_shape, axis)), None))  # fmt: skip
ALONG_ADD = op("along_axis_add", example=normal((3, 2), np.array([[0, 3], [1, 1], [2, 0]]), params=((3, 4), 1)),
                kind=LINEAR, inputs=2, cost=lambda updates, indices, shape, axis, y: {"adds": updates.size},
                reference=lambda xp, updates, indices, shape, axis: added_along(xp, updates, shape, indices, axis),
                pullback=(lambda g, indices, axis: apply(_take_along, (g, indices), (axis,)), None))  # fmt: skip
_one_hot = op("one_hot", example=lambda rng, dtype: ((np.array([[0, 2], [1, 1]]),), (3, dtypes.float32)),
              kind=OWN, pullback=ZERO, cost=no_flops, batch=leading,
              reference=lambda xp, x, depth, dtype: (x[..., None] == xp.arange(depth)).astype(dtype))  # fmt: skip


def scatter_add(updates: Tensor, indices: Tensor, shape: Shape, axis: int) -> Tensor:
    """Zeros of `shape` with the updates added at the indices along the axis, in order."""
    return apply(_scatter_add, (updates, indices), (shape, axis))


def _without(g: Tensor, indices: Tensor, axis: int) -> Tensor:
    """g with zeros where something was written."""
    from ..tensors.creation import zeros

    zero = zeros(g.shape[:axis] + indices.shape + g.shape[axis + 1 :], dtype=g.dtype, device=g.device)
    return apply(_index_set, (g, zero, indices), (axis,))


def _last_writes(g: Tensor, indices: Tensor, axis: int) -> Tensor:
    """The cotangent of each update; where several wrote to one place only the last one counts."""
    from ..tensors.creation import arange, zeros

    flat, order = flatten(indices), arange(indices.size, device=g.device)
    writer = apply(_index_set, (zeros((g.shape[axis],), dtype=order.dtype, device=g.device), order, flat), (0,))
    last = equal(apply(_take, (writer, flat), (0,)), order)
    mask = reshape(last, indices.shape + (1,) * (g.ndim - axis - 1))
    return apply(_take, (g, indices), (axis,)) * in_dtype(mask, g.dtype)


def _share(g: Tensor, x: Tensor, updates: Tensor, indices: Any, axis: int, y: Tensor) -> Tensor:
    """The cotangent of each result divided by how many attain the extreme there: the old element, updates, or several."""
    writers = scatter_add(_hits(updates, apply(_take, (y, indices), (axis,))), indices, y.shape, axis)
    return g / (_hits(x, y) + writers)


def _hits(x: Tensor, y: Tensor) -> Tensor:
    return in_dtype(equal(x, y), y.dtype)


def _held(g: Tensor, x: Tensor, updates: Tensor, indices: Any, axis: int, y: Tensor) -> Tensor:
    return _share(g, x, updates, indices, axis, y) * _hits(x, y)


def _winners(g: Tensor, x: Tensor, updates: Tensor, indices: Any, axis: int, y: Tensor) -> Tensor:
    share = apply(_take, (_share(g, x, updates, indices, axis, y), indices), (axis,))
    return share * _hits(updates, apply(_take, (y, indices), (axis,)))


def _extreme(name: str, ufunc: str) -> Any:
    return op(name, example=distinct((4, 3), (3, 3), np.array([1, 2, 3]), params=(0,)),
              kind=OWN, inputs=3, batch=index_write, cost=no_flops,
              reference=lambda xp, x, updates, indices, axis: at(getattr(xp, ufunc), copied(xp, x), indices, updates, axis),
              pullback=(_held, _winners, None))  # fmt: skip


_index_max, _index_min = _extreme("index_max", "maximum"), _extreme("index_min", "minimum")


# ---- indices


def _checked(name: str, indices: Any, length: int, axis: int, device: str) -> Tensor:
    """Indices as an integer tensor on the device, in [0, length). Raises IndexError naming the first bad one, DTypeError.

    Indices that a GPU holds are checked by the kernel that uses them: nothing waits here.
    """
    if isinstance(indices, Batched):
        return over_all(indices, lambda all_of_them: _checked(name, all_of_them, length, axis, device))
    array = indices.array if isinstance(indices, Tensor) else indices if devices.on_device(indices) else np.asarray(indices)
    if capturing.thread.recording is not None and array.dtype.kind in "iu":
        return over(indices, devices.move(array, device))  # the kernel checks, at every replay
    if array.size == 0:
        return Tensor(devices.cast(devices.move(array, device), np.dtype(np.int64)))
    if array.dtype.kind not in "iu":
        raise DTypeError(f"{name}: indices have dtype {array.dtype}; they must be integers. Convert with .astype(pb.int64).")
    if devices.on_host(array) and array.size:
        once = array  # each element once: a broadcast view can be larger than any memory
        if 0 in array.strides:
            once = array[tuple([slice(None) if stride else slice(1) for stride in array.strides])]
        low, high = int(once.min()), int(once.max())
        if low < -length or high >= length:
            wrong = np.argwhere((once < -length) | (once >= length))[0].tolist()
            raise IndexError(
                f"{name}: index {once[tuple(wrong)]} at position {wrong} is out of range for axis {axis} of length {length} "
                f"(from {-length} to {length - 1})."
            )
        if low < 0:
            array = np.broadcast_to(np.where(once < 0, once.astype(np.int64) + length, once), array.shape)
    return over(indices, devices.move(array, device))


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Tensor:
    """The slices at the indices along an axis; the indices' shape takes the place of the axis.

    Raises IndexError naming the index, ShapeError, DTypeError.
    """
    x = as_tensor(x)
    if axis is None:
        if x.ndim != 1:
            raise ShapeError(f"take: axis= is needed for a tensor of shape {x.shape}.")
        axis = 0
    axis = normalize_axis("take", axis, x.ndim)
    return apply(_take, (x, _checked("take", steady(indices), x.shape[axis], axis, x.device)), (axis,))


def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Tensor:
    """For each position of `indices` the element of x at that index along the axis. Raises IndexError, ShapeError."""
    x = as_tensor(x)
    axis = normalize_axis("take_along_axis", axis, x.ndim)
    checked = _checked("take_along_axis", steady(indices), x.shape[axis], axis, x.device)
    if checked.ndim != x.ndim:
        raise ShapeError(f"take_along_axis: indices have shape {checked.shape}, x {x.shape}; both need the same number of axes.")
    others = broadcast_shapes("take_along_axis", [_but(x.shape, axis), _but(checked.shape, axis)])
    indices = broadcast_to(checked, others[:axis] + (checked.shape[axis],) + others[axis + 1 :])
    x = broadcast_to(x, others[:axis] + (x.shape[axis],) + others[axis + 1 :])
    return apply(_take_along, (x, indices), (axis,))


def _but(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + (1,) + shape[axis + 1 :]


def one_hot(indices: Any, depth: int, /, *, dtype: Any = None) -> Tensor:
    """1 at the index and 0 elsewhere, along a new last axis of length `depth`; float32 where no dtype is given.

    Raises IndexError naming the index, ShapeError for a negative depth, DTypeError.
    """
    depth = checked_length("one_hot", "depth", depth)
    place = indices.device if isinstance(indices, Tensor) else devices.default_device()
    check_room("one_hot", (depth,), 4)
    checked = _checked("one_hot", indices, depth, -1, place)
    wanted = dtypes.DEFAULT if dtype is None else dtypes.as_dtype(dtype)
    return apply(_one_hot, (checked,), (depth, wanted))


def nonzero(x: Any, /) -> tuple[Tensor, ...]:
    """The int64 indices of the elements that are not zero, one tensor per axis."""
    x = as_tensor(x)
    if not x.ndim:
        raise ShapeError("nonzero: a 0-d tensor has no axes; reshape it to (1,) first.")
    with devices.working(x.device):
        found = door.through("nonzero", x.array.nonzero, lambda found: door.moved(*found, of=x.array))
    return tuple([Tensor(i) for i in found])


def argwhere(x: Any, /) -> Tensor:
    """The int64 indices of the elements that are not zero, one row each."""
    return stack(nonzero(x), axis=-1)


# ---- t[...] and t.at[...]

_BASIC = (int, slice, type(None), type(Ellipsis))


def _plain(item: Any) -> Any:
    """A tensor among the indices as its array (0-d integers as ints); one of a batch stays what it is."""
    if isinstance(item, Batched):
        return item
    if isinstance(item, Tensor):
        item = (item if item.storage is None else copy(item)).array
        if capturing.thread.recording is not None:
            return item  # 0-d too: its value may be another one at a replay
    elif isinstance(item, np.ndarray):
        item = steady(item)
    if isinstance(item, list):
        item = np.asarray([x.numpy() if isinstance(x, Tensor) else x for x in item])
        item = item.astype(np.int64) if item.size == 0 else item
    if isinstance(item, np.generic) or (hasattr(item, "ndim") and item.ndim == 0 and item.dtype.kind in "iu"):
        return int(devices.move(item, "cpu") if devices.on_device(item) else item) if item.dtype.kind in "iu" else item
    return item


def _key(index: Any) -> tuple[tuple[Any, ...], bool]:
    """The index as a tuple, and whether it is basic. Raises TypeError for what no index can be."""
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


def getitem(x: Tensor, index: Any) -> Tensor:
    """t[...] as NumPy. Raises IndexError, ShapeError."""
    key, basic = _key(index)
    if basic:
        try:
            return view(SLICE, x, key)
        except IndexError as error:
            raise IndexError(f"index {_shown(key)} of a tensor of shape {x.shape}: {error}.") from None
    rows, indices = _places(x, key)
    return apply(_take, (rows, indices), (0,))


def _places(x: Tensor, key: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """A tensor and indices into its first axis that select t[key]: the rows of x, or where it must be, its elements."""
    if len(key) == 1 and getattr(key[0], "dtype", np.dtype(bool)).kind in "iu" and x.ndim:
        return x, _checked("index", key[0], x.shape[0], 0, x.device)
    if any([isinstance(item, Batched) for item in key]) or (capturing.thread.recording is not None and _numbers_only(x, key)):
        return _numbered(x, key)
    if any([hasattr(item, "dtype") for item in key]):
        capturing.refuse("a mask, or an index after a slice,", "Use integers for the first axes, pb.take, or pb.where for a mask.")
    return flatten(x), Tensor(_positions(x, key))


def _numbered(x: Tensor, key: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """As _places, for indices that differ from example to example: integers for the first axes. Raises VmapError."""
    if not _numbers_only(x, key):
        raise VmapError(
            f"index {_shown(key)} of a tensor of shape {x.shape} under vmap: where an index differs from example to example, "
            f"all of them must be integers. Slice before or after; pb.where takes the place of a mask."
        )
    flat: Any = 0
    for axis, item in enumerate(key):
        place = _checked("index", item, x.shape[axis], axis, x.device)
        if capturing.thread.recording is not None:  # else those from the end are counted from the front by now
            place = where(less(place, 0), place + x.shape[axis], place)
        flat = flat * x.shape[axis] + within(place, x.shape[axis], 2 * x.size)
    return reshape(x, (math.prod(x.shape[: len(key)]), *x.shape[len(key) :])), flat


def _numbers_only(x: Tensor, key: tuple[Any, ...]) -> bool:
    """Whether the key is integers for the first axes."""
    return len(key) <= x.ndim and all([isinstance(k, int) or getattr(k, "dtype", np.dtype(bool)).kind in "iu" for k in key])


def _shown(key: tuple[Any, ...]) -> str:
    names = {type(Ellipsis): "...", type(None): "None"}
    return "[" + ", ".join([names.get(type(k), str(k)) for k in key]) + "]"


def _positions(x: Tensor, key: tuple[Any, ...]) -> Any:
    """Where in the flattened tensor the elements of t[key] are. Raises IndexError, ShapeError."""
    xp = devices.array_module(x.device)
    try:
        if x.device != "cpu" and not any([devices.on_device(item) for item in key]):
            np.broadcast_to(0, x.shape)[key]  # raises; a GPU would not
        places = tuple([devices.move(item, x.device) if hasattr(item, "dtype") else item for item in key])
        with devices.working(x.device):
            return xp.asarray(xp.arange(x.array.size).reshape(x.shape)[places])
    except IndexError as error:
        raise IndexError(f"index of a tensor of shape {x.shape}: {error}.") from None
    except ValueError as error:
        raise ShapeError(f"index of a tensor of shape {x.shape}: {error}.") from None


class At:
    """`t.at[index]`: a new tensor with the elements at the index changed.

    Repeated indices act in order; but `multiply` reads all elements before it writes any, as NumPy's `t[index] *= values`.
    """

    __slots__ = ("_index", "_x")

    def __init__(self, x: Tensor, index: Any = None) -> None:
        self._x, self._index = x, index

    def __getitem__(self, index: Any) -> At:
        return At(self._x, index)

    def set(self, values: Any) -> Tensor:
        return self._write(_index_set, values)

    def add(self, values: Any) -> Tensor:
        return self._write(_index_add, values)

    def max(self, values: Any) -> Tensor:
        return self._write(_index_max, values)

    def min(self, values: Any) -> Tensor:
        return self._write(_index_min, values)

    def multiply(self, values: Any) -> Tensor:
        return self.set(self._x[self._index] * values)

    def get(self) -> Tensor:
        return self._x[self._index]

    def _write(self, op: Any, values: Any) -> Tensor:
        x = self._x
        rows, indices = _places(x, _key(self._index)[0])
        shape = (*indices.shape, *rows.shape[1:])
        given = values if isinstance(values, Tensor) else as_tensor(values, device=x.device)
        if isinstance(values, Tensor) or dtypes.promote(given.dtype, x.dtype).kind != x.dtype.kind:
            updates = self._same(given)
        else:  # numbers and arrays of the tensor's kind take its dtype
            updates = as_tensor(values, dtype=x.dtype, device=x.device)
        try:
            updates = broadcast_to(updates, shape)
        except ShapeError:
            raise ShapeError(
                f"at[...].{op.name.partition('_')[2]}: the index selects shape {shape}, the values have shape "
                f"{updates.shape}. They must broadcast to it."
            ) from None
        return reshape(apply(op, (rows, updates, indices), (0,)), x.shape)

    def _same(self, values: Tensor) -> Tensor:
        if dtypes.promote(values.dtype, self._x.dtype) != self._x.dtype:
            raise DTypeError(
                f"at[...]: values of dtype {values.dtype} do not fit a tensor of dtype {self._x.dtype}. Convert one with astype."
            )
        return in_dtype(values, self._x.dtype)
