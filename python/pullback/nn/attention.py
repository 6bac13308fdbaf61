"""Scaled dot-product attention with the arguments of PyTorch, and rotary positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import DTypeError, PullbackError, ShapeError
from ..ops._shapes import flag, probability, real
from ..ops.attention import attention
from ..ops.attention_parts import composed
from ..ops.by_name import in_dtype, repeated, reshaped, widened
from ..ops.conversion import same_dtype
from ..ops.dropout import dropout
from ..ops.elementwise import cos, exp, sin
from ..ops.movement import concat, stack
from ..ops.operands import as_tensors, with_whole
from ..ops.shape import expand_dims, squeeze
from ..tensors import dtypes
from ..tensors.operand import as_tensor
from ..tensors.ranges import arange
from ..tensors.tensor import Tensor
from ..typing import ArrayLike

NAME = "scaled_dot_product_attention"


def scaled_dot_product_attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, attn_mask: ArrayLike | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:
    """Returns softmax(scale · query @ keyᵀ + mask) @ value, in one launch that forms no array of all scores.

    Args:
        query: (…, heads, L, E). key: (…, heads, S, E). value: (…, heads, S, Ev). The leading axes broadcast, and so may heads be
            left out of all three.
        attn_mask: broadcasts to (…, heads, L, S). A query sees a key where bools are True; floats are added, in float64
            if the query is, otherwise in float32.
        dropout_p: the probability with which a weight is set to zero. This forms all weights, as the gradient of a mask does.
        is_causal: query i sees keys 0 to i only. It may be combined with a mask.
        scale: 1/sqrt(E) if it is left out.
        enable_gqa: key and value may have fewer heads, of which each is shared by heads that follow one another.

    Returns: (…, heads, L, Ev). A query that sees no key, or whose scores are all -inf, gives 0 and has the gradient 0.
    A key that the mask hides from all queries (by False, -inf or `is_causal`) contributes nothing and has the gradient 0, even if
    it or its value is infinite or NaN. Forward, backward and tangent are one kernel each. Second derivatives form scores of 2^22
    numbers at most at a time, but a tape that records them keeps them all.
    Raises: ShapeError, DTypeError, PullbackError. Sources: Vaswani et al. 2017; Dao et al. 2022 for the backward pass.
    """
    causal, shares = flag(NAME, "is_causal", is_causal), flag(NAME, "enable_gqa", enable_gqa)
    dropped = probability(NAME, "dropout_p", dropout_p)
    factor = None if scale is None else real(NAME, "scale", scale, "Multiply the query by it, and pass scale=1.0.")
    given = as_tensors(NAME, query, key, value)
    q, k, v = _operands(given, shares)
    mask = None if attn_mask is None else mask_for(NAME, "attn_mask", attn_mask, q, k)
    y, _ = attend(q, k, v, mask, dropped, causal, factor)
    return squeeze(y, axis=0) if given[0].ndim == 2 else y


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, causal: bool, scale: float | None = None,
    weighted: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Returns the result of attention, and the weights (…, heads, L, S) after dropout if `weighted`.

    The operands are those of ops/attention.py, but may differ in their dtypes.
    """
    q, k, v = same_dtype([query, key, value])
    m = mask if mask is None or mask.dtype in (dtypes.bool_, q.dtype) else in_dtype(mask, dtypes.promote(q.dtype, dtypes.float32))
    factor = 1 / math.sqrt(max(1, q.shape[-1])) if scale is None else scale
    if weighted or dropout_p:
        return composed(q, k, v, m, causal, factor, lambda w: dropout(w, dropout_p) if dropout_p else w)
    return attention(q, k, v, m, causal, factor), None


