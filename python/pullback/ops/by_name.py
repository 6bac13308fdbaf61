"""Basic ops that the rules of every family call by name: views, sums, copies and conversions.

If two ops are each other's derivative, as `broadcast_to` and `sum` are, the rule of one is declared before the other op exists.
Such a rule looks the later op up in the registry: `OPS["sum"]`. All other ops are imported from the families listed before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..autodiff import scalars
from ..autodiff.batching import Batch, Batched, belongs, innermost, run
from ..autodiff.listeners import listeners
from ..autodiff.primitive import OPS, Op, apply, tell
from ..errors import check_room
from ..launch import capturing
from ..tensors import devices, dtypes
from ..tensors.operand import own
from ..tensors.tensor import Tensor
from ._shapes import Shape, keeps_places


def view(op: Op, x: Tensor, *params: Any) -> Tensor:
    """Runs an op that returns a view of x. If the memory of x is updated later, the view becomes stale, as x does."""
    array = x.array
    if type(array) is np.ndarray:  # devices.on_host(array), inlined to save a call
        y = Tensor(op.reference(None, array, *params))
        if capturing.thread.recording is not None and y.array.size and not np.may_share_memory(y.array, array):
            y = Tensor(op.reference(None, OPS["copy"].kernel(array), *params))  # NumPy copied: use a kernel, which can be replayed
    elif x.__class__ is Batched:
        return run(op, (x,), params, innermost((x,)))
    elif x.__class__ is scalars.Scalar:
        return scalars.run(op, (x,), params, OPS["cast"])
    else:  # on the right device, because CuPy may have to copy
        with devices.working(devices.device_of(array)):
            y = Tensor(op.reference(None, array, *params))
    if x.storage is not None:
        x.storage.add_view(y)
    return tell(op, y, (x,), params)


def reshaped(x: Tensor, shape: Shape) -> Tensor:
    """Returns x in another shape, a view unless elements must move. The caller has checked that their number is the same."""
    array = x.array
    if shape == array.shape:
        return x
    return view(OPS["reshape"], x if in_place(array, shape) else apply(OPS["copy"], (x,)), shape)


def in_place(array: Any, shape: Shape) -> bool:
    """Returns whether the array can be read in this shape, of the same size, without moving elements."""
    return array.flags.c_contiguous or keeps_places(array.shape, array.strides, shape)


def repeated(x: Tensor, shape: Shape) -> Tensor:
    """Returns x broadcast to `shape` without copying. The caller has checked that the shape fits."""
    if x.array.shape == shape:
        return x
    check_room("broadcast_to", shape, x.array.itemsize)
    return view(OPS["broadcast_to"], x, shape)


def padded(x: Tensor, before: Shape, after: Shape) -> Tensor:
    """Returns x with this many zeros before and after it along each axis; x itself if there are none."""
    return apply(OPS["pad"], (x,), (before, after, 0.0)) if any(before) or any(after) else x


def unbroadcast(g: Tensor, shape: Shape) -> Tensor:
    """Returns g summed over the axes along which an input of this shape was broadcast to the shape of g."""
    lead = g.ndim - len(shape)
    axes = tuple([axis for axis, n in enumerate(g.shape) if axis < lead or (n != 1 and shape[axis - lead] == 1)])
    total = apply(OPS["sum"], (g,), (axes, False)) if axes else g
    return reshaped(total, shape)


def in_dtype(x: Any, dtype: Any) -> Tensor:
    """Returns the tensor in that dtype. If x already has it, returns x itself, even if x is a Parameter."""
    x = own(x)
    wanted = dtypes.as_dtype(dtype)
    if x.dtype == wanted:
        return x
    if x.dtype.kind == "V":
        dtypes.bfloat16()
    return apply(OPS["cast" if dtypes.is_float(wanted) and dtypes.is_float(x.dtype) else "truncate"], (x,), (wanted,))


def in_float(x: Tensor) -> Tensor:
    """Returns a tensor of integers or bools in float32, and any other tensor as it is."""
    return x if dtypes.is_float(x.dtype) else in_dtype(x, dtypes.DEFAULT)


def widened(x: Tensor) -> Tensor:
    """Returns a tensor of half precision in float32, and any other tensor as it is."""
    return in_dtype(x, dtypes.float32) if x.array.itemsize == 2 else x


# ---- examples of a batch


def spread(x: Tensor, size: int) -> Tensor:
    """Returns x repeated along a new first axis, without copying."""
    return repeated(x, (size, *x.array.shape))


def of_all(x: Tensor, batch: Batch) -> Tensor:
    """Returns the values of all examples along a first axis. x is a value of `batch`, or one that all examples share."""
    return x.value if belongs(x, batch) else spread(x, batch.size)


def all_on(size: int, xs: Sequence[Any], on: Sequence[bool]) -> list[Any]:
    """Returns every input with the batch as its first axis."""
    return [x if b else spread(x, size) for x, b in zip(xs, on)]


def lifted(x: Tensor, rank: int) -> Tensor:
    """Returns a batch with axes of length 1 inserted after the batch axis, so that each example has `rank` axes."""
    shape = x.array.shape
    return reshaped(x, (shape[0], *(1,) * (rank + 1 - len(shape)), *shape[1:]))


def aligned(xs: Sequence[Any], on: Sequence[bool], least: int = 0) -> list[Any]:
    """Returns the inputs with the examples of all of them lifted to one rank, at least `least`.

    Otherwise a batch of 2 with examples of shape (3,) would broadcast with an unbatched (2, 3), row by row.
    """
    ranks = [len(x.shape) - b for x, b in zip(xs, on)]
    rank = max(least, *ranks)
    return [lifted(x, rank) if b and own < rank else x for x, b, own in zip(xs, on, ranks)]


def per_example(x: Tensor, but: Sequence[Batch] = ()) -> Tensor:
    """Returns an unbatched tensor as a member of every running batch, so that each example draws different random numbers.

    Batches of directions and the batches in `but` are left out.
    """
    for listener in listeners.stack:
        if isinstance(listener, Batch) and not listener.directions and listener not in but:
            x = Batched(listener, spread(x, listener.size))
    return x


def masked(definition: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns the pullback, changed to give 0 instead of NaN wherever its cotangent is 0."""

    def guarded(g: Tensor, *kept: Any) -> Tensor:
        return apply(OPS["mask_nan_gradient"], (g, definition(g, *kept)))

    return guarded
