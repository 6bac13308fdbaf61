"""Batch, group and instance norm of (N, C, …), with a weight and a bias for each channel: functions and Modules."""

from __future__ import annotations

import math
from typing import Any, Final

from ..autodiff.batching import Batched
from ..errors import PullbackError, ShapeError, VmapError
from ..ops._shapes import channels_last, epsilon, flag, integer, real
from ..ops.by_name import in_dtype, in_float, widened
from ..ops.channels import channel_norm, norm_and_move
from ..ops.conversion import same_dtype, stop_gradient
from ..ops.elementwise import rsqrt
from ..ops.operands import as_tensors
from ..ops.reduce import mean
from ..ops.shape import reshape
from ..ops.variance import var
from ..tensors.creation import ones, zeros
from ..tensors.dtypes import int64
from ..tensors.operand import as_tensor
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..transforms.checkpoint import only_once
from ..typing import ArrayLike, DTypeLike
from .buffer import Buffer
from .layers import positive_lengths
from .module import Module

# ---- functions


def batch_norm(
    x: ArrayLike, running_mean: ArrayLike | None, running_var: ArrayLike | None, weight: ArrayLike | None = None,
    bias: ArrayLike | None = None, training: bool = False, momentum: Any = 0.1, eps: float = 1e-5,
) -> Tensor:
    """Normalizes each channel of x by its mean and variance, then scales and shifts it.

    Args:
        x: (N, C, …) float tensor.
        running_mean, running_var: (C,). With training=False they are the mean and the variance. With training=True they must be
            Parameters or Buffers, or None, and are moved towards the statistics of x, of which the variance is the unbiased one.
        weight, bias: (C,), or None.
        training: True takes the mean and the variance of x over the batch and all positions.
        momentum: the share of the statistics of x in the new running values: a number, or a tensor with one element.
        eps: added to the variance, in units of x squared.

    Returns: the shape of x. Half precision is computed in float32. Raises ShapeError; VmapError for running values that would have
    to be updated under vmap. Source: Ioffe & Szegedy 2015, algorithm 1.
    """
    return _batch_norm(x, (running_mean, running_var, None), weight, bias, training, momentum, eps)


Running = tuple[Any, Any, Any]  # running_mean, running_var and num_batches_tracked, each None if it is not there


def _batch_norm(x: Any, running: Running, weight: Any, bias: Any, training: bool, momentum: Any, eps: Any) -> Tensor:
    """Implements batch_norm. Training increases num_batches_tracked. momentum: None gives all batches the same share."""
    training = flag("batch_norm", "training", training)
    x, weight, bias = _operands("batch_norm", x, weight, bias)
    for name, value in zip(_RUNNING, running):
        if value is not None:
            _check_vector("batch_norm", name, as_tensor(value), x)
    if not training:
        if running[0] is None or running[1] is None:
            raise PullbackError(
                "batch_norm: without training=True the mean and the variance are running_mean and running_var, and one of them is "
                "None. Give both, or pass training=True to take those of the batch."
            )
        return _by_running(x, running[0], running[1], weight, bias, eps)
    count = x.size // x.shape[1] if x.shape[1] else 0
    if count == 1:
        raise ShapeError(
            f"batch_norm: x {x.shape} has one value for each channel, whose variance is 0. Training takes a larger batch; use "
            f"training=False, or net.eval(), to normalize by the running values."
        )
    eps = epsilon("batch_norm", eps)
    running = running if count else (None, None, running[2])
    y = _moved(x, running, weight, bias, momentum, eps) if any([value is not None for value in running]) else None
    return channel_norm(x, weight, bias, None, eps, computed=y)


_RUNNING: Final = ("running_mean", "running_var")


