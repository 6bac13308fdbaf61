"""Pools: functions and Modules that take the maximum or the mean of each window of the last one or two axes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, Literal, overload

from ..errors import ShapeError
from ..ops._shapes import MOST, flag, per_axis
from ..ops.by_name import in_float
from ..ops.pools import ADAPTIVE, INSIDE, PADDED, Window, avg_pool, max_pool, max_pool_indices
from ..ops.reduce import mean
from ..ops.shape import expand_dims, squeeze
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from .module import Module
from .results import PoolResult

Sizes = int | Sequence[int]

# ---- arguments


def _planes(name: str, x: Any, axes: int) -> Tensor:
    """Returns a float tensor whose last two axes are windowed; an axis of length 1 is added for pools of one axis."""
    x = in_float(as_tensor(x))
    if x.ndim <= axes:
        wanted = "(..., C, L)" if axes == 1 else "(..., C, H, W)"
        raise ShapeError(f"{name}: x has shape {x.shape}; it must be {wanted}, with channels.")
    if 0 in x.shape[x.ndim - axes :]:
        raise ShapeError(f"{name}: x has shape {x.shape}, and an axis without elements has no windows.")
    return expand_dims(x, axis=-2) if axes == 1 else x


def _out(y: Tensor, axes: int) -> Tensor:
    return squeeze(y, axis=-2) if axes == 1 else y


def _geometry(name: str, x: Tensor, axes: int, ceil: Any, size: Any, stride: Any, padding: Any, dilation: Any) -> tuple[Any, Any]:
    """Returns (size, stride, padding, dilation) as pairs for H and W, and the number of windows along H and W.

    Raises ShapeError for a window that does not fit, and for padding that is more than half of a window.
    """
    sizes = per_axis(name, "kernel_size", size, axes, 1)
    strides = sizes if stride is None else per_axis(name, "stride", stride, axes, 1)
    paddings, dilations = per_axis(name, "padding", padding, axes, 0), per_axis(name, "dilation", dilation, axes, 1)
    ceil, counts = flag(name, "ceil_mode", ceil), []
    for n, k, s, p, d in zip(x.shape[x.ndim - axes :], sizes, strides, paddings, dilations):
        reach = d * (k - 1) + 1
        if 2 * p > reach:
            raise ShapeError(
                f"{name}: padding={p} is more than half of a window, which covers {reach} elements; use at most {reach // 2}."
            )
        room = n + 2 * p - reach
        count = (-(-room // s) if ceil else room // s) + 1
        if ceil and (count - 1) * s >= n + p:  # the last window would begin in the padding at the end
            count -= 1
        if count < 1:
            raise ShapeError(f"{name}: a window that covers {reach} elements does not fit in x, which has {n} with {p} of padding.")
        counts.append(count)
    one = [1] * (2 - axes)
    return ([*one, *sizes], [*one, *strides], [*[0] * (2 - axes), *paddings], [*one, *dilations]), (*one, *counts)


# ---- functions


def _max(name: str, axes: int, x: Any, size: Any, stride: Any, padding: Any, dilation: Any, ceil: Any, indices: Any) -> Any:
    x = _planes(name, x, axes)
    (k, s, p, d), counts = _geometry(name, x, axes, ceil, size, stride, padding, dilation)
    window: Window = (*k, *s, *p, *d)
    for axis, count in enumerate(counts):
        if d[axis] == 1:
            continue
        n, first, reach = x.shape[axis - 2], -p[axis], (k[axis] - 1) * d[axis]
        # Only windows that begin before x can miss it: they end before x, or their first element that is not before x is after it.
        before = range(first, min(0, first + count * s[axis]), s[axis])
        if bad := [start for start in before if start + reach < 0 or start % d[axis] >= n]:
            raise ShapeError(
                f"{name}: the window of elements {bad[0]}, {bad[0] + d[axis]}, ... of {n} lies in the padding. Use less padding."
            )
    y = _out(max_pool(x, window, counts), axes)
    return PoolResult(y, _out(max_pool_indices(x, window, counts), axes)) if flag(name, "return_indices", indices) else y


@overload
def max_pool1d(x: ArrayLike, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
               ceil_mode: bool = False, return_indices: Literal[False] = False) -> Tensor: ...
@overload
def max_pool1d(x: ArrayLike, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
               ceil_mode: bool = False, *, return_indices: Literal[True]) -> PoolResult: ...
def max_pool1d(
    x: ArrayLike, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Returns the maximum of each window of the last axis of x (…, C, L). The arguments are those of max_pool2d."""
    return _max("max_pool1d", 1, x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@overload
def max_pool2d(x: ArrayLike, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
               ceil_mode: bool = False, return_indices: Literal[False] = False) -> Tensor: ...
@overload
def max_pool2d(x: ArrayLike, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
               ceil_mode: bool = False, *, return_indices: Literal[True]) -> PoolResult: ...
def max_pool2d(
    x: ArrayLike, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Returns the maximum of each window of the last two axes.

    Args:
        x: (…, C, H, W) float tensor.
        kernel_size, stride, padding, dilation: the elements of a window, the distance of windows, the elements of -inf around x,
            and the distance of a window's elements: a number, or one for H and one for W. The stride is the kernel_size by default.
        ceil_mode: True adds windows that end beyond the padding, as long as they begin before it.
        return_indices: True also returns the positions i * W + j of the maxima, int64.

    Returns: (…, H', W'), in one launch. The gradient goes to the first of equal maxima; a NaN is the maximum of its window. Raises
    ShapeError.
    """
    return _max("max_pool2d", 2, x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _avg(name: str, axes: int, x: Any, size: Any, stride: Any, padding: Any, ceil: Any, padded: Any, divisor: Any) -> Tensor:
    x = _planes(name, x, axes)
    (k, s, p, _), counts = _geometry(name, x, axes, ceil, size, stride, padding, 1)
    integral = hasattr(divisor, "__index__") and not isinstance(divisor, bool)
    if divisor is not None and not (integral and 0 < abs(index(divisor)) <= MOST):
        raise ShapeError(f"{name}: divisor_override={divisor!r} must be an integer other than 0, of at most 2^40, or None.")
    how = PADDED if flag(name, "count_include_pad", padded) else INSIDE
    return _out(avg_pool(x, (*k, *s, *p, how, 0 if divisor is None else index(divisor)), counts), axes)


def avg_pool1d(
    x: ArrayLike, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Returns the mean of each window of the last axis of x (…, C, L). The arguments are those of avg_pool2d."""
    return _avg("avg_pool1d", 1, x, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def avg_pool2d(
    x: ArrayLike, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:
    """Returns the mean of each window of the last two axes.

    Args:
        x: (…, C, H, W) float tensor.
        kernel_size, stride, padding: the elements of a window, the distance of windows, and the zeros around x: a number, or one
            for H and one for W. The stride is the kernel_size by default.
        ceil_mode: True adds windows that end beyond the padding, as long as they begin before it.
        count_include_pad: False divides by the number of a window's elements in x, without the padding.
        divisor_override: a number to divide every sum by instead.

    Returns: (…, H', W'), in one launch. Half precision is summed in float32. Raises ShapeError.
    """
    return _avg("avg_pool2d", 2, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def adaptive_avg_pool2d(x: ArrayLike, output_size: int | Sequence[int | None] | None) -> Tensor:
    """Cuts the last two axes of x (…, C, H, W) into output_size nearly equal parts, and returns the mean of each part.

    output_size: the number of parts along H and W, or one number for both. None keeps the length of x. Parts overlap if the length
    is not a multiple of their number. Raises ShapeError.
    """
    x = _planes("adaptive_avg_pool2d", x, 2)
    given = output_size if isinstance(output_size, (list, tuple)) else (output_size, output_size)
    if len(given) != 2:
        raise ShapeError(f"adaptive_avg_pool2d: output_size={output_size!r} must be a number, or one for H and one for W.")
    filled = [n if count is None else count for n, count in zip(x.shape[-2:], given)]
    counts = per_axis("adaptive_avg_pool2d", "output_size", filled, 2, 1)
    if counts == (1, 1):
        return mean(x, axis=(-2, -1), keepdims=True)
    return avg_pool(x, (0, 0, 0, 0, 0, 0, ADAPTIVE, 0), counts)


# ---- Modules


class _MaxPool(Module):
    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        title, self.dilation = type(self).__name__, dilation
        self.return_indices, self.ceil_mode = flag(title, "return_indices", return_indices), flag(title, "ceil_mode", ceil_mode)

    def _arguments(self) -> tuple[Any, ...]:
        return self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """Returns the maximum of each window of the last axis (see nn.functional.max_pool2d for the arguments).

    >>> nn.MaxPool1d(2)(pb.tensor([[1.0, 3.0, 2.0, 4.0]]))
    tensor([[3., 4.]])
    """

    def forward(self, x: ArrayLike) -> Any:
        return max_pool1d(x, *self._arguments())


class MaxPool2d(_MaxPool):
    """Returns the maximum of each window of the last two axes (see nn.functional.max_pool2d for the arguments).

    >>> nn.MaxPool2d(2)(pb.ones((5, 3, 8, 8))).shape
    (5, 3, 4, 4)
    """

    def forward(self, x: ArrayLike) -> Any:
        return max_pool2d(x, *self._arguments())


class AvgPool1d(Module):
    """Returns the mean of each window of the last axis (see nn.functional.avg_pool2d for the arguments).

    >>> nn.AvgPool1d(2)(pb.tensor([[1.0, 3.0, 2.0, 4.0]]))
    tensor([[2., 3.]])
    """

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode = flag("AvgPool1d", "ceil_mode", ceil_mode)
        self.count_include_pad = flag("AvgPool1d", "count_include_pad", count_include_pad)

    def forward(self, x: ArrayLike) -> Tensor:
        return avg_pool1d(x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(Module):
    """Returns the mean of each window of the last two axes (see nn.functional.avg_pool2d for the arguments).

    >>> nn.AvgPool2d(2)(pb.ones((5, 3, 8, 8))).shape
    (5, 3, 4, 4)
    """

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> None:
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode = flag("AvgPool2d", "ceil_mode", ceil_mode)
        self.count_include_pad = flag("AvgPool2d", "count_include_pad", count_include_pad)
        self.divisor_override = divisor_override

    def forward(self, x: ArrayLike) -> Tensor:
        how = (self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override)
        return avg_pool2d(x, self.kernel_size, self.stride, *how)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AdaptiveAvgPool2d(Module):
    """Returns the means of output_size nearly equal parts of the last two axes (see nn.functional.adaptive_avg_pool2d).

    >>> nn.AdaptiveAvgPool2d(1)(pb.ones((5, 3, 8, 8))).shape
    (5, 3, 1, 1)
    """

    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        self.output_size = output_size

    def forward(self, x: ArrayLike) -> Tensor:
        return adaptive_avg_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"
