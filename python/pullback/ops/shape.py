"""Ops that return a view: the elements of a tensor in another shape or order, without a kernel launch or a copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autodiff.block_cotangent import BlockCotangent, complete
from ..autodiff.primitive import OPS, Op, apply
from ..errors import ArgumentError, ShapeError, check_room
from ..interop.wrong_calls import flag
from ..launch import capturing
from ..tensors import devices, gpu
from ..tensors.operand import own
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, ShapeLike
from ._shapes import Shape, block_of, broadcast_shapes, infer_shape, integer, ints, length, normalize_axes, normalize_axis
from .by_name import in_place, lifted, reshaped, unbroadcast, view
from .conversion import copy as copied, unchanged
from .declare import no_flops, normal, op
from .kinds import VIEW


def _reshape_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Reshapes each example; the batch remains the first axis."""
    return reshaped(xs[0], (size, *params[0]))


def _broadcast_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Lifts each example to the rank of the shape, so that the first axis remains the batch."""
    (shape,) = params
    return broadcast_to(lifted(xs[0], len(shape)) if xs[0].ndim <= len(shape) else xs[0], (size, *shape))


def _broadcast_array(x: Any, shape: Shape) -> Any:
    return np.broadcast_to(x, shape)  # also for CuPy arrays, which implement NumPy's protocol


def _flipped(x: Any, axes: Shape) -> Any:
    return x[(*[slice(None, None, -1) if axis in axes else slice(None) for axis in range(x.ndim)], ...)]


def _windows(x: Any, axis: int, size: int, step: int) -> Any:
    shape = (*x.shape[:axis], (x.shape[axis] - size) // step + 1, *x.shape[axis + 1 :], size)
    strides = (*x.strides[:axis], x.strides[axis] * step, *x.strides[axis + 1 :], x.strides[axis])
    if isinstance(x, np.ndarray):
        return np.lib.stride_tricks.as_strided(x, shape, strides, subok=True)
    return gpu.need().xp.lib.stride_tricks.as_strided(x, shape, strides)


def _overlapped(g: Tensor, shape: Shape, axis: int, size: int, step: int) -> Tensor:
    """Adds each element of the windows to the place that it was read from: the transpose of a gather."""
    windows = moveaxis(g, -1, axis + 1)
    positions = np.arange(windows.shape[axis])[:, None] * step + np.arange(size)
    return apply(OPS["scatter_add"], (windows, Tensor(devices.move(positions, g.device))), (shape, axis))


def _open(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the index with an ellipsis, so that NumPy returns a view even for a single element, and not a scalar."""
    return key if Ellipsis in key else (*key, Ellipsis)


_reshape = op("reshape", example=normal((3, 4), params=((2, 6),)),
              kind=VIEW, reference=lambda xp, x, shape: x.reshape(shape), cost=no_flops,
              pullback=lambda g, x_shape: reshaped(g, x_shape), batch=_reshape_each)
_permute = op("permute_dims", example=normal((2, 3, 4), params=((2, 0, 1),)),
              kind=VIEW, reference=lambda xp, x, order: x.transpose(order), cost=no_flops,
              pullback=lambda g, order: permute_dims(g, inverse(order)))
_broadcast = op("broadcast_to", example=normal((3, 1), params=((2, 3, 4),)),
                kind=VIEW, reference=lambda xp, x, shape: _broadcast_array(x, shape), cost=no_flops,
                pullback=lambda g, x_shape: unbroadcast(g, x_shape), batch=_broadcast_each)
_flip = op("flip", example=normal((3, 4), params=((1,),)),
           kind=VIEW, reference=lambda xp, x, axes: _flipped(x, axes), cost=no_flops,
           pullback=lambda g, axes: view(_flip, g, axes))
_unfold = op("unfold", example=normal((2, 7), params=(1, 3, 2)),
             kind=VIEW, reference=lambda xp, x, axis, size, step: _windows(x, axis, size, step), cost=no_flops,
             pullback=lambda g, x_shape, axis, size, step: _overlapped(g, x_shape, axis, size, step))
SLICE = op("slice", example=normal((4, 5), params=((slice(1, None, 2), None, 3),)),
            kind=VIEW, reference=lambda xp, x, key: x[_open(key)], cost=no_flops,
            pullback=lambda g, x_shape, key: _placed_back(g, x_shape, key))


def part_of(x: Tensor, axis: int, steps: int | slice) -> Tensor:
    """Returns the steps of x along the axis, which counts from the front, as a view."""
    return view(SLICE, x, (*(slice(None),) * axis, steps))


def _placed_back(g: Tensor, shape: Shape, key: tuple[Any, ...]) -> Tensor:
    """Returns zeros of the shape with g at x[key]."""
    return complete(_block_of_zeros(g, shape, key))


