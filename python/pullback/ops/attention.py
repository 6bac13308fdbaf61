"""Scaled dot-product attention as one op: softmax(scale · query @ keyᵀ + mask) @ value, without an array of all scores.

The kernels compute the scores of a block of queries at a time, and compute them again in the pullback and in the tangent. The
definitions of both, which give second derivatives, form the scores in ops (attention_parts.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..autodiff.batching import pull, run_on_all
from ..autodiff.listeners import listeners
from ..autodiff.primitive import Op, apply
from ..backends import kernel_for
from ..backends.autocast import rounded
from ..backends.reference import distinct_bytes
from ..launch import door
from ..launch.refusal import Refused
from ..tensors.tensor import Tensor
from .attention_parts import composed, pullback, tangent
from .by_name import all_on
from .counted import run_as_kernel
from .declare import normal, op
from .kinds import OWN
from .linear import ABSENT
from .row_references import wide

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
        s = xp.where(mask, s, lowest) if mask.dtype.kind == "b" else xp.where(mask == lowest, lowest, s + wide(xp, mask))
    if causal:
        s = xp.where(xp.tri(*s.shape[-2:], dtype=bool), s, lowest)
    if not s.size:
        return xp.zeros((*q.shape[:-1], v.shape[-1]), query.dtype)
    top = s.max(axis=-1, keepdims=True)
    e = xp.exp(s - xp.where(top == lowest, xp.zeros_like(top), top))
    total = e.sum(axis=-1, keepdims=True)
    weights, v = e.reshape(*grouped[:-1], e.shape[-1]), v[..., None, :, :]
    y = product(weights, v)
    if xp.isnan(y).any():
        y = _without_unseen(xp, product, weights, v)
    y = y.reshape(*q.shape[:-1], v.shape[-1])
    return (y / xp.where(total == 0, xp.ones_like(total), total)).astype(query.dtype)


def _without_unseen(xp: Any, product: Any, weights: Any, value: Any) -> Any:
    """Returns weights @ value, where a weight of 0 times infinity or NaN is 0."""
    y = product(weights, xp.where(xp.isfinite(value), value, xp.zeros_like(value)))
    seen = (weights != 0).astype(y.dtype)
    for number, found in ((math.inf, value == math.inf), (-math.inf, value == -math.inf), (math.nan, xp.isnan(value))):
        y = y + xp.where(xp.matmul(seen, found.astype(y.dtype)) > 0, y.dtype.type(number), y.dtype.type(0))
    return y


# ---- the kernels

_pull, _ = kernel_for("attention_pullback")


def _fused(
    g: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Any, y: Tensor, causal: bool, scale: float, needs: Sequence[bool]
) -> list[Tensor | None]:
    """The gradient of a mask needs all scores at once, so the definition computes it."""
    kept = (query, key, value, mask, y, causal, scale)
    if needs[3]:
        return pullback(g, *kept, needs)
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

_move, _ = kernel_for("attention_tangent")


def _tangent_of(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """One kernel computes the tangent, unless a listener needs the ops of its definition for another derivative."""
    given = [ABSENT if t is None else t for t in tangents]
    if listeners.differentiates:
        return tangent((*inputs, *given), params)
    return run_on_all(lambda *xs: _moved(xs, params), _spread, (*inputs, *given))


def _moved(xs: Sequence[Any], params: Sequence[Any]) -> Tensor:
    if _move is not None:
        try:
            return Tensor(_move(*[x.array for x in xs], *params))
        except Refused:
            return tangent(xs, params)
    if door.state.ledger is None:
        return tangent(xs, params)
    return run_as_kernel("attention_tangent", lambda: tangent(xs, params), xs, _tangent_cost(xs, params[0]))


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
    }


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
    }


def _tangent_cost(xs: Sequence[Any], causal: bool) -> dict[str, int]:
    query, key, value, _, tq, tk, tv, tm = [x.array for x in xs]
    rows, width, out = math.prod(query.shape[:-1]), query.shape[-1], value.shape[-1]
    terms, sides = sum([t is not None for t in (tq, tk, tm)]), (tq is not None) + (tk is not None)
    if not rows or not key.shape[-2]:
        return {}
    scores = math.prod(query.shape[:-2]) * visible_scores(query.shape[-2], key.shape[-2], causal)
    moves, both = int(terms > 0), int(terms > 0 and tv is not None)
    fmas = scores * (sides * width + (moves + (tv is not None)) * out)
    return {
        "adds": moves * (scores * (terms + 1) - rows) + both * rows * out, "fmas": fmas, "matmul_flops": 2 * fmas,
        "multiplies": rows * (sides * width + out) + moves * (2 * scores + rows),
    }


# ---- the declaration

_attention = op("attention", kind=OWN, joint=True, takes="float", reference=_reference, inputs=4, pullback=pullback,
                fused=_fused if _pull else None, batch=_each, pull=_pull_each, tangent=_tangent_of, cost=_cost,
                pull_cost=_pull_cost,
                example=normal((2, 4, 5, 3), (2, 2, 5, 3), (2, 2, 5, 2), (1, 4, 5, 5), params=(True, 0.6)))
_attention.facts.multiplied = ("query", "key", "value")


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Returns softmax(scale · query @ keyᵀ + mask) @ value, and 0 for a query whose scores are all -inf.

    Args:
        query: (…, heads, queries, width). The operands have one float dtype and the same leading axes.
        key: (…, groups, keys, width). `groups` divides `heads`; heads that follow one another share keys and values.
        value: (…, groups, keys, value width).
        mask: broadcasts to (…, heads, queries, keys), with as many axes. Numbers are added to the scores; they have the same
            dtype, or float32 if that is of half precision. Where bools are False, the score is left out.
        causal: query i sees keys 0 to i only.
    """
    if query.device != "cpu" and max(key.shape[-2] // 8, query.shape[-1], value.shape[-1]) > GPU_WIDTH:
        return composed(query, key, value, mask, causal, scale)[0]
    return apply(_attention, (query, key, value, ABSENT if mask is None else mask), (causal, scale))
