"""Deterministic reductions over segments: each row has an id, and the rows with one id form a segment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autodiff.batching import over_all, whole
from ..autodiff.primitive import Op, apply
from ..errors import DTypeError, ShapeError
from ..launch import capturing
from ..tensors import devices, dtypes
from ..tensors.creation import ones
from ..tensors.operand import as_tensor, over
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from ._shapes import length
from .by_name import all_on, in_dtype, reshaped
from .conversion import constant
from .declare import distinct, no_flops, normal, op
from .elementwise import equal, exp, expm1, log1p, logaddexp, logical_and, maximum, where
from .gather import added, at, gathered, numbered
from .kinds import OWN
from .shape import flatten, moveaxis, reshape
from .tangents import linear

# ---- ops: (data, ids, num_segments), where ids are integers that `_checked` has found in range


def _reference(name: str, first: Any) -> Any:
    def segment(xp: Any, data: Any, ids: Any, num_segments: int) -> Any:
        y = xp.full((num_segments, *data.shape[1:]), first(data.dtype), data.dtype)
        return added(xp, y, ids, data, 0) if name == "add" else at(getattr(xp, name), y, ids, data, 0)

    return segment


def lowest(dtype: Any) -> Any:
    """Returns the dtype's lowest value, the identity of max."""
    return False if dtype.kind == "b" else np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def highest(dtype: Any) -> Any:
    """Returns the dtype's highest value, the identity of min."""
    return True if dtype.kind == "b" else np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


