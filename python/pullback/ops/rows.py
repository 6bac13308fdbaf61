"""Ops on whole rows: softmax and its relatives, layer and RMS norm. The kernels work on the last axis.

Each pullback consists of differentiable ops on the inputs of the forward pass and computes means and scales again. Second
derivatives are therefore exact: no value that depends on x is treated as a constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from ..autodiff.batching import pull
from ..autodiff.primitive import Op, Rule, apply
from ..backends import kernel_for
from ..errors import ShapeError
from ..tensors.creation import ones_like
from ..tensors.dtypes import finfo
from ..tensors.operand import as_tensor, own
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from ._shapes import Shape, epsilon, ints, kept, normalize_axes
from .by_name import all_on, in_dtype, lifted, spread, widened
from .conversion import same_dtype, settled, stop_gradient
from .declare import normal, op
from .elementwise import equal, exp, expm1, greater, less, mask_nan_gradient, rsqrt, square, where
from .kinds import OWN, ROWS
from .linear import ABSENT
from .operands import as_tensors
from .reduce import centred, mean, sum
from .row_references import layer_norm_reference, log_softmax_reference, logsumexp_reference, rms_norm_reference, softmax_reference
from .row_sums import repeated_rows, total_of_rows
from .shape import expand_dims, inverse, permute_dims, reshape

# ---- pullbacks by definition

CHAIN: Final = 8  # the rows of a chain, kOrderChain in csrc/families/order.h


def _softmax_pullback(g: Tensor, y: Tensor) -> Tensor:
    """y (g - sum(g y)), where a factor of 0 times NaN is 0."""
    centred = g - sum(mask_nan_gradient(g, g * y), axis=-1, keepdims=True)
    return mask_nan_gradient(centred, y * centred)


def _log_softmax_pullback(g: Tensor, y: Tensor) -> Tensor:
    """g - p sum(g), where 1 - p and the sum of the other cotangents have their digits also if p is almost 1."""
    total, p = sum(g, axis=-1, keepdims=True), exp(y)
    sure = -(expm1(y) * g) - mask_nan_gradient(total, p * (total - g))
    return where(greater(p, 0.5), sure, g - mask_nan_gradient(total, p * total))


def _logsumexp_pullback(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """softmax(x) times g, and 0 for a row of -inf, so that masked rows pass no NaN on."""
    g, y = expand_dims(g, axis=-1), expand_dims(y, axis=-1)
    return mask_nan_gradient(g, g * where(equal(y, -math.inf), 0.0, apply(_softmax, (x,))))


def _layer_norm_pullback(g: Tensor, x: Tensor, weight: Any, eps: float, needs: Sequence[bool]) -> list[Tensor | None]:
    """g * weight minus its mean and its projection on the normalized row, over the standard deviation, which is computed again."""
    z = widened(x)
    gradients = _norm_pullback(g, centred(z, (z.ndim - 1,)), weight, eps, needs, True)
    return [_narrowed(gx, x.dtype) for gx in gradients]


def _rms_norm_pullback(g: Tensor, x: Tensor, weight: Any, eps: float, needs: Sequence[bool]) -> list[Tensor | None]:
    """g * weight minus its projection on the normalized row, over the root mean square, which is computed again."""
    gradients = _norm_pullback(g, widened(x), weight, eps, (*needs, False), False)
    return [_narrowed(gx, x.dtype) for gx in gradients[:2]]


def _norm_pullback(g: Tensor, z: Tensor, weight: Any, eps: float, needs: Sequence[bool], centre: bool) -> list[Tensor | None]:
    """Returns the gradients of z / sqrt(mean(z²) + eps) * weight + bias. `centre` means that z is x minus its mean (layer norm)."""
    g = widened(g)
    c = _nearness(mean(square(stop_gradient(z)), axis=-1, keepdims=True) + eps)
    z = z * c
    squares = mean(square(z), axis=-1, keepdims=True) + eps * c * c
    scale = rsqrt(where(equal(squares, math.inf), math.nan, squares))  # an infinity in the row makes no finite derivative
    normed = z * scale
    gx = None
    if needs[0]:
        h = g if weight is ABSENT else g * widened(weight)
        gx = h - normed * mean(h * normed, axis=-1, keepdims=True)
        gx = c * scale * (gx - mean(h, axis=-1, keepdims=True) if centre else gx)
    return [gx, _over_rows(g * normed) if needs[1] else None, _over_rows(g) if needs[2] else None]


def _nearness(square: Tensor) -> Tensor:
    """Returns a power of two that scales rows of this mean square, so that its cube has a place in the dtype; 1 for most rows."""
    limits = finfo(square.dtype)
    step = 2.0 ** (48 if limits.bits == 32 else 384)
    large, small = step ** (4 / 3), limits.smallest_normal / limits.eps
    far = where(equal(square, math.inf), 1 / step**2, where(greater(square, large), 1 / step, ones_like(square)))
    return where(less(square, small), step**2, where(less(square, 1 / large), step, far))


def _over_rows(terms: Tensor, lead: int = 0) -> Tensor:
    """Sums terms (…, n) over all axes but the last and the first `lead`, in the order of the kernels: in chains, whose sums are
    reduced.
    """
    shape = terms.shape
    return total_of_rows(reshape(terms, (*shape[:lead], math.prod(shape[lead:-1]), shape[-1])), CHAIN)


def norm_pullback(g: Tensor, z: Tensor, eps: float) -> Tensor:
    """Returns the gradient of rows z, of float32 or float64, in the layer norm without a weight and a bias."""
    gx = _norm_pullback(g, centred(z, (z.ndim - 1,)), ABSENT, eps, (True, False, False), True)[0]
    assert gx is not None
    return gx


def _narrowed(x: Tensor | None, dtype: Any) -> Tensor | None:
    return None if x is None else in_dtype(x, dtype)


# ---- costs of n elements in r rows. A sum of n elements takes n - 1 additions; exp, log, rsqrt and division are special ops;
# maxima are comparisons, which do not count. csrc/cpu gets the same numbers by running a row on the counting scalar.


def rows_cost(x: Any, element: tuple[int, int, int], row: tuple[int, int, int]) -> dict[str, int]:
    """Returns the cost from the (additions, multiplications, special ops) of each element and of each row."""
    rows = x.size // x.shape[-1] if x.size else 0
    return {figure: x.size * of + rows * more for figure, of, more in zip(("adds", "multiplies", "special_ops"), element, row)}


def _cost(element: tuple[int, int, int], row: tuple[int, int, int]) -> Callable[..., dict[str, int]]:
    return lambda x, *rest: rows_cost(x, element, row)


def _layer_norm_cost(x: Any, weight: Any, bias: Any, eps: float, y: Any) -> dict[str, int]:
    return rows_cost(x, (4 + (bias is not None), 2 + (weight is not None), 0), (-1, 2, 3))  # x - mean is computed twice


def _rms_norm_cost(x: Any, weight: Any, eps: float, y: Any) -> dict[str, int]:
    return rows_cost(x, (1, 2 + (weight is not None), 0), (0, 0, 2))


# The kernels of the pullbacks compute x - mean and the normalized x again in each pass, and both other gradients in any case.


def norm_pullback_cost(x: Any, weight: Any) -> dict[str, int]:
    """Returns the cost of the pullback of a layer norm."""
    return rows_cost(x, (11, 7 + (weight is not ABSENT), 0), (-3, 2, 5))


def _rms_norm_pullback_cost(g: Any, x: Any, weight: Any, *_: Any) -> dict[str, int]:
    return rows_cost(x, (4, 7 + (weight is not ABSENT), 0), (-1, 0, 3))


# ---- a batch axis


def _norm_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For layer_norm(x, weight, bias, eps), rms_norm(x, weight, eps). Batched weights and biases are applied after the norm."""
    x = xs[0] if on[0] else spread(xs[0], size)
    if not any(on[1:]):
        return apply(op, (x, *xs[1:]), tuple(params))
    y = _plain_norm(op, x, *params)
    for k, value in enumerate(xs[1:]):
        if value is not ABSENT:
            rows = repeated_rows(widened(value), math.prod(x.shape[1:-1]), CHAIN)  # the kernels sum its gradient in chains
            rows = reshape(rows, (*value.shape[:-1], *x.shape[1:]))
            y = y * rows if k == 0 else y + rows
    return in_dtype(y, x.dtype)


