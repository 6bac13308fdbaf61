"""Constraints: functions that a step applies to the new value of a Parameter, so that the value has a property after every step.

NonNegative and Box bound each weight by itself. MaxNorm, UnitNorm and Simplex project vectors, here with ops in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ..duck import attribute
from ..errors import PullbackError, ShapeError
from ..exports import exported as _exported
from ..interop.gate import explain_arguments
from ..ops.by_name import in_dtype
from ..ops.conversion import copy
from ..ops.cumulative import cumulative_sum
from ..ops.elementwise import (
    abs as absolute,
    clip,
    divide,
    equal,
    less,
    less_equal,
    maximum,
    multiply,
    sqrt,
    square,
    subtract,
    where,
)
from ..ops.reduce import max as largest, sum as total
from ..ops.shape import permute_dims
from ..ops.sort import sort
from ..tensors import devices, dtypes
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from ..typing import ArrayLike

__all__ = ["Box", "MaxNorm", "NonNegative", "Simplex", "UnitNorm"]

Axis = int | Sequence[int] | None


@explain_arguments
class Constraint:
    """Base class of the constraints, which compare equal if their numbers do.

    A constraint is called with a value. It returns the nearest value that has the property, as a Tensor of that shape and dtype.
    """

    # A constraint of each weight by itself has an attribute `bounds`, the least and the largest weight, which kernels apply.
    pruned = 0.0  # what a pruned weight counts as

    def __call__(self, value: ArrayLike) -> Tensor:
        x = as_tensor(value)
        self.check(x.shape)
        return self.project(self.marked(x))

    def marked(self, x: Tensor) -> Tensor:
        """Returns x, with NaN for the elements that would count as pruned."""
        return where(equal(x, self.pruned), math.nan, x) if self.pruned else x

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises ShapeError if a value of this shape cannot have the property."""

    def project(self, x: Tensor, members: bool = False) -> Tensor:
        """Returns the nearest value that has the property. With members, that of each entry of the first axis by itself."""
        raise NotImplementedError


@dataclass(frozen=True)
class NonNegative(Constraint):
    """Every weight is 0 or more: a negative one becomes 0. NaN stays NaN.

    The update's kernel applies it, without a further launch.
    """

    bounds = (0.0, math.inf)

    def project(self, x: Tensor, members: bool = False) -> Tensor:
        return clip(x, 0.0)


