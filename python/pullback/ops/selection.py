"""What an index selects: a tensor, one of its axes, and indices into it, so that a read is a gather and a write is a scatter."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..autodiff.batching import Batched
from ..duck import attribute
from ..errors import ShapeError, VmapError, room_for
from ..launch import capturing
from ..tensors import devices
from ..tensors.tensor import Tensor
from .gather import checked, gathered, within
from .shape import flatten, reshape


def selected(x: Tensor, key: tuple[Any, ...]) -> tuple[Tensor, Tensor, int]:
    """Returns a tensor, and indices into one of its axes that select x[key]. The tensor is x or, if necessary, x reshaped."""
    if len(key) == 1 and kind_of(key[0]) in ("i", "u") and x.ndim:
        return x, checked("index", key[0], x.shape[0], 0, x.device), 0
    lead, axes, shape = _leading(x, key)
    if lead and kind_of(lead[-1]) in ("i", "u") and all([is_full(item) for item in lead[:-1]]) and axes[-1] <= x.ndim:
        axis = axes[-2]
        return x, checked("index", lead[-1], x.shape[axis], axis, x.device), axis
    first = next((k for k, item in enumerate(lead) if not is_full(item)), len(lead))
    if [type(item) for item in lead[first:] if item is not None] in ([int], [slice]) and axes[-1] <= x.ndim:
        _at(x, shape, lead)  # raises for an invalid index
        (numbers,), every = _coordinates(x.shape[axes[first] : axes[-1]], lead[first:])
        return x, Tensor(devices.move(np.asarray(numbers[every]), x.device)), axes[first]
    if capturing.thread.recording is not None or any([isinstance(item, Batched) for item in key]):
        return *_computed(x, key), 0
    positions = Tensor(_positions(x, shape, lead))
    return reshape(x, (math.prod(shape), *x.shape[len(shape) :])), positions, 0


def _computed(x: Tensor, key: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Returns x reshaped, and indices into its first axis that ops compute from arrays that differ by example or by replay.

    The positions are those of the key with zeros in place of such arrays, plus each index times the stride of its axis.
    """
    key, axes, shape = _leading(x, key)
    recording = capturing.thread.recording is not None
    masks = [item for item in key if kind_of(item) == "b"]
    if any([recording or isinstance(item, Batched) for item in masks]):
        capturing.refuse(_MASK, "Use pb.where(mask, x, 0), or x.at[mask].set(value).")
        raise VmapError(
            f"index {shown(key)} of a tensor of shape {x.shape} under vmap: the number of elements that a mask selects differs "
            f"from example to example. Use pb.where(mask, x, 0), or x.at[mask].set(value)."
        )
    varying = {axes[k]: k for k, item in enumerate(key) if kind_of(item) in ("i", "u")}  # by their axes
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


_MASK: Final = "a mask, whose result has a shape that depends on values,"


def _leading(x: Tensor, key: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int], tuple[int, ...]]:
    """Returns the key without full slices at its end, the axis of x at which each item begins, and the shape that the key indexes.

    The shape is that of the first axes of x: the key leaves the remaining ones as they are. An invalid key is returned as it is.
    """
    lengths = [_axes_of(item) for item in key]
    dots = [k for k, item in enumerate(key) if item is Ellipsis]
    if dots:
        lengths[dots[0]] = max(0, x.ndim - sum(lengths) + len(dots))
    if len(dots) < 2 and sum(lengths) <= x.ndim:
        while key and is_full(key[-1]):
            key = key[:-1]
    axes = [sum(lengths[:k]) for k in range(len(key) + 1)]
    return key, axes, x.shape[: axes[-1]]


def _axes_of(item: Any) -> int:
    """Returns the number of axes that an item of a key indexes: all axes of a mask (an array or a list of bools), or one."""
    if isinstance(item, list) or kind_of(item) == "b":
        return np.ndim(item) if isinstance(item, list) else len(item.shape)
    return 0 if item is None or isinstance(item, bool) else 1


def kind_of(item: Any) -> str:
    """Returns the kind of an array's dtype, "" for an item without a dtype."""
    return getattr(attribute(item, "dtype", None), "kind", "")


