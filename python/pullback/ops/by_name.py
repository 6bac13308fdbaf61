"""The ops that rules of every family are made of, called by name: views, sums, copies and conversions.

A rule is declared before the ops that it uses where two ops are each other's derivative, as `broadcast_to` and `sum` are. Such
a rule looks the later op up in the registry: `OPS["sum"]`. All other ops are imported from the families below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..autodiff.batching import Batch, Batched, belongs, innermost, run
from ..autodiff.listeners import listeners
from ..autodiff.primitive import OPS, Op, apply, tell
from ..errors import check_room
from ..launch import capturing
from ..tensors import devices, dtypes
from ..tensors.operand import own
from ..tensors.tensor import Tensor
from ._shapes import Shape


def view(op: Op, x: Tensor, *params: Any) -> Tensor:
    """Runs an op that returns a view. The view of memory that can change is stale after the next change, as x is then."""
    array = x.array
    if type(array) is np.ndarray:  # as devices.on_host, without a call
        y = Tensor(op.reference(None, array, *params))
        if capturing.thread.recording is not None and y.array.size and not np.may_share_memory(y.array, array):
            y = Tensor(op.reference(None, OPS["copy"].kernel(array), *params))  # NumPy had to copy: a kernel can be replayed
    elif x.__class__ is Batched:
        return run(op, (x,), params, innermost((x,)))
    else:  # CuPy may have to copy
        with devices.working(devices.device_of(array)):
            y = Tensor(op.reference(None, array, *params))
    if x.storage is not None:
        x.storage.add_view(y)
    return tell(op, y, (x,), params)


def reshaped(x: Tensor, shape: Shape) -> Tensor:
    """Returns x in another shape, which is known to have as many elements."""
    array = x.array
    if shape == array.shape:
        return x
    return view(OPS["reshape"], x if array.flags.c_contiguous else apply(OPS["copy"], (x,)), shape)


def repeated(x: Tensor, shape: Shape) -> Tensor:
    """Returns x broadcast to a shape that it is known to fit, without copying."""
    if x.array.shape == shape:
        return x
    check_room("broadcast_to", shape, x.array.itemsize)
    return view(OPS["broadcast_to"], x, shape)


def unbroadcast(g: Tensor, shape: Shape) -> Tensor:
    """Returns the sum of g over the axes along which `shape` was broadcast to g's."""
    lead = g.ndim - len(shape)
    axes = tuple([axis for axis, n in enumerate(g.shape) if axis < lead or (n != 1 and shape[axis - lead] == 1)])
    total = apply(OPS["sum"], (g,), (axes, False)) if axes else g
    return reshaped(total, shape)


def in_dtype(x: Any, dtype: Any) -> Tensor:
    """Returns the tensor in that dtype: x itself, also a Parameter, if it has the dtype."""
    x = own(x)
    wanted = dtypes.as_dtype(dtype)
    if x.dtype == wanted:
        return x
    if x.dtype.kind == "V":
        dtypes.bfloat16()
    return apply(OPS["cast" if dtypes.is_float(wanted) and dtypes.is_float(x.dtype) else "truncate"], (x,), (wanted,))


# ---- examples of a batch


def spread(x: Tensor, size: int) -> Tensor:
    """Returns x repeated along a new first axis, without copying."""
    return repeated(x, (size, *x.array.shape))


def of_all(x: Tensor, batch: Batch) -> Tensor:
    """Returns the values of all examples along a new first axis, for a value of one example or one that all share."""
    return x.value if belongs(x, batch) else spread(x, batch.size)


def all_on(size: int, xs: Sequence[Any], on: Sequence[bool]) -> list[Any]:
    """Returns every input with the batch as its first axis."""
    return [x if b else spread(x, size) for x, b in zip(xs, on)]


def lifted(x: Tensor, rank: int) -> Tensor:
    """Returns a batch of examples of lower rank with axes of length 1 before the first axis of each."""
    shape = x.array.shape
    return reshaped(x, (shape[0], *(1,) * (rank + 1 - len(shape)), *shape[1:]))


def aligned(xs: Sequence[Any], on: Sequence[bool], least: int = 0) -> list[Any]:
    """Returns the inputs with examples of one rank, of at least `least` axes.

    Otherwise the (3,) of one example in a batch of 2 would meet an unbatched (2, 3), and broadcast.
    """
    ranks = [len(x.shape) - b for x, b in zip(xs, on)]
    rank = max(least, *ranks)
    return [lifted(x, rank) if b and own < rank else x for x, b, own in zip(xs, on, ranks)]


def per_example(x: Tensor, but: Sequence[Batch] = ()) -> Tensor:
    """Returns a tensor of no batch as one of every batch that is running, so that what is drawn from it differs by example.

    A batch of directions and the batches in `but` are left out.
    """
    for listener in listeners.stack:
        if isinstance(listener, Batch) and not listener.directions and listener not in but:
            x = Batched(listener, spread(x, listener.size))
    return x


def masked(definition: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns the pullback with 0, not NaN, wherever its cotangent is 0."""

    def guarded(g: Tensor, *kept: Any) -> Tensor:
        return apply(OPS["mask_nan_gradient"], (g, definition(g, *kept)))

    return guarded
