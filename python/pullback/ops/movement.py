"""Ops that move elements into new memory: joining, padding, repeating, shifting, triangles."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from operator import index
from typing import Any, Final, Literal

import numpy as np

from ..autodiff.primitive import apply
from ..errors import DTypeError, OutOfMemoryError, PullbackError, ShapeError, check_room
from ..launch import capturing
from ..tensors import devices, dtypes
from ..tensors.creation import kept as taken_in
from ..tensors.nested import has_tensor
from ..tensors.operand import Number, as_tensor, own
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from ._shapes import Shape, integer, ints, items, normalize_axis
from .by_name import in_dtype, view
from .conversion import same_dtype, settled
from .declare import no_flops, normal, op
from .elementwise import where
from .gather import take
from .kinds import MOVEMENT
from .operands import as_tensors
from .promotion import check_numbers
from .shape import SLICE, broadcast_to, expand_dims, flatten, part_of, reshape, swapaxes


def _placed(xp: Any, x: Any, shape: Shape, key: Any) -> Any:
    y = xp.zeros(shape, x.dtype)
    y[key] = x
    return y


def _concatenated(xp: Any, x: Sequence[Any], axis: int) -> Any:
    lengths = [array.shape[axis] for array in x]
    check_room("concat", (builtins.sum(lengths), *[n for i, n in enumerate(x[0].shape) if i != axis]), x[0].itemsize)
    return xp.concatenate(x, axis)


def _padded(xp: Any, x: Any, before: Shape, after: Shape, value: float) -> Any:
    if not before:  # x is 0-d, which NumPy does not pad
        return xp.array(x)
    return xp.pad(x, list(zip(before, after)), constant_values=value)


def _pad_tangent(op: Any, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """Pads with 0: the border is a constant, so its tangent is zero."""
    before, after, _ = params
    return apply(op, (tangents[0],), (before, after, 0.0))


_place = op("place", example=normal((2, 3), params=((4, 6), (slice(0, None, 2), slice(3, None)))),
            kind=MOVEMENT, reference=lambda xp, x, shape, key: _placed(xp, x, shape, key), cost=no_flops, same_bits=True,
            pullback=lambda g, key: view(SLICE, g, key))
_concat = op("concat", example=normal((2, 3), (2, 1), params=(1, (3, 1))),
             kind=MOVEMENT, variadic=True, reference=lambda xp, x, axis, lengths: _concatenated(xp, x, axis),
             adapt=lambda kernel: lambda *x: kernel([*x[:-2]], x[-2]),  # a list, in which a GPU's array is looked for
             cost=lambda x, axis, lengths, y: {"bytes_read": y.nbytes},
             joint=True, pullback=lambda g, axis, lengths, needs: _cut_up(g, axis, lengths, needs))
_pad = op("pad", example=normal((2, 3), params=((1, 0), (0, 2), 0.5)),
         kind=MOVEMENT, reference=lambda xp, x, before, after, value: _padded(xp, x, before, after, value),
         cost=no_flops, pullback=lambda g, x_shape, before: _cut_out(g, before, x_shape), tangent=_pad_tangent)


def _cut_out(g: Tensor, before: Sequence[int], shape: Sequence[int]) -> Tensor:
    return view(SLICE, g, tuple([slice(i, i + n) for i, n in zip(before, shape)]))


def _cut_up(g: Tensor, axis: int, lengths: Sequence[int], needs: Sequence[bool]) -> list[Tensor | None]:
    """Returns the part of the cotangent that belongs to each array of a concat."""
    parts, start = [], 0
    for length, need in zip(lengths, needs):
        parts.append(part_of(g, axis, slice(start, start + length)) if need else None)
        start += length
    return parts


# ---- joining


def concat(arrays: Sequence[ArrayLike], axis: int | None = 0) -> Tensor:
    """Joins arrays along an axis; with axis=None they are flattened first. Raises ShapeError, DTypeError."""
    tensors = as_tensors("concat", *items("concat", arrays))
    if not tensors:
        raise ShapeError("concat: no arrays were given.")
    if axis is None:
        tensors, axis = [flatten(t) for t in tensors], 0
    axis = normalize_axis("concat", axis, tensors[0].ndim)
    for t in tensors[1:]:
        if t.ndim != tensors[0].ndim or any([m != n for i, (m, n) in enumerate(zip(t.shape, tensors[0].shape)) if i != axis]):
            raise ShapeError(f"concat: shapes {tensors[0].shape} and {t.shape} differ in another axis than {axis}.")
    return joined(same_dtype(tensors), axis)


def joined(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Joins checked tensors by one kernel, which takes them as a list; a tape records one node with all of them as inputs."""
    return apply(_concat, tuple(tensors), (axis, tuple([t.array.shape[axis] for t in tensors])))