def _operands(given: list[Tensor], shares: bool) -> list[Tensor]:
    """Returns query, key and value with one dtype, an axis of heads, and the same leading axes. Raises ShapeError, DTypeError."""
    shapes = [x.shape for x in given]
    what = "{}: query {}, key {} and value {}".format(NAME, *shapes)
    for x in given:
        if not dtypes.is_float(x.dtype):
            raise DTypeError(f"{what} must be floats, but one has dtype {x.dtype}. Use .astype(pb.float32).")
    ranks = {len(shape) for shape in shapes}
    if len(ranks) > 1 or min(ranks) < 2:
        raise ShapeError(f"{what} need the same number of axes, at least two: (..., L, E), (..., S, E) and (..., S, Ev).")
    if shapes[0][-1] != shapes[1][-1]:
        raise ShapeError(f"{what}: the last axes of query and key must have the same length.")
    if shapes[1][-2] != shapes[2][-2]:
        raise ShapeError(f"{what}: key and value must have the same number of keys, the axis before the last.")
    tensors = same_dtype(given)
    if min(ranks) == 2:
        return [expand_dims(x) for x in tensors]
    heads, groups, others = [shape[-3] for shape in shapes]
    if groups != others and 1 in (groups, others):
        tensors[1:] = [repeated(x, (*x.shape[:-3], max(groups, others), *x.shape[-2:])) for x in tensors[1:]]
        groups = others = max(groups, others)
    if groups != others:
        raise ShapeError(f"{what}: key and value must have the same number of heads.")
    if heads != groups and groups != 1:
        if heads == 1:
            tensors[0] = repeated(tensors[0], (*shapes[0][:-3], groups, *shapes[0][-2:]))
        elif not groups or heads % groups:
            raise ShapeError(f"{what}: {heads} heads cannot share {groups} heads of keys evenly; {groups} must divide {heads}.")
        elif not shares:
            raise ShapeError(f"{what}: {heads} heads of queries and {groups} of keys. Pass enable_gqa=True if heads share keys.")
    return _aligned(what, tensors)


def _aligned(what: str, tensors: list[Tensor]) -> list[Tensor]:
    """Broadcasts the axes before the heads."""
    leads = [x.shape[:-3] for x in tensors]
    if leads[0] == leads[1] == leads[2]:
        return tensors
    lengths = []
    for of_axis in zip(*leads):
        longest = max(of_axis) if 0 not in of_axis else 0
        if any([n not in (1, longest) for n in of_axis]):
            raise ShapeError(f"{what}: the leading axes do not broadcast.")
        lengths.append(longest)
    return [repeated(x, (*lengths, *x.shape[-3:])) for x in tensors]


def mask_for(name: str, argument: str, mask: ArrayLike, q: Tensor, k: Tensor, more: str = "") -> Tensor:
    """Returns an argument that is a mask, with the rank of q. Raises ShapeError, DTypeError.

    name: the called function. more: the end of the message for a wrong shape.
    """
    if isinstance(mask, str):
        raise DTypeError(
            f"{name}: {argument}={mask!r} is a str. Give a tensor of bools, True where a query sees a key, or of floats that are "
            f"added to the scores. A causal mask is is_causal=True of {NAME}, and causal=True of nn.MultiHeadAttention."
        )
    (_, m), scores = with_whole(name, q, mask), (*q.shape[:-1], k.shape[-2])
    if m.dtype != dtypes.bool_ and not dtypes.is_float(m.dtype):
        raise DTypeError(
            f"{name}: {argument} has dtype {m.dtype}. Give bools, True where a query sees a key, or floats that are added to the "
            "scores."
        )
    shape = (1,) * (len(scores) - m.ndim) + m.shape
    if len(shape) != len(scores) or any([n not in (1, wanted) for n, wanted in zip(shape, scores)]):
        pairs = (1,) * (len(scores) - 2) + scores[-2:]
        raise ShapeError(
            f"{name}: {argument} has shape {m.shape}, which does not broadcast to that of the scores, {scores}. Give for example "
            f"{scores[-2:]} for all heads, or {(scores[0], *pairs[1:])}, in which any axis may be 1.{more}"
        )
    return reshaped(m, shape)


# ---- rotary positions


def rotary(
    x: ArrayLike, positions: ArrayLike | None = None, *, base: float = 10000.0, interleaved: bool = False, dims: int | None = None
) -> Tensor:
    """Turns pairs of features by angles that grow with the position, so that a product of two vectors depends on their distance.

    Args:
        x: (…, T, d), for example queries or keys (…, heads, T, d).
        positions: (T,), or with leading axes that broadcast to those of x as NumPy's do; 0 to T - 1 if it is left out. Positions
            (batch, T) of x (batch, heads, T, d) are positions[:, None], because the axis before T is that of the heads.
        base: pair i of `dims` / 2 is turned by position · base^(-2 i / dims).
        interleaved: pair i is features 2 i and 2 i + 1; otherwise features i and i + dims / 2, as in most models today.
        dims: the number of features that are turned, all of them if it is left out. The remaining ones stay as they are.

    The conventions are those of ONNX's RotaryEmbedding. Angles are computed in float64.
    Returns: the shape and dtype of x. Raises: ShapeError, DTypeError, PullbackError. Source: Su et al. 2021.
    """
    angles = base_of("rotary", "base", base)
    return turn("rotary", "x", as_tensor(x), positions, angles, flag("rotary", "interleaved", interleaved), dims)


def base_of(name: str, argument: str, value: Any) -> float:
    """Returns an argument that is the base of angles. Raises DTypeError, PullbackError."""
    base = real(name, argument, value)
    if not 0 < base < math.inf:
        raise PullbackError(f"{name}: {argument}={base} must be positive and finite.")
    return base


def turn(name: str, operand: str, x: Tensor, positions: Any, base: float, interleaved: bool, dims: int | None = None) -> Tensor:
    """Returns the result of `rotary`. name, operand: the called function, and its word for x. Raises ShapeError, DTypeError."""
    if x.ndim < 2:
        raise ShapeError(f"{name}: {operand} has shape {x.shape}; it must be (..., T, d).")
    if not dtypes.is_float(x.dtype):
        raise DTypeError(f"{name}: {operand} has dtype {x.dtype}; it must be floats. Use .astype(pb.float32).")
    given: Any = x.shape[-1] if dims is None else dims
    turned = int(given) if isinstance(given, (int, np.integer)) else -1
    if turned % 2 or not 0 <= turned <= x.shape[-1]:
        raise ShapeError(f"{name}: dims={given!r} must be an even number up to the {x.shape[-1]} features of {operand} {x.shape}.")
    cosine, sine = _turns(name, operand, x, positions, base, turned)
    if not turned:
        return x + 0.0
    half, z = turned // 2, widened(x)
    a, b = (z[..., 0:turned:2], z[..., 1:turned:2]) if interleaved else (z[..., :half], z[..., half:turned])
    u, v = a * cosine - b * sine, b * cosine + a * sine
    y = reshaped(stack([u, v], axis=-1), (*x.shape[:-1], turned)) if interleaved else concat([u, v], axis=-1)
    return in_dtype(y if turned == x.shape[-1] else concat([y, z[..., turned:]], axis=-1), x.dtype)


def _turns(name: str, operand: str, x: Tensor, positions: Any, base: float, dims: int) -> tuple[Tensor, Tensor]:
    """Returns the cosines and sines (…, T, dims / 2) of the angles, in the dtype that x is computed in."""
    steps = arange(x.shape[-2], device=x.device) if positions is None else as_tensor(positions)
    if steps.dtype == dtypes.bool_:
        raise DTypeError(f"{name}: positions are bools; they must be numbers.")
    lead = x.shape[:-1]
    if not steps.ndim or steps.ndim > len(lead) or any([n not in (1, m) for n, m in zip(steps.shape[::-1], lead[::-1])]):
        raise ShapeError(
            f"{name}: positions {steps.shape} do not fit {operand} {x.shape}. Give one for each of {lead[-1]} rows: {lead[-1:]}, "
            f"or with axes before that which broadcast to {lead[:-1]}."
        )
    rate = exp(arange(max(1, dims) // 2, dtype=dtypes.float64, device=x.device) * (-2 * math.log(base) / max(1, dims)))
    angles = expand_dims(in_dtype(steps, dtypes.float64), axis=-1) * rate
    dtype = dtypes.promote(x.dtype, dtypes.float32)
    return in_dtype(cos(angles), dtype), in_dtype(sin(angles), dtype)