def shown(key: tuple[Any, ...]) -> str:
    names = {type(Ellipsis): "...", type(None): "None"}
    return "[" + ", ".join([names.get(type(k), str(k)) for k in key]) + "]"


_SMALL: Final = 2**14  # the most elements whose positions are all written down (10 us), and not those of the selection (60 us)


def _positions(x: Tensor, shape: tuple[int, ...], key: Sequence[Any]) -> Any:
    """Returns the positions of what the key selects in the first axes of x, of this shape. Raises IndexError, ShapeError."""
    key = [np.asarray(item) if isinstance(item, list) else item for item in key]
    with devices.working(x.device), room_for(f"index: the positions of a tensor of shape {x.shape}"):
        if any([devices.on_device(item) for item in key]):
            xp = devices.array_module(x.device)
            places = tuple([devices.move(item, x.device) if hasattr(item, "dtype") else item for item in key])
            return xp.asarray(_indexed(x, xp.arange(math.prod(shape)).reshape(shape), places))
        if math.prod(shape) <= _SMALL:
            return devices.move(np.asarray(_indexed(x, np.arange(math.prod(shape)).reshape(shape), tuple(key))), x.device)
        positions = _at(x, shape, key)
        coordinates, numbers = _coordinates(shape, key)
        lengths = [len(row) for row in coordinates]
        for n, row in enumerate(coordinates):
            steps = (row * math.prod(shape[n + 1 :])).reshape(-1, *(1,) * (len(shape) - n - 1))
            positions += np.broadcast_to(steps, lengths)[numbers]
        return devices.move(positions, x.device)


def _coordinates(shape: tuple[int, ...], key: Sequence[Any]) -> tuple[list[Any], tuple[Any, ...]]:
    """Returns the coordinates along each axis of this shape that a valid key selects, and the key that selects all of them.

    So the work depends on the size of the selection only.
    """
    found: list[Any] = []
    numbers: list[Any] = []
    missing = len(shape) - sum([_axes_of(item) for item in key if item is not Ellipsis])
    for item in key:
        if item is None or isinstance(item, bool):
            numbers.append(item)
        elif isinstance(item, int):
            found.append(np.array([range(shape[len(found)])[item]]))
            numbers.append(0)
        elif kind_of(item):
            for part in item.nonzero() if kind_of(item) == "b" else (item,):
                places = part.reshape(-1).astype(np.int64)
                found.append(np.where(places < 0, places + shape[len(found)], places))
                numbers.append(np.arange(part.size).reshape(part.shape))
        else:
            for part in [slice(None)] * missing if item is Ellipsis else [item]:
                selected = range(shape[len(found)])[part]
                found.append(np.arange(selected.start, selected.stop, selected.step))
                numbers.append(slice(None))
    return found, tuple(numbers)


def _at(x: Tensor, shape: tuple[int, ...], key: Sequence[Any]) -> Any:
    """Returns zeros of the shape that the key selects from the first axes of x, of this shape. Raises IndexError, ShapeError."""
    return np.zeros(_indexed(x, np.broadcast_to(0, shape), tuple(key)).shape, np.int64)


def _indexed(x: Tensor, array: Any, key: tuple[Any, ...]) -> Any:
    """Returns array[key], with errors that tell the shape of x."""
    try:
        return array[key]
    except (IndexError, OverflowError, KeyError) as error:
        raise IndexError(f"index of a tensor of shape {x.shape}: {reason_of(error)}.") from None
    except ValueError as error:
        raise ShapeError(f"index of a tensor of shape {x.shape}: {error}.") from None


def reason_of(error: Exception) -> str:
    if isinstance(error, KeyError):  # of a `__getattr__` that NumPy has called
        return "only integers, slices, None, ... and arrays of integers or bool are indices"
    return "an index exceeds int64" if isinstance(error, OverflowError) else str(error)


def is_full(item: Any) -> bool:
    """True for the items `:` and `...` of a key."""
    return item is Ellipsis or (isinstance(item, slice) and item == slice(None))