def _block_of_zeros(g: Tensor, shape: Shape, key: tuple[Any, ...]) -> Tensor | BlockCotangent:
    """Returns zeros of the shape with g at x[key], as a BlockCotangent if the key selects one block."""
    block = block_of(key, shape)
    if block is None and capturing.thread.recording is None:
        return apply(OPS["place"], (g,), (shape, key))
    if block is None:  # use a kernel, which a replay can repeat; shape and key determine the positions
        size = math.prod(shape)
        places = Tensor(devices.move(np.arange(size).reshape(shape)[_open(key)].reshape(-1), g.device))
        zero = Tensor(devices.full(g.device, (size,), 0, g.dtype))
        return reshaped(apply(OPS["index_set"], (zero, reshaped(g, (g.size,)), places), (0,)), shape)
    before, lengths, after = block
    return BlockCotangent(reshaped(g, lengths), before, after)


SLICE.rules[0].fused = _block_of_zeros  # type: ignore[union-attr]


def inverse(axes: Shape) -> Shape:
    """Returns the permutation that undoes this one."""
    result = [0] * len(axes)
    for position, axis in enumerate(axes):
        result[axis] = position
    return tuple(result)


# ---- public functions


def reshape(x: ArrayLike, /, shape: ShapeLike, *, copy: bool | None = None) -> Tensor:
    """Returns the elements in row-major order in another shape; one length may be -1. Raises ShapeError.

    copy: True always copies; False raises ValueError if x must be copied; None copies only if necessary.
    """
    x = own(x)
    shape = infer_shape("reshape", x.array.size, shape)
    copy = copy if copy is None else flag("reshape", "copy", copy)
    if copy is False and not in_place(x.array, shape):
        raise ArgumentError("reshape: these strides need a copy, but copy=False was asked for.")
    if copy:
        return view(_reshape, copied(x), shape)
    y = reshaped(x, shape)
    return unchanged(x) if y is x else y


def permute_dims(x: ArrayLike, /, axes: Sequence[int]) -> Tensor:
    """Puts the axes in another order: axis i of the result is axis axes[i] of x. Raises ShapeError."""
    x = own(x)
    order = tuple([normalize_axis("permute_dims", axis, x.ndim) for axis in ints("permute_dims", "axes", axes)])
    if sorted(order) != list(range(x.ndim)):
        raise ShapeError(f"permute_dims: axes {axes} are not a permutation of the {x.ndim} axes of {x.shape}.")
    return view(_permute, x, order)


def transpose(x: ArrayLike, *axes: int | Sequence[int]) -> Tensor:
    """Reverses the axes, or puts them in the given order, as NumPy's transpose does. Raises ShapeError."""
    x = own(x)
    order: Any = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    return permute_dims(x, order or tuple(range(x.ndim))[::-1])


def matrix_transpose(x: ArrayLike, /) -> Tensor:
    """Exchanges the last two axes. Raises ShapeError for fewer than two."""
    x = own(x)
    rank = x.array.ndim
    if rank < 2:
        raise ShapeError(
            f"matrix_transpose: x has shape {x.shape}; its last two axes must be the rows and columns of matrices. x[:, None] is a "
            f"column, and x[None] a row."
        )
    return view(_permute, x, (*range(rank - 2), rank - 1, rank - 2))


def moveaxis(x: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int], /) -> Tensor:
    """Moves the axes `source` (one or several) to the positions `destination`; the others keep their order. Raises ShapeError."""
    x = own(x)
    here = [normalize_axis("moveaxis", axis, x.ndim) for axis in ints("moveaxis", "source", source)]
    there = [normalize_axis("moveaxis", axis, x.ndim) for axis in ints("moveaxis", "destination", destination)]
    if len(here) != len(there) or len(set(here)) < len(here) or len(set(there)) < len(there):
        raise ShapeError(f"moveaxis: axes {source} cannot go to {destination}: give as many different axes on both sides.")
    taken = dict(zip(there, here))
    rest = iter([axis for axis in range(x.ndim) if axis not in taken.values()])
    return permute_dims(x, [taken[axis] if axis in taken else next(rest) for axis in range(x.ndim)])


def swapaxes(x: ArrayLike, axis1: int, axis2: int, /) -> Tensor:
    """Exchanges two axes. Raises ShapeError."""
    x = own(x)
    order = list(range(x.ndim))
    i, j = normalize_axis("swapaxes", axis1, x.ndim), normalize_axis("swapaxes", axis2, x.ndim)
    order[i], order[j] = j, i
    return permute_dims(x, order)


def broadcast_to(x: ArrayLike, /, shape: ShapeLike) -> Tensor:
    """Returns x broadcast to the shape, without copying. Raises ShapeError if it does not fit."""
    x = own(x)
    wanted = tuple(ints("broadcast_to", "shape", shape))
    if x.array.shape == wanted:
        return unchanged(x)
    if broadcast_shapes("broadcast_to", [x.array.shape, wanted]) != wanted:
        raise ShapeError(f"broadcast_to: shape {x.shape} cannot become {wanted}; only lengths of 1 are repeated.")
    check_room("broadcast_to", wanted, x.array.itemsize)
    return view(_broadcast, x, wanted)