def _plain_norm(op: Op, x: Tensor, eps: float) -> Tensor:
    """Returns the norm of x without a weight and a bias, in float32 if x is of half precision."""
    return apply(op, (widened(x), *[ABSENT] * (len(op.names) - 2)), (eps,))


def _pull_norm_each(rule: Rule, size: int, values: Sequence[Any], on: Sequence[bool]) -> list[Tensor | None]:
    """Runs the kernel on the rows of all examples for the gradient of x, and sums the other gradients over the rows of each."""
    weight, eps, needs = values[2:]
    g, x = all_on(size, values[:2], on)
    h, only = widened(g), [True, *[False] * (len(needs) - 1)]
    gradients: list[Tensor | None] = [None] * len(needs)
    if needs[0] and on[2]:
        gradients[0] = pull(rule, h * lifted(widened(weight), x.ndim - 1), widened(x), ABSENT, eps, only)[0]
    elif needs[0]:
        gradients[0] = pull(rule, g, x, weight, eps, only)[0]
    if needs[1]:
        gradients[1] = _over_rows(h * _plain_norm(LAYER_NORM if len(needs) == 3 else _rms_norm, x, eps), 1)
    if len(needs) == 3 and needs[2]:
        gradients[2] = _over_rows(h, 1)
    return [_narrowed(gx, x.dtype) for gx in gradients]


# ---- declarations


def fused(name: str, joint: bool = False) -> Callable[..., Any] | None:
    """Returns the native pullback as a rule from tensors to tensors, or None. The kernel does not take `needs`."""
    pull, _ = kernel_for(f"{name}_pullback")
    if pull is None:
        return None
    kernel = pull

    def one(g: Tensor, *kept: Any) -> Tensor:
        return Tensor(kernel(g.array, *[k.array if hasattr(k, "array") else k for k in kept]))

    def several(g: Tensor, *kept: Any) -> list[Tensor | None]:
        arrays = kernel(g.array, *[k.array if hasattr(k, "array") else k for k in kept[:-1]])
        return [None if array is None or not need else Tensor(array) for array, need in zip(arrays, kept[-1])]

    return several if joint else one


_softmax = op("softmax", kind=ROWS, reference=softmax_reference, takes="float", pullback=_softmax_pullback,
              fused=fused("softmax"), cost=_cost((2, 1, 1), (-1, 0, 1)), example=normal((4, 5)))
_log_softmax = op("log_softmax", kind=ROWS, reference=log_softmax_reference, takes="float", pullback=_log_softmax_pullback,
                  fused=fused("log_softmax"), cost=_cost((3, 0, 1), (-1, 0, 1)), example=normal((4, 5)))
_logsumexp = op("logsumexp", kind=ROWS, reference=logsumexp_reference, takes="float", pullback=_logsumexp_pullback,
                fused=fused("logsumexp"), cost=_cost((2, 0, 1), (0, 0, 1)), example=normal((4, 5)),
                pull_cost=lambda g, x, y: rows_cost(x, (1, 1, 1), (0, 0, 0)))
LAYER_NORM = op("layer_norm", kind=OWN, batch=_norm_each, reference=layer_norm_reference, inputs=3, joint=True, takes="float",
                 pullback=_layer_norm_pullback, fused=fused("layer_norm", True), pull=_pull_norm_each, cost=_layer_norm_cost,
                 pull_cost=lambda g, x, weight, *_: norm_pullback_cost(x, weight),
                 example=normal((4, 5), (5,), (5,), params=(1e-5,)))
_rms_norm = op("rms_norm", kind=OWN, batch=_norm_each, reference=rms_norm_reference, inputs=2, joint=True, takes="float",
               pullback=_rms_norm_pullback, fused=fused("rms_norm", True), pull=_pull_norm_each, cost=_rms_norm_cost,
               pull_cost=_rms_norm_pullback_cost, example=normal((4, 5), (5,), params=(1e-6,)))
# ---- public functions


def _at_end(name: str, x: Any, axis: Any) -> tuple[Tensor, tuple[int, ...] | None]:
    """Returns x with these axes last, and the permutation that moved them there (None if they are last already)."""
    x = as_tensor(x)
    if axis.__class__ is int and axis == -1 and x.array.ndim:
        return x, None
    axes = normalize_axes(name, axis, x.ndim)
    if not axes:
        raise ShapeError(f"{name}: a 0-d tensor has no axis; reshape it to (1,) first.")
    order = (*[i for i in range(x.ndim) if i not in axes], *axes)
    return (x, None) if order == tuple(range(x.ndim)) else (permute_dims(x, order), order)


def joined_rows(name: str, x: Tensor, axes: Shape) -> Tensor:
    """Returns x with these axes, at least one, joined to a last one."""
    rows, _ = _at_end(name, x, axes)
    return _flat(rows, rows.shape[x.ndim - len(axes) :])


