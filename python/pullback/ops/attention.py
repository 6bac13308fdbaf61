"""Scaled dot-product attention as one op: softmax(scale · query @ keyᵀ + mask) @ value, without an array of all scores.

The kernels compute the scores of a block of queries at a time, and compute them again in the pullback. The definition of the
pullback, which gives second derivatives, forms the scores in ops, of at most `BLOCK` scores at a time: it halves the batch, or the
heads, until a part is small enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..autodiff.batching import pull
from ..autodiff.primitive import Op, apply
from ..backends import kernel_for
from ..backends.autocast import rounded
from ..backends.reference import distinct_bytes
from ..tensors import dtypes
from ..tensors.creation import arange, zeros_like
from ..tensors.tensor import Tensor
from .by_name import all_on, in_dtype, reshaped, unbroadcast, widened
from .declare import normal, op
from .elementwise import equal, greater_equal, where
from .kinds import OWN
from .linalg import matmul
from .linear import ABSENT, exact_product
from .movement import concat
from .reduce import all as all_of, sum_over
from .rows import softmax, wide
from .shape import expand_dims, matrix_transpose

BLOCK = 1 << 22  # the most scores that the definition of the pullback forms at once
GPU_WIDTH = 128  # the longest queries and values for which the kernels of a GPU have room, and an eighth of the most keys


# ---- the reference


def _reference(xp: Any, query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float) -> Any:
    q, k, v = [wide(xp, x) for x in (query, key, value)]
    shared = q.shape[-3] // max(k.shape[-3], 1)
    product = xp.matmul if query.dtype.itemsize == 2 else lambda a, b: xp.matmul(rounded(xp, a), rounded(xp, b))
    grouped = (*k.shape[:-2], shared, *q.shape[-2:])
    s = product((q * q.dtype.type(scale)).reshape(grouped), xp.swapaxes(k, -1, -2)[..., None, :, :])
    s = s.reshape(*q.shape[:-1], k.shape[-2])
    lowest = s.dtype.type(-math.inf)
    if mask is not None:
        s = xp.where(mask, s, lowest) if mask.dtype.kind == "b" else s + wide(xp, mask)
    if causal:
        s = xp.where(xp.tri(*s.shape[-2:], dtype=bool), s, lowest)
    if not s.size:
        return xp.zeros((*q.shape[:-1], v.shape[-1]), query.dtype)
    top = s.max(axis=-1, keepdims=True)
    e = xp.exp(s - xp.where(top == lowest, xp.zeros_like(top), top))
    total = e.sum(axis=-1, keepdims=True)
    y = product(e.reshape(*grouped[:-1], e.shape[-1]), v[..., None, :, :]).reshape(*q.shape[:-1], v.shape[-1])
    return (y / xp.where(total == 0, xp.ones_like(total), total)).astype(query.dtype)


# ---- the composition of ops, in parts of a batch


def _parted(count: int, xs: Sequence[Any]) -> tuple[int, list[Any], list[Any]] | None:
    """Returns the axis along which to halve the operands, and both halves; None if they are small enough or cannot be halved.

    xs: the key, the mask or ABSENT, and tensors with the axes of the query. count: the number of scores.
    """
    key, *_ = xs
    if count <= BLOCK:
        return None
    axis = next((i for i, n in enumerate(key.shape[:-2]) if n > 1), None)
    if axis is None:
        return None
    half = key.shape[axis] // 2

    def cut(x: Any, first: bool) -> Any:
        if x is ABSENT or x.shape[axis] == 1:
            return x
        at = half * (x.shape[axis] // key.shape[axis])
        return x[(slice(None),) * axis + (slice(None, at) if first else slice(at, None),)]

    return axis, [cut(x, True) for x in xs], [cut(x, False) for x in xs]


def _product(half: bool, a: Tensor, b: Tensor) -> Tensor:
    """Returns a @ b. `amp.autocast` is for float32, and leaves factors alone that were widened from half precision."""
    return exact_product(a, b) if half else matmul(a, b)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """Returns (…, heads, n, d) as (…, groups, rows, d): the rows of all heads that share keys and values follow one another."""
    shape = x.shape
    return reshaped(x, (*shape[:-3], groups, shape[-3] // max(groups, 1) * shape[-2], shape[-1]))


def scores_of(half: bool, query: Tensor, key: Tensor) -> Tensor:
    """Returns query @ keyᵀ for each head."""
    s = _product(half, _grouped(query, key.shape[-3]), matrix_transpose(key))
    return reshaped(s, (*query.shape[:-1], key.shape[-2]))


def weights_of(s: Tensor, mask: Any, causal: bool) -> Tensor:
    """Returns the softmax of masked scores. A row whose scores are all -inf gets the weights 0."""
    if mask is not ABSENT:
        s = where(mask, s, -math.inf) if mask.dtype == dtypes.bool_ else s + widened(mask)
    if causal:
        rows = expand_dims(arange(s.shape[-2], device=s.device), 1)
        s = where(greater_equal(rows, arange(s.shape[-1], device=s.device)), s, -math.inf)
    empty = all_of(equal(s, -math.inf), axis=-1, keepdims=True)
    return where(empty, 0.0, softmax(where(empty, 0.0, s)))


def values_of(half: bool, weights: Tensor, value: Tensor) -> Tensor:
    """Returns weights @ value for each head."""
    y = _product(half, _grouped(weights, value.shape[-3]), value)
    return reshaped(y, (*weights.shape[:-1], value.shape[-1]))


def _keys_of(half: bool, weights: Tensor, rows: Tensor, groups: int) -> Tensor:
    """Returns weightsᵀ @ rows, summed over the heads that share keys and values."""
    return _product(half, matrix_transpose(_grouped(weights, groups)), _grouped(rows, groups))


def _pullback(
    g: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Any, y: Tensor, causal: bool, scale: float, needs: Sequence[bool]
) -> list[Tensor | None]:
    if not query.size * key.size:
        like = (query, key, value, mask)
        return [zeros_like(x) if need else None for x, need in zip(like, needs)]
    parts = _parted(math.prod(query.shape[:-1]) * key.shape[-2], (key, mask, g, query, value, y))
    if parts is None:
        return _pull_part(g, query, key, value, mask, y, causal, scale, needs)
    axis, *halves = parts
    found = []
    for k, m, *others in halves:
        gs, q, v, ys = others
        found.append(_pullback(gs, q, k, v, m, ys, causal, scale, needs))
    whole = [None if a is None or b is None else concat([a, b], axis=axis) for a, b in zip(*found)]
    if needs[3] and mask.shape[axis] == 1:
        whole[3] = found[0][3] + found[1][3]  # type: ignore[operator]
    return whole


def _pull_part(
    g: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Any, y: Tensor, causal: bool, scale: float, needs: Sequence[bool]
) -> list[Tensor | None]:
    half, dtype, groups = query.array.itemsize == 2, query.dtype, key.shape[-3]
    g, q, k, v, y = map(widened, (g, query, key, value, y))
    q = q * scale
    p = weights_of(scores_of(half, q, k), mask, causal)
    gq = gk = gv = gm = None
    if needs[0] or needs[1] or needs[3]:
        gs = p * (scores_of(half, g, v) - sum_over(g * y, (g.ndim - 1,), True))
        gq = values_of(half, gs, k) * scale if needs[0] else None
        gk = _keys_of(half, gs, q, groups) if needs[1] else None
        gm = unbroadcast(gs, mask.shape) if needs[3] else None
    if needs[2]:
        gv = _keys_of(half, p, g, groups)
    return [None if t is None else in_dtype(t, dtype) for t in (gq, gk, gv, gm)]


# ---- the kernels

_pull, _ = kernel_for("attention_pullback")


def _fused(
    g: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Any, y: Tensor, causal: bool, scale: float, needs: Sequence[bool]
) -> list[Tensor | None]:
    """The gradient of a mask needs all scores at once, so the definition computes it."""
    kept = (query, key, value, mask, y, causal, scale)
    if needs[3]:
        return _pullback(g, *kept, needs)
    arrays = _pull(g.array, *[x.array for x in kept[:5]], causal, scale, *needs[:3])  # type: ignore[misc]
    return [*[None if array is None else Tensor(array) for array in arrays], None]


# ---- a batch axis: one more axis before the heads


def _spread(size: int, xs: Sequence[Any], on: Sequence[bool]) -> list[Any]:
    return [x if x is ABSENT else all_on(size, (x,), (b,))[0] for x, b in zip(xs, on)]


def _each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    return apply(op, tuple(_spread(size, xs, on)), tuple(params))


def _pull_each(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> list[Tensor | None]:
    found: list[Tensor | None] = pull(rule, *_spread(size, values[:6], on), *values[6:])
    return found


# ---- a tangent


def _tangent(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """The product rule, through the softmax: weights · (ds - Σ weights · ds) @ value + weights @ dvalue."""
    (query, key, value, mask), (causal, scale) = inputs, params
    if not query.size * key.size:
        return zeros_like(y)
    moved = [ABSENT if t is None else t for t in tangents]
    parts = _parted(math.prod(query.shape[:-1]) * key.shape[-2], (key, mask, query, value, y, *moved))
    if parts is None:
        return _tangent_part(query, key, value, mask, causal, scale, tangents)
    axis, *halves = parts
    found = []
    for k, m, q, v, ys, *ts in halves:
        found.append(_tangent(op, (q, k, v, m), ys, params, [None if t is ABSENT else t for t in ts]))
    return concat(found, axis=axis)


def _tangent_part(
    query: Tensor, key: Tensor, value: Tensor, mask: Any, causal: bool, scale: float, tangents: Sequence[Any]
) -> Tensor:
    half, dtype = query.array.itemsize == 2, query.dtype
    q, k, v = map(widened, (query, key, value))
    tq, tk, tv, tm = [None if t is None else widened(t) for t in tangents]
    p = weights_of(scores_of(half, q * scale, k), mask, causal)
    total = None if tv is None else values_of(half, p, tv)
    parts = [] if tq is None else [scores_of(half, tq * scale, k)]
    parts += [] if tk is None else [scores_of(half, q * scale, tk)]
    parts += [] if tm is None else [tm]
    if parts:
        ts: Tensor = parts[0]
        for part in parts[1:]:
            ts = ts + part
        weighted = p * ts
        moved = values_of(half, weighted - p * sum_over(weighted, (weighted.ndim - 1,), True), v)
        total = moved if total is None else total + moved
    assert total is not None
    return in_dtype(total, dtype)


# ---- costs: causal attention has the scores that a query sees, and a mask of bools leaves none out


def visible_scores(queries: int, keys: int, causal: bool) -> int:
    """Returns the number of scores of one head."""
    seen = min(queries, keys) if causal else 0
    return seen * (seen + 1) // 2 + (queries - seen) * keys


def _read(key: Any, value: Any, mask: Any, queries: int, causal: bool) -> int:
    """Returns the bytes of the keys and values that a query sees, and of the mask at visible scores."""
    seen = min(queries, key.shape[-2]) if causal else key.shape[-2]
    read: int = distinct_bytes(key[..., :seen, :]) + distinct_bytes(value[..., :seen, :])
    if mask is not None and causal and 0 not in mask.strides[-2:]:
        return read + distinct_bytes(mask[..., :1, :1]) * visible_scores(queries, key.shape[-2], causal)
    return read if mask is None else read + distinct_bytes(mask[..., :seen])


def _cost(query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float, y: Any) -> dict[str, int]:
    rows, width, out = math.prod(query.shape[:-1]), query.shape[-1], value.shape[-1]
    if not rows or not key.shape[-2]:
        return {}
    scores = math.prod(query.shape[:-2]) * visible_scores(query.shape[-2], key.shape[-2], causal)
    return {
        "adds": scores * (3 if mask is not None and mask.dtype.kind != "b" else 2) - rows, "multiplies": rows * (width + out),
        "fmas": scores * (width + out), "matmul_flops": 2 * scores * (width + out), "special_ops": scores + rows,
        "bytes_read": distinct_bytes(query) + _read(key, value, mask, query.shape[-2], causal),
    }  # fmt: skip


def _pull_cost(
    g: Any, query: Any, key: Any, value: Any, mask: Any, y: Any, causal: bool, scale: float, needs: Sequence[bool]
) -> dict[str, int] | None:
    if needs[3]:
        return None  # there is no kernel for the gradient of a mask
    rows, width, out = math.prod(query.shape[:-1]), query.shape[-1], value.shape[-1]
    if not rows or not key.shape[-2]:
        return {}
    scores = math.prod(query.shape[:-2]) * visible_scores(query.shape[-2], key.shape[-2], causal)
    of_scores, sides = needs[0] or needs[1], needs[0] + needs[1]
    fmas = scores * ((of_scores + needs[2]) * out + sides * width)
    return {
        "adds": of_scores * (scores + rows * (out - 1)), "fmas": fmas, "matmul_flops": 2 * fmas,
        "multiplies": of_scores * (scores + rows * out) + rows * (sides * width + out),
    }  # fmt: skip


# ---- the declaration

_attention = op("attention", kind=OWN, joint=True, takes="float", reference=_reference, inputs=4, pullback=_pullback,
                fused=_fused if _pull else None, batch=_each, pull=_pull_each, tangent=_tangent, cost=_cost, pull_cost=_pull_cost,
                example=normal((2, 4, 5, 3), (2, 2, 5, 3), (2, 2, 5, 2), (1, 4, 5, 5), params=(True, 0.6)))  # fmt: skip


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Returns softmax(scale · query @ keyᵀ + mask) @ value, and 0 for a query whose scores are all -inf.

    Args:
        query: (…, heads, queries, width). The operands have one float dtype and the same leading axes.
        key: (…, groups, keys, width). `groups` divides `heads`; heads that follow one another share keys and values.
        value: (…, groups, keys, value width).
        mask: broadcasts to (…, heads, queries, keys), with as many axes. Numbers of the same dtype are added to the scores;
            where bools are False, the score is left out.
        causal: query i sees keys 0 to i only.
    """
    if query.device != "cpu" and max(key.shape[-2] // 8, query.shape[-1], value.shape[-1]) > GPU_WIDTH:
        return composed(query, key, value, mask, causal, scale)[0]
    return apply(_attention, (query, key, value, ABSENT if mask is None else mask), (causal, scale))


def composed(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float,
    change: Callable[[Tensor], Tensor] = lambda weights: weights,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns what `attention` does, with `change` applied to the weights, and the weights (…, heads, queries, keys) before it."""
    half, dtype = query.array.itemsize == 2, query.dtype
    q, k, v = map(widened, (query, key, value))
    weights = weights_of(scores_of(half, q * scale, k), ABSENT if mask is None else mask, causal)
    return in_dtype(values_of(half, change(weights), v), dtype), in_dtype(weights, dtype)
