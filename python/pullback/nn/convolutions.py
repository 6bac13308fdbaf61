"""Convolutions and transposed convolutions over one and two axes, as functions and as Modules. Names and layouts are PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from ..errors import ArgumentError, DTypeError, PullbackError, ShapeError
from ..ops._shapes import MOST, channels_last, flag, per_axis
from ..ops.conv import convolve, convolve_transposed
from ..ops.conversion import same_dtype
from ..ops.linear import ABSENT
from ..ops.operands import as_tensors
from ..ops.shape import reshape
from ..tensors import dtypes
from ..tensors.creation import empty
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, DTypeLike
from . import init
from .module import Module

Lengths = int | Sequence[int]
Padding = Lengths | Literal["valid", "same"]


def _groups(name: str, groups: Any, first: int, second: int) -> int:
    (count,) = per_axis(name, "groups", groups, 1, 1)
    if first % count or second % count:
        raise ShapeError(f"{name}: groups={count} must divide the channels, which are {first} before and {second} after.")
    return count


def _operands(name: str, axes: int, x: Any, weight: Any, bias: Any) -> tuple[Tensor, Tensor, Any, bool]:
    """Returns x as a batch, the weight and the bias in their common dtype, and whether x was a batch."""
    x, weight, b = as_tensors(name, x, weight, optional=(bias,))
    lengths = ("length", "height, width")[axes - 1]
    if weight.ndim != axes + 2:
        raise ShapeError(f"{name}: weight has shape {weight.shape}; it must have {axes + 2} axes.")
    if x.ndim not in (axes + 1, axes + 2):
        raise ShapeError(f"{name}: x has shape {x.shape}; it must be (batch, channels, {lengths}) or (channels, {lengths}).")
    found = same_dtype([x, weight, *([] if bias is None else [b])])
    if not dtypes.is_float(found[0].dtype):
        raise DTypeError(f"{name}: x and weight have dtype {found[0].dtype}; one must be floating-point. Use .astype(pb.float32).")
    x, weight, *rest = found
    batched = x.ndim == axes + 2
    return x if batched else reshape(x, (1, *x.shape)), weight, rest[0] if rest else ABSENT, batched


def _hint(x: Tensor, wanted: int, batched: bool) -> str:
    """Returns a sentence, after a space, for images in another order of axes, or without an axis of channels; or nothing."""
    if wanted == 1 and not batched:
        return f" For {x.shape[1]} examples of one channel, add the axis of the channel: pb.expand_dims(x, axis=1)."
    return channels_last(x.shape if batched else x.shape[1:], wanted, batched)


def _check_bias(name: str, bias: Any, channels: int) -> None:
    if bias is not ABSENT and bias.shape != (channels,):
        raise ShapeError(
            f"{name}: bias has shape {bias.shape}, but the result has {channels} channels. Give it shape ({channels},)."
        )


def _planes(x: Tensor, axes: int) -> Tensor:
    """Returns x with a height of 1 before the length, if it has one axis."""
    return x if axes == 2 else reshape(x, (*x.shape[:2], 1, x.shape[2]))


def _finished(y: Tensor, axes: int, batched: bool) -> Tensor:
    shape = (*y.shape[:2], *y.shape[4 - axes :])
    shape = shape if batched else shape[1:]
    return y if y.shape == shape else reshape(y, shape)


def _reach(name: str, dilations: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """Returns the distance of a kernel's last tap from its first one along each axis. Raises ShapeError above MOST."""
    reach = [d * (k - 1) for d, k in zip(dilations, kernel)]
    if max(reach) > MOST:
        raise ShapeError(f"{name}: a kernel of {tuple(kernel)} with dilation {tuple(dilations)} covers more than 2^40 elements.")
    return reach


