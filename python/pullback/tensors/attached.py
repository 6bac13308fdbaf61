"""Functions and a class that tensors and tapes use but higher modules define, so that they import neither ops nor views."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from weakref import ref

    from .parameter import Parameter
    from .tensor import Tensor


class Attached:
    """Functions of higher modules, set by `ops/operators.py`, `views.py` and `nn/module.py`.

    Attributes:
        to: `Tensor.to(target)`.
        converted: the recorded half of `asarray`, for an argument that is a tensor: (x, dtype, device, copy).
        assembled: joins nested lists with tensors in them to one tensor: (lists, dtype, device).
        filled: a tensor filled with the only element of a tensor: (x, shape, dtype, device).
        lerp: the recorded half of `linspace`: (start, stop, the weight of stop for each number, dtype, device).
        progression: the recorded half of `arange`: (start, step, count, dtype, device).
        assign: `Parameter.assign(value)`.
        reduced: the implementation of `Tensor.__reduce__`.
        expire: makes views stale after the memory of their Parameter has changed.
        padded: puts zeros around a tensor: (x, their numbers before it along each axis, those after it).
        unbroadcast: sums a gradient over the axes along which its input was broadcast: (g, shape of the input).
        Module: the class `nn.Module`; no class if nobody has imported it yet.
        aggregations: by name, the function that starts a sum of contributions to one gradient from the first two of them.
    """

    to: Callable[[Tensor, Any], Tensor]
    converted: Callable[[Tensor, Any, str | None, bool | None], Tensor]
    assembled: Callable[[Any, Any, str | None], Tensor]
    filled: Callable[[Tensor, tuple[int, ...], Any, str | None], Tensor]
    lerp: Callable[[Any, Any, Any, Any, str | None], Tensor]
    progression: Callable[[Any, Any, int, Any, str | None], Tensor]
    assign: Callable[[Parameter, Any], Parameter]
    reduced: Callable[[Tensor], tuple[Any, ...]]
    expire: Callable[[set[ref[Tensor]]], None]
    padded: Callable[[Tensor, tuple[int, ...], tuple[int, ...]], Tensor]
    unbroadcast: Callable[[Tensor, tuple[int, ...]], Tensor]
    aggregations: dict[str, Callable[[Any, Any], Any]]
    Module: Any


attached: Final = Attached()
attached.Module = ()