def _along(op: Any, x: Any, axis: int) -> Tensor:
    if axis.__class__ is int and axis == -1 and x.__class__ is Tensor and x.array.ndim:  # a short cut for nearly every call
        return apply(op, (x,))
    rows, order = _at_end(op.name, x, axis)
    y = apply(op, (rows,))
    return y if order is None else permute_dims(y, inverse(order))


def softmax(x: ArrayLike, axis: int = -1) -> Tensor:
    """Returns exp(x) / sum(exp(x)) along an axis, without overflow. Raises ShapeError."""
    return _along(_softmax, x, axis)


def log_softmax(x: ArrayLike, axis: int = -1) -> Tensor:
    """Returns x - logsumexp(x) along an axis, without overflow. Raises ShapeError."""
    return _along(_log_softmax, x, axis)


def logsumexp(x: ArrayLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
    """Returns log(sum(exp(x))) over the axes (None: all axes), without overflow; -inf if all are -inf. Raises ShapeError."""
    given, x, keepdims = x, as_tensor(x), kept("logsumexp", keepdims)
    axes = normalize_axes("logsumexp", axis, x.ndim)
    if not axes:
        return settled(own(given))
    y = apply(_logsumexp, (joined_rows("logsumexp", x, axes),))
    return expand_dims(y, axis=axes) if keepdims else y


def layer_norm(
    x: ArrayLike, weight: ArrayLike | None = None, bias: ArrayLike | None = None, *, axis: int | Sequence[int] = -1,
    eps: float = 1e-5,
) -> Tensor:
    """Subtracts the mean of each row, divides by its standard deviation, then scales and shifts.

    Args:
        x: (…, n) float tensor. A row is the last axis, or the axes that `axis` names.
        weight: (n,), or the lengths of these axes; None for ones.
        bias: the shape of weight; None for zeros.
        eps: added to the variance, in units of x squared.

    Returns: the shape of x, of rows of any size. Half precision is computed in float32. Raises: ShapeError.
    Cost: 7 x.size FLOPs, one launch. Source: Ba, Kiros & Hinton 2016, eq. 3.
    """
    return _normed(LAYER_NORM, x, [("weight", weight), ("bias", bias)], axis, eps)


def rms_norm(x: ArrayLike, weight: ArrayLike | None = None, *, axis: int | Sequence[int] = -1, eps: float = 1e-6) -> Tensor:
    """Divides each row of x by its root mean square, then scales.

    Args:
        x: (…, n) float tensor. A row is the last axis, or the axes that `axis` names.
        weight: (n,), or the lengths of these axes; None for ones.
        eps: added to the mean square, in units of x squared.

    Returns: the shape of x. A row of zeros gives zeros, and its gradient is finite. Raises: ShapeError.
    Cost: 4 x.size FLOPs, one launch. Source: Zhang & Sennrich 2019, eq. 4.
    """
    return _normed(_rms_norm, x, [("weight", weight)], axis, eps)


def _normed(op: Any, x: Any, affine: list[tuple[str, Any]], axis: Any, eps: float) -> Tensor:
    given: list[Any]
    x, *given = as_tensors(op.name, x, optional=[value for _, value in affine])
    rows, order = _at_end(op.name, x, axis)
    count = len(ints(op.name, "axis", axis))
    lengths = rows.shape[rows.ndim - count :]
    for (name, _), value in zip(affine, given):
        if value is not None and value.shape != lengths:
            raise ShapeError(
                f"{op.name}: {name} has shape {value.shape}, but the normalized axes of x {x.shape} have lengths "
                f"{lengths}. Give {name} that shape, or name other axes with axis=."
            )
    flat = _flat(rows, lengths)
    flats = [None if value is None else _flat(value, lengths) for value in given]
    if any([value is not None and value.dtype != flat.dtype for value in flats]):
        same = iter(same_dtype([flat, *[value for value in flats if value is not None]]))
        flat, flats = next(same), [None if value is None else next(same) for value in flats]
    y = apply(op, (flat, *[ABSENT if value is None else value for value in flats]), (epsilon(op.name, eps),))
    y = y if y.shape == rows.shape else reshape(y, rows.shape)
    return y if order is None else permute_dims(y, inverse(order))


def _flat(x: Tensor, lengths: Shape) -> Tensor:
    """Returns x with its last len(lengths) axes joined to one."""
    return x if len(lengths) == 1 else reshape(x, (*x.shape[: x.ndim - len(lengths)], math.prod(lengths)))
