"""Ops that move elements and compute nothing. Most are views: no kernel is launched, no byte is moved."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autodiff.batching import Batched, innermost, run as run_batched
from ..autodiff.listeners import listeners
from ..autodiff.primitive import OPS, Op, apply, same
from ..backends.reference import run as run_reference
from ..errors import ShapeError, check_room
from ..launch import capturing
from ..launch.refusal import Refused
from ..tensors import devices, dtypes
from ..tensors.operand import as_tensor, own
from ..tensors.tensor import Parameter, Tensor
from . import reduce
from ._examples import normal
from ._shapes import Shape, block_of, broadcast_shapes, infer_shape, ints, items, normalize_axes, normalize_axis
from .batching import along_axes, broadcasting, reshaping
from .cast import in_dtype
from .kinds import LINEAR, MOVEMENT, Kind, no_flops, op
from .tangents import linear, padding


def view(op: Op, x: Tensor, *params: Any) -> Tensor:
    """Runs an op that returns a view. One of memory that can change is stale after the next change, as x is then."""
    array = x.array
    if devices.on_host(array):
        y = Tensor(op.reference(None, array, *params))
        if capturing.thread.recording is not None and y.array.size and not np.may_share_memory(y.array, array):
            y = Tensor(op.reference(None, OPS["copy"].kernel(array), *params))  # NumPy had to copy: a kernel can be replayed
    elif x.__class__ is Batched:
        return run_batched(op, (x,), params, innermost((x,)))
    else:  # CuPy may have to copy
        with devices.working(devices.device_of(array)):
            y = Tensor(op.reference(None, array, *params))
    if x.storage is not None:
        x.storage.add_view(y)
    if listeners.record is not None:
        listeners.record(op, y, (x,), params)
    return y


VIEW = Kind("view", batch=along_axes, tangent=linear, issue=lambda op, inputs, params: view(op, inputs[0], *params))

_reshape = op("reshape", example=normal((3, 4), params=((2, 6),)),
              kind=VIEW, reference=lambda xp, x, shape: x.reshape(shape), cost=no_flops,
              pullback=lambda g, x_shape: reshaped(g, x_shape), batch=reshaping)  # fmt: skip
_permute = op("permute_dims", example=normal((2, 3, 4), params=((2, 0, 1),)),
              kind=VIEW, reference=lambda xp, x, order: x.transpose(order), cost=no_flops,
              pullback=lambda g, order: permute_dims(g, inverse(order)))  # fmt: skip
_broadcast = op("broadcast_to", example=normal((3, 1), params=((2, 3, 4),)),
                kind=VIEW, reference=lambda xp, x, shape: _broadcast_array(x, shape), cost=no_flops,
                pullback=lambda g, x_shape: unbroadcast(g, x_shape), batch=broadcasting)  # fmt: skip
_flip = op("flip", example=normal((3, 4), params=((1,),)),
           kind=VIEW, reference=lambda xp, x, axes: _flipped(x, axes), cost=no_flops,
           pullback=lambda g, axes: view(_flip, g, axes))  # fmt: skip
SLICE = op("slice", example=normal((4, 5), params=((slice(1, None, 2), None, 3),)),
            kind=VIEW, reference=lambda xp, x, key: x[_open(key)], cost=no_flops,
            pullback=lambda g, x_shape, key: _placed_back(g, x_shape, key))  # fmt: skip
_place = op("place", example=normal((2, 3), params=((4, 6), (slice(0, None, 2), slice(3, None)))),
            kind=MOVEMENT, reference=lambda xp, x, shape, key: _placed(xp, x, shape, key), cost=no_flops,
            pullback=lambda g, key: view(SLICE, g, key))  # fmt: skip
_copy = op("copy", example=normal((3, 4)),
           kind=LINEAR, reference=lambda xp, x: xp.array(x, order="C"), pullback=same, cost=no_flops)
_stop = op("stop_gradient", example=normal((3, 4)),
           kind=VIEW, reference=lambda xp, x: x, pullback=None, cost=no_flops)
_alias = op("alias", example=normal((3, 4)), kind=VIEW, reference=lambda xp, x: x, pullback=same, cost=no_flops)
_to_device = op("to_device", example=normal((3, 4), params=("cpu",)),
                kind=LINEAR, reference=lambda xp, x, device: devices.move(x, device), cost=no_flops,
                pullback=lambda g, x_device: to_device(g, x_device))  # fmt: skip
_concat = op("concat", example=normal((2, 3), (2, 1), params=(1, (3, 1))),
             kind=MOVEMENT, reference=lambda xp, x, axis, lengths: xp.concatenate(x, axis),
             cost=lambda x, axis, lengths, y: {"bytes_read": y.nbytes},
             issue=lambda op, inputs, params: joined(list(inputs), params[0]),
             joint=True, pullback=lambda g, axis, lengths, needs: _cut_up(g, axis, lengths, needs))  # fmt: skip
PAD = op("pad", example=normal((2, 3), params=((1, 0), (0, 2), 0.5)),
         kind=MOVEMENT, reference=lambda xp, x, before, after, value: _padded(xp, x, before, after, value),
         cost=no_flops, pullback=lambda g, x_shape, before: _cut_out(g, before, x_shape), tangent=padding)  # fmt: skip


def _placed_back(g: Tensor, shape: Shape, key: tuple[Any, ...]) -> Tensor:
    """Zeros of the shape, with g where the key leads: by padding where that is one block, which has a kernel."""
    block = block_of(key, shape)
    if block is None and capturing.thread.recording is None:
        return apply(_place, (g,), (shape, key))
    if block is None:  # by a kernel that a replay can repeat, at positions that the shape tells
        size = math.prod(shape)
        places = Tensor(devices.move(np.arange(size).reshape(shape)[_open(key)].reshape(-1), g.device))
        zero = Tensor(devices.full(g.device, (size,), 0, g.dtype))
        return reshaped(apply(OPS["index_set"], (zero, reshaped(g, (g.size,)), places), (0,)), shape)
    before, lengths, after = block
    return apply(PAD, (reshaped(g, lengths),), (before, after, 0.0))


def _padded(xp: Any, x: Any, before: Shape, after: Shape, value: float) -> Any:
    if not before:  # NumPy does not pad one number
        return xp.array(x)
    return xp.pad(x, list(zip(before, after)), constant_values=value)


def _broadcast_array(x: Any, shape: Shape) -> Any:
    return np.broadcast_to(x, shape)  # CuPy answers NumPy's protocol


def _flipped(x: Any, axes: Shape) -> Any:
    return x[(*[slice(None, None, -1) if axis in axes else slice(None) for axis in range(x.ndim)], ...)]


def _open(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The index with an ellipsis: NumPy then gives a view of one element too, and not a scalar."""
    return key if Ellipsis in key else (*key, Ellipsis)


