"""Losses, with PyTorch's argument names, reductions and corner cases. Half precision is computed in float32 and rounded once."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Literal, get_args

from ..errors import ArgumentError, DTypeError, PullbackError, ShapeError
from ..launch import capturing
from ..ops._shapes import flag, integer, real
from ..ops.by_name import in_float
from ..ops.conversion import same_dtype
from ..ops.elementwise import abs, exp, less, log, log1p, not_equal, softplus as _softplus, square, where
from ..ops.gather import in_int64, take, take_along_axis
from ..ops.losses import cross_entropy_rows, divide_by_count, squared_error
from ..ops.operands import as_tensors, with_whole
from ..ops.reduce import mean, sum
from ..ops.rows import log_softmax
from ..ops.shape import expand_dims, moveaxis, reshape, squeeze
from ..tensors import devices, dtypes
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from .loss_arguments import check_shares, factors_of

Reduction = Literal["mean", "sum", "none"]
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)


def _reduced(name: str, loss: Tensor, reduction: str, dtype: Any) -> Tensor:
    if _known(name, reduction) != "none":
        loss = mean(loss) if reduction == "mean" else sum(loss)
    return _narrow(loss, dtype)


def _is_half(dtype: Any) -> bool:
    return dtype.itemsize == 2 and dtypes.is_float(dtype)


def _wide(x: Tensor) -> Tensor:
    return x.astype(dtypes.float32) if _is_half(x.dtype) else x


def _narrow(loss: Tensor, dtype: Any) -> Tensor:
    """Returns the loss in `dtype`, the dtype of the arguments, if that is a half precision; otherwise unchanged."""
    return loss.astype(dtype) if _is_half(dtype) else loss


def _known(name: str, reduction: Any, *more: str) -> str:
    if not isinstance(reduction, str) or reduction not in (*REDUCTIONS, *more):
        raise PullbackError(f"{name}: reduction={reduction!r}; use {', '.join(map(repr, (*REDUCTIONS, *more)))}.")
    return reduction


def _pair(name: str, x: Any, target: Any) -> tuple[Tensor, Tensor, Any]:
    """Returns both as tensors of one floating-point dtype, at least float32, and the dtype of the loss.

    Differences of integers could overflow, so they are computed in float32. Raises ShapeError if the shapes differ: (n, 1) and (n,)
    would otherwise broadcast to (n, n), and the network would train on nonsense.
    """
    x, target = as_tensors(name, x, target)
    if x.shape != target.shape:
        raise ShapeError(
            f"{name}: the input has shape {x.shape}, the target {target.shape}. They must be equal: reshape one of them, "
            f"or say pb.broadcast_to where broadcasting is meant."
        )
    if not (dtypes.is_float(x.dtype) or dtypes.is_float(target.dtype)):
        x, target = in_float(x), in_float(target)
    wide = same_dtype([_wide(x), _wide(target)])
    return wide[0], wide[1], dtypes.promote(x.dtype, target.dtype)


def mse(x: ArrayLike, target: ArrayLike, *, reduction: Reduction = "mean") -> Tensor:
    """Returns (x - target)², reduced. Raises ShapeError if the shapes differ."""
    x, target = as_tensors("mse", x, target)
    floats = dtypes.is_float(x.dtype) and dtypes.is_float(target.dtype)
    if _known("mse", reduction) != "none" and x.shape == target.shape and floats:
        x, target = same_dtype([x, target])
        return squared_error(x, target, reduction == "mean")
    x, target, dtype = _pair("mse", x, target)
    return _reduced("mse", square(x - target), reduction, dtype)


def l1(x: ArrayLike, target: ArrayLike, *, reduction: Reduction = "mean") -> Tensor:
    """Returns |x - target|, reduced. The derivative is 0 where x equals target. Raises ShapeError if the shapes differ."""
    x, target, dtype = _pair("l1", x, target)
    return _reduced("l1", abs(x - target), reduction, dtype)


def huber(x: ArrayLike, target: ArrayLike, *, delta: float = 1.0, reduction: Reduction = "mean") -> Tensor:
    """Returns d²/2 where d = |x - target| is at most delta, delta (d - delta/2) elsewhere, reduced. Source: Huber 1964."""
    if not real("huber", "delta", delta) > 0:
        raise PullbackError(f"huber: delta={delta} must be positive.")
    x, target, dtype = _pair("huber", x, target)
    difference = x - target
    size = abs(difference)
    loss = where(size <= delta, 0.5 * square(difference), delta * (size - 0.5 * delta))
    return _reduced("huber", loss, reduction, dtype)


def smooth_l1(x: ArrayLike, target: ArrayLike, *, beta: float = 1.0, reduction: Reduction = "mean") -> Tensor:
    """Returns d²/(2 beta) where d = |x - target| is below beta, d - beta/2 elsewhere, reduced: huber(delta=beta) / beta.

    With beta=0 it is l1. Raises PullbackError for a negative beta, ShapeError. Source: Girshick 2015.
    """
    if not real("smooth_l1", "beta", beta) >= 0:
        raise PullbackError(f"smooth_l1: beta={beta} must not be negative.")
    if beta == 0:
        return l1(x, target, reduction=reduction)
    x, target, dtype = _pair("smooth_l1", x, target)
    difference = x - target
    size = abs(difference)
    loss = where(size < beta, (0.5 / beta) * square(difference), size - 0.5 * beta)
    return _reduced("smooth_l1", loss, reduction, dtype)


def binary_cross_entropy(
    x: ArrayLike, target: ArrayLike, *, weight: ArrayLike | None = None, reduction: Reduction = "mean"
) -> Tensor:
    """Returns -(z log x + (1 - z) log(1 - x)), reduced, for probabilities x and the target z, both in [0, 1].

    The logarithms are at least -100, as in PyTorch; below, the derivative is 0. weight scales each element and broadcasts. For
    logits, bce_with_logits is more accurate.

    Raises ShapeError if x and target differ in shape; ArgumentError for a number outside of [0, 1]. On a GPU and in a captured
    function, where nothing waits for the numbers, the loss is NaN instead.
    """
    x, z, dtype = _pair("binary_cross_entropy", x, target)
    check_shares("x", x, "For logits use bce_with_logits.")
    check_shares("target", z, "The target is the probability of the class 1.")
    z = where(z * (1 - z) < 0, math.nan, z)  # where nothing was checked; for x outside of [0, 1] the logarithms are NaN
    yes, no = [where(y > -100.0, y, where(y != y, y, -100.0)) for y in (log(x), log1p(-x))]
    loss = -(z * yes + (1 - z) * no)
    if weight is not None:
        weight = factors_of("binary_cross_entropy", "weight", weight, x)
        loss, dtype = loss * _wide(weight), dtypes.promote(dtype, weight.dtype)
    return _reduced("binary_cross_entropy", loss, reduction, dtype)


def bce_with_logits(
    x: ArrayLike,
    target: ArrayLike,
    *,
    weight: ArrayLike | None = None,
    pos_weight: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Returns -(z log p + (1 - z) log(1 - p)), reduced, for p = sigmoid(x) and the target z in [0, 1]. It does not overflow.

    weight scales each element, pos_weight the term z log p; both broadcast. Raises ShapeError if x and target differ in shape.
    The target is not checked, which would cost as much as the loss: outside of [0, 1] the formula has no lower bound.
    """
    x, z, dtype = _pair("bce_with_logits", x, target)
    positive = z * _softplus(-x)
    if pos_weight is not None:
        pos_weight = factors_of("bce_with_logits", "pos_weight", pos_weight, x)
        positive = positive * _wide(pos_weight)
        dtype = dtypes.promote(dtype, pos_weight.dtype)
    loss = positive + (1 - z) * _softplus(x)  # (1 - z) x + softplus(-x) would cancel for a sure logit
    if weight is not None:
        weight = factors_of("bce_with_logits", "weight", weight, x)
        loss, dtype = loss * _wide(weight), dtypes.promote(dtype, weight.dtype)
    return _reduced("bce_with_logits", loss, reduction, dtype)


