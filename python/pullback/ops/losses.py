"""Losses with kernels: cross entropy of rows of logits, for each row or for all rows together; and the squared error.

As in rows.py, each pullback consists of differentiable ops on the inputs of the forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autodiff.batching import pull
from ..autodiff.primitive import Op, apply
from ..errors import DTypeError, ShapeError
from ..launch.refusal import BadIndex
from ..tensors.creation import zeros_like
from ..tensors.tensor import Tensor
from .batch_rules import everywhere
from .by_name import all_on, in_dtype, repeated, reshaped, widened
from .declare import normal, op
from .elementwise import mask_nan_gradient, not_equal, square, where
from .gather import one_hot
from .kinds import OWN
from .reduce import mean, sum
from .row_references import log_sum, wide
from .rows import fused, rows_cost, softmax
from .shape import expand_dims
from .tangents import linear

# ---- references, which compute half precision in float32 as the kernels do


def _divide_by_count_reference(xp: Any, x: Any, labels: Any, ignore_index: int) -> Any:
    z = wide(xp, x)
    return (z / (labels != ignore_index).sum(axis=-1).astype(z.dtype)).astype(x.dtype)


def _cross_entropy_reference(xp: Any, logits: Any, labels: Any, ignore_index: int, label_smoothing: float) -> Any:
    z = wide(xp, logits)
    classes = z.shape[-1]
    counts = labels != ignore_index
    wrong = counts & ((labels < 0) | (labels >= classes))
    if wrong.any():
        where_wrong = int(xp.argmax(wrong))
        raise BadIndex(where_wrong, int(labels[where_wrong]), classes)
    if not classes:  # then every label is ignore_index
        return xp.zeros(labels.shape, logits.dtype)
    safe = xp.where(counts, labels, xp.zeros_like(labels))
    total, _, z = log_sum(xp, z)
    total = total[..., 0]
    loss = total - (xp.take_along_axis(z, safe[:, None].astype(xp.int64), -1)[:, 0] if len(labels) else 0)
    if label_smoothing:
        loss = (1 - label_smoothing) * loss + label_smoothing * (total - z.mean(axis=-1))
    return xp.where(counts, loss, xp.zeros_like(loss)).astype(logits.dtype)


def _cross_entropy_total_reference(xp: Any, logits: Any, labels: Any, ignore_index: int, label_smoothing: float, mean: bool) -> Any:
    losses = wide(xp, _cross_entropy_reference(xp, logits, labels, ignore_index, label_smoothing))
    total = losses.sum()
    return (total / (labels != ignore_index).sum().astype(losses.dtype) if mean else total).astype(logits.dtype)


def _squared_error_reference(xp: Any, x: Any, target: Any, mean: bool) -> Any:
    d = wide(xp, x) - wide(xp, target)
    total = (d * d).sum()
    return (total / d.dtype.type(d.size) if mean else total).astype(x.dtype)


# ---- pullbacks by definition


def _cross_entropy_pullback(g: Tensor, logits: Tensor, labels: Tensor, ignore_index: int, label_smoothing: float) -> Tensor:
    """softmax(logits) minus the target distribution, times g; 0 for rows whose label is ignored.

    The probability p of a sure label minus 1 is computed as the sum of the other probabilities, which p - 1 may round away.
    """
    classes = logits.shape[-1]
    if not classes:
        return zeros_like(logits)
    counts = not_equal(labels, ignore_index)
    target, p = one_hot(where(counts, labels, 0), classes, dtype=logits.dtype), softmax(logits)
    here = target > 0
    others = sum(where(here, 0.0, p), axis=-1, keepdims=True)
    gradient = where(here, where(p > 0.5, -others, p - 1.0), p)
    if label_smoothing:
        gradient = gradient + (target * label_smoothing - label_smoothing / classes)
    g = expand_dims(where(counts, g, 0.0), axis=-1)
    return mask_nan_gradient(g, g * gradient)


def _cross_entropy_total_pullback(
    g: Tensor, logits: Tensor, labels: Tensor, ignore_index: int, label_smoothing: float, mean: bool
) -> Tensor:
    """The pullback of the rows' losses for the cotangent that each of them gets."""
    each = repeated(_of_each_row(g, labels, ignore_index, mean), labels.shape)
    return _cross_entropy_pullback(each, logits, labels, ignore_index, label_smoothing)


def _of_each_row(g: Tensor, labels: Tensor, ignore_index: int, mean: bool) -> Tensor:
    """Returns g (…), divided by the number of labels (…, n) that count if the losses were averaged."""
    return in_dtype(divide_by_count(widened(g), labels, ignore_index), g.dtype) if mean else g