def _placed(xp: Any, x: Any, shape: Shape, key: Any) -> Any:
    y = xp.zeros(shape, x.dtype)
    y[key] = x
    return y


def inverse(axes: Shape) -> Shape:
    """The permutation that undoes this one."""
    result = [0] * len(axes)
    for position, axis in enumerate(axes):
        result[axis] = position
    return tuple(result)


def unbroadcast(g: Tensor, shape: Shape) -> Tensor:
    """The sum of g over the axes along which `shape` was broadcast to g's."""
    lead = g.ndim - len(shape)
    axes = tuple([axis for axis, n in enumerate(g.shape) if axis < lead or (n != 1 and shape[axis - lead] == 1)])
    total = reduce.sum_over(g, axes) if axes else g
    return total if total.shape == shape else reshape(total, shape)


# ---- public functions


def reshape(x: Any, /, shape: int | Sequence[int], *, copy: bool | None = None) -> Tensor:
    """The elements in row-major order in another shape; one length may be -1. Raises ShapeError."""
    x = own(x)
    shape = infer_shape("reshape", x.array.size, shape)
    if copy is False and not x.array.flags.c_contiguous and shape != x.array.shape:
        raise ValueError("reshape: these strides need a copy, but copy=False was asked for.")
    return view(_reshape, apply(_copy, (x,)), shape) if copy else unchanged(reshaped(x, shape))


