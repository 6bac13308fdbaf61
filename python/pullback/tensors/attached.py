"""Functions that tensors and tapes call although higher modules define them, so that they import neither ops nor views."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from weakref import ref

    from .parameter import Parameter
    from .tensor import Tensor


class Attached:
    """Functions of higher modules, set by `ops/operators.py` and `views.py` before `import pullback` returns.

    Attributes:
        to: `Tensor.to(target)`.
        converted: the recorded half of `asarray`, for an argument that is a tensor: (x, dtype, device, copy).
        assign: `Parameter.assign(value)`.
        reduced: what `Tensor.__reduce__` returns.
        expire: makes views stale, because the memory of their Parameter has changed.
        unbroadcast: sums a gradient over the axes along which its input was broadcast: (g, shape of the input).
        aggregations: by name, the start of a sum of several contributions to one gradient, from the first two.
    """

    to: Callable[[Tensor, Any], Tensor]
    converted: Callable[[Tensor, Any, str | None, bool | None], Tensor]
    assign: Callable[[Parameter, Any], Parameter]
    reduced: Callable[[Tensor], tuple[Any, ...]]
    expire: Callable[[set[ref[Tensor]]], None]
    unbroadcast: Callable[[Tensor, tuple[int, ...]], Tensor]
    aggregations: dict[str, Callable[[Tensor, Tensor], Any]]


attached: Final = Attached()
