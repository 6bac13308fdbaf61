"""NumPy functions whose arguments differ from pullback's by more than a name. Each has NumPy's signature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ShapeError
from ..ops import cumulative, elementwise, gather, index, linalg, matrices, movement, shape, sort as ordering
from ..tensors.operand import as_tensor, own
from ..tensors.tensor import Tensor


def concatenate(arrays: Any, /, axis: int | None = 0, *, dtype: Any = None, casting: str = "same_kind") -> Tensor:
    joined = movement.concat(arrays, axis=axis)
    return joined if dtype is None else joined.astype(dtype)


def vstack(tup: Sequence[Any], *, dtype: Any = None, casting: str = "same_kind") -> Tensor:
    return concatenate([atleast_2d(x) for x in tup], dtype=dtype)


def hstack(tup: Sequence[Any], *, dtype: Any = None, casting: str = "same_kind") -> Tensor:
    parts = [atleast_1d(x) for x in tup]
    return concatenate(parts, 0 if parts[0].ndim == 1 else 1, dtype=dtype)


def column_stack(tup: Sequence[Any]) -> Tensor:
    parts = [as_tensor(x) for x in tup]
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


def ravel(a: Any, order: str = "C") -> Tensor:
    if order not in ("C", "K", "A"):
        raise ShapeError(f'np.ravel: order={order!r} of a tensor; only row-major order ("C") exists. Transpose it first.')
    return shape.flatten(a)


def take(a: Any, indices: Any, axis: int | None = None, *, mode: str = "raise") -> Tensor:
    if mode != "raise":
        raise TypeError(f"np.take: mode={mode!r} with a tensor is not supported; limit the indices first (pb.clip, %).")
    return gather.take(shape.flatten(a), indices, axis=0) if axis is None else gather.take(a, indices, axis=axis)


def pad(array: Any, pad_width: Any, mode: str = "constant", *, constant_values: float = 0) -> Tensor:
    if mode != "constant":
        raise TypeError(f"np.pad: mode={mode!r} with a tensor is not supported; only constant values. Build it with pb.concat.")
    return movement.pad(array, pad_width, value=constant_values)


def sort(a: Any, axis: int | None = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Tensor:
    return ordering.sort(shape.flatten(a)) if axis is None else ordering.sort(a, axis=axis)


def argsort(a: Any, axis: int | None = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Tensor:
    return ordering.argsort(shape.flatten(a)) if axis is None else ordering.argsort(a, axis=axis)


def cumsum(a: Any, axis: int | None = None, dtype: Any = None) -> Tensor:
    return cumulative.cumulative_sum(shape.flatten(a) if axis is None else a, axis=axis or 0, dtype=dtype)


def cumprod(a: Any, axis: int | None = None, dtype: Any = None) -> Tensor:
    return cumulative.cumulative_prod(shape.flatten(a) if axis is None else a, axis=axis or 0, dtype=dtype)


def outer(a: Any, b: Any) -> Tensor:
    return linalg.outer(shape.flatten(a), shape.flatten(b))


def vdot(a: Any, b: Any, /) -> Tensor:
    return linalg.vecdot(shape.flatten(a), shape.flatten(b))


def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Tensor:
    return matrices.trace(shape.moveaxis(a, (axis1, axis2), (-2, -1)), offset=offset, dtype=dtype)


def dot(a: Any, b: Any) -> Tensor:
    a, b = as_tensor(a), as_tensor(b)
    if not a.ndim or not b.ndim:
        return elementwise.multiply(a, b)
    if b.ndim <= 2:
        return linalg.matmul(a, b)
    return linalg.tensordot(a, b, axes=([a.ndim - 1], [b.ndim - 2]))


def inner(a: Any, b: Any) -> Tensor:
    a, b = as_tensor(a), as_tensor(b)
    return elementwise.multiply(a, b) if not a.ndim or not b.ndim else linalg.tensordot(a, b, axes=([a.ndim - 1], [b.ndim - 1]))


def einsum(*operands: Any, optimize: Any = False) -> Tensor:
    if not isinstance(operands[0], str):
        raise TypeError("np.einsum: with tensors give the subscripts as a string first, such as 'ij,jk->ik'.")
    return linalg.einsum(*operands)


__all__ = [name for name, value in globals().items() if getattr(value, "__module__", "") == __name__ and name[0] != "_"]