def reshaped(x: Tensor, shape: Shape) -> Tensor:
    """reshape to a shape that is known to have as many elements."""
    array = x.array
    if shape == array.shape:
        return x
    return view(_reshape, x if array.flags.c_contiguous else apply(_copy, (x,)), shape)


def permute_dims(x: Any, /, axes: Sequence[int]) -> Tensor:
    """The axes in another order: axis i of the result is axis axes[i] of x. Raises ShapeError."""
    x = own(x)
    order = tuple([normalize_axis("permute_dims", axis, x.ndim) for axis in ints("permute_dims", "axes", axes)])
    if sorted(order) != list(range(x.ndim)):
        raise ShapeError(f"permute_dims: axes {axes} are not a permutation of the {x.ndim} axes of {x.shape}.")
    return view(_permute, x, order)


def transpose(x: Any, *axes: Any) -> Tensor:
    """NumPy's transpose: the axes reversed, or in the order given."""
    x = own(x)
    order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    return permute_dims(x, order or tuple(range(x.ndim))[::-1])


def matrix_transpose(x: Any, /) -> Tensor:
    """The last two axes exchanged. Raises ShapeError for fewer than two."""
    x = own(x)
    rank = x.array.ndim
    if rank < 2:
        raise ShapeError(f"matrix_transpose: a tensor of shape {x.shape} has no two last axes.")
    return view(_permute, x, (*range(rank - 2), rank - 1, rank - 2))


def moveaxis(x: Any, source: Any, destination: Any, /) -> Tensor:
    """The axes `source` (an int or several) moved to the positions `destination`, the others in their order."""
    x = own(x)
    here = [normalize_axis("moveaxis", axis, x.ndim) for axis in ints("moveaxis", "source", source)]
    there = [normalize_axis("moveaxis", axis, x.ndim) for axis in ints("moveaxis", "destination", destination)]
    if len(here) != len(there) or len(set(here)) < len(here) or len(set(there)) < len(there):
        raise ShapeError(f"moveaxis: axes {source} cannot go to {destination}: give as many different axes on both sides.")
    taken = dict(zip(there, here))
    rest = iter([axis for axis in range(x.ndim) if axis not in taken.values()])
    return permute_dims(x, [taken[axis] if axis in taken else next(rest) for axis in range(x.ndim)])


def swapaxes(x: Any, axis1: int, axis2: int, /) -> Tensor:
    """Two axes exchanged."""
    x = own(x)
    order = list(range(x.ndim))
    i, j = normalize_axis("swapaxes", axis1, x.ndim), normalize_axis("swapaxes", axis2, x.ndim)
    order[i], order[j] = j, i
    return permute_dims(x, order)


def broadcast_to(x: Any, /, shape: Sequence[int]) -> Tensor:
    """x repeated to the shape, without copying. Raises ShapeError where it does not fit."""
    x = own(x)
    wanted = tuple(ints("broadcast_to", "shape", shape))
    if x.array.shape == wanted:
        return unchanged(x)
    if broadcast_shapes("broadcast_to", [x.array.shape, wanted]) != wanted:
        raise ShapeError(f"broadcast_to: shape {x.shape} cannot become {wanted}; only lengths of 1 are repeated.")
    check_room("broadcast_to", wanted, x.array.itemsize)
    return view(_broadcast, x, wanted)


def broadcast_arrays(*arrays: Any) -> list[Tensor]:
    """All of them broadcast to their common shape."""
    tensors = [own(a) for a in arrays]
    shape = broadcast_shapes("broadcast_arrays", [t.shape for t in tensors])
    return [broadcast_to(t, shape) for t in tensors]