def _by_running(x: Tensor, middle: Any, variance: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    """Returns (x - mean) * scale + bias, with the scale rsqrt(variance + eps) * weight of each channel."""
    wide = widened(x)
    middle, variance = [as_tensor(value, dtype=wide.dtype) for value in (middle, variance)]
    scale = rsqrt(variance + epsilon("batch_norm", eps))
    scale = scale if weight is None else scale * widened(weight)
    y = (wide - _of_channels(middle, x)) * _of_channels(scale, x)
    return in_dtype(y if bias is None else y + _of_channels(widened(bias), x), x.dtype)


def _of_channels(value: Tensor, x: Tensor) -> Tensor:
    return reshape(value, (value.shape[0], *(1,) * (x.ndim - 2)))


def _check_buffer(title: str, name: str, value: Any) -> None:
    """Raises PullbackError for a value that cannot be updated in place."""
    if not isinstance(value, Parameter):
        raise PullbackError(
            f"{title}: in training mode {name} is updated in place, and a {type(value).__name__} cannot be. Give an nn.Buffer or "
            f"None, leave Buffers out of the tensors of nn.functional_call, or call net.eval()."
        )


@only_once
def _moved(x: Tensor, running: Running, weight: Any, bias: Any, momentum: Any, eps: float) -> Tensor | None:
    """Moves the running values towards the mean and the unbiased variance of x. Returns the norm if that launch has computed it."""
    if any([value.__class__ is Batched for value in (x, *running)]):
        if running[0] is None and running[1] is None:
            return None  # examples of a vmap are not counted as batches
        raise VmapError(
            "batch_norm: in training mode the statistics are those of the whole batch, so its examples are coupled, and the "
            "running values have one new value and not one for each example under vmap or a per-example gradient. Call "
            "net.eval() to use the running values, pass track_running_stats=False to normalize each call by its own statistics, "
            "or use nn.GroupNorm."
        )
    for name, value in zip(("num_batches_tracked", *_RUNNING), (running[2], *running[:2])):
        if value is not None:
            _check_buffer("batch_norm", name, value)
    if momentum is None and running[2] is None:
        real("batch_norm", "momentum", momentum)  # raises
    if momentum is None or isinstance(momentum, (int, float)):
        shared = [t for t in (x, weight, bias) if t is not None and t.storage is not None]
        if not any([t.storage is value.storage for t in shared for value in running if value is not None]):
            y = norm_and_move(x, weight, bias, eps, running, momentum)
            if y is not None:
                return y
    _update(x, running, momentum)
    return None


def _update(x: Tensor, running: Running, momentum: Any) -> None:
    """Moves the running values as `norm_and_move` does, in ops."""
    mean_now, variance_now, batches = running
    if batches is not None:
        batches.assign(stop_gradient(batches) + 1)
    wide, axes = widened(stop_gradient(x)), (0, *range(2, x.ndim))
    for value, of_x in ((mean_now, lambda: mean(wide, axis=axes)), (variance_now, lambda: var(wide, axis=axes, correction=1))):
        if value is not None:
            old = widened(stop_gradient(value))
            share = 1 / in_dtype(batches, old.dtype) if momentum is None else momentum
            value.assign(old * (1 - share) + in_dtype(of_x(), old.dtype) * share)


def group_norm(
    x: ArrayLike, num_groups: int, weight: ArrayLike | None = None, bias: ArrayLike | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalizes each group of neighbouring channels of each example, then scales and shifts each channel.

    Args:
        x: (N, C, …) float tensor.
        num_groups: the number of groups, which divides C.
        weight, bias: (C,), or None.
        eps: added to the variance, in units of x squared.

    Returns: the shape of x. Half precision is computed in float32. Raises ShapeError. Source: Wu & He 2018, eq. 7.
    """
    x, weight, bias = _operands("group_norm", x, weight, bias)
    groups = integer("group_norm", "num_groups", num_groups)
    if groups < 1 or x.shape[1] % groups:
        raise ShapeError(f"group_norm: num_groups={groups} does not divide the {x.shape[1]} channels of x {x.shape}.")
    return channel_norm(x, weight, bias, groups, epsilon("group_norm", eps))


def instance_norm(
    x: ArrayLike, running_mean: ArrayLike | None = None, running_var: ArrayLike | None = None, weight: ArrayLike | None = None,
    bias: ArrayLike | None = None, use_input_stats: bool = True, momentum: Any = 0.1, eps: float = 1e-5,
) -> Tensor:
    """Normalizes each channel of each example over its positions, then scales and shifts it.

    Args:
        x: (N, C, …) float tensor.
        running_mean, running_var: (C,). With use_input_stats=False they are the mean and the variance. Otherwise they must be
            Parameters or Buffers, or None, and are moved towards the mean over the batch of the statistics of x.
        weight, bias: (C,), or None.
        momentum, eps: as in batch_norm.

    Returns: the shape of x. Half precision is computed in float32. Raises ShapeError. Source: Ulyanov, Vedaldi & Lempitsky 2016.
    """
    if not flag("instance_norm", "use_input_stats", use_input_stats):
        return batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    x, weight, bias = _operands("instance_norm", x, weight, bias)
    count = math.prod(x.shape[2:])
    if count == 1:
        raise ShapeError(f"instance_norm: x {x.shape} has one value for each channel of an example, whose variance is 0.")
    for name, value in (("running_mean", running_mean), ("running_var", running_var)):
        if value is not None:
            _check_vector("instance_norm", name, as_tensor(value), x)
    if (running_mean is not None or running_var is not None) and x.size:
        _update_instances(x, running_mean, running_var, momentum)
    return channel_norm(x, weight, bias, max(1, x.shape[1]), epsilon("instance_norm", eps))


@only_once
def _update_instances(x: Tensor, running_mean: Any, running_var: Any, momentum: Any) -> None:
    """Moves the running values towards the means over the batch of each example's mean and unbiased variance."""
    if any([value.__class__ is Batched for value in (x, running_mean, running_var)]):
        raise VmapError(
            "instance_norm: the running values have one new value and not one for each example under vmap or a per-example "
            "gradient. Call net.eval(), or leave them out: track_running_stats=False."
        )
    wide, axes = widened(stop_gradient(x)), tuple(range(2, x.ndim))
    both = (("running_mean", running_mean, mean), ("running_var", running_var, lambda x, axis: var(x, axis=axis, correction=1)))
    for name, running, f in both:
        if running is not None:
            _check_buffer("instance_norm", name, running)
            old = widened(stop_gradient(running))
            running.assign(old * (1 - momentum) + in_dtype(mean(f(wide, axis=axes), axis=0), old.dtype) * momentum)


def _operands(name: str, x: Any, weight: Any, bias: Any) -> tuple[Tensor, Any, Any]:
    """Returns x, the weight and the bias as floats of one dtype. Raises ShapeError."""
    x, weight, bias = as_tensors(name, x, optional=(weight, bias))
    x = in_float(x)
    if x.ndim < 2:
        raise ShapeError(
            f"{name}: x has shape {x.shape}; it must be (N, C, ...), with an axis of examples and an axis of channels."
        )
    given = [(what, value) for what, value in (("weight", weight), ("bias", bias)) if value is not None]
    for what, value in given:
        _check_vector(name, what, value, x)
    x, *values = same_dtype([x, *[value for _, value in given]])
    found = dict(zip([what for what, _ in given], values))
    return x, found.get("weight"), found.get("bias")


def _check_vector(name: str, what: str, value: Tensor, x: Tensor) -> None:
    if value.shape != x.shape[1:2]:
        raise ShapeError(
            f"{name}: {what} has shape {value.shape}, but x {x.shape} has {x.shape[1]} channels; ({x.shape[1]},) is needed."
        )


# ---- Modules


class _Normalizer(Module):
    """Base class of the Modules that normalize channels and may keep running statistics."""

    axes: tuple[int, ...] = ()  # the numbers of axes that x may have

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, *, bias: bool = True, dtype: DTypeLike | None = None, device: str | None = None,
    ) -> None:
        title = type(self).__name__
        (self.num_features,), self.eps = positive_lengths(title, num_features=num_features), epsilon(title, eps)
        self.momentum = None if momentum is None else real(title, "momentum", momentum)
        self.affine = flag(title, "affine", affine)
        self.track_running_stats = flag(title, "track_running_stats", track_running_stats)
        n = self.num_features
        where: dict[str, Any] = {"dtype": dtype, "device": device}
        self.weight = Parameter(ones(n, **where)) if affine else None
        self.bias = Parameter(zeros(n, **where)) if affine and flag(title, "bias", bias) else None
        tracks = self.track_running_stats
        self.running_mean = Buffer(zeros(n, **where)) if tracks else None
        self.running_var = Buffer(ones(n, **where)) if tracks else None
        self.num_batches_tracked = Buffer(zeros((), dtype=int64, device=device)) if tracks else None

    def _read(self, x: Any) -> Tensor:
        """Returns x as a tensor. Lists of numbers take the dtype of the layer."""
        return as_tensors(type(self).__name__, x, optional=(self.weight, self.running_mean))[0]

    def _checked(self, x: Tensor) -> Tensor:
        title = type(self).__name__
        if x.ndim not in self.axes:
            wanted = " or ".join(str(("N", "C", "H", "W")[:n] if n != 3 else ("N", "C", "L")).replace("'", "") for n in self.axes)
            raise ShapeError(f"{title}: x has shape {x.shape}; it must be {wanted}.")
        if x.shape[1] != self.num_features:
            hint = channels_last(x.shape, self.num_features)
            raise ShapeError(f"{title}: x {x.shape} has {x.shape[1]} channels, but num_features={self.num_features}.{hint}")
        return x

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Normalizer):
    def forward(self, x: ArrayLike) -> Tensor:
        x, single = self._read(x), False
        by_batch = self.training or self.running_mean is None
        if x.ndim == self.axes[0] - 1 and not by_batch:  # a single example, as vmap gives it
            x, single = reshape(x, (1, *x.shape)), True
        x = self._checked(x)
        running = self.running_mean, self.running_var, self.num_batches_tracked if self.training else None
        y = _batch_norm(x, running, self.weight, self.bias, by_batch, self.momentum, self.eps)
        return reshape(y, y.shape[1:]) if single else y


