"""Convolutions over one and two axes: three ops, which are bilinear and each other's pullbacks.

With x (n, channels, h, w), weight (out, channels / groups, kh, kw) and y (n, out, oh, ow):

    convolution(x, weight, bias)    y
    convolution_input(g, weight)    the gradient of x, which is also the transposed convolution of g
    convolution_weight(x, g)        the gradient of weight

All take stride, padding and dilation as (height, width), groups, and the height and width of their result as `size`. `padding` is
what lies before the first element; what lies after the last one follows from the size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autodiff.primitive import Op, apply
from ..backends.autocast import rounded
from ..tensors.tensor import Tensor
from .by_name import repeated, reshaped, spread
from .declare import normal, op
from .kinds import OWN
from .linear import ABSENT
from .reduce import sum_over
from .shape import permute_dims
from .tangents import bilinear

Pair = tuple[int, int]

# ---- references: one product per tap of the kernel


def _windows(xp: Any, x: Any, stride: Pair, padding: Pair, dilation: Pair, kernel: Sequence[int], size: Pair) -> Any:
    """Returns x with zeros around it, and a function that gives the view of it that tap (i, j) meets."""
    lengths = [max(0, (n - 1) * s + 1) + (k - 1) * d for n, s, k, d in zip(size, stride, kernel, dilation)]
    padded = xp.zeros((*x.shape[:2], *lengths), x.dtype)
    inner, outer = [], []
    for n, have, before in zip(lengths, x.shape[2:], padding):
        inner.append(slice(max(0, -before), max(0, min(have, n - before))))
        outer.append(slice(max(0, before), max(0, before) + max(0, inner[-1].stop - inner[-1].start)))

    def window(i: int, j: int) -> Any:
        at = [slice(k * d, k * d + max(0, (n - 1) * s + 1), s) for k, d, n, s in zip((i, j), dilation, size, stride)]
        return padded[(..., *at)]

    return padded, (..., *outer), (..., *inner), window


def _taps(kernel: Sequence[int]) -> list[Pair]:
    return [(i, j) for i in range(kernel[0]) for j in range(kernel[1])]


def _grouped(x: Any, groups: int) -> Any:
    """Returns (n, channels, h, w) as (n, groups, channels of a group, pixels)."""
    n, channels, h, w = x.shape
    return x.reshape(n, groups, channels // groups, h * w)


def _joined(xp: Any, x: Any) -> Any:
    """Returns (n, groups, channels, pixels) as (groups, channels, n pixels)."""
    n, groups, channels, pixels = x.shape
    return xp.moveaxis(x, 0, 2).reshape(groups, channels, n * pixels)


def _reference(
    xp: Any, x: Any, weight: Any, bias: Any, stride: Pair, padding: Pair, dilation: Pair, groups: int, size: Pair
) -> Any:
    x, weight = rounded(xp, x), rounded(xp, weight)
    out, inside, *kernel = weight.shape
    padded, outer, inner, window = _windows(xp, x, stride, padding, dilation, kernel, size)
    padded[outer] = x[inner]
    y = xp.zeros((len(x), groups, out // groups, size[0] * size[1]), x.dtype)
    w = weight.reshape(groups, out // groups, inside, *kernel)
    for i, j in _taps(kernel):
        y += xp.matmul(w[..., i, j], _grouped(window(i, j), groups))
    y = y.reshape(len(x), out, *size)
    return y if bias is None else y + bias[:, None, None]


def _input_reference(xp: Any, g: Any, weight: Any, stride: Pair, padding: Pair, dilation: Pair, groups: int, size: Pair) -> Any:
    g, weight = rounded(xp, g), rounded(xp, weight)
    out, inside, *kernel = weight.shape
    gx = xp.zeros((len(g), inside * groups, *size), g.dtype)
    padded, outer, inner, window = _windows(xp, gx, stride, padding, dilation, kernel, g.shape[2:])
    w = xp.swapaxes(weight.reshape(groups, out // groups, inside, *kernel), 1, 2)
    for i, j in _taps(kernel):
        view = window(i, j)
        view += xp.matmul(w[..., i, j], _grouped(g, groups)).reshape(view.shape)
    gx[inner] = padded[outer]
    return gx


def _weight_reference(xp: Any, x: Any, g: Any, stride: Pair, padding: Pair, dilation: Pair, groups: int, size: Pair) -> Any:
    x, g = rounded(xp, x), rounded(xp, g)
    padded, outer, inner, window = _windows(xp, x, stride, padding, dilation, size, g.shape[2:])
    padded[outer] = x[inner]
    rows = _joined(xp, _grouped(g, groups))
    gw = xp.zeros((g.shape[1], x.shape[1] // groups, *size), x.dtype)
    for i, j in _taps(size):
        columns = _joined(xp, _grouped(window(i, j), groups))
        gw[..., i, j] = xp.matmul(rows, xp.swapaxes(columns, 1, 2)).reshape(gw.shape[:2])
    return gw


# ---- pullbacks


def _pull_x(
    g: Tensor, x_shape: Any, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair, groups: int, size: Pair
) -> Tensor:
    return apply(_input, (g, weight), (stride, padding, dilation, groups, x_shape[2:]))


def _pull_weight(
    g: Tensor, x: Tensor, weight_shape: Any, stride: Pair, padding: Pair, dilation: Pair, groups: int, size: Pair
) -> Tensor:
    return apply(_weight, (x, g), (stride, padding, dilation, groups, weight_shape[2:]))


def _pull_bias(g: Tensor) -> Tensor:
    return sum_over(g, (0, 2, 3))


def _pull_g_of_input(
    u: Tensor, g_shape: Any, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair, groups: int, size: Pair
) -> Tensor:
    return apply(_convolution, (u, weight, ABSENT), (stride, padding, dilation, groups, g_shape[2:]))


def _pull_weight_of_input(
    u: Tensor, g: Tensor, weight_shape: Any, stride: Pair, padding: Pair, dilation: Pair, groups: int, size: Pair
) -> Tensor:
    return apply(_weight, (u, g), (stride, padding, dilation, groups, weight_shape[2:]))


def _pull_x_of_weight(
    u: Tensor, x_shape: Any, g: Tensor, stride: Pair, padding: Pair, dilation: Pair, groups: int, size: Pair
) -> Tensor:
    return apply(_input, (g, u), (stride, padding, dilation, groups, x_shape[2:]))


def _pull_g_of_weight(
    u: Tensor, x: Tensor, g_shape: Any, stride: Pair, padding: Pair, dilation: Pair, groups: int, size: Pair
) -> Tensor:
    return apply(_convolution, (x, u, ABSENT), (stride, padding, dilation, groups, g_shape[2:]))


# ---- costs


def _products(y: Any, weight: Any) -> dict[str, int]:
    _, inside, height, width = weight.shape
    products = y.size * inside * height * width
    return {"fmas": products, "matmul_flops": 2 * products}


def _cost(x: Any, weight: Any, bias: Any, *rest: Any) -> dict[str, int]:
    return {**_products(rest[-1], weight), "adds": 0 if bias is None else rest[-1].size}


# ---- a batch axis. Examples that share their weights are more images; examples with weights of their own are more groups.


def _as_images(x: Tensor) -> Tensor:
    """Returns (size, n, c, h, w) as (size n, c, h, w)."""
    size, n, *rest = x.shape
    return reshaped(x, (size * n, *rest))


def _as_channels(x: Tensor) -> Tensor:
    """Returns (size, n, c, h, w) as (n, size c, h, w)."""
    size, n, c, *plane = x.shape
    return reshaped(permute_dims(x, (1, 0, 2, 3, 4)), (n, size * c, *plane))


def _from_channels(y: Tensor, size: int) -> Tensor:
    """Returns (n, size c, h, w) as (size, n, c, h, w)."""
    n, c, *plane = y.shape
    return permute_dims(reshaped(y, (n, size, c // size, *plane)), (1, 0, 2, 3, 4))


def _each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For convolution(x, weight, bias, …)."""
    (x, weight, bias), (stride, padding, dilation, groups, length) = xs, params
    if not on[1] and not on[2]:
        y = apply(op, (_as_images(x), weight, bias), tuple(params))
        return reshaped(y, (size, x.shape[1], *y.shape[1:]))
    weight = weight if on[1] else spread(weight, size)
    shared = not on[0] and groups == 1  # all examples read the same channels
    x = x if shared else _as_channels(x if on[0] else spread(x, size))
    if bias is not ABSENT:
        bias = reshaped(bias if on[2] else spread(bias, size), (size * weight.shape[1],))
    joined = reshaped(weight, (size * weight.shape[1], *weight.shape[2:]))
    y = apply(op, (x, joined, bias), (stride, padding, dilation, 1 if shared else size * groups, length))
    return _from_channels(y, size)