def expand_dims(x: Any, /, axis: int | Sequence[int] = 0) -> Tensor:
    """New axes of length 1 at these positions of the result. Raises ShapeError."""
    x = own(x)
    count = len(ints("expand_dims", "axis", axis))
    axes = normalize_axes("expand_dims", axis, x.ndim + count)
    lengths = iter(x.array.shape)
    return view(_reshape, x, tuple([1 if i in axes else next(lengths) for i in range(x.ndim + count)]))


def squeeze(x: Any, /, axis: int | Sequence[int] | None = None) -> Tensor:
    """Without these axes of length 1 (all of them where None). Raises ShapeError for another length."""
    x = own(x)
    axes = tuple([i for i, n in enumerate(x.shape) if n == 1]) if axis is None else normalize_axes("squeeze", axis, x.ndim)
    if any([x.shape[i] != 1 for i in axes]):
        raise ShapeError(f"squeeze: axis {axis} of shape {x.shape} has a length other than 1.")
    return view(_reshape, x, tuple([n for i, n in enumerate(x.shape) if i not in axes]))


def flatten(x: Any) -> Tensor:
    """All elements in one axis, in row-major order."""
    return reshape(x, (-1,))


def flip(x: Any, /, *, axis: int | Sequence[int] | None = None) -> Tensor:
    """The elements in reverse order along these axes (all where None)."""
    x = own(x)
    return view(_flip, x, normalize_axes("flip", axis, x.ndim))


def roll(x: Any, /, shift: int | Sequence[int], *, axis: int | Sequence[int] | None = None) -> Tensor:
    """The elements moved along the axes, those pushed out at the end coming in at the front."""
    x = own(x)
    if axis is None:
        return reshape(roll(flatten(x), builtins.sum(ints("roll", "shift", shift)), axis=0), x.shape)
    shifts, axes = ints("roll", "shift", shift), ints("roll", "axis", axis)
    if len(shifts) != len(axes) and 1 not in (len(shifts), len(axes)):
        raise ShapeError(f"roll: {len(shifts)} shifts for {len(axes)} axes; give one for each.")
    count = builtins.max(len(shifts), len(axes))
    for by, along in zip((shifts * count)[:count], (axes * count)[:count]):
        along = normalize_axis("roll", along, x.ndim)
        n = x.shape[along]
        by = by % n if n else 0
        if by:
            lead = (slice(None),) * along
            x = concat([view(SLICE, x, (*lead, slice(n - by, n))), view(SLICE, x, (*lead, slice(0, n - by)))], axis=along)
    return settled(x)


def copy(x: Any, /) -> Tensor:
    """A contiguous copy in row-major order."""
    return apply(_copy, (as_tensor(x),))


def to_device(x: Tensor, device: str) -> Tensor:
    """The tensor on the device; gradients come back to where it was. Raises DeviceError."""
    device = devices.check_device(device)
    if x.device == device:
        return unchanged(x)
    y = Tensor(_to_device.reference(None, x.array, device))
    if listeners.record is not None:
        listeners.record(_to_device, y, (x,), (device,))
    return y


def stop_gradient(x: Any, /) -> Tensor:
    """The value with gradients stopped: to every tape it is a constant. Of a Parameter or a view of one it is a copy."""
    return settled(constant(own(x)))


def constant(x: Tensor) -> Tensor:
    """x with gradients stopped, without a copy: a view of what can change."""
    return view(_stop, x)


def alias(x: Tensor) -> Tensor:
    """The same value as another one: who watches it does not watch x."""
    return view(_alias, x)


def unchanged(x: Tensor) -> Tensor:
    """x as the result of a view that had nothing to do. Of a Parameter it is another tensor, which must not follow updates."""
    return alias(x) if isinstance(x, Parameter) else x


def settled(x: Tensor) -> Tensor:
    """x as the result of a function that is no view and had nothing to do: a copy of a Parameter or of a view of one.

    So it depends on the function alone whether its result outlives an update, and not on the values of its arguments.
    """
    return x if x.storage is None else copy(x)