class BatchNorm1d(_BatchNorm):
    """Normalizes each channel of (N, C) or (N, C, L) over the batch and all positions (see nn.functional.batch_norm).

    Args:
        num_features: the number of channels C.
        eps: a number that is added to the variance.
        momentum: the share of a batch's statistics in the new running values. None averages those of all batches evenly.
        affine: False leaves out the weight, which starts at 1, and the bias, which starts at 0. bias: False leaves out the bias.
        track_running_stats: False keeps no running values, and takes the statistics of x in evaluation mode too.

    In training mode the statistics are those of x, and the Buffers running_mean, running_var and num_batches_tracked are updated,
    by replays of a captured function too, but not when a `pb.checkpoint` computes its function again. In evaluation mode the
    running values are used, and x may be a single example.

    Source: Ioffe & Szegedy 2015. The arguments and the names are those of torch.nn.BatchNorm1d.

    >>> nn.BatchNorm1d(3)(pb.ones((5, 3))).shape
    (5, 3)
    """

    axes = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Normalizes each channel of (N, C, H, W) over the batch and all positions. The arguments are those of BatchNorm1d.

    >>> nn.BatchNorm2d(3)(pb.ones((5, 3, 8, 8))).shape
    (5, 3, 8, 8)
    """

    axes = (4,)


class InstanceNorm2d(_Normalizer):
    """Normalizes each channel of each example (N, C, H, W) or (C, H, W) over its positions (see nn.functional.instance_norm).

    The arguments are those of BatchNorm1d. By default there are no weight, no bias and no running values, as in
    torch.nn.InstanceNorm2d.

    >>> nn.InstanceNorm2d(3)(pb.ones((5, 3, 8, 8))).shape
    (5, 3, 8, 8)
    """

    axes = (4,)

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = False,
        track_running_stats: bool = False, *, bias: bool = True, dtype: DTypeLike | None = None, device: str | None = None,
    ) -> None:
        bias = flag("InstanceNorm2d", "bias", bias)  # also without an affine map, where it has no meaning
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias=bias, dtype=dtype, device=device)

    def forward(self, x: ArrayLike) -> Tensor:
        x = self._read(x)
        single = x.ndim == 3
        x = self._checked(reshape(x, (1, *x.shape)) if single else x)
        by_input = self.training or self.running_mean is None
        share = 0.0 if self.momentum is None else self.momentum
        y = instance_norm(x, self.running_mean, self.running_var, self.weight, self.bias, by_input, share, self.eps)
        return reshape(y, y.shape[1:]) if single else y


class GroupNorm(Module):
    """Normalizes each group of channels of each example (N, C, …) (see nn.functional.group_norm).

    Args:
        num_groups: the number of groups of neighbouring channels, which divides num_channels.
        num_channels: the number of channels C.
        eps: a number that is added to the variance.
        affine: False leaves out the weight, which starts at 1, and the bias, which starts at 0. bias: False leaves out the bias.

    Source: Wu & He 2018. The arguments are those of torch.nn.GroupNorm.

    >>> nn.GroupNorm(2, 6)(pb.ones((5, 6, 8, 8))).shape
    (5, 6, 8, 8)
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *, bias: bool = True,
        dtype: DTypeLike | None = None, device: str | None = None,
    ) -> None:
        self.num_groups, self.num_channels = positive_lengths("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if self.num_channels % self.num_groups:
            raise ShapeError(f"GroupNorm: num_groups={num_groups} does not divide num_channels={num_channels}.")
        self.eps, self.affine = epsilon("GroupNorm", eps), flag("GroupNorm", "affine", affine)
        self.weight = Parameter(ones(num_channels, dtype=dtype, device=device)) if affine else None
        bias = affine and flag("GroupNorm", "bias", bias)
        self.bias = Parameter(zeros(num_channels, dtype=dtype, device=device)) if bias else None

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensors("GroupNorm", x, optional=(self.weight,))[0]
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ShapeError(f"GroupNorm: x has shape {x.shape}; it must be (N, {self.num_channels}, ...).")
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, bias={self.bias is not None}"
