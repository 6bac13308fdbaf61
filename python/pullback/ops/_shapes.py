"""Pure functions on shapes and axes (tuples of ints). Their errors use the terms of the user's call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from operator import index
from typing import Any, Final

import numpy as np

from ..duck import attribute
from ..errors import ArgumentError, AxisError, DTypeError, PullbackError, ShapeError, check_room, shown
from ..interop.wrong_calls import flag as flag  # for the modules that check arguments with the functions here
from ..launch import capturing
from ..tensors.tensor import Tensor

Shape = tuple[int, ...]

MOST: Final = 2**40  # of a kernel, stride, padding or dilation: kernels add and multiply such numbers in 64 bits


def words(shapes: Sequence[Shape]) -> str:
    return " and ".join(str(shape) for shape in shapes)


def ints(name: str, argument: str, x: Any) -> list[int]:
    """Returns one integer or a sequence of integers as a list. Raises ShapeError for anything else, a tensor of them included."""
    try:
        if not isinstance(x, bool):
            return [index(x)]
    except (TypeError, ShapeError):
        pass
    try:
        sequence: Any = [x] if isinstance(x, Tensor) else x
        return [index(i) for i in sequence]
    except (TypeError, ShapeError):
        raise ShapeError(f"{name}: {argument}={shown(x)} is not an integer or a sequence of integers.{_of_two(name, x)}") from None


def items(name: str, arrays: Any) -> list[Any]:
    """Returns the arrays of a sequence as a list. Raises ShapeError if `arrays` is not a sequence."""
    try:
        return list(arrays)
    except TypeError:
        raise ShapeError(f"{name}: takes a sequence of arrays, not a {type(arrays).__name__}.") from None


def integer(name: str, argument: str, value: Any) -> int:
    """Returns the value as an int. Raises ShapeError if it is not an integer, as a bool is not."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return index(value)
    except (TypeError, ShapeError):
        raise ShapeError(f"{name}: {argument}={shown(value)} is not an integer.{_of_two(name, value)}") from None


def _of_two(name: str, second: Any) -> str:
    """Returns a sentence, after a space, for a function with an array or a list in the place of its axis, or nothing."""
    if not isinstance(second, (list, tuple)) and not attribute(second, "shape", ()):
        return ""
    if name in ("concat", "stack"):
        return f" The arrays come in one list: pb.{name}([a, b], axis=0)."
    of_two = {"max": "pb.maximum(a, b)", "min": "pb.minimum(a, b)", "sum": "a + b", "prod": "a * b", "mean": "(a + b) / 2",
              "any": "pb.logical_or(a, b)", "all": "pb.logical_and(a, b)"}
    return f" For two arrays, element by element, write {of_two[name]}." if name in of_two else ""


def channels_last(shape: Shape, wanted: int, batched: bool = True) -> str:
    """Returns a sentence, after a space, for images whose channels are in the last axis, or nothing."""
    here = int(batched)
    if len(shape) < here + 2 or shape[-1] != wanted or shape[here] == wanted:
        return ""
    names = ("C", "H", "W") if len(shape) == here + 3 else ("C", "L")
    order, given = [", ".join(["N"] * here + [*axes]) for axes in (names, (*names[1:], "C"))]
    return f" The order is ({order}), and x looks like ({given}): pb.moveaxis(x, -1, {here}) puts the channels first."