def stack(arrays: Sequence[ArrayLike], axis: int = 0) -> Tensor:
    """Joins arrays of one shape along a new axis. Raises ShapeError."""
    tensors = as_tensors("stack", *items("stack", arrays))
    if len({t.shape for t in tensors}) != 1:
        raise ShapeError(f"stack: all arrays need one shape, these have {sorted({t.shape for t in tensors})}.")
    axis = normalize_axis("stack", axis, tensors[0].ndim + 1)
    return concat([expand_dims(t, axis) for t in tensors], axis)


# ---- padding, shifting, repeating


# Modes of `pad` that repeat elements of x. The names are NumPy's, and PyTorch's for two of them.
PAD_MODES: Final = {
    "reflect": "reflect", "symmetric": "symmetric", "edge": "edge", "replicate": "edge", "wrap": "wrap", "circular": "wrap",
}


def pad(
    x: ArrayLike,
    pad_width: int | Sequence[int] | Sequence[Sequence[int]],
    /,
    mode: str = "constant",
    *,
    value: float = 0,
    constant_values: Any = None,
) -> Tensor:
    """Surrounds x with `value`, or with elements of x.

    Args:
        pad_width: as in NumPy an int, (before, after), or one such pair per axis.
        mode: "constant" for `value`; "reflect" mirrors x at its first and last element, "symmetric" at its ends; "edge" (or
            "replicate") repeats the first and the last element; "wrap" (or "circular") continues at the other end.
        constant_values: NumPy's name for `value`. It may also be (before, after), or one such pair per axis.

    Raises: ShapeError for an invalid pad_width or an empty axis without elements to repeat; DTypeError for a value that does not
    fit the dtype of x; PullbackError for another mode.
    """
    x = as_tensor(x)
    widths = _widths(x, pad_width)
    if mode != "constant":
        return _pad_with_elements(x, widths, mode)
    if constant_values is None:
        return _pad_with(x, widths, value)
    given: Any = as_tensor(constant_values) if has_tensor(constant_values) else constant_values
    if not (given.ndim if isinstance(given, Tensor) else np.ndim(given)):
        return _pad_with(x, widths, given)
    try:
        if isinstance(given, Tensor):
            values: Any = broadcast_to(given, (x.ndim, 2))
        else:
            values = np.broadcast_to(np.asarray(given, dtype=object), (x.ndim, 2))
    except (ValueError, ShapeError):
        shown = f"constant_values={given!r}"
        raise ShapeError(f"pad: {shown} is no number, (before, after), or pair for each of {x.ndim} axes.") from None
    for axis, pair in enumerate(widths):
        for side in (0, 1):
            if pair[side]:
                only = [[n if (i, k) == (axis, side) else 0 for k, n in enumerate(w)] for i, w in enumerate(widths)]
                x = _pad_with(x, only, values[axis, side])
    return settled(x)


