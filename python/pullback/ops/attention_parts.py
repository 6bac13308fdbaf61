"""Attention in differentiable ops: the definitions of its pullback and of its tangent, dropout of weights, and weights to return.

The definitions form at most `BLOCK` scores at a time: they halve the batch, or the heads, until a part is small enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..tensors import dtypes
from ..tensors.creation import zeros, zeros_like
from ..tensors.ranges import arange
from ..tensors.tensor import Tensor
from .by_name import in_dtype, reshaped, unbroadcast, widened
from .elementwise import equal, greater_equal, less, logical_and, not_equal, where
from .linalg import matmul
from .linear import ABSENT, exact_product
from .movement import concat
from .reduce import all as all_of, any as any_of, sum_over
from .rows import softmax
from .shape import expand_dims, matrix_transpose, part_of

BLOCK = 1 << 22  # the most scores that a definition forms at once


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
        return part_of(x, axis, slice(None, at) if first else slice(at, None))

    return axis, [cut(x, True) for x in xs], [cut(x, False) for x in xs]


def _product(half: bool, a: Tensor, b: Tensor) -> Tensor:
    """Returns a @ b. `amp.autocast` is for float32, and leaves factors alone that were widened from half precision."""
    return exact_product(a, b) if half else matmul(a, b)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """Returns (…, heads, n, d) as (…, groups, rows, d): the rows of all heads that share keys and values follow one another."""
    shape = x.shape
    return reshaped(x, (*shape[:-3], groups, shape[-3] // max(groups, 1) * shape[-2], shape[-1]))


def _scores_of(half: bool, query: Tensor, key: Tensor) -> Tensor:
    """Returns query @ keyᵀ for each head."""
    s = _product(half, _grouped(query, key.shape[-3]), matrix_transpose(key))
    return reshaped(s, (*query.shape[:-1], key.shape[-2]))


def _weights_of(s: Tensor, mask: Any, causal: bool) -> Tensor:
    """Returns the softmax of masked scores. A row whose scores are all -inf gets the weights 0."""
    if mask is not ABSENT:
        s = where(mask, s, -math.inf) if mask.dtype == dtypes.bool_ else s + widened(mask)
    if causal:
        rows = expand_dims(arange(s.shape[-2], device=s.device), 1)
        s = where(greater_equal(rows, arange(s.shape[-1], device=s.device)), s, -math.inf)
    empty = all_of(equal(s, -math.inf), axis=-1, keepdims=True)
    return where(empty, 0.0, softmax(where(empty, 0.0, s)))


def _seen(query: Tensor, key: Tensor, mask: Any, causal: bool) -> Tensor | None:
    """Returns bools (…, groups or 1, keys or 1, 1), False for a key that no query sees. None if each key is seen."""
    queries, keys, groups = query.shape[-2], key.shape[-2], key.shape[-3]
    if mask is ABSENT:
        return expand_dims(less(arange(keys, device=key.device), queries), 1) if causal and keys > queries else None
    sees = mask if mask.dtype == dtypes.bool_ else not_equal(mask, -math.inf)
    if causal:
        rows = expand_dims(arange(queries, device=key.device), 1)
        sees = logical_and(sees, greater_equal(rows, arange(keys, device=key.device)))
    sees = any_of(sees, axis=-2, keepdims=True)
    heads = sees.shape[-3]
    if heads not in (1, groups):
        sees = any_of(reshaped(sees, (*sees.shape[:-3], groups, heads // groups, *sees.shape[-2:])), axis=-3)
    return matrix_transpose(sees)


def _without_unseen(seen: Tensor | None, x: Tensor) -> Tensor:
    """Returns keys, values or their gradients with 0 for keys that no query sees, because 0 times NaN or infinity is NaN."""
    return x if seen is None else where(seen, x, 0.0)


def _values_of(half: bool, weights: Tensor, value: Tensor) -> Tensor:
    """Returns weights @ value for each head."""
    y = _product(half, _grouped(weights, value.shape[-3]), value)
    return reshaped(y, (*weights.shape[:-1], value.shape[-1]))


def _keys_of(half: bool, weights: Tensor, rows: Tensor, groups: int) -> Tensor:
    """Returns weightsᵀ @ rows, summed over the heads that share keys and values."""
    return _product(half, matrix_transpose(_grouped(weights, groups)), _grouped(rows, groups))


def pullback(
    g: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Any, y: Tensor, causal: bool, scale: float, needs: Sequence[bool]
) -> list[Tensor | None]:
    """Returns the gradients of the query, the key, the value and the mask that `needs` marks."""
    if not math.prod(query.shape[:-1]) * key.shape[-2]:
        like = (query, key, value, mask)
        return [zeros_like(x) if need else None for x, need in zip(like, needs)]
    parts = _parted(math.prod(query.shape[:-1]) * key.shape[-2], (key, mask, g, query, value, y))
    if parts is None:
        return _pull_part(g, query, key, value, mask, y, causal, scale, needs)
    axis, *halves = parts
    found = []
    for k, m, *others in halves:
        gs, q, v, ys = others
        found.append(pullback(gs, q, k, v, m, ys, causal, scale, needs))
    whole = [None if a is None or b is None else concat([a, b], axis=axis) for a, b in zip(*found)]
    if needs[3] and mask.shape[axis] == 1:
        whole[3] = found[0][3] + found[1][3]  # type: ignore[operator]
    return whole


def _pull_part(
    g: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Any, y: Tensor, causal: bool, scale: float, needs: Sequence[bool]
) -> list[Tensor | None]:
    half, groups = query.array.itemsize == 2, key.shape[-3]
    g, q, k, v, y = map(widened, (g, query, key, value, y))
    seen = _seen(query, key, mask, causal)
    q, k, v = q * scale, _without_unseen(seen, k), _without_unseen(seen, v)
    p = _weights_of(_scores_of(half, q, k), mask, causal)
    gq = gk = gv = gm = None
    if needs[0] or needs[1] or needs[3]:
        gs = p * (_scores_of(half, g, v) - sum_over(g * y, (g.ndim - 1,), True))
        gq = _values_of(half, gs, k) * scale if needs[0] else None
        gk = _without_unseen(seen, _keys_of(half, gs, q, groups)) if needs[1] else None
        gm = unbroadcast(gs, mask.shape) if needs[3] else None
    if needs[2]:
        gv = _without_unseen(seen, _keys_of(half, p, g, groups))
    return [None if t is None else in_dtype(t, like.dtype) for t, like in zip((gq, gk, gv, gm), (query, key, value, mask))]


# ---- the tangent


def tangent(xs: Sequence[Any], params: Sequence[Any]) -> Tensor:
    """The product rule, through the softmax: weights · (ds - Σ weights · ds) @ value + weights @ dvalue.

    xs: the query, the key, the value and the mask, and their tangents; ABSENT where there is none.
    """
    query, key, value, mask, *tangents = xs
    causal, scale = params
    if not math.prod(query.shape[:-1]) * key.shape[-2]:
        return zeros((*query.shape[:-1], value.shape[-1]), dtype=query.dtype, device=query.device)
    parts = _parted(math.prod(query.shape[:-1]) * key.shape[-2], (key, mask, query, value, *tangents))
    if parts is None:
        return _tangent_part(query, key, value, mask, causal, scale, tangents)
    axis, *halves = parts
    return concat([tangent((q, k, v, m, *ts), params) for k, m, q, v, *ts in halves], axis=axis)


def _tangent_part(
    query: Tensor, key: Tensor, value: Tensor, mask: Any, causal: bool, scale: float, tangents: Sequence[Any]
) -> Tensor:
    half, dtype = query.array.itemsize == 2, query.dtype
    tq, tk, tv, tm = [None if t is ABSENT else widened(t) for t in tangents]
    seen, q = _seen(query, key, mask, causal), widened(query)
    k, v = [_without_unseen(seen, widened(x)) for x in (key, value)]
    tk, tv = [None if t is None else _without_unseen(seen, t) for t in (tk, tv)]
    p = _weights_of(_scores_of(half, q * scale, k), mask, causal)
    total = None if tv is None else _values_of(half, p, tv)
    parts = [] if tq is None else [_scores_of(half, tq * scale, k)]
    parts += [] if tk is None else [_scores_of(half, q * scale, tk)]
    parts += [] if tm is None else [tm]
    if parts:
        ts: Tensor = parts[0]
        for part in parts[1:]:
            ts = ts + part
        weighted = p * ts
        moved = _values_of(half, weighted - p * sum_over(weighted, (weighted.ndim - 1,), True), v)
        total = moved if total is None else total + moved
    assert total is not None
    return in_dtype(total, dtype)


# ---- the result and the weights


def composed(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float,
    change: Callable[[Tensor], Tensor] = lambda weights: weights,
) -> tuple[Tensor, Tensor]:
    """Returns what `attention` does, with `change` applied to the weights, and these weights (…, heads, queries, keys)."""
    half, dtype = query.array.itemsize == 2, query.dtype
    given = ABSENT if mask is None else mask
    seen, q = _seen(query, key, given, causal), widened(query)
    k, v = [_without_unseen(seen, widened(x)) for x in (key, value)]
    weights = change(_weights_of(_scores_of(half, q * scale, k), given, causal))
    return in_dtype(_values_of(half, weights, v), dtype), in_dtype(weights, dtype)