def per_axis(name: str, argument: str, value: Any, axes: int, least: int) -> tuple[int, ...]:
    """Returns one integer per axis, given one for all or one for each. Raises ShapeError for one below `least` or above MOST."""
    given = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(given) not in (1, axes) or any([isinstance(n, bool) or not hasattr(n, "__index__") or index(n) < least for n in given]):
        wanted = "an integer" if axes == 1 else "an integer, or one for each of two axes,"
        raise ShapeError(f"{name}: {argument}={shown(value)} must be {wanted} of {least} or more.")
    if max([index(n) for n in given]) > MOST:
        raise ShapeError(f"{name}: {argument}={value!r} is larger than 2^40, the most that kernels take.")
    return tuple([index(n) for n in given]) * (axes // len(given))


def positive_integer(name: str, argument: str, value: Any) -> int:
    """Returns the value as an int. Raises PullbackError if it is not an integer of 1 or more."""
    try:
        number = 0 if isinstance(value, bool) else index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise PullbackError(f"{name}: {argument}={shown(value)} must be an integer of 1 or more.")
    return number


def epsilon(name: str, value: Any) -> float:
    """Returns `eps` as a float. Raises ArgumentError if it is negative, DTypeError if it is not a real number."""
    number = real(name, "eps", value)
    if number < 0:
        raise ArgumentError(
            f"{name}: eps={shown(value)} is negative. It keeps a variance, a norm or a probability away from 0, which a negative "
            f"number does not. Give a small positive number, or 0."
        )
    return number


def real(name: str, argument: str, value: Any, instead: str = "", nan: bool = False) -> float:
    """Returns the value as a float. Raises DTypeError if it is not a real number, as a string, a bool, a tensor, or NaN is not.

    A tensor is refused because no gradient passes through a Python number. `instead` is a sentence that says how the gradient is
    kept. nan: NaN is allowed.
    """
    if value.__class__ is float and value == value:  # a short cut for nearly every call
        return value
    if isinstance(value, Tensor):
        alone = f"For its value alone, give {argument}.item()."
        if capturing.thread.recording is not None:
            alone = "A captured function cannot take its value alone, because a replay would not read it again."
        raise DTypeError(
            f"{name}: {argument} is a {type(value).__name__}, and no gradient passes to it, because it becomes a Python number. "
            f"{instead and instead + ' '}{alone}"
        )
    try:
        number = math.nan if isinstance(value, (str, bytes, bool, np.bool_)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if number != number and not (nan and isinstance(value, (float, np.generic))):
        raise DTypeError(f"{name}: {argument}={shown(value)} is not a real number.")
    return number


def kept(name: str, keepdims: Any) -> bool:
    """Returns True or False. As in NumPy, 0 and 1 are allowed. Raises DTypeError for other values."""
    if keepdims.__class__ is bool:  # a short cut for nearly every call
        return bool(keepdims)
    return flag(name, "keepdims", bool(keepdims) if isinstance(keepdims, int) and keepdims in (0, 1) else keepdims)


def probability(name: str, argument: str, p: Any) -> Any:
    """Returns p. Raises PullbackError if it is not from 0 to 1, DTypeError if it is no number.

    A bool is most often meant for the argument beside.
    """
    if isinstance(p, (bool, np.bool_)) or not 0 <= real(name, argument, p) <= 1:
        raise PullbackError(f"{name}: {argument}={shown(p)} is not a probability; it must be from 0 to 1.")
    return p


def length(name: str, argument: str, value: Any) -> int:
    """Returns the value as a count or length. Raises ShapeError if it is negative or not an integer."""
    number = integer(name, argument, value)
    if number < 0:
        raise ShapeError(f"{name}: {argument}={number} is negative; it must be 0 or more.")
    return number


def broadcast_shapes(name: str, shapes: Sequence[Shape]) -> Shape:
    """Returns the shape that all shapes broadcast to. Raises ShapeError naming the axis that does not fit."""
    ndim = max((len(shape) for shape in shapes), default=0)
    result: list[int] = []
    for axis in range(-ndim, 0):
        lengths = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(lengths) > 1:
            raise ShapeError(
                f"{name}: shapes {words(shapes)} do not broadcast: axis {axis} has lengths "
                f"{' and '.join(map(str, sorted(lengths)))}. Lengths must be equal or 1; reshape or pb.expand_dims one of them."
            )
        result.append(lengths.pop() if lengths else 1)
    return tuple(result)


def normalize_axis(name: str, axis: Any, ndim: int) -> int:
    """Returns the axis counted from the front. Raises AxisError if the axis does not exist."""
    if axis.__class__ is int and -ndim <= axis < ndim:  # a short cut for nearly every call
        return axis % ndim
    value = integer(name, "axis", axis)
    if ndim == 0:
        raise AxisError(f"{name}: axis {value} of a tensor without axes (one of shape ()) does not exist.")
    if not -ndim <= value < ndim:
        raise AxisError(f"{name}: axis {value} of a tensor with {ndim} axes does not exist; axes go from {-ndim} to {ndim - 1}.")
    return value % ndim


@cache
def all_axes(ndim: int) -> Shape:
    return tuple(range(ndim))


def normalize_axes(name: str, axes: Any, ndim: int) -> Shape:
    """Returns the axes sorted and counted from the front. axes: None for all axes, an int, or a tuple or list of ints.

    Raises ShapeError if an axis does not exist or is named twice.
    """
    if axes is None:
        return all_axes(ndim)
    if axes.__class__ is int and -ndim <= axes < ndim:  # a short cut for nearly every call
        return (axes % ndim,)
    if not isinstance(axes, (tuple, list)):
        return (normalize_axis(name, axes, ndim),)
    result = tuple(sorted([normalize_axis(name, axis, ndim) for axis in axes]))
    if len(set(result)) < len(result):
        raise ShapeError(f"{name}: axis={tuple(axes)} names an axis twice.")
    return result


def infer_shape(name: str, size: int, shape: Any) -> Shape:
    """Returns the shape with its one -1, if any, replaced by the length that gives `size` elements. Raises ShapeError."""
    wanted = tuple(ints(name, "shape", shape))
    if not size:
        check_room(name, wanted, 8)
    if math.prod(wanted) == size and min(wanted, default=0) >= 0:
        return wanted
    if wanted.count(-1) > 1 or any([n < -1 for n in wanted]):
        raise ShapeError(f"{name}: shape {wanted} is not valid; one length may be -1, the others are 0 or more.")
    if -1 in wanted:
        rest = math.prod([n for n in wanted if n != -1])
        if rest and size % rest == 0:
            return tuple([size // rest if n == -1 else n for n in wanted])
    must = f"be {size}" if -1 not in wanted else f"divide {size}, without the -1"
    raise ShapeError(f"{name}: {size} elements do not fill the shape {wanted}. The product of the lengths must {must}.")


def kept_dims(shape: Shape, axes: Sequence[int]) -> Shape:
    """Returns the shape after a reduction over `axes` that keeps each reduced axis with length 1."""
    return tuple([1 if axis in axes else n for axis, n in enumerate(shape)])


def keeps_places(shape: Shape, strides: Sequence[int], new: Shape) -> bool:
    """Returns whether an array of these strides can be read in the new shape, of the same size, without moving elements.

    The axes are compared in groups of the same size: the old axes of a group must follow one another in memory.
    """
    old = [(n, step) for n, step in zip(shape, strides) if n != 1]
    wanted = [n for n in new if n != 1]
    i = j = 0
    while i < len(old):
        size, inside = old[i][0], wanted[j]
        i, j = i + 1, j + 1
        while size != inside:
            if size > inside:
                inside, j = inside * wanted[j], j + 1
                continue
            if old[i - 1][1] != old[i][0] * old[i][1]:
                return False
            size, i = size * old[i][0], i + 1
    return True


def block_of(key: Sequence[Any], shape: Shape) -> tuple[Shape, Shape, Shape] | None:
    """Returns for each axis how many elements lie before, inside and after the block that a basic index selects.

    Returns None if a slice of the index has a step other than 1.
    """
    parts: list[Shape] = []
    items = [item for item in key if item is not None]
    if Ellipsis in items:
        place = items.index(Ellipsis)
        items[place : place + 1] = [slice(None)] * (len(shape) - len(items) + 1)
    for n, item in zip(shape, [*items, *[slice(None)] * (len(shape) - len(items))]):
        start, stop, step = item.indices(n) if isinstance(item, slice) else (item % n, item % n + 1, 1)
        if step != 1:
            return None
        length = max(stop - start, 0)
        parts.append((start, length, n - start - length))
    before, lengths, after = zip(*parts) if parts else ((), (), ())
    return before, lengths, after
