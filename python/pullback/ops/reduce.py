"""Reductions over axes: sums, products, extremes, and the functions that are built from them."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autodiff.primitive import ZERO, apply
from ..backends import kernel_for
from ..errors import ShapeError
from ..tensors import dtypes
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, DTypeLike
from ._shapes import Shape, kept, kept_dims, normalize_axes, normalize_axis
from .by_name import in_dtype, in_float, repeated, reshaped
from .conversion import stop_gradient
from .cumulative import diff, product_of_others
from .declare import no_flops, op
from .elementwise import equal, isfinite, not_equal, where
from .kinds import REDUCE
from .operands import as_tensors
from .shape import flatten, inverse, part_of, permute_dims, reshape
from .tangents import linear


def _adds(x: Any, axes: Any, keepdims: Any, y: Any) -> dict[str, int]:
    return {"adds": builtins.max(0, x.size - y.size)}


def _multiplies(x: Any, axes: Any, keepdims: Any, y: Any) -> dict[str, int]:
    return {"multiplies": builtins.max(0, x.size - y.size)}


def _adds_and_divides(x: Any, axes: Any, keepdims: Any, y: Any) -> dict[str, int]:
    # The mean of one element needs no division.
    return {"adds": builtins.max(0, x.size - y.size), "special_ops": 0 if x.size == y.size else y.size}


def _spread(g: Tensor, shape: Shape, axes: Shape) -> Tensor:
    """g repeated over the elements that were reduced to it, as a view if possible."""
    return repeated(reshaped(g, kept_dims(shape, axes)), shape)


_quick_spread, _ = kernel_for("sum_pullback")


def _spread_mean(g: Tensor, shape: Shape, axes: Shape) -> Tensor:
    """Returns the pullback of a mean by one product and one view."""
    assert _quick_spread is not None
    return _quick_spread(_share_of(g, shape, axes), shape, axes)


def _spread_evenly(g: Tensor, shape: Shape, axes: Shape) -> Tensor:
    """g divided by the number of averaged elements, repeated over these elements."""
    return _spread(_share_of(g, shape, axes), shape, axes)


def _share_of(g: Tensor, shape: Shape, axes: Shape) -> Tensor:
    return g * (1.0 / cells(shape, axes))


def _where_extreme(g: Tensor, x: Tensor, axes: Shape, y: Tensor) -> Tensor:
    """The elements that attain the extreme share g evenly."""
    hit = in_dtype(equal(x, _spread(y, x.shape, axes)), x.dtype)
    share = sum_over(hit, axes, True)
    return hit * _spread(g, x.shape, axes) / share


def _other_factors(g: Tensor, x: Tensor, axes: Shape) -> Tensor:
    """g times the product of all other elements, which is correct even if elements are zero."""
    kept = tuple([i for i in range(x.ndim) if i not in axes])
    order = (*kept, *axes)
    rows = reshape(permute_dims(x, order), (*[x.shape[i] for i in kept], -1 if x.size else 0))
    others = reshape(product_of_others(rows), tuple([x.shape[i] for i in order]))
    return _spread(g, x.shape, axes) * permute_dims(others, inverse(order))


def _accumulated(xp: Any, x: Any) -> Any:
    """Returns float32 for half precision, which NumPy must sum in float32 as the kernels do; otherwise None."""
    return np.float32 if x.dtype.itemsize == 2 and x.dtype.kind in "fV" else None


def _by_numpy(name: str) -> Any:
    def reference(xp: Any, x: Any, axes: Any, keepdims: Any) -> Any:
        return getattr(xp, name)(x, axis=axes, keepdims=bool(keepdims))

    return reference


def _summing(name: str) -> Any:
    def reference(xp: Any, x: Any, axes: Any, keepdims: Any) -> Any:
        y = getattr(xp, name)(x, axis=axes, keepdims=bool(keepdims), dtype=_accumulated(xp, x))
        return y.astype(dtypes.accumulated(x.dtype))

    return reference


def _averaging(xp: Any, x: Any, axes: Any, keepdims: Any) -> Any:
    """Returns the mean. Unlike xp.mean it does not warn about an empty mean: the result NaN suffices."""
    total = xp.sum(x, axis=axes, keepdims=bool(keepdims), dtype=_accumulated(xp, x))
    return (total / math.prod([x.shape[axis] for axis in axes])).astype(dtypes.accumulated(x.dtype))


_sum = op("sum", kind=REDUCE, tangent=linear, reference=_summing("sum"), takes="any", cost=_adds,
          pullback=lambda g, x_shape, axes: _spread(g, x_shape, axes), fused=_quick_spread)
_prod = op("prod", kind=REDUCE, reference=_summing("prod"), takes="any", cost=_multiplies,
           pullback=lambda g, x, axes: _other_factors(g, x, axes))
_mean = op("mean", kind=REDUCE, tangent=linear, reference=_averaging, takes="float", cost=_adds_and_divides,
           pullback=lambda g, x_shape, axes: _spread_evenly(g, x_shape, axes),
           fused=_quick_spread and _spread_mean)
_max = op("max", kind=REDUCE, reference=_by_numpy("max"), cost=no_flops,
          pullback=lambda g, x, axes, y: _where_extreme(g, x, axes, y))
_min = op("min", kind=REDUCE, reference=_by_numpy("min"), cost=no_flops,
          pullback=lambda g, x, axes, y: _where_extreme(g, x, axes, y))
_any = op("any", kind=REDUCE, reference=_by_numpy("any"), pullback=ZERO, cost=no_flops)
_all = op("all", kind=REDUCE, reference=_by_numpy("all"), pullback=ZERO, cost=no_flops)
_argmax = op("argmax", kind=REDUCE, reference=lambda xp, x, axis, keepdims: xp.argmax(x, axis=axis, keepdims=bool(keepdims)),
             pullback=ZERO, cost=no_flops)
_argmin = op("argmin", kind=REDUCE, reference=lambda xp, x, axis, keepdims: xp.argmin(x, axis=axis, keepdims=bool(keepdims)),
             pullback=ZERO, cost=no_flops)


def cells(shape: Shape, axes: Shape) -> int:
    """Returns the number of elements that are reduced to one result, at least 1, so that callers can divide by it."""
    n = 1
    for axis in axes:
        n *= shape[axis]
    return n or 1


def sum_over(x: Tensor, axes: Shape, keepdims: bool = False) -> Tensor:
    """Runs sum with valid axes: sorted and counted from the front."""
    return apply(_sum, (x,), (axes, keepdims))


def sum(x: ArrayLike, axis: int | Sequence[int] | None = None, dtype: DTypeLike | None = None, *, keepdims: bool = False) -> Tensor:
    """Returns the sum over the axes (None: all axes). Integers are summed in 64 bits, half precision in float32.

    dtype: that of the result, to which x is converted first. Raises ShapeError for an axis that does not exist.
    """
    x = as_tensor(x) if dtype is None else in_dtype(x, dtype)
    y = apply(
        _sum, (x,), (normalize_axes("sum", axis, x.array.ndim), keepdims if keepdims.__class__ is bool else kept("sum", keepdims))
    )
    return y if dtype is None else in_dtype(y, dtype)


def prod(
    x: ArrayLike, axis: int | Sequence[int] | None = None, dtype: DTypeLike | None = None, *, keepdims: bool = False
) -> Tensor:
    """Returns the product over the axes (None: all axes). Its gradient is correct even if elements are zero.

    dtype: that of the result, to which x is converted first. Raises ShapeError.
    """
    x = as_tensor(x) if dtype is None else in_dtype(x, dtype)
    y = apply(_prod, (x,), (normalize_axes("prod", axis, x.array.ndim), kept("prod", keepdims)))
    return y if dtype is None else in_dtype(y, dtype)


def mean(x: ArrayLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
    """Returns the mean over the axes (None: all axes); integers are averaged in float32. Raises ShapeError.

    It is the sum over the count, and infinite where the sum is, as in NumPy.
    """
    x = as_tensor(x)
    return apply(
        _mean,
        (x,),
        (normalize_axes("mean", axis, x.array.ndim), keepdims if keepdims.__class__ is bool else kept("mean", keepdims)),
    )


def max(x: ArrayLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
    """Returns the largest element over the axes (None: all axes), or NaN if there is one. Ties share the gradient evenly.

    Raises ShapeError for an axis that does not exist or is empty.
    """
    return _extreme(_max, x, axis, keepdims)


def min(x: ArrayLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
    """Returns the smallest element over the axes (None: all axes), or NaN if there is one. Ties share the gradient evenly.

    Raises ShapeError for an axis that does not exist or is empty.
    """
    return _extreme(_min, x, axis, keepdims)


def _extreme(op: Any, x: Any, axis: Any, keepdims: bool) -> Tensor:
    x = as_tensor(x)
    axes = normalize_axes(op.name, axis, x.ndim)
    for i in axes:
        if x.shape[i] == 0:
            raise ShapeError(
                f"{op.name}: axis {i} of shape {x.shape} is empty, and no elements have no {op.name}. Check the size first."
            )
    return apply(op, (x,), (axes, kept(op.name, keepdims)))


def any(x: ArrayLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
    """Returns True where at least one element over the axes (None: all axes) is not zero. Raises ShapeError."""
    x = as_tensor(x)
    return apply(_any, (x,), (normalize_axes("any", axis, x.ndim), kept("any", keepdims)))


def all(x: ArrayLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
    """Returns True where no element over the axes (None: all axes) is zero. Raises ShapeError."""
    x = as_tensor(x)
    return apply(_all, (x,), (normalize_axes("all", axis, x.ndim), kept("all", keepdims)))


def _position(op: Any, x: Any, axis: int | None, keepdims: bool) -> Tensor:
    x, keepdims = as_tensor(x), kept(op.name, keepdims)
    flat = axis is None
    source, along = (flatten(x), 0) if flat else (x, normalize_axis(op.name, axis, x.ndim))
    if source.shape[along] == 0:
        raise ShapeError(f"{op.name}: there is no element along the axis of length 0 in shape {x.shape}.")
    y = apply(op, (source,), (along, keepdims and not flat))
    return reshape(y, (1,) * x.ndim) if flat and keepdims else y


def argmax(x: ArrayLike, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Returns the int64 index of the first largest element along the axis (None: in the flattened tensor). Raises ShapeError."""
    return _position(_argmax, x, axis, keepdims)


def argmin(x: ArrayLike, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Returns the int64 index of the first smallest element along the axis (None: in the flattened tensor). Raises ShapeError."""
    return _position(_argmin, x, axis, keepdims)


def count_nonzero(x: ArrayLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
    """Returns the number of elements over the axes (None: all axes) that are not zero, as int64. Raises ShapeError."""
    return sum(not_equal(as_tensor(x), 0), axis=axis, keepdims=keepdims)


def centred(x: Tensor, axes: Shape) -> Tensor:
    """Returns x minus its mean over the axes, and exactly 0 where all elements are equal.

    The rounding of a mean may exceed the distances from it, and the sum of large numbers may overflow. The mean is therefore
    computed again, from the distances to the first mean, or to the first element if that mean is not finite.
    """
    if not x.size:
        return x
    element = constant = stop_gradient(x)
    for axis in axes:
        element = part_of(element, axis, slice(0, 1))
    first = mean(constant, axis=axes, keepdims=True)
    pivot = where(isfinite(first), first, element)
    return x - (pivot + mean(x - pivot, axis=axes, keepdims=True))


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Tensor:
    """Returns the integral of y along an axis by the trapezoidal rule.

    x: the places of y, of its shape or a vector along the axis; without it they are `dx` apart. Raises ShapeError.
    """
    y, x = as_tensors("trapezoid", y, optional=(x,))
    y = in_float(y)
    along = normalize_axis("trapezoid", axis, y.ndim)
    if x is not None:
        n = y.shape[along]
        if x.shape not in ((n,), y.shape):
            raise ShapeError(f"trapezoid: x has shape {x.shape}, y {y.shape}; x needs that shape, or to be a vector of length {n}.")
        if x.ndim == 1:
            x = reshape(x, tuple([n if i == along else 1 for i in range(y.ndim)]))
        dx = diff(x, axis=along)
    pairs = part_of(y, along, slice(1, None)) + part_of(y, along, slice(0, -1))
    return sum(dx * pairs, axis=along) * 0.5