def _squared_error_pullback(g: Tensor, x: Tensor, target: Tensor, mean: bool) -> Tensor:
    share = widened(g) * (1.0 / max(1, x.size)) if mean else widened(g)
    return in_dtype(repeated(2 * share, x.shape) * (widened(x) - widened(target)), x.dtype)


# ---- costs


def _cross_entropy_cost(logits: Any, labels: Any, ignore_index: int, label_smoothing: float, y: Any) -> dict[str, int]:
    return rows_cost(logits, (4, 0, 1), (2, 2, 2)) if label_smoothing else rows_cost(logits, (2, 0, 1), (1, 0, 1))


def _cross_entropy_total_cost(
    logits: Any, labels: Any, ignore_index: int, label_smoothing: float, mean: bool, y: Any
) -> dict[str, int]:
    cost = _cross_entropy_cost(logits, labels, ignore_index, label_smoothing, y)
    cost["adds"] += max(0, labels.size - 1)
    return _divided(cost, labels) if mean else cost


def _divided(cost: dict[str, int], labels: Any) -> dict[str, int]:
    """Returns the cost with that of counting the labels and dividing by their number, for a mean."""
    return {**cost, "special_ops": cost["special_ops"] + 1, "integer_ops": labels.size}


def _cross_entropy_pullback_cost(g: Any, logits: Any, labels: Any, ignore_index: int, label_smoothing: float) -> dict[str, int]:
    return rows_cost(logits, (3, 1, 1), (1, 2, 2)) if label_smoothing else rows_cost(logits, (2, 1, 1), (0, 0, 1))


def _cross_entropy_total_pullback_cost(
    g: Any, logits: Any, labels: Any, ignore_index: int, label_smoothing: float, mean: bool
) -> dict[str, int]:
    cost = _cross_entropy_pullback_cost(g, logits, labels, ignore_index, label_smoothing)
    return _divided(cost, labels) if mean else cost


def _squared_error_cost(x: Any, target: Any, mean: bool, y: Any) -> dict[str, int]:
    n = x.size
    return {"adds": n + max(0, n - 1), "multiplies": n, "special_ops": int(mean and n != 1)}


def _squared_error_pullback_cost(g: Any, x: Any, target: Any, mean: bool) -> dict[str, int]:
    return {"adds": x.size, "multiplies": x.size + 2, "special_ops": int(mean)}


def _of_target_cost(g: Any, x: Any, target: Any, mean: bool) -> dict[str, int]:
    return {**_squared_error_pullback_cost(g, x, target, mean), "adds": 2 * x.size}  # the gradient of x, with the other sign


# ---- a batch axis


def _losses_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For cross_entropy(logits, labels, …): joins the rows of all examples."""
    logits, labels = all_on(size, xs, on)
    y = apply(op, (reshaped(logits, (labels.size, logits.shape[-1])), reshaped(labels, (labels.size,))), tuple(params))
    return reshaped(y, labels.shape)


def _pull_losses_each(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    """For the pullback of cross_entropy: joins the rows of all examples."""
    g, logits, labels = all_on(size, values[:3], on)
    rows = reshaped(logits, (labels.size, logits.shape[-1]))
    return reshaped(pull(rule, reshaped(g, (labels.size,)), rows, reshaped(labels, (labels.size,)), *values[3:]), logits.shape)


def _total_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For cross_entropy_total(logits, labels, …): sums the rows of each example."""
    ignore_index, label_smoothing, averaged = params
    logits, labels = all_on(size, xs, on)
    losses = _losses_each(_cross_entropy, size, (logits, labels), (True, True), (ignore_index, label_smoothing))
    total = sum(widened(losses), axis=1)
    return in_dtype(divide_by_count(total, labels, ignore_index) if averaged else total, losses.dtype)