def kl_div(
    x: ArrayLike, target: ArrayLike, *, log_target: bool = False, reduction: Literal["mean", "sum", "none", "batchmean"] = "mean"
) -> Tensor:
    """Returns target (log target - x), reduced, for log-probabilities x. It is 0 where the target is 0, NaN where it is negative.

    reduction="batchmean" divides the sum by the length of the first axis, which gives the divergence; "mean" divides by the number
    of elements, which does not. Both are as in torch.nn.functional.kl_div.
    """
    x, target, dtype = _pair("kl_div", x, target)
    _known("kl_div", reduction, "batchmean")
    if flag("kl_div", "log_target", log_target):
        loss = exp(target) * (target - x)
    else:
        zero = target == 0
        loss = where(zero & (x == x), 0.0, target * (log(where(zero, 1.0, target)) - x))
    if reduction == "batchmean":
        return _narrow(sum(loss) * (1.0 / max(1, x.shape[0] if x.ndim else 1)), dtype)
    return _reduced("kl_div", loss, reduction, dtype)


def nll(
    x: ArrayLike, target: ArrayLike, *, weight: ArrayLike | None = None, ignore_index: int = -100, reduction: Reduction = "mean"
) -> Tensor:
    """Returns -x[target], reduced, for log-probabilities x (n, classes, …) and class numbers target (n, …).

    weight, of shape (classes,), scales each class, and the mean divides by the sum of weights. Rows whose target is ignore_index
    do not count.

    Raises ShapeError, DTypeError; IndexError for a class out of range.
    """
    rows, labels = _rows_and_labels("nll", as_tensor(x), as_tensor(target), ignore_index)
    safe = labels.safe()
    told = devices.on_host(safe.array) and capturing.thread.recording is None
    if told and safe.array.size and not 0 <= safe.array.min() <= safe.array.max() < rows.shape[1]:
        at = int(((safe.array < 0) | (safe.array >= rows.shape[1])).argmax())
        raise IndexError(
            f"nll: label {safe.array[at]} at position {at} is not a class: input {rows.shape} has classes 0 to "
            f"{rows.shape[1] - 1}. Only ignore_index={ignore_index} marks a row to leave out."
        )
    if not told:  # Negative labels go out of range too, so the kernel reports every bad label. Nothing waits for the device here.
        safe = where(less(safe, 0), rows.shape[1], safe)
    picked = squeeze(take_along_axis(rows, expand_dims(safe, axis=1), axis=1), axis=1)
    loss = where(labels.counts, -picked, 0.0)
    class_weights = None if weight is None else _class_weights("nll", weight, rows)
    return _finished("nll", loss, labels, class_weights, reduction, rows.dtype)


