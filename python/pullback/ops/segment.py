"""Reductions over segments: rows grouped by an id each. Deterministic; the number of segments may change from call to call."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import devices
from ..errors import DTypeError, ShapeError
from ..operand import as_tensor
from ..primitive import apply
from ..tensor import Tensor
from ._examples import distinct, normal
from .cast import astype
from .elementwise import equal, exp, isfinite, log, maximum, where
from .index import take
from .kinds import OWN, no_flops, op

# ---- ops: (data, ids, num_segments); ids is a checked integer array


def _reference(name: str, first: Any) -> Any:
    def segment(xp: Any, data: Any, ids: Any, num_segments: int) -> Any:
        y = xp.full((num_segments, *data.shape[1:]), first(data.dtype), data.dtype)
        getattr(xp, name).at(y, ids, data)
        return y

    return segment


def lowest(dtype: Any) -> Any:
    """The identity of max."""
    return False if dtype.kind == "b" else np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def highest(dtype: Any) -> Any:
    """The identity of min."""
    return True if dtype.kind == "b" else np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


_sum = op("segment_sum", example=normal((5, 2), params=(np.array([0, 2, 0, 3, 2]), 4)),
          kind=OWN, reference=_reference("add", lambda dtype: 0), pullback=lambda g, ids: take(g, ids, axis=0),
          cost=lambda data, ids, num_segments, y: {"flops": data.size})  # fmt: skip
_max = op("segment_max", example=distinct((5, 2), params=(np.array([0, 2, 0, 1, 2]), 3)),
          kind=OWN, reference=_reference("maximum", lowest), cost=no_flops,
          pullback=lambda g, data, ids, num_segments, y: _extreme_pullback(g, data, ids, num_segments, y))  # fmt: skip
_min = op("segment_min", example=distinct((5, 2), params=(np.array([0, 2, 0, 1, 2]), 3)),
          kind=OWN, reference=_reference("minimum", highest), cost=no_flops,
          pullback=lambda g, data, ids, num_segments, y: _extreme_pullback(g, data, ids, num_segments, y))  # fmt: skip


def _extreme_pullback(g: Tensor, data: Tensor, ids: Any, num_segments: int, y: Tensor) -> Tensor:
    """The elements that attain the extreme of their segment share its cotangent evenly."""
    hit = astype(equal(data, take(y, ids, axis=0)), data.dtype)
    ties = apply(_sum, (hit,), (ids, num_segments))
    return hit * take(g / maximum(ties, 1.0), ids, axis=0)


def _checked(name: str, data: Any, segment_ids: Any, num_segments: int | None) -> tuple[Tensor, Any, int]:
    """Data, ids as an integer array, and the number of segments. Raises ShapeError, DTypeError, IndexError."""
    data = as_tensor(data)
    ids = devices.move(as_tensor(segment_ids).array, data.device)
    if ids.ndim != 1 or data.ndim < 1 or ids.shape[0] != data.shape[0]:
        raise ShapeError(
            f"{name}: segment_ids has shape {ids.shape}, data {data.shape}; there must be one id for each row of data."
        )
    if ids.dtype.kind not in "iu":
        raise DTypeError(f"{name}: segment_ids have dtype {ids.dtype}; they must be integers.")
    if num_segments is None:
        num_segments = int(devices.move(ids.max(), "cpu")) + 1 if ids.size else 0
    if devices.on_host(ids) and ids.size and (int(ids.min()) < 0 or int(ids.max()) >= num_segments):
        wrong = int(((ids < 0) | (ids >= num_segments)).argmax())
        raise IndexError(
            f"{name}: segment id {int(ids[wrong])} at position {wrong} is out of range for {num_segments} segments "
            f"(from 0 to {num_segments - 1})."
        )
    return data, ids, num_segments


def segment_sum(data: Any, segment_ids: Any, num_segments: int | None = None) -> Tensor:
    """The sum of the rows of each segment; zeros for an empty one.

    Args:
        data: (n, …).
        segment_ids: (n,) integers, in any order.
        num_segments: how many there are; the largest id + 1 where None.

    Returns: (num_segments, …). Raises: IndexError for an id out of range, ShapeError, DTypeError.
    """
    data, ids, n = _checked("segment_sum", data, segment_ids, num_segments)
    return apply(_sum, (data,), (ids, n))


def segment_max(data: Any, segment_ids: Any, num_segments: int | None = None) -> Tensor:
    """The largest of each segment; the dtype's lowest value (-inf) for an empty one. Ties share the gradient evenly."""
    data, ids, n = _checked("segment_max", data, segment_ids, num_segments)
    return apply(_max, (data,), (ids, n))


def segment_min(data: Any, segment_ids: Any, num_segments: int | None = None) -> Tensor:
    """The smallest of each segment; the dtype's highest value (inf) for an empty one. Ties share the gradient evenly."""
    data, ids, n = _checked("segment_min", data, segment_ids, num_segments)
    return apply(_min, (data,), (ids, n))


def segment_mean(data: Any, segment_ids: Any, num_segments: int | None = None) -> Tensor:
    """The mean of the rows of each segment; zeros for an empty one."""
    data, ids, n = _checked("segment_mean", data, segment_ids, num_segments)
    xp = devices.array_module(data.device)
    with devices.working(data.device):
        counts = xp.maximum(xp.bincount(ids, minlength=n), 1)
    shape = (n,) + (1,) * (data.ndim - 1)
    dtype = data.dtype if data.dtype.kind in "fV" else np.dtype("float32")
    return apply(_sum, (astype(data, dtype),), (ids, n)) / Tensor(counts.astype(dtype).reshape(shape))


def segment_logsumexp(data: Any, segment_ids: Any, num_segments: int | None = None) -> Tensor:
    """log of the sum of exp of each segment, without overflow; -inf for an empty one."""
    data, ids, n = _checked("segment_logsumexp", data, segment_ids, num_segments)
    top = _finite_top(data, ids, n)
    total = apply(_sum, (exp(data - take(top, ids, axis=0)),), (ids, n))
    filled = total > 0
    return where(filled, log(where(filled, total, 1.0)) + top, -np.inf)


def segment_softmax(data: Any, segment_ids: Any, num_segments: int | None = None) -> Tensor:
    """exp of each element over the sum of exp of its segment, without overflow. Returns: the shape of data."""
    data, ids, n = _checked("segment_softmax", data, segment_ids, num_segments)
    e = exp(data - take(_finite_top(data, ids, n), ids, axis=0))
    return e / take(apply(_sum, (e,), (ids, n)), ids, axis=0)


def _finite_top(data: Tensor, ids: Any, n: int) -> Tensor:
    """The largest of each segment as a constant, 0 where that is not finite: what to subtract before exp."""
    from .shape import stop_gradient

    top = apply(_max, (stop_gradient(data),), (ids, n))
    return where(isfinite(top), top, 0.0)


