"""Norms of (N, C, …) tensors with a weight and a bias for each channel: batch, group and instance norm, in one launch each way.

The kernels normalize rows as layer_norm does. A row holds the channels of a group of one example, or one channel of all examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..autodiff.batching import pull
from ..autodiff.primitive import Op, Rule, apply, tell
from ..backends import kernel_for
from ..launch import capturing, door
from ..launch.refusal import Refused
from ..tensors.tensor import Tensor
from .by_name import all_on, in_dtype, reshaped, spread, widened
from .declare import normal, op
from .kinds import OWN
from .linear import ABSENT
from .reduce import sum
from .row_references import normalized_rows, wide
from .rows import LAYER_NORM, fused, norm_pullback, norm_pullback_cost, rows_cost
from .shape import permute_dims, reshape

# ---- rows: of the groups of each example, or, for 0 groups, of each channel over the batch


def _to_rows(x: Tensor, groups: int) -> Tensor:
    n, c, s = x.shape
    return reshaped(x, (n, groups, c // groups * s)) if groups else reshape(permute_dims(x, (1, 0, 2)), (c, n * s))


def _from_rows(rows: Tensor, shape: tuple[int, ...], groups: int) -> Tensor:
    n, c, s = shape
    return reshaped(rows, shape) if groups else permute_dims(reshaped(rows, (c, n, s)), (1, 0, 2))


def _plain(x: Tensor, eps: float, groups: int) -> Tensor:
    """Returns the norm of x without a weight and a bias."""
    return _from_rows(apply(LAYER_NORM, (_to_rows(x, groups), ABSENT, ABSENT), (eps,)), x.shape, groups)


def _reference(xp: Any, x: Any, weight: Any, bias: Any, eps: float, groups: int) -> Any:
    if not x.size:
        return xp.array(x)
    n, c, s = x.shape
    z = wide(xp, x)
    rows = z.reshape(n, groups, -1) if groups else z.transpose(1, 0, 2).reshape(c, -1)
    y = normalized_rows(xp, rows, eps)
    y = y.reshape(n, c, s) if groups else y.reshape(c, n, s).transpose(1, 0, 2)
    y = y if weight is None else y * wide(xp, weight)[:, None]
    return (y if bias is None else y + wide(xp, bias)[:, None]).astype(x.dtype)


def _pullback(g: Tensor, x: Tensor, weight: Any, eps: float, groups: int, needs: Sequence[bool]) -> list[Tensor | None]:
    """The gradients of layer norm on the rows of g times the weight, and the sums over the batch and the positions."""
    z, h, gx = widened(x), widened(g), None
    if needs[0]:
        scaled = h if weight is ABSENT else h * reshape(widened(weight), (x.shape[1], 1))
        gx = norm_pullback(_to_rows(scaled, groups), _to_rows(z, groups), eps)
        gx = in_dtype(_from_rows(gx, x.shape, groups), x.dtype)
    gw = sum(h * _plain(z, eps, groups), axis=(0, 2)) if needs[1] else None
    gb = sum(h, axis=(0, 2)) if needs[2] else None
    return [gx, *[None if value is None else in_dtype(value, x.dtype) for value in (gw, gb)]]


# ---- a batch axis


def _together(x: Tensor, groups: int) -> Tensor:
    """Joins all examples (size, N, C, S) to one tensor whose rows are those of each of them."""
    size, n, c, s = x.shape
    return reshaped(x, (size * n, c, s)) if groups else reshape(permute_dims(x, (0, 2, 1, 3)), (size, c, n * s))


def _apart(y: Tensor, shape: tuple[int, ...], groups: int) -> Tensor:
    size, n, c, s = shape
    return reshaped(y, shape) if groups else permute_dims(reshaped(y, (size, c, n, s)), (0, 2, 1, 3))


def _norm_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Weights and biases that differ from example to example are applied after the norm."""
    eps, groups = params
    x = xs[0] if on[0] else spread(xs[0], size)
    shape, each = x.shape, groups or max(1, x.shape[2])
    if not any(on[1:]):
        return _apart(apply(op, (_together(x, groups), *xs[1:]), (eps, each)), shape, groups)
    y = _apart(apply(op, (_together(widened(x), groups), ABSENT, ABSENT), (eps, each)), shape, groups)
    for k, (value, batched) in enumerate(zip(xs[1:], on[1:])):
        if value is not ABSENT:
            value = _of_channels(widened(value), batched)
            y = y * value if k == 0 else y + value
    return in_dtype(y, x.dtype)


