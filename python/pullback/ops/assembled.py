"""Tensors made of lists and numbers that are tensors themselves, so that gradients pass: the recorded half of creation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..autodiff.primitive import apply
from ..autodiff.scalars import common_dtype
from ..errors import ArgumentError, DTypeError, ShapeError, an
from ..interop.wrong_calls import argument_named
from ..tensors import devices, dtypes, nested
from ..tensors.creation import marked
from ..tensors.operand import Number, as_tensor, operand
from ..tensors.tensor import Tensor
from .by_name import in_dtype, repeated, reshaped
from .conversion import COPY, to_device
from .elementwise import add, multiply
from .movement import joined


def assembled(lists: Any, dtype: Any, device: str | None) -> Tensor:
    """Returns nested lists of tensors, arrays and numbers as one tensor: all elements joined by one op, in row-major order.

    The dtype is that of an op on the tensors and arrays: a number does not widen it. Numbers and arrays go to the device of the
    tensors. Raises ShapeError if lists, or the tensors in one, differ in shape, and DTypeError.
    """
    try:
        leaves: list[Any] = []
        shape = _collect(lists, leaves)
        place = next(x for x in leaves if isinstance(x, Tensor)).device
        leaves = [x if isinstance(x, (Tensor, Number)) else as_tensor(x, device=place) for x in leaves]
        dtype = common_dtype(leaves) if dtype is None else dtype
        pieces = [in_dtype(reshaped(x, (math.prod(x.shape),)), dtype) for x in _tensors(leaves, dtype, place)]
    except (ArgumentError, DTypeError, ShapeError) as error:
        named, text = argument_named(lists), str(error)  # The error of one item may have the name already.
        raise type(error)(text if text.startswith(named) else named + text) from error.__cause__
    return _moved(reshaped(joined(pieces, 0), shape), device)


def _collect(x: Any, leaves: list[Any]) -> tuple[int, ...]:
    """Adds the tensors, Numbers and arrays in x to the leaves, and returns the shape of x. Raises ShapeError."""
    if isinstance(x, (list, tuple)):
        if (fields := getattr(x, "_fields", None)) and any([isinstance(item, Tensor) for item in x]):
            raise DTypeError(f"{an(x)} has fields, and is not made of numbers: take one of them, .{' or .'.join(fields)}.")
        shapes = [_collect(item, leaves) for item in x]
        if other := [shape for shape in shapes if shape != shapes[0]]:
            raise ShapeError(_unequal(x, shapes[0], other[0]))
        return (len(shapes), *(shapes[0] if shapes else ()))
    leaf = operand(x)
    leaves.append(leaf)
    return leaf.shape


def _unequal(x: Any, first: tuple[int, ...], other: tuple[int, ...]) -> str:
    """Returns the message for items of two shapes, in a list or in a tuple, which may be the results of a layer."""
    if not isinstance(x, tuple) or not any([isinstance(item, Tensor) for item in x]):
        return f"the nested lists do not have equal lengths: their items have the shapes {first} and {other}."
    parts = [f"a tensor of shape {item.shape}" if isinstance(item, Tensor) else an(item) for item in x]
    return (
        f"this is a tuple of {', '.join(parts[:-1])} and {parts[-1]}, and not one array. Of a layer with several results, such as "
        f"(output, state), take the one that is meant: y, state = layer(x)."
    )


def _tensors(leaves: list[Any], dtype: Any, device: str) -> list[Tensor]:
    """Returns the leaves as tensors. Successive Numbers become one tensor."""
    tensors: list[Tensor] = []
    numbers: list[Any] = []
    for x in [*leaves, None]:
        if isinstance(x, Number):
            numbers.append(x.array)
            continue
        if numbers:
            tensors.append(marked(numbers, Tensor(devices.move(nested.as_array(numbers, dtype), device))))
            numbers = []
        if x is not None:
            tensors.append(x)
    return tensors


def filled(x: Tensor, shape: tuple[int, ...], dtype: Any, device: str | None) -> Tensor:
    """Returns a tensor of the shape that is filled with the only element of x."""
    return _moved(apply(COPY, (repeated(in_dtype(reshaped(x, ()), dtype), shape),)), device)


def progression(start: Any, step: Any, count: int, dtype: Any, device: str | None) -> Tensor:
    """Returns start + i * step for i = 0, …, count - 1, computed in float64, or in int64 for integers."""
    wide = dtypes.float64 if any([dtypes.is_float(dtypes.result_type(x)) for x in (start, step)]) else dtypes.int64
    start, step = [_one_element(x, wide) for x in (start, step)]
    y = add(multiply(_on(np.arange(count, dtype=wide), start, step), step), start)
    return _moved(in_dtype(y, dtype), device)


def lerp(start: Any, stop: Any, weights: Any, dtype: Any, device: str | None) -> Tensor:
    """Returns start * (1 - weights) + stop * weights, computed in float64. Both ends are exact."""
    start, stop = [_one_element(x, dtypes.float64) for x in (start, stop)]
    of_start, of_stop = _on(1.0 - weights, start, stop), _on(weights, start, stop)
    return _moved(in_dtype(add(multiply(of_start, start), multiply(of_stop, stop)), dtype), device)


def _moved(y: Tensor, device: str | None) -> Tensor:
    return y if device is None else to_device(y, device)


def _one_element(x: Any, dtype: Any) -> Any:
    """Returns a number as it is, and a tensor as a 0-d tensor of the dtype. Raises ShapeError."""
    if not isinstance(x, Tensor):
        return x
    if math.prod(x.shape) != 1:
        raise ShapeError(f"{argument_named(x)}a tensor of shape {x.shape} is not one number.")
    return in_dtype(reshaped(x, ()), dtype)


def _on(array: Any, *numbers: Any) -> Tensor:
    """Returns the NumPy array as a tensor on the device of the first tensor among the numbers."""
    return Tensor(devices.move(array, next(x for x in numbers if isinstance(x, Tensor)).device))