def _pad_with(x: Tensor, widths: list[list[int]], value: Any) -> Tensor:
    """Surrounds x with a number. Raises DTypeError if it is not one, or does not fit the dtype of x."""
    if isinstance(value, Tensor):
        return _pad_with_tensor(x, widths, value)
    given: Any = value
    if x.dtype == dtypes.bool_ and given.__class__ is int and given in (0, 1):
        value = bool(given)
    if not isinstance(given, (bool, int, float, np.generic)):
        raise DTypeError(f"pad: value={value!r} is not a number.")
    if dtypes.with_number(x.dtype, value) != x.dtype:
        raise _does_not_fit(x, value)
    check_numbers("pad", x.dtype, (Number(value),))
    return apply(_pad, (x,), (tuple([w[0] for w in widths]), tuple([w[1] for w in widths]), value))


def _pad_with_tensor(x: Tensor, widths: list[list[int]], value: Tensor) -> Tensor:
    """Surrounds x with the only element of a tensor, to which gradients pass. Raises ShapeError, DTypeError."""
    if value.ndim:
        raise ShapeError(f"pad: the value is a tensor of shape {value.shape}, and not one number.")
    if dtypes.is_float(value.dtype) and not dtypes.is_float(x.dtype):
        raise _does_not_fit(x, value)
    outside = np.pad(np.zeros(x.shape, bool), widths, constant_values=True)
    return where(Tensor(devices.move(outside, x.device)), in_dtype(value, x.dtype), _pad_with(x, widths, 0))


def _does_not_fit(x: Tensor, value: Any) -> DTypeError:
    return DTypeError(f"pad: value {value!r} does not fit a tensor of dtype {x.dtype}. Convert the tensor with astype.")


def _widths(x: Tensor, pad_width: Any) -> list[list[int]]:
    """Returns how many elements to add before and after x along each axis. Raises ShapeError."""
    try:
        widths = np.broadcast_to(np.asarray(pad_width, dtype=object), (x.ndim, 2)).tolist()
        widths = [[index(n) for n in pair] for pair in widths]
    except (ValueError, TypeError):
        raise ShapeError(f"pad: pad_width {pad_width} is no int, (before, after), or pair for each of {x.ndim} axes.") from None
    if any([n < 0 for pair in widths for n in pair]):
        raise ShapeError(f"pad: pad_width {pad_width} is negative; index the tensor to cut it.")
    check_room("pad", [before + n + after for n, (before, after) in zip(x.shape, widths)], x.array.itemsize)
    return widths


def _pad_with_elements(x: Tensor, widths: list[list[int]], mode: str) -> Tensor:
    """Surrounds x by one gather per axis, at positions that NumPy's pad gives for 0, 1, 2, …"""
    given: Any = mode
    if not isinstance(given, str) or mode not in PAD_MODES:
        raise PullbackError(f"pad: mode={mode!r}; use 'constant', {', '.join(map(repr, PAD_MODES))}.")
    for axis, pair in enumerate(widths):
        if not any(pair):
            continue
        if not x.shape[axis]:
            raise ShapeError(f"pad: axis {axis} of shape {x.shape} has no elements that mode={mode!r} could repeat.")
        check_room("pad", (x.shape[axis] + builtins.sum(pair),), 8)
        try:
            positions: Any = np.pad(np.arange(x.shape[axis]), pair, PAD_MODES[mode])  # type: ignore[call-overload]
        except MemoryError as error:
            raise OutOfMemoryError(f"pad: {builtins.sum(pair)} elements do not fit in memory ({error}).") from error
        x = take(x, positions, axis=axis)
    return settled(x)


