"""Adafactor, whose running mean of squared gradients is a product of one factor per row and one per column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..errors import PullbackError
from ..ops.by_name import in_dtype
from ..ops.elementwise import maximum, minimum, rsqrt, sqrt, square, where
from ..ops.movement import concat
from ..ops.reduce import mean
from ..tensors import dtypes
from ..tensors.tensor import Tensor
from . import groups as grouping
from .composed import Composed, Hyper, Item
from .groups import Number, Rate
from .options import Options, Params, Unpack

_DEFAULT = -1.0  # in a set, the first number of eps if it is None


class Adafactor(Composed):
    """Adafactor (Shazeer & Stern 2018): torch.optim.Adafactor's rule at equal arguments.

    A Parameter with two or more axes has the slots "row_var" (…, m, 1) and "col_var" (…, 1, n): the running means of the squared
    gradient along its rows and columns, over the last two axes. A vector has the slot "variance" of its own shape. A matrix of
    100,000 weights therefore has about 650 numbers of state.

    Args:
        lr: the largest learning rate. Step t uses min(lr, 1 / sqrt(t)), times the root mean square of the weights or eps[1],
            whichever is larger.
        beta2_decay: the running means keep the share 1 - t ** beta2_decay in step t. It is at most 0.
        eps: the lower bound of the root of the variance, where None is the machine epsilon of the weights' dtype (of float32 for
            half precision), and the lower bound of the root mean square of the weights.
        d: the largest root mean square of an update, at least 1. Larger updates are scaled down to it.
        weight_decay: the share of the weights, times lr, by which each step reduces them.

    Each number may also be a list of one number per network (see Optimizer).
    """

    slot_names = ("row_var", "col_var", "variance")
    hyper: ClassVar[Mapping[str, int]] = {"beta2_decay": 1, "eps": 2, "d": 1, "weight_decay": 1}
    beta2_decay: Number
    eps: tuple[Number | None, Number]
    d: Number
    weight_decay: Number

    def __init__(
        self, params: Params, lr: Rate = 1e-2, beta2_decay: Number = -0.8,
        eps: tuple[Number | None, Number] = (None, 1e-3), d: Number = 1.0, weight_decay: Number = 0.0, **options: Unpack[Options],
    ) -> None:
        hyper = {"beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay}
        super().__init__(params, lr, hyper, **options)

    def _slot_shape(self, name: str, i: int) -> tuple[int, ...] | None:
        shape = self._parameters[i].shape
        factored = len(shape) - self._lead > 1
        if factored == (name == "variance"):
            return None
        return {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, *shape[-1:]), "variance": shape}[name]

    def _checked(self, name: str, value: Any) -> Any:
        if name == "eps" and isinstance(value, (tuple, list)) and len(value) == 2:
            first, second = super()._checked(name, (1.0 if value[0] is None else value[0], value[1]))
            return (_DEFAULT if value[0] is None else first, second)
        if name != "beta2_decay":
            value = super()._checked(name, value)
        if name == "d" and not np.all(np.asarray(value) >= 1):
            raise PullbackError(f"Adafactor: d={value!r}; it is the largest root mean square of an update, and must be at least 1.")
        if name == "beta2_decay":
            value = grouping.checked("Adafactor", name, value, 1, signed=True)
            if np.any(np.asarray(value) > 0):
                raise PullbackError(f"Adafactor: beta2_decay={value!r}; it is an exponent of the step, and must be at most 0.")
            if "_members" in vars(self):
                grouping.check_count("Adafactor", name, value, self._members)
        return value

    def _as_given(self, name: str, value: Any) -> Any:
        if name == "eps" and np.ndim(value[0]) == 0 and value[0] == _DEFAULT:
            return None, value[1]
        return value

    def changes(self, items: Sequence[Item]) -> Iterable[tuple[Tensor, Sequence[Tensor]]]:
        numbers = {dtype: self._numbers(items, dtype) for dtype in dict.fromkeys([item.dtype for item in items])}
        for i, item in enumerate(items):
            yield _change(item.p, item.g, item.slots, *[Tensor(column.array[i, ...]) for column in numbers[item.dtype]])

    def _numbers(self, items: Sequence[Item], dtype: Any) -> list[Tensor]:
        """Returns the numbers that `_change` needs, each for all items."""
        h = Hyper(concat([Tensor(item.h.rows) for item in items]).array, (len(items),), dtype, self.hyper)
        eps1, eps2 = h.eps
        eps1 = where(eps1 < 0, float(dtypes.finfo(dtype).eps), eps1)
        found: tuple[Any, ...] = (
            h.step**h.beta2_decay,
            minimum(h.lr, rsqrt(h.step)),
            eps1,
            eps1 * eps1,
            eps2,
            h.d,
            h.lr * h.weight_decay,
        )
        return [in_dtype(number.value, dtype) for number in found]


def _change(
    p: Tensor, g: Tensor, slots: tuple[Tensor, ...], share: Tensor, rate: Tensor, least: Tensor, least_variance: Tensor,
    least_scale: Tensor, most: Tensor, decay: Tensor,
) -> tuple[Tensor, Sequence[Tensor]]:
    """Returns the change of the weights, and the new slots.

    share: of the new squares in the running means. rate: the learning rate of this step. least: eps[0]. least_scale: eps[1]. most:
    the largest root mean square of the update. decay: the share of the weights that decays.
    """
    squares = square(g)
    if len(slots) == 2:
        row = _mixed(slots[0], mean(squares, axis=-1, keepdims=True), share)
        column = _mixed(slots[1], mean(squares, axis=-2, keepdims=True), share)
        new: tuple[Tensor, ...] = row, column
        variance = row / maximum(mean(row, axis=-2, keepdims=True), least) * column
    else:
        variance = _mixed(slots[0], squares, share)
        new = (variance,)
    update = rsqrt(maximum(variance, least_variance)) * g
    squares_of_update, squares_of_weights = square(update), square(p)  # one pass with the update, before the sums
    scale = rate * maximum(sqrt(mean(squares_of_weights)), least_scale) / maximum(sqrt(mean(squares_of_update)) / most, 1.0)
    return -scale * update - decay * p, new


def _mixed(old: Tensor, new: Tensor, share: Any) -> Tensor:
    """Returns a running mean in which `new` has this share."""
    return old + share * (new - old)