def _of_channels(value: Tensor, batched: bool) -> Tensor:
    """Returns (C,) or (size, C) as what multiplies (size, N, C, S)."""
    return reshape(value, (value.shape[0], 1, value.shape[1], 1) if batched else (value.shape[0], 1))


def _pull_each(rule: Rule, size: int, values: Sequence[Any], on: Sequence[bool]) -> list[Tensor | None]:
    """Runs the kernel on the rows of all examples for the gradient of x, and sums the other gradients for each example."""
    weight, eps, groups, needs = values[2:]
    g, x = all_on(size, values[:2], on)
    h, z, each = widened(g), widened(x), groups or max(1, x.shape[2])
    gradients: list[Tensor | None] = [None] * 3
    if needs[0]:
        scaled, given = (h * _of_channels(widened(weight), True), ABSENT) if on[2] else (g, weight)
        rows = [_together(t, groups) for t in ((scaled, z) if on[2] else (g, x))]
        gradients[0] = _apart(pull(rule, *rows, given, eps, each, [True, False, False])[0], x.shape, groups)
    if needs[1]:
        plain = apply(_channel_norm, (_together(z, groups), ABSENT, ABSENT), (eps, each))
        gradients[1] = sum(h * _apart(plain, x.shape, groups), axis=(1, 3))
    if needs[2]:
        gradients[2] = sum(h, axis=(1, 3))
    return [None if gx is None else in_dtype(gx, x.dtype) for gx in gradients]


# ---- declaration


def _cost(x: Any, weight: Any, bias: Any, eps: float, groups: int, y: Any) -> dict[str, int]:
    return rows_cost(_flat_rows(x, groups), (4 + (bias is not None), 2 + (weight is not None), 0), (-1, 2, 3)) if x.size else {}


def _pull_cost(g: Any, x: Any, weight: Any, eps: float, groups: int, needs: Any) -> dict[str, int]:
    cost = norm_pullback_cost(_flat_rows(x.array, groups), weight) if x.size else {}
    return {**cost, "adds": cost["adds"] - 2 * x.shape[1]} if cost else cost  # sums of n terms take n - 1 additions


def _flat_rows(x: Any, groups: int) -> Any:
    return x.reshape(x.shape[0] * groups if groups else x.shape[1], -1)


_channel_norm = op("channel_norm", kind=OWN, batch=_norm_each, reference=_reference, inputs=3, joint=True, takes="float",
                   pullback=_pullback, fused=fused("channel_norm", True), pull=_pull_each, cost=_cost,
                   pull_cost=_pull_cost,
                   example=normal((3, 4, 5), (4,), (4,), params=(1e-5, 2)))


def channel_norm(x: Tensor, weight: Any, bias: Any, groups: int | None, eps: float, *, computed: Tensor | None = None) -> Tensor:
    """Subtracts means, divides by standard deviations, then scales and shifts each channel, in one launch.

    Args:
        x: (N, C, …) float tensor.
        weight, bias: (C,) of the dtype of x, or None.
        groups: the number of groups of neighbouring channels of an example that share a mean; it divides C. None shares the mean of
            each channel over the batch and over all positions.
        eps: added to the variance.
        computed: the result, if `norm_and_move` has computed it. It is then only recorded.

    Half precision is computed in float32 and rounded once.
    """
    inputs, params = _inputs(x, weight, bias), (eps, groups or 0)
    y = apply(_channel_norm, inputs, params) if computed is None else tell(_channel_norm, computed, inputs, params)
    return reshaped(y, x.shape)


def _inputs(x: Tensor, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
    planes = reshaped(x, (*x.shape[:2], math.prod(x.shape[2:])))
    return planes, ABSENT if weight is None else weight, ABSENT if bias is None else bias


_batch_norm, _ = kernel_for("batch_norm")


def norm_and_move(x: Tensor, weight: Any, bias: Any, eps: float, running: Sequence[Any], share: float | None) -> Tensor | None:
    """Computes channel_norm of each channel over the batch, and moves running values in the same launch. Records nothing.

    Args:
        running: running_mean, running_var and num_batches_tracked, each a Parameter or None.
        share: the share of the statistics of x in the new running values, or None for an even share of all batches.

    Returns: what `channel_norm` takes as `computed`, or None if no kernel can do it; then nothing has changed.
    """
    if _batch_norm is None:
        return None
    arrays = [t.array for t in _inputs(x, weight, bias)]
    for p in running:
        if p is not None:
            capturing.keep(p)
    try:
        y = Tensor(_batch_norm(*arrays, eps, *[None if p is None else p.array for p in running], share))
    except Refused:
        return None
    if door.profiling:
        door.charge(_channel_norm.facts.shown)
    for p in running:
        if p is not None:
            p.storage.changed()
    return y