def cross_entropy(
    logits: ArrayLike,
    target: ArrayLike,
    *,
    weight: ArrayLike | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Returns -log softmax(logits) at the target class, or its mean weighted by the target's probabilities.

    Args:
        logits: a float tensor of shape (n, classes), (n, classes, …) or (classes,).
        target: class numbers, of the shape of the logits without their class axis; or probabilities, of the logits' shape, which
            may be any factors: they are not checked, and neither are negative weights.
        weight: factors of shape (classes,), one per class. The mean over class numbers divides by the sum of weights.
        ignore_index: the class number of rows that do not count. Probabilities have none.
        label_smoothing: the share of the target that is spread evenly over all classes, in [0, 1].
        reduction: "mean" (over the rows that count), "sum" or "none".

    Returns: a scalar, or with "none" a tensor of the shape of the class numbers, as torch.nn.functional.cross_entropy does.
    Raises: ShapeError, also for logits of one class; DTypeError; IndexError naming a class out of range.

    >>> nn.cross_entropy(pb.zeros((1, 4)), pb.tensor([2])) == pb.log(pb.tensor(4.0))
    tensor(True)
    """
    logits, target = with_whole("cross_entropy", logits, target)
    _known("cross_entropy", reduction)
    if not 0 <= real("cross_entropy", "label_smoothing", label_smoothing) <= 1:
        raise PullbackError(f"cross_entropy: label_smoothing={label_smoothing} is not a share; it must be from 0 to 1.")
    if dtypes.is_float(logits.dtype) and (logits.shape[1:2] or logits.shape) == (1,):
        raise ShapeError(
            f"cross_entropy: the logits {logits.shape} have one class, whose probability is always 1: the loss is 0, and nothing "
            f"learns. If one output decides between two classes, use bce_with_logits; otherwise give one logit for each class."
        )
    if dtypes.is_float(target.dtype):
        if integer("cross_entropy", "ignore_index", ignore_index) != -100:
            raise ArgumentError("cross_entropy: ignore_index is for class numbers; for probabilities mask the losses yourself.")
        return _with_probabilities(logits, target, weight, label_smoothing, reduction)
    rows, labels = _rows_and_labels("cross_entropy", logits, target, ignore_index)
    if weight is None:
        loss = cross_entropy_rows(rows, labels.numbers, labels.ignore_index, label_smoothing, reduction)
        return reshape(loss, labels.shape) if reduction == "none" else loss
    class_weights = _class_weights("cross_entropy", weight, rows)
    sharp = cross_entropy_rows(rows, labels.numbers, labels.ignore_index)
    smooth = None
    if label_smoothing:
        spread = _expected_loss(rows, class_weights) * (label_smoothing / max(1, rows.shape[1]))
        smooth = where(labels.counts, spread, 0.0)
        sharp = _wide(sharp) * (1 - label_smoothing)
    return _finished("cross_entropy", sharp, labels, class_weights, reduction, rows.dtype, smooth)


def _as_rows(x: Tensor) -> Tensor:
    """Reshapes (n, classes, …) or (classes,) to (rows, classes)."""
    if x.ndim == 1:
        return reshape(x, (1, x.shape[0]))
    moved = x if x.ndim == 2 else moveaxis(x, 1, -1)
    return moved if moved.ndim == 2 else reshape(moved, (math.prod(moved.shape[:-1]), moved.shape[-1]))


class _Labels:
    """Class numbers of rows in one int64 axis, and the shape in which the caller passed them."""

    def __init__(self, numbers: Tensor, ignore_index: int, shape: tuple[int, ...]) -> None:
        self.numbers, self.ignore_index, self.shape = numbers, ignore_index, shape

    @cached_property
    def counts(self) -> Tensor:
        """True for each row that counts."""
        return not_equal(self.numbers, self.ignore_index)

    def safe(self) -> Tensor:
        """Returns class numbers to index with: 0 for rows that do not count."""
        return where(self.counts, self.numbers, 0)


def _rows_and_labels(name: str, x: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, _Labels]:
    wanted = x.shape[:1] + x.shape[2:] if x.ndim > 1 else ()
    if x.ndim < 1 or target.shape != wanted:
        raise ShapeError(
            f"{name}: input {x.shape} and class numbers {target.shape} do not fit: for (n, classes, ...) the class numbers "
            f"have shape (n, ...), here {wanted}. {_remedy(name, x, target, wanted)}"
        )
    if target.dtype.kind not in "iu":
        raise DTypeError(f"{name}: class numbers have dtype {target.dtype}; they must be integers. Use .astype(pb.int64).")
    numbers = in_int64(target if target.ndim == 1 else reshape(target, (target.size,)))
    return _as_rows(x), _Labels(numbers, integer(name, "ignore_index", ignore_index), target.shape)


def _remedy(name: str, x: Tensor, target: Tensor, wanted: tuple[int, ...]) -> str:
    """Returns the advice of an error message about class numbers that do not have the shape `wanted`."""
    if _swapped(x, target):
        return f"The arguments are swapped: the order is {name}(input, target)."
    if target.shape == x.shape and name == "cross_entropy":
        return "For probabilities, one-hot rows too, make the target floating-point: .astype(pb.float32)."
    if x.ndim > 2 and target.shape == x.shape[:-1]:
        return "The classes are in axis 1, and the input seems to have them in its last: pb.moveaxis(x, -1, 1)."
    if math.prod(target.shape) == math.prod(wanted):
        return f"Reshape them: target.reshape({wanted})."
    return "Give one class number for each row of the input."


def _swapped(x: Tensor, target: Tensor) -> bool:
    """True if x looks like class numbers and target like the logits."""
    return not dtypes.is_float(x.dtype) and dtypes.is_float(target.dtype) and target.ndim > x.ndim


def _class_weights(name: str, weight: Any, rows: Tensor) -> Tensor:
    weight = as_tensor(weight, dtype=rows.dtype if rows.dtype == dtypes.float64 else dtypes.float32)
    if weight.shape != rows.shape[1:]:
        raise ShapeError(
            f"{name}: weight has shape {weight.shape}, but there are {rows.shape[1]} classes. Give one number for each."
        )
    return weight


def _finished(
    name: str, loss: Tensor, labels: _Labels, weight: Tensor | None, reduction: str, dtype: Any, extra: Tensor | None = None
) -> Tensor:
    """Weights and reduces the losses of rows. The mean divides by the total weight of the rows that count.

    `extra` is added to the losses without weighting.
    """
    loss, total_weight = _wide(loss), None
    if weight is not None:
        total_weight = where(labels.counts, take(weight, labels.safe(), axis=0), 0.0)
        loss = loss * total_weight
    if extra is not None:
        loss = loss + extra
    if _known(name, reduction) == "none":
        return _narrow(reshape(loss, labels.shape), dtype)
    total = sum(loss)
    if reduction == "mean":
        if total_weight is None:
            total = divide_by_count(total, labels.numbers, labels.ignore_index)
        else:
            total = total / sum(total_weight).astype(loss.dtype)
    return _narrow(total, dtype)


def _expected_loss(rows: Tensor, factors: Tensor) -> Tensor:
    """Returns the sum of -log softmax of each row times these factors. A class with the factor 0 and a logit of -inf adds 0."""
    logarithms = _wide(log_softmax(rows))
    return -sum(where((factors == 0) & (logarithms == -math.inf), 0.0, logarithms * factors), axis=1)


def _with_probabilities(logits: Tensor, target: Tensor, weight: Any, label_smoothing: float, reduction: str) -> Tensor:
    if logits.shape != target.shape or not logits.ndim:
        if _swapped(logits, target):
            raise ShapeError(
                f"cross_entropy: the logits are {logits.dtype} of shape {logits.shape}, the target is {target.dtype} of shape "
                f"{target.shape}. The arguments are swapped: the order is cross_entropy(logits, target)."
            )
        raise ShapeError(
            f"cross_entropy: the target is floating-point, so it is taken for probabilities, which need the shape of the logits: "
            f"{logits.shape}, not {target.shape}. Class numbers must be integers: use .astype(pb.int64)."
        )
    rows, wanted = _as_rows(logits), _wide(_as_rows(target))
    count, classes = rows.shape
    if label_smoothing:
        wanted = wanted * (1 - label_smoothing) + label_smoothing / max(1, classes)
    if weight is not None:
        wanted = wanted * _class_weights("cross_entropy", weight, rows)
    loss = _expected_loss(rows, wanted)
    dtype = dtypes.promote(logits.dtype, target.dtype)
    if reduction == "none":
        return _narrow(reshape(loss, logits.shape[:1] + logits.shape[2:] if logits.ndim > 1 else ()), dtype)
    share = 1.0 if reduction == "sum" else 1.0 / count if count and classes else math.nan
    return _narrow(sum(loss) * share, dtype)