def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Tensor:
    """The arrays joined along an axis (flattened first where None). Raises ShapeError, DTypeError."""
    tensors = [as_tensor(a) for a in items("concat", arrays)]
    if not tensors:
        raise ShapeError("concat: no arrays were given.")
    if axis is None:
        tensors, axis = [flatten(t) for t in tensors], 0
    axis = normalize_axis("concat", axis, tensors[0].ndim)
    for t in tensors[1:]:
        if t.ndim != tensors[0].ndim or any([m != n for i, (m, n) in enumerate(zip(t.shape, tensors[0].shape)) if i != axis]):
            raise ShapeError(f"concat: shapes {tensors[0].shape} and {t.shape} differ in another axis than {axis}.")
    return joined(same_dtype(tensors), axis)


def same_dtype(tensors: list[Tensor]) -> list[Tensor]:
    dtype = dtypes.result_type(*tensors)
    return [in_dtype(t, dtype) for t in tensors]


def joined(tensors: list[Tensor], axis: int) -> Tensor:
    """concat of checked tensors: one kernel, which takes them as a list, and one node with all of them as inputs."""
    arrays = [t.array for t in tensors]
    lengths = tuple([array.shape[axis] for array in arrays])
    try:
        y = Tensor(_concat.kernel(arrays, axis))
    except Refused:
        place = innermost(tensors)
        if place >= 0:
            return run_batched(_concat, tensors, (axis, lengths), place)
        check_room("concat", (builtins.sum(lengths), *[n for i, n in enumerate(arrays[0].shape) if i != axis]), arrays[0].itemsize)
        y = Tensor(run_reference(_concat, [arrays], (axis, lengths)))
    if listeners.record is not None:
        listeners.record(_concat, y, tuple(tensors), (axis, lengths))
    return y


def _cut_out(g: Tensor, before: Sequence[int], shape: Sequence[int]) -> Tensor:
    return view(SLICE, g, tuple([slice(i, i + n) for i, n in zip(before, shape)]))


def _cut_up(g: Tensor, axis: int, lengths: Sequence[int], needs: Sequence[bool]) -> list[Tensor | None]:
    """The part of the cotangent that belongs to each array of a concat."""
    lead, parts, start = (slice(None),) * axis, [], 0
    for length, need in zip(lengths, needs):
        parts.append(view(SLICE, g, (*lead, slice(start, start + length))) if need else None)
        start += length
    return parts


def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Tensor:
    """Arrays of one shape joined along a new axis. Raises ShapeError."""
    tensors = [as_tensor(a) for a in items("stack", arrays)]
    if len({t.shape for t in tensors}) != 1:
        raise ShapeError(f"stack: all arrays need one shape, these have {sorted({t.shape for t in tensors})}.")
    return concat([expand_dims(t, axis=axis) for t in tensors], axis=normalize_axis("stack", axis, tensors[0].ndim + 1))


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, without it."""
    x = own(x)
    axis = normalize_axis("unstack", axis, x.ndim)
    lead = (slice(None),) * axis
    return tuple([view(SLICE, x, (*lead, i)) for i in range(x.shape[axis])])


def split(x: Any, sections: int | Sequence[int], /, *, axis: int = 0) -> list[Tensor]:
    """Equal parts along an axis, or parts that begin at these positions. Raises ShapeError where parts are not equal."""
    x = own(x)
    axis = normalize_axis("split", axis, x.ndim)
    n = x.shape[axis]
    places = ints("split", "sections", sections)
    if not hasattr(sections, "__iter__"):
        (sections,) = places
        if sections < 1 or n % sections:
            raise ShapeError(f"split: axis {axis} of length {n} cannot be cut into {sections} equal parts. Give positions instead.")
        check_room("split", (sections,), 2**20)  # a list of views
        edges = list(range(0, n + 1, n // sections)) if n else [0] * (sections + 1)
    else:
        edges = [0, *places, n]
    lead = (slice(None),) * axis
    return [view(SLICE, x, (*lead, slice(a, b))) for a, b in zip(edges, edges[1:])]