def _paddings(name: str, padding: Any, stride: Sequence[int], reach: Sequence[int], axes: int) -> list[tuple[int, int]]:
    """Returns the padding before and after each axis."""
    if isinstance(padding, str):
        if padding not in ("valid", "same"):
            raise ArgumentError(f'{name}: padding={padding!r} is not known; use "valid", "same", or numbers.')
        if padding == "same" and any([s != 1 for s in stride]):
            raise ArgumentError(
                f'{name}: padding="same" keeps the lengths, so the stride must be 1, but it is {tuple(stride)}. Give the padding '
                f"as numbers: half of dilation * (kernel - 1), here {', '.join([str(r // 2) for r in reach])}, makes "
                f"ceil(n / stride) of a length n if the kernel is odd."
            )
        return [(r // 2, r - r // 2) if padding == "same" else (0, 0) for r in reach]
    return [(p, p) for p in per_axis(name, "padding", padding, axes, 0)]


def _convolve(
    name: str, axes: int, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any
) -> Tensor:
    x, weight, bias, batched = _operands(name, axes, x, weight, bias)
    out, inside, *kernel = weight.shape
    strides, dilations = per_axis(name, "stride", stride, axes, 1), per_axis(name, "dilation", dilation, axes, 1)
    count = _groups(name, groups, x.shape[1], out)
    if inside * count != x.shape[1]:
        raise ShapeError(
            f"{name}: x {x.shape} has {x.shape[1]} channels, but weight {weight.shape} with groups={count} needs {inside * count}: "
            f"the weight must be (out, channels / groups, ...).{_hint(x, inside * count, batched)}"
        )
    _check_bias(name, bias, out)
    reach = _reach(name, dilations, kernel)
    pads = _paddings(name, padding, strides, reach, axes)
    size = []
    for n, (before, after), r, s in zip(x.shape[2:], pads, reach, strides):
        if r < 0 or n + before + after <= r:
            raise ShapeError(
                f"{name}: a kernel of {tuple(kernel)} with dilation {dilations} does not fit into x {x.shape} with its padding "
                f"{tuple(pads)}. Add padding, or use a smaller kernel."
            )
        size.append((n + before + after - r - 1) // s + 1)
    lead = (2 - axes) * (0,)
    ones = (2 - axes) * (1,)
    how = ((*ones, *strides), (*lead, *[before for before, _ in pads]), (*ones, *dilations), count, (*ones, *size))
    return _finished(convolve(_planes(x, axes), _planes(weight, axes), bias, how), axes, batched)


def _transposed(
    name: str, axes: int, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: Any, dilation: Any
) -> Tensor:
    x, weight, bias, batched = _operands(name, axes, x, weight, bias)
    inside, out, *kernel = weight.shape
    strides, dilations = per_axis(name, "stride", stride, axes, 1), per_axis(name, "dilation", dilation, axes, 1)
    pads, more = per_axis(name, "padding", padding, axes, 0), per_axis(name, "output_padding", output_padding, axes, 0)
    count = _groups(name, groups, x.shape[1], inside)
    if inside != x.shape[1]:
        raise ShapeError(
            f"{name}: x {x.shape} has {x.shape[1]} channels, but weight {weight.shape} needs {inside}: the weight must be "
            f"(channels, out / groups, ...).{_hint(x, inside, batched)}"
        )
    _check_bias(name, bias, out * count)
    if any([m >= max(s, d) for m, s, d in zip(more, strides, dilations)]):
        raise ShapeError(f"{name}: output_padding={more} must be smaller than the stride {strides} or the dilation {dilations}.")
    each = zip(x.shape[2:], strides, pads, _reach(name, dilations, kernel), more)
    size = [(n - 1) * s - 2 * p + r + m + 1 for n, s, p, r, m in each]
    if min(size) < 1:
        raise ShapeError(
            f"{name}: x {x.shape} gives a result of {tuple(size)}, because padding {pads} takes away more than there is."
        )
    lead = (2 - axes) * (0,)
    ones = (2 - axes) * (1,)
    how = ((*ones, *strides), (*lead, *pads), (*ones, *dilations), count, (*ones, *size))
    return _finished(convolve_transposed(_planes(x, axes), _planes(weight, axes), bias, how), axes, batched)


# ---- functions


def conv1d(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: Lengths = 1, padding: Padding = 0,
    dilation: Lengths = 1, groups: int = 1,
) -> Tensor:
    """Returns the convolution of x (batch, channels, length) with weight (out, channels / groups, kernel length).

    The arguments are those of `conv2d`, with one number each. Returns: (batch, out, length).
    """
    return _convolve("conv1d", 1, x, weight, bias, stride, padding, dilation, groups)


def conv2d(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: Lengths = 1, padding: Padding = 0,
    dilation: Lengths = 1, groups: int = 1,
) -> Tensor:
    """Returns the convolution of x with weight, plus bias, as torch.nn.functional.conv2d does. The kernel is not flipped.

    Args:
        x: (batch, channels, height, width), or without the batch.
        weight: (out, channels / groups, kernel height, kernel width).
        bias: (out,) or None.
        stride, dilation: the distances between positions, and between taps of the kernel: one number, or (height, width).
        padding: the number of zeros before and after each axis, "valid" for none, or "same" to keep the lengths.
        groups: the channels are cut into that many groups, and each group of `out` sees one of them.

    Returns: (batch, out, height, width). Raises: ShapeError, DTypeError, ValueError.
    Cost: per element of the result 2 · channels / groups · kernel height · kernel width FLOPs, and one for the bias.
    """
    return _convolve("conv2d", 2, x, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: Lengths = 1, padding: Lengths = 0,
    output_padding: Lengths = 0, groups: int = 1, dilation: Lengths = 1,
) -> Tensor:
    """Returns the transposed convolution of x (batch, channels, length) with weight (channels, out / groups, kernel length).

    The arguments are those of `conv_transpose2d`, with one number each. Returns: (batch, out, length).
    """
    return _transposed("conv_transpose1d", 1, x, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: Lengths = 1, padding: Lengths = 0,
    output_padding: Lengths = 0, groups: int = 1, dilation: Lengths = 1,
) -> Tensor:
    """Returns the transposed convolution: the gradient of a `conv2d` with this weight by its input, for the cotangent x.

    Args:
        x: (batch, channels, height, width), or without the batch.
        weight: (channels, out / groups, kernel height, kernel width).
        bias: (out,) or None.
        stride, dilation: those of the `conv2d`: one number, or (height, width).
        padding: the padding of the `conv2d`, which is cut off the result.
        output_padding: the number of elements to add after each axis of the result, below the stride or the dilation.
        groups: the number of groups of channels.

    Returns: (batch, out, height, width). Raises: ShapeError, DTypeError.
    """
    return _transposed("conv_transpose2d", 2, x, weight, bias, stride, padding, output_padding, groups, dilation)


# ---- Modules


class _Convolution(Module):
    """What all convolutions have in common: the arguments, the weights and their initial values."""

    bias: Parameter | None
    _AXES = 2

    def _set_up(
        self, in_channels: Any, out_channels: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, groups: Any,
        padding_mode: Any, bias: Any, transposed: bool, dtype: Any, device: Any,
    ) -> None:
        name, axes = type(self).__name__, self._AXES
        (self.in_channels,) = per_axis(name, "in_channels", in_channels, 1, 1)
        (self.out_channels,) = per_axis(name, "out_channels", out_channels, 1, 1)
        self.kernel_size = per_axis(name, "kernel_size", kernel_size, axes, 1)
        self.stride, self.dilation = per_axis(name, "stride", stride, axes, 1), per_axis(name, "dilation", dilation, axes, 1)
        self.groups = _groups(name, groups, self.in_channels, self.out_channels)
        self.padding: Any  # numbers, or one of the two words
        if transposed or not isinstance(padding, str):
            self.padding = per_axis(name, "padding", padding, axes, 0)
        else:
            _paddings(name, padding, self.stride, self.kernel_size, axes)
            self.padding = padding
        if not isinstance(padding_mode, str) or padding_mode != "zeros":
            raise PullbackError(f'{name}: padding_mode={padding_mode!r} is not supported, only "zeros". Call pb.pad on x before.')
        self.padding_mode = padding_mode
        channels = (self.in_channels, self.out_channels) if transposed else (self.out_channels, self.in_channels)
        self.weight = Parameter(empty((channels[0], channels[1] // self.groups, *self.kernel_size), dtype=dtype, device=device))
        self.bias = Parameter(empty(self.out_channels, dtype=dtype, device=device)) if flag(name, "bias", bias) else None
        bound = 1 / math.sqrt(init.fans(self.weight.shape)[0])
        for p in (self.weight, self.bias):
            if p is not None:
                init.uniform(p, -bound, bound)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        usual = {"padding": (0,) * self._AXES, "output_padding": (0,) * self._AXES, "dilation": (1,) * self._AXES, "groups": 1}
        for name, value in usual.items():
            found = getattr(self, name, value)
            text += f", {name}={found}" if found != value else ""
        return text + (", bias=False" if self.bias is None else "")


class Conv2d(_Convolution):
    """Computes the convolution of x (batch, in_channels, height, width) with the weight, plus the bias: see `functional.conv2d`.

    Args:
        in_channels, out_channels: the numbers of channels of x and of the result.
        kernel_size: the lengths of the kernel: one number, or (height, width).
        stride, padding, dilation, groups: as in `functional.conv2d`.
        bias: False leaves out the bias.
        padding_mode: only "zeros".

    The weight has shape (out_channels, in_channels / groups, *kernel_size), the bias (out_channels,). Both are drawn from
    U(±1/sqrt(fan in)), as in torch.nn.Conv2d.

    >>> nn.Conv2d(3, 8, 3, padding=1)(pb.ones((2, 3, 32, 32))).shape
    (2, 8, 32, 32)
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Lengths, stride: Lengths = 1, padding: Padding = 0,
        dilation: Lengths = 1, groups: int = 1, bias: bool = True, padding_mode: Literal["zeros"] = "zeros",
        *, dtype: DTypeLike | None = None, device: str | None = None,
    ) -> None:
        self._set_up(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, padding_mode, bias, False, dtype, device
        )

    def forward(self, x: ArrayLike) -> Tensor:
        return conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Conv1d(_Convolution):
    """Computes the convolution of x (batch, in_channels, length) with the weight, plus the bias.

    The arguments are those of `Conv2d`, with one number each. The weight has shape (out_channels, in_channels / groups,
    kernel_size).

    >>> nn.Conv1d(3, 8, 5, padding="same")(pb.ones((2, 3, 20))).shape
    (2, 8, 20)
    """

    _AXES = 1

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Lengths, stride: Lengths = 1, padding: Padding = 0,
        dilation: Lengths = 1, groups: int = 1, bias: bool = True, padding_mode: Literal["zeros"] = "zeros",
        *, dtype: DTypeLike | None = None, device: str | None = None,
    ) -> None:
        self._set_up(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, padding_mode, bias, False, dtype, device
        )

    def forward(self, x: ArrayLike) -> Tensor:
        return conv1d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class ConvTranspose2d(_Convolution):
    """Computes the transposed convolution of x (batch, in_channels, height, width): see `functional.conv_transpose2d`.

    Args:
        in_channels, out_channels: the numbers of channels of x and of the result.
        kernel_size: the lengths of the kernel: one number, or (height, width).
        stride, padding, output_padding, groups, dilation: as in `functional.conv_transpose2d`.
        bias: False leaves out the bias.
        padding_mode: only "zeros".

    The weight has shape (in_channels, out_channels / groups, *kernel_size), the bias (out_channels,). Both are drawn as in
    torch.nn.ConvTranspose2d.

    >>> nn.ConvTranspose2d(8, 3, 2, stride=2)(pb.ones((2, 8, 16, 16))).shape
    (2, 3, 32, 32)
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Lengths, stride: Lengths = 1, padding: Lengths = 0,
        output_padding: Lengths = 0, groups: int = 1, bias: bool = True, dilation: Lengths = 1,
        padding_mode: Literal["zeros"] = "zeros", *, dtype: DTypeLike | None = None, device: str | None = None,
    ) -> None:
        self.output_padding = per_axis("ConvTranspose2d", "output_padding", output_padding, 2, 0)
        self._set_up(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, padding_mode, bias, True, dtype, device
        )

    def forward(self, x: ArrayLike) -> Tensor:
        return conv_transpose2d(
            x, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )
