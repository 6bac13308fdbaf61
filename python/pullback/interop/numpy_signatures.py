"""NumPy functions whose arguments differ from pullback's by more than a name. Each has NumPy's signature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..errors import ShapeError
from ..ops import cumulative, elementwise, gather, index, linalg, matrices, movement, shape, sort as ordering
from ..ops._shapes import ints, normalize_axis
from ..ops.operands import as_tensors
from ..tensors.operand import own
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, DTypeLike


def concatenate(arrays: Any, /, axis: int | None = 0, *, dtype: Any = None, casting: str = "same_kind") -> Tensor:
    joined = movement.concat(arrays, axis=axis)
    return joined if dtype is None else joined.astype(dtype)


def vstack(tup: Sequence[Any], *, dtype: Any = None, casting: str = "same_kind") -> Tensor:
    return concatenate([atleast_2d(x) for x in as_tensors("np.vstack", *tup)], dtype=dtype)


def hstack(tup: Sequence[Any], *, dtype: Any = None, casting: str = "same_kind") -> Tensor:
    parts = [atleast_1d(x) for x in as_tensors("np.hstack", *tup)]
    return concatenate(parts, 0 if parts[0].ndim == 1 else 1, dtype=dtype)


def column_stack(tup: Sequence[Any]) -> Tensor:
    parts = as_tensors("np.column_stack", *tup)
    return concatenate([x if x.ndim > 1 else shape.reshape(x, (-1, 1)) for x in parts], 1)


def atleast_1d(*arys: Any) -> Any:
    made = tuple([x if x.ndim else shape.reshape(x, (1,)) for x in map(own, arys)])
    return made[0] if len(made) == 1 else made


def atleast_2d(*arys: Any) -> Any:
    made = tuple([x if x.ndim > 1 else shape.reshape(x, (1, -1) if x.size else (1, 0)) for x in map(own, arys)])
    return made[0] if len(made) == 1 else made


def broadcast_arrays(*args: Any, subok: bool = False) -> tuple[Tensor, ...]:
    return tuple(shape.broadcast_arrays(*args))


def clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Tensor:
    return elementwise.clip(a, a_min if min is None else min, a_max if max is None else max)


def where(condition: Any, *branches: Any) -> Any:
    return elementwise.where(condition, *branches) if branches else index.nonzero(condition)


def transpose(a: Any, axes: Any = None) -> Tensor:
    return shape.transpose(a) if axes is None else shape.permute_dims(a, axes)


def ravel(a: ArrayLike, order: Literal["C", "K", "A"] = "C") -> Tensor:
    """Returns all elements as a vector in row-major order; a view if possible. Raises ShapeError for another order."""
    if order not in ("C", "K", "A"):
        raise ShapeError(f'np.ravel: order={order!r} of a tensor; only row-major order ("C") exists. Transpose it first.')
    return shape.flatten(a)


def take(a: ArrayLike, indices: ArrayLike, axis: int | None = None, *, mode: Literal["raise"] = "raise") -> Tensor:
    """Returns the slices at the indices along an axis; with axis=None the elements of the flattened tensor. Raises IndexError."""
    if mode != "raise":
        raise TypeError(f"np.take: mode={mode!r} with a tensor is not supported; limit the indices first (pb.clip, %).")
    return gather.take(shape.flatten(a), indices, axis=0) if axis is None else gather.take(a, indices, axis=axis)


def pad(array: Any, pad_width: Any, mode: Any = "constant", *, constant_values: Any = 0, **options: Any) -> Tensor:
    if mode != "constant" and mode not in movement.PAD_MODES:
        raise TypeError(f"np.pad: mode={mode!r} with a tensor is not supported; use a mode of pb.pad, or pb.concat.")
    if options:
        raise TypeError(f"np.pad: {', '.join(options)}= with a tensor is not supported; use pb.pad, or give NumPy t.numpy().")
    return movement.pad(array, pad_width, mode, constant_values=constant_values)


def sort(a: Any, axis: int | None = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Tensor:
    return ordering.sort(shape.flatten(a)) if axis is None else ordering.sort(a, axis=axis)


def argsort(a: Any, axis: int | None = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Tensor:
    return ordering.argsort(shape.flatten(a)) if axis is None else ordering.argsort(a, axis=axis)


def cumsum(a: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """Returns, for each element, the sum of all elements up to it along the axis; axis=None flattens first."""
    return cumulative.cumulative_sum(shape.flatten(a) if axis is None else a, axis=axis, dtype=dtype)


def cumprod(a: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """Returns, for each element, the product of all elements up to it along the axis; axis=None flattens first."""
    return cumulative.cumulative_prod(shape.flatten(a) if axis is None else a, axis=axis, dtype=dtype)


def outer(a: Any, b: Any) -> Tensor:
    return linalg.outer(*map(shape.flatten, as_tensors("np.outer", a, b)))


def vdot(a: Any, b: Any, /) -> Tensor:
    return linalg.vecdot(*map(shape.flatten, as_tensors("np.vdot", a, b)))


def dot(a: ArrayLike, b: ArrayLike) -> Tensor:
    """Returns the product of vectors, of matrices, or over the last axis of a and the last but one of b. Raises ShapeError."""
    a, b = as_tensors("np.dot", a, b)
    if not a.ndim or not b.ndim:
        return elementwise.multiply(a, b)
    if b.ndim <= 2:
        return linalg.matmul(a, b)
    return linalg.tensordot(a, b, axes=([a.ndim - 1], [b.ndim - 2]))


def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Tensor:
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = as_tensors("np.cross", a, b)
    product = matrices.cross(shape.moveaxis(a, axisa, -1), shape.moveaxis(b, axisb, -1))
    return shape.moveaxis(product, -1, axisc)


def sliding_window_view(x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False) -> Tensor:
    x = own(x)
    sizes = ints("np.sliding_window_view", "window_shape", window_shape)
    axes = range(x.ndim) if axis is None else ints("np.sliding_window_view", "axis", axis)
    if len(sizes) != len(axes):
        raise ShapeError(f"np.sliding_window_view: {len(sizes)} lengths of windows for {len(axes)} axes; give one for each.")
    for size, along in zip(sizes, axes):
        x = shape.unfold(x, normalize_axis("np.sliding_window_view", along, x.ndim), size)
    return x


def einsum(*operands: Any, optimize: Any = False) -> Tensor:
    if not isinstance(operands[0], str):
        raise TypeError("np.einsum: with tensors give the subscripts as a string first, such as 'ij,jk->ik'.")
    return linalg.einsum(*operands)


__all__ = [name for name, value in globals().items() if getattr(value, "__module__", "") == __name__ and name[0] != "_"]