def _pull_total_each(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    """For the pullback of cross_entropy_total: joins the rows of all examples."""
    ignore_index, label_smoothing, averaged = values[3:]
    g, logits, labels = all_on(size, values[:3], on)
    each = repeated(expand_dims(_of_each_row(g, labels, ignore_index, averaged), axis=1), labels.shape)
    of_rows = (each, logits, labels, ignore_index, label_smoothing)
    return _pull_losses_each(_cross_entropy.rules[0], size, of_rows, (True, True, True))


def _errors_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For squared_error(x, target, mean): reduces the elements of each example."""
    x, target = all_on(size, xs, on)
    errors = square(widened(x) - widened(target))
    return in_dtype((mean if params[0] else sum)(errors, axis=tuple(range(1, x.ndim))), x.dtype)


# ---- declarations

_cross_entropy = op("cross_entropy", kind=OWN, batch=_losses_each, reference=_cross_entropy_reference, inputs=2, takes="float",
                    pull=_pull_losses_each, pullback=(_cross_entropy_pullback, None), fused=(fused("cross_entropy"), None),
                    cost=_cross_entropy_cost, pull_cost=(_cross_entropy_pullback_cost, None),
                    example=normal((4, 5), np.array([0, 3, -100, 4]), params=(-100, 0.1)))

_cross_entropy_total = op("cross_entropy_total", kind=OWN, batch=_total_each, reference=_cross_entropy_total_reference, inputs=2,
                          takes="float", pull=_pull_total_each, pullback=(_cross_entropy_total_pullback, None),
                          fused=(fused("cross_entropy_total"), None), cost=_cross_entropy_total_cost,
                          pull_cost=(_cross_entropy_total_pullback_cost, None),
                          example=normal((4, 5), np.array([0, 3, -100, 4]), params=(-100, 0.1, True)))

_divide_by_count = op("divide_by_count", kind=OWN, batch=everywhere, tangent=linear, reference=_divide_by_count_reference, inputs=2,
                      takes="float", pullback=(lambda g, labels, ignore_index: divide_by_count(g, labels, ignore_index), None),
                      cost=lambda x, labels, ignore_index, y: {"integer_ops": labels.size, "special_ops": y.size},
                      example=normal((3,), np.array([[0, 1, -1], [2, -1, -1], [1, 1, 0]]), params=(-1,)))


def _fused_errors() -> tuple[Any, Any] | None:
    """Returns the native pullbacks of x and of the target."""
    of_x = fused("squared_error")
    return None if of_x is None else (of_x, lambda *values: -of_x(*values))


_squared_error = op("squared_error", kind=OWN, batch=_errors_each, reference=_squared_error_reference, inputs=2, takes="float",
                    pullback=(_squared_error_pullback, lambda g, x, target, mean: -_squared_error_pullback(g, x, target, mean)),
                    fused=_fused_errors(), cost=_squared_error_cost, pull_cost=(_squared_error_pullback_cost, _of_target_cost),
                    example=normal((3, 4), (3, 4), params=(True,)))

# ---- public functions


def divide_by_count(x: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """Returns x (…) divided by the number of labels (…, n) in each row that are not ignore_index, in one launch."""
    return apply(_divide_by_count, (x, labels), (ignore_index,))


def cross_entropy_rows(
    logits: Tensor, labels: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "none"
) -> Tensor:
    """Returns -log softmax(logits)[label] of each row, and 0 if its label is ignore_index; or one number for all rows.

    Args:
        logits: (n, classes) float tensor.
        labels: (n,) integers in [0, classes), or ignore_index.
        label_smoothing: the share of the target that is spread evenly over all classes, in [0, 1].
        reduction: "none", "sum", or "mean" over the rows that count. All are one launch.

    Returns: (n,), or a scalar. Raises: ShapeError, DTypeError; IndexError naming the label that is out of range.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise ShapeError(
            f"cross_entropy: logits {logits.shape} and labels {labels.shape} do not fit: (n, classes) and (n,) are needed."
        )
    if labels.dtype.kind not in "iu":
        raise DTypeError(f"cross_entropy: labels have dtype {labels.dtype}; class numbers are integers. Use .astype(pb.int64).")
    how = (ignore_index, float(label_smoothing))
    try:
        if reduction == "none":
            return apply(_cross_entropy, (logits, labels), how)
        return apply(_cross_entropy_total, (logits, labels), (*how, reduction == "mean"))
    except IndexError as error:
        bad = error if isinstance(error, BadIndex) else error.__cause__  # raised by the reference, or the cause of a kernel's error
        if not isinstance(bad, BadIndex):
            raise
        position, label, classes = bad.args[:3]
        raise IndexError(
            f"cross_entropy: label {label} at position {position} is not a class: logits {logits.shape} have classes 0 to "
            f"{classes - 1}. Only ignore_index={ignore_index} marks a row to leave out."
        ) from None


def squared_error(x: Tensor, target: Tensor, mean: bool) -> Tensor:
    """Returns the sum or the mean of (x - target)² over all elements of two tensors of one shape and float dtype, in one launch."""
    return apply(_squared_error, (x, target), (mean,))