def _segments_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For segment_<how>(data, ids, num_segments)."""
    (data, ids), (count,) = xs, params
    if not on[1]:
        return moveaxis(apply(op, (moveaxis(data, 0, 1), ids), (count,)), 1, 0)
    data = all_on(size, xs, on)[0]
    rows = reshaped(data, (size * data.shape[1], *data.shape[2:]))
    y = apply(op, (rows, flatten(numbered(ids, count, from_end=False))), (size * count,))
    return reshaped(y, (size, count, *y.shape[1:]))


_sum = op("segment_sum", example=normal((5, 2), np.array([0, 2, 0, 3, 2]), params=(4,)), inputs=2, kind=OWN,
          batch=_segments_each, tangent=linear,
          reference=_reference("add", lambda dtype: 0), pullback=(lambda g, ids: _of_segments(g, ids), None),
          cost=lambda data, ids, num_segments, y: {"adds": data.size})
_max = op("segment_max", example=distinct((5, 2), np.array([0, 2, 0, 1, 2]), params=(3,)), inputs=2, batch=_segments_each,
          kind=OWN, reference=_reference("maximum", lowest), cost=no_flops,
          pullback=(lambda g, data, ids, num_segments, y: _extreme_pullback(g, data, ids, num_segments, y), None))
_min = op("segment_min", example=distinct((5, 2), np.array([0, 2, 0, 1, 2]), params=(3,)), inputs=2, batch=_segments_each,
          kind=OWN, reference=_reference("minimum", highest), cost=no_flops,
          pullback=(lambda g, data, ids, num_segments, y: _extreme_pullback(g, data, ids, num_segments, y), None))


def _of_segments(x: Tensor, ids: Tensor) -> Tensor:
    """Returns for each id the row of x that belongs to its segment."""
    return gathered(x, ids, 0)


def _extreme_pullback(g: Tensor, data: Tensor, ids: Tensor, num_segments: int, y: Tensor) -> Tensor:
    """The elements that attain the extreme of their segment share its cotangent evenly."""
    hit = in_dtype(equal(data, _of_segments(y, ids)), data.dtype)
    ties = apply(_sum, (hit, ids), (num_segments,))
    return hit * _of_segments(g / maximum(ties, 1.0), ids)


def _checked(name: str, data: Any, segment_ids: Any, num_segments: int | None) -> tuple[Tensor, Tensor, int]:
    """Returns data, the ids as an integer tensor, and the number of segments. Raises ShapeError, DTypeError, IndexError."""
    data, given = as_tensor(data), as_tensor(segment_ids)
    if given.ndim != 1 or data.ndim < 1 or given.shape[0] != data.shape[0]:
        raise ShapeError(
            f"{name}: segment_ids has shape {given.shape}, data {data.shape}; there must be one id for each row of data."
        )
    if given.dtype.kind not in "iu":
        raise DTypeError(f"{name}: segment_ids have dtype {given.dtype}; they must be integers.")
    n = _largest(given) + 1 if num_segments is None else length(name, "num_segments", num_segments)
    return data, over_all(given, lambda ids: over(ids, _in_range(name, devices.move(ids.array, data.device), n))), n


def _largest(ids: Tensor) -> int:
    capturing.refuse("counting segments, which reads ids on the host,", "Pass num_segments=.")
    ids = whole(ids)
    if not ids.size:
        return -1
    with devices.working(ids.device):
        largest = ids.array.max(keepdims=True)
    return int(devices.move(largest, "cpu").item())


def _in_range(name: str, ids: Any, count: int) -> Any:
    checked = capturing.thread.recording is not None or not devices.on_host(ids)  # the kernel checks
    if not checked and ids.size and (int(ids.min()) < 0 or int(ids.max()) >= count):
        wrong = int(((ids < 0) | (ids >= count)).argmax())
        raise IndexError(
            f"{name}: segment id {int(ids.flat[wrong])} at position {wrong % ids.shape[-1]} is out of range for {count} "
            f"segments (from 0 to {count - 1})."
        )
    return ids


def segment_sum(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Tensor:
    """Returns the sum of the rows of each segment; zeros for an empty segment.

    Args:
        data: (n, …).
        segment_ids: (n,) integers, in any order.
        num_segments: the number of segments; None for the largest id + 1, which reads the ids on the host.

    Returns: (num_segments, …). Raises: IndexError for an id out of range, ShapeError, DTypeError.
    """
    data, ids, n = _checked("segment_sum", data, segment_ids, num_segments)
    return apply(_sum, (data, ids), (n,))


def segment_max(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Tensor:
    """Returns the largest elements of each segment; the dtype's lowest value (-inf) for an empty segment.

    Ties share the gradient evenly. Arguments, shapes and errors are those of `segment_sum`.
    """
    data, ids, n = _checked("segment_max", data, segment_ids, num_segments)
    return apply(_max, (data, ids), (n,))


def segment_min(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Tensor:
    """Returns the smallest elements of each segment; the dtype's highest value (inf) for an empty segment.

    Ties share the gradient evenly. Arguments, shapes and errors are those of `segment_sum`.
    """
    data, ids, n = _checked("segment_min", data, segment_ids, num_segments)
    return apply(_min, (data, ids), (n,))


def segment_mean(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Tensor:
    """Returns the mean of the rows of each segment; zeros for an empty segment. Arguments are those of `segment_sum`."""
    data, ids, n = _checked("segment_mean", data, segment_ids, num_segments)
    data = in_dtype(data, data.dtype if data.dtype.kind in "fV" else dtypes.DEFAULT)
    counts = maximum(apply(_sum, (ones(ids.shape, dtype=data.dtype, device=data.device), ids), (n,)), 1.0)
    return apply(_sum, (data, ids), (n,)) / reshape(counts, (n,) + (1,) * (data.ndim - 1))


def segment_logsumexp(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Tensor:
    """Returns log(sum(exp)) of each segment, without overflow; -inf for an empty segment. Arguments are those of `segment_sum`."""
    data, ids, n = _checked("segment_logsumexp", data, segment_ids, num_segments)
    top = apply(_max, (constant(data), ids), (n,))
    largest, terms = _terms(data, _of_segments(top, ids))
    others = apply(_sum, (terms, ids), (n,))
    ties = apply(_sum, (in_dtype(largest, data.dtype), ids), (n,))
    endless = logaddexp(others, where(ties > 1, np.inf, -np.inf))  # +inf, without a slope if several elements are
    y = where(equal(top, np.inf), endless, log1p(others + (ties - 1)) + top)
    return where(equal(top, -np.inf), -np.inf, y)


def _terms(data: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """Returns where data is top, and exp(data - top) without the 1 of the largest element, which may round the others away.

    Where top is +inf, the terms are data itself, so that its slope is 1, and 0.
    """
    largest, endless = equal(data, top), equal(top, np.inf)
    below = data - top
    del top  # a cached block of memory for the next op
    terms = where(largest, expm1(below), exp(below))
    del below
    return largest, where(endless, where(largest, data, 0.0), terms)


def segment_softmax(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Tensor:
    """Returns exp of each element divided by the sum of exp of its segment, without overflow, in the shape of data.

    Arguments and errors are those of `segment_sum`.
    """
    data, ids, n = _checked("segment_softmax", data, segment_ids, num_segments)
    top = apply(_max, (constant(data), ids), (n,))
    e = where(equal(data, np.inf), 1.0, exp(data - _of_segments(top, ids)))
    total = apply(_sum, (e, ids), (n,))
    several = logical_and(equal(top, np.inf), total > 1)
    return e / _of_segments(where(several, np.nan, total), ids)