def _input_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For convolution_input(g, weight, …)."""
    (g, weight), (stride, padding, dilation, groups, length) = xs, params
    if not on[1]:
        y = apply(op, (_as_images(g), weight), tuple(params))
        return reshaped(y, (size, g.shape[1], *y.shape[1:]))
    joined = reshaped(weight, (size * weight.shape[1], *weight.shape[2:]))
    g = _as_channels(g if on[0] else spread(g, size))
    return _from_channels(apply(op, (g, joined), (stride, padding, dilation, size * groups, length)), size)


def _weight_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For convolution_weight(x, g, …)."""
    (x, g), (stride, padding, dilation, groups, length) = xs, params
    shared = not on[0] and groups == 1
    x = x if shared else _as_channels(x if on[0] else spread(x, size))
    g = _as_channels(g if on[1] else spread(g, size))
    gw = apply(op, (x, g), (stride, padding, dilation, 1 if shared else size * groups, length))
    return reshaped(gw, (size, gw.shape[0] // size, *gw.shape[1:]))


def _tangent(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """Applies the product rule to x and weight, and adds the tangent of the bias."""
    (x, weight, _), (tx, tw, tb) = inputs, tangents
    parts = [apply(op, (tx, weight, ABSENT), tuple(params))] if tx is not None else []
    parts += [apply(op, (x, tw, ABSENT), tuple(params))] if tw is not None else []
    if tb is not None:
        parts.append(reshaped(tb, (tb.shape[0], 1, 1)))
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return repeated(total, y.shape)


# ---- declarations

_GEOMETRY: tuple[Any, ...] = ((2, 1), (1, 0), (1, 2), 2)  # stride, padding, dilation and groups of the examples
_RULES: dict[str, Any] = {"kind": OWN, "takes": "float"}
_convolution = op(
    "convolution", **_RULES, inputs=3, reference=_reference, batch=_each, tangent=_tangent, cost=_cost,
    pullback=(_pull_x, _pull_weight, _pull_bias), example=normal((2, 4, 5, 6), (6, 2, 3, 2), (6,), params=(*_GEOMETRY, (3, 4))),
)
_input = op(
    "convolution_input", **_RULES, inputs=2, reference=_input_reference, batch=_input_each, tangent=bilinear,
    pullback=(_pull_g_of_input, _pull_weight_of_input), cost=lambda g, weight, *rest: _products(g, weight),
    example=normal((2, 6, 3, 4), (6, 2, 3, 2), params=(*_GEOMETRY, (5, 6))),
)
_weight = op(
    "convolution_weight", **_RULES, inputs=2, reference=_weight_reference, batch=_weight_each, tangent=bilinear,
    pullback=(_pull_x_of_weight, _pull_g_of_weight), cost=lambda x, g, *rest: _products(g, rest[-1]),
    example=normal((2, 4, 5, 6), (2, 6, 3, 4), params=(*_GEOMETRY, (3, 2))),
)

# ---- functions for layers. `how` is (stride, padding, dilation, groups, size); all have been checked.


def convolve(x: Tensor, weight: Tensor, bias: Any, how: tuple[Any, ...]) -> Tensor:
    """Returns the convolution of x (n, c, h, w) with the weight, plus the bias unless that is ABSENT, in one launch."""
    return apply(_convolution, (x, weight, bias), how)


def convolve_transposed(x: Tensor, weight: Tensor, bias: Any, how: tuple[Any, ...]) -> Tensor:
    """Returns the transposed convolution of x (n, c, h, w) with the weight, plus the bias unless that is ABSENT."""
    y = apply(_input, (x, weight), how)
    return y if bias is ABSENT else y + reshaped(bias, (bias.shape[0], 1, 1))