def broadcast_arrays(*arrays: ArrayLike) -> list[Tensor]:
    """Returns all arrays broadcast to their common shape, without copying. Raises ShapeError."""
    tensors = [own(a) for a in arrays]
    shape = broadcast_shapes("broadcast_arrays", [t.shape for t in tensors])
    return [broadcast_to(t, shape) for t in tensors]


def expand_dims(x: ArrayLike, axis: int | Sequence[int] = 0) -> Tensor:
    """Inserts axes of length 1 so that they have these positions in the result. Raises ShapeError."""
    x = own(x)
    count = len(ints("expand_dims", "axis", axis))
    axes = normalize_axes("expand_dims", axis, x.ndim + count)
    lengths = iter(x.array.shape)
    return view(_reshape, x, tuple([1 if i in axes else next(lengths) for i in range(x.ndim + count)]))


def squeeze(x: ArrayLike, axis: int | Sequence[int] | None = None) -> Tensor:
    """Removes these axes of length 1 (None: all axes of length 1). Raises ShapeError for an axis of another length."""
    x = own(x)
    axes = tuple([i for i, n in enumerate(x.shape) if n == 1]) if axis is None else normalize_axes("squeeze", axis, x.ndim)
    if any([x.shape[i] != 1 for i in axes]):
        raise ShapeError(f"squeeze: axis {axis} of shape {x.shape} has a length other than 1.")
    return view(_reshape, x, tuple([n for i, n in enumerate(x.shape) if i not in axes]))


def flatten(x: ArrayLike) -> Tensor:
    """Returns all elements as a vector, in row-major order."""
    return reshape(x, (-1,))


def flip(x: ArrayLike, axis: int | Sequence[int] | None = None) -> Tensor:
    """Reverses the order of the elements along these axes (None: all axes). Raises ShapeError."""
    x = own(x)
    return view(_flip, x, normalize_axes("flip", axis, x.ndim))


def rot90(x: ArrayLike, /, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """Rotates x by k quarter turns, from the first of the two axes towards the second. Raises ShapeError."""
    x = own(x)
    turns = integer("rot90", "k", k) % 4
    pair = [normalize_axis("rot90", axis, x.ndim) for axis in ints("rot90", "axes", axes)]
    if len(pair) != 2 or pair[0] == pair[1]:
        raise ShapeError(f"rot90: axes={axes!r} are not two different axes of shape {x.shape}.")
    if turns == 2:
        return flip(x, axis=pair)
    if turns == 0:
        return unchanged(x)
    return swapaxes(flip(x, axis=pair[1]), *pair) if turns == 1 else flip(swapaxes(x, *pair), axis=pair[1])


def unfold(x: ArrayLike, /, axis: int, size: int, step: int = 1) -> Tensor:
    """Returns the windows of `size` elements that start at every `step`-th position of an axis, as a view.

    The axis has one position per window, and a new last axis holds their elements, as in PyTorch's Tensor.unfold.
    Shape: (…, n, *) gives (…, (n - size) // step + 1, *, size). Raises ShapeError.
    """
    x = own(x)
    axis = normalize_axis("unfold", axis, x.ndim)
    size, step = length("unfold", "size", size), length("unfold", "step", step)
    if size > x.shape[axis] or step < 1:
        raise ShapeError(
            f"unfold: windows of size={size} at every step={step} of axis {axis} of shape {x.shape}; size can be at most "
            f"{x.shape[axis]}, and step must be at least 1."
        )
    return view(_unfold, x, axis, size, min(step, x.shape[axis] - size + 1))  # a longer step leaves one window, too


def unstack(x: ArrayLike, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Returns the slices along an axis, without that axis. Raises ShapeError."""
    x = own(x)
    axis = normalize_axis("unstack", axis, x.ndim)
    return tuple([part_of(x, axis, i) for i in range(x.shape[axis])])


def split(x: ArrayLike, sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Splits x along an axis into views. Raises ShapeError.

    sections: the number of equal parts, or the positions at which x is cut.
    """
    x = own(x)
    axis = normalize_axis("split", axis, x.ndim)
    n = x.shape[axis]
    places = ints("split", "sections", sections)
    if not hasattr(sections, "__iter__"):
        (sections,) = places
        if sections < 1 or n % sections:
            raise ShapeError(f"split: axis {axis} of length {n} cannot be cut into {sections} equal parts. Give positions instead.")
        check_room("split", (sections,), 2**20)  # the list of views must fit in memory
        edges = list(range(0, n + 1, n // sections)) if n else [0] * (sections + 1)
    else:
        edges = [0, *places, n]
    return [part_of(x, axis, slice(a, b)) for a, b in zip(edges, edges[1:])]