@dataclass(frozen=True)
class Box(Constraint):
    """Every weight is in [lo, hi], whose ends are rounded to the dtype of the weights. NaN stays NaN.

    The update's kernel applies it, without a further launch.

    Args:
        lo: the least weight, a number; -inf for none.
        hi: the largest weight, a number; inf for none.

    Raises PullbackError for numbers that are no bounds, or that leave no weight between them.
    """

    lo: float
    hi: float

    def __post_init__(self) -> None:
        for name in ("lo", "hi"):
            object.__setattr__(self, name, _number(self, name, getattr(self, name)))
        if not self.lo <= self.hi or self.lo == math.inf or self.hi == -math.inf:
            raise PullbackError(f"Box: no number is between lo={self.lo} and hi={self.hi}.")

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest weight."""
        return self.lo, self.hi

    def project(self, x: Tensor, members: bool = False) -> Tensor:
        return clip(x, self.lo, self.hi)


@dataclass(frozen=True)
class _AlongAxes(Constraint):
    """Base class of the constraints of vectors along one or several axes."""

    def __post_init__(self) -> None:
        axis: Any = self.axis  # type: ignore[attr-defined]
        given = axis if isinstance(axis, (tuple, list)) else () if axis is None else (axis,)
        whole = all([isinstance(k, (int, np.integer)) and not isinstance(k, bool) for k in given])
        if not whole or (isinstance(axis, (tuple, list)) and not axis):
            raise PullbackError(f"{type(self).__name__}: axis={axis!r}; give a number, a tuple of numbers, or None for all axes.")
        numbers = tuple([int(k) for k in given])
        object.__setattr__(self, "axis", None if axis is None else numbers if isinstance(axis, (tuple, list)) else numbers[0])

    def check(self, shape: tuple[int, ...]) -> None:
        self._axes(len(shape), shape)

    def _axes(self, ndim: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the axes of each vector, counted from the first one. Raises ShapeError."""
        axis: Axis = self.axis  # type: ignore[attr-defined]
        given = tuple(range(ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
        for k in given:
            if not -ndim <= k < ndim:
                raise ShapeError(f"{self}: a value of shape {shape} has no axis {k}.")
        found = tuple([k % ndim for k in given])
        if len(set(found)) != len(found):
            raise ShapeError(f"{self}: an axis of shape {shape} is given twice.")
        return found

    def project(self, x: Tensor, members: bool = False) -> Tensor:
        shape = x.shape[1:] if members else x.shape
        axes = tuple([k + members for k in self._axes(len(shape), shape)])
        if not x.size:
            return copy(x)  # x may be a view of a Parameter that is about to change.
        if not axes:  # each of several members is one number
            return self.project_along(x.reshape((*x.shape, 1)), (x.ndim,)).reshape(x.shape)
        return self.project_along(x, axes)

    def project_along(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        """Returns the nearest value whose vectors along these axes have the property."""
        rounding = float(dtypes.finfo(x.dtype).eps) * (1 if x.dtype.itemsize == 2 else 4)
        return in_dtype(self.vectors(in_dtype(x, dtypes.float64), axes, rounding), x.dtype)

    def vectors(self, x: Tensor, axes: tuple[int, ...], rounding: float) -> Tensor:
        """Implements `project_along` in float64. rounding: how much larger than wanted a rounded norm may be."""
        raise NotImplementedError


@dataclass(frozen=True)
class MaxNorm(_AlongAxes):
    """Every vector along `axis` has an L2 norm of at most c: a longer one is scaled down, others stay as they are, bit for bit.

    A scaled vector is shorter than c by 4 eps (1 eps in half precision), so that no rounding makes it longer than c. Zero vectors
    stay zero. A vector with an element that is NaN or infinite becomes NaN.

    Args:
        c: the largest norm, a positive number.
        axis: the axis of the vectors, or a tuple of axes, each of which is a vector as a whole; None for all weights as one vector.
            The weights of nn.Linear(n, m) have shape (m, n), so axis=1 bounds the weights that enter each output.

    Raises PullbackError for a c that is not positive; ShapeError for an axis that a Parameter does not have.
    """

    c: float
    axis: Axis

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "c", _number(self, "c", self.c))
        if not 0 < self.c < math.inf:
            raise PullbackError(f"MaxNorm: c={self.c}; the largest norm must be a positive finite number.")

    def vectors(self, x: Tensor, axes: tuple[int, ...], rounding: float) -> Tensor:
        y, top, norm = _norms(x, axes)
        scaled = multiply(y, divide(self.c * (1 - rounding), norm))
        return where(less_equal(multiply(top, norm), self.c), x, scaled)


@dataclass(frozen=True)
class UnitNorm(_AlongAxes):
    """Every vector along `axis` has the L2 norm 1, up to rounding. Zero vectors, which have no direction, stay zero.

    A vector with an element that is NaN or infinite becomes NaN.

    Args:
        axis: the axis of the vectors, or a tuple of axes, each of which is a vector as a whole; None for all weights as one vector.

    Raises ShapeError for an axis that a Parameter does not have.
    """

    axis: Axis

    def vectors(self, x: Tensor, axes: tuple[int, ...], rounding: float) -> Tensor:
        y, _, norm = _norms(x, axes)
        return divide(y, maximum(norm, 1.0))  # below 1 only if the vector is zero


@dataclass(frozen=True)
class Simplex(_AlongAxes):
    """Every vector along `axis` is a distribution: its weights are 0 or more, and their sum is 1 up to rounding.

    A vector becomes the nearest distribution (Duchi et al. 2008), which is a uniform one for equal weights, zeros for example. A
    vector with an element that is NaN or infinite becomes NaN.

    Args:
        axis: the axis of the vectors; None for all weights as one vector.

    Raises ShapeError for an axis that a Parameter does not have.
    """

    axis: int | None
    pruned = -math.inf

    def __post_init__(self) -> None:
        if isinstance(self.axis, (tuple, list)):
            raise PullbackError(f"Simplex: axis={self.axis!r}; give one axis, or None for all weights as one vector.")
        super().__post_init__()

    def vectors(self, x: Tensor, axes: tuple[int, ...], rounding: float) -> Tensor:
        axis = min(axes)
        if len(axes) > 1:  # all axes of a value, or of each member
            lead = x.shape[:axis]
            return self.vectors(x.reshape((*lead, -1)), (len(lead),), rounding).reshape(x.shape)
        y = subtract(x, largest(x, axis=axis, keepdims=True))
        y = maximum(y, -1.0)  # A weight that is 1 or more below the largest one becomes 0.
        ones = Tensor(devices.full(y.device, y.shape, 1, y.dtype))
        sums = cumulative_sum(sort(y, axis=axis, descending=True), axis=axis)
        # What is subtracted from all weights that stay positive. It is the largest of these candidates, and below 0, or NaN.
        threshold = largest(divide(subtract(sums, 1.0), cumulative_sum(ones, axis=axis)), axis=axis, keepdims=True)
        positive = less(threshold, y)  # Their sum is more accurate than that of the scan.
        excess = subtract(total(where(positive, y, 0.0), axis=axis, keepdims=True), 1.0)
        accurate = divide(excess, total(where(positive, ones, 0.0), axis=axis, keepdims=True))
        return maximum(subtract(y, where(less(threshold, 0.0), accurate, threshold)), 0.0)


def _norms(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (y, top, norm): x is y * top, the largest element of each y is ±1, and norm is the L2 norm of y.

    The norms of large and small weights therefore neither overflow nor vanish. A vector of zeros and denormal numbers has top = 1.
    """
    top = largest(absolute(x), axis=axes, keepdims=True)
    top = where(less(top, float(dtypes.finfo(x.dtype).smallest_normal)), 1.0, top)
    y = divide(x, top)
    # NumPy's sums are accurate along the last axis of contiguous memory only.
    rest = [k for k in range(x.ndim) if k not in axes]
    rows = copy(permute_dims(square(y), (*rest, *axes))).reshape((*[x.shape[k] for k in rest], -1))
    return y, top, sqrt(total(rows, axis=-1)).reshape(top.shape)


def _number(constraint: Constraint, name: str, value: Any) -> float:
    """Returns a number as a float. Raises PullbackError."""
    number = value.item() if isinstance(value, (np.generic, np.ndarray, Tensor)) and value.shape == () else value
    if isinstance(number, bool) or not isinstance(number, Real) or math.isnan(number):
        several = isinstance(value, (list, tuple)) or attribute(value, "shape", ()) != ()
        remedy = ". For bounds of each weight give a function: constraint=lambda w: pb.clip(w, lo, hi)" if several else ""
        raise PullbackError(f"{type(constraint).__name__}: {name}={value!r}; it must be a number{remedy}.")
    return float(number)


_exported(globals())