def roll(x: ArrayLike, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Tensor:
    """Shifts the elements along the axes cyclically; with axis=None, those of the flattened x. Raises ShapeError."""
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
            x = concat([part_of(x, along, slice(n - by, n)), part_of(x, along, slice(0, n - by))], axis=along)
    return settled(x)


def tile(x: ArrayLike, repetitions: int | Sequence[int], /) -> Tensor:
    """Repeats x as a whole along each axis, as NumPy's tile does. Raises ShapeError."""
    x = own(x)
    reps = tuple(ints("tile", "repetitions", repetitions))
    if any([r < 0 for r in reps]):
        raise ShapeError(f"tile: {repetitions} repetitions; they cannot be negative.")
    shape = (1,) * (len(reps) - x.ndim) + x.shape
    reps = (1,) * (len(shape) - len(reps)) + reps
    repeated = tuple([r * n for r, n in zip(reps, shape)])
    check_room("tile", repeated, x.array.itemsize)
    spread = reshape(x, tuple([m for n in shape for m in (1, n)]))
    spread = broadcast_to(spread, tuple([m for r, n in zip(reps, shape) for m in (r, n)]))
    return settled(reshape(spread, repeated))


def repeat(x: ArrayLike, repeats: ArrayLike, axis: int | None = None) -> Tensor:
    """Repeats each element along an axis; with axis=None, of the flattened tensor. Raises ShapeError.

    repeats: one count for all elements, or one count per position along the axis.
    """
    x = as_tensor(x)
    if axis is None:
        x, axis = flatten(x), 0
    axis = normalize_axis("repeat", axis, x.ndim)
    if isinstance(repeats, Tensor):
        capturing.refuse("repeat by counts in a tensor, which reads them on the host,", "Give the counts as a list of ints.")
    counts = devices.move(repeats.array, "cpu") if isinstance(repeats, Tensor) else np.asarray(repeats)
    if counts.dtype.kind not in "iu" or (counts < 0).any():
        raise ShapeError(f"repeat: repeats={repeats!r}; they must be integers, and not negative.")
    total = builtins.sum(counts.reshape(-1).tolist()) * (x.shape[axis] if counts.size == 1 else 1)
    check_room("repeat", (*x.shape[:axis], total, *x.shape[axis + 1 :]), builtins.max(x.array.itemsize, counts.itemsize))
    try:
        positions = np.repeat(np.arange(x.shape[axis]), counts)
    except MemoryError as error:
        raise OutOfMemoryError(f"repeat: {total} elements do not fit in memory ({error}).") from error
    except ValueError:
        raise ShapeError(f"repeat: {counts.size} counts for axis {axis} of length {x.shape[axis]}; give one for each.") from None
    return take(x, positions, axis=axis)


def meshgrid(*arrays: ArrayLike, indexing: Literal["xy", "ij"] = "xy") -> list[Tensor]:
    """Returns coordinate tensors from coordinate vectors, as NumPy's meshgrid does. They are views, and gradients pass.

    indexing: "xy" exchanges the first two axes, as in NumPy; "ij" keeps the order of the vectors. Raises
    PullbackError for anything else.
    """
    if indexing not in ("xy", "ij"):
        raise PullbackError(f'meshgrid: indexing={indexing!r}; use "xy" or "ij".')
    vectors = [taken_in(a) for a in arrays]
    shape = tuple([v.size for v in vectors])
    grids = [
        broadcast_to(reshape(v, tuple([n if j == i else 1 for j, n in enumerate(shape)])), shape) for i, v in enumerate(vectors)
    ]
    return [swapaxes(g, 0, 1) for g in grids] if indexing == "xy" and len(grids) > 1 else grids


# ---- triangles of matrices


def tril(x: ArrayLike, k: int = 0) -> Tensor:
    """Returns the lower triangle of each matrix, up to its k-th diagonal, and zeros above. Raises ShapeError for ndim < 2."""
    return _triangle("tril", x, k, lower=True)


def triu(x: ArrayLike, k: int = 0) -> Tensor:
    """Returns the upper triangle of each matrix, from its k-th diagonal, and zeros below. Raises ShapeError for ndim < 2."""
    return _triangle("triu", x, k, lower=False)


def _triangle(name: str, x: Any, k: int, *, lower: bool) -> Tensor:
    x = as_tensor(x)
    if x.ndim < 2:
        raise ShapeError(f"{name}: shape {x.shape} has no two last axes.")
    k = integer(name, "k", k)
    xp = devices.array_module(x.device)
    with devices.working(x.device):
        apart = xp.arange(x.shape[-1]) - xp.arange(x.shape[-2])[:, None]
        kept = apart <= k if lower else apart >= k
    return where(Tensor(kept), x, False if x.dtype == dtypes.bool_ else 0)
