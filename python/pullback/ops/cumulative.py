"""Cumulative sums and products along an axis, and differences of neighbours."""

from __future__ import annotations

from typing import Any

from ..autodiff.primitive import apply
from ..autodiff.tape import Tape
from ..errors import ShapeError
from ..tensors import dtypes
from ..tensors.creation import full, ones
from ..tensors.operand import as_tensor, own
from ..tensors.tensor import Tensor
from ._shapes import length, normalize_axis
from .by_name import in_dtype, view
from .conversion import settled
from .declare import normal, op
from .kinds import LINEAR, OWN, along_axes
from .movement import concat
from .shape import SLICE

# ---- ops: (x, axis, reverse)


def _reference(name: str) -> Any:
    def scan(xp: Any, x: Any, axis: int, reverse: bool) -> Any:
        kind = dtypes.accumulated(x.dtype)
        wide = x.astype(kind if kind.itemsize > 2 else dtypes.float32)
        turned = xp.flip(wide, axis) if reverse else wide
        y = getattr(xp, name)(turned, axis=axis)
        return (xp.flip(y, axis) if reverse else y).astype(kind)

    return scan


def _one_each(figure: str) -> Any:
    return lambda x, axis, reverse, y: {figure: x.size - (x.size // x.shape[axis] if x.size else 0)}


_cumulative_sum = op(
    "cumulative_sum", example=normal((3, 5), params=(1, False)),
    kind=LINEAR, reference=_reference("cumsum"), cost=_one_each("adds"),
    pullback=lambda g, axis, reverse: apply(_cumulative_sum, (g,), (axis, not reverse)),
)  # fmt: skip
_cumulative_prod = op(
    "cumulative_prod", example=normal((3, 5), params=(1, True)),
    kind=OWN, reference=_reference("cumprod"), cost=_one_each("multiplies"), batch=along_axes,
    pullback=lambda g, x, axis, reverse: _product_scan_pullback(g, x, axis, reverse),
)  # fmt: skip


def _product_scan_pullback(g: Tensor, x: Tensor, axis: int, reverse: bool) -> Tensor:
    """g pulled back through the same product written as log2(n) differentiable steps, which is exact even if elements are zero."""
    with Tape(watch_parameters=False) as tape:
        tape.watch(x)
        y = _doubling_product(x, axis, reverse)
    return tape.gradient(y, x, output_gradients=g)


def _doubling_product(x: Tensor, axis: int, reverse: bool) -> Tensor:
    """Returns the cumulative product by Hillis & Steele's scan: after k steps an element is the product of 2^k neighbours."""
    n, step = x.shape[axis], 1
    lead = (slice(None),) * axis
    y = x * 1.0
    while step < n:
        kept = view(SLICE, y, (*lead, slice(step, None) if reverse else slice(0, n - step)))
        one = ones(tuple([step if i == axis else m for i, m in enumerate(x.shape)]), dtype=x.dtype, device=x.device)
        y = y * concat([kept, one] if reverse else [one, kept], axis=axis)
        step *= 2
    return y


def product_of_others(rows: Tensor) -> Tensor:
    """Returns for each element of a row the product of all others: that of the elements before it times that of those after it."""
    n = rows.shape[-1]
    one = ones((*rows.shape[:-1], 1), dtype=rows.dtype, device=rows.device)
    axis = rows.ndim - 1
    before = concat([one, apply(_cumulative_prod, (rows[..., : n - 1],), (axis, False))], axis=-1) if n else rows
    after = concat([apply(_cumulative_prod, (rows[..., 1:],), (axis, True)), one], axis=-1) if n else rows
    return before * after


# ---- public functions


def _scan(op: Any, first: float, x: Any, axis: int | None, dtype: Any, include_initial: bool) -> Tensor:
    x = as_tensor(x) if dtype is None else in_dtype(x, dtype)
    if axis is None:
        if x.ndim != 1:
            raise ShapeError(f"{op.name}: axis= is needed for a tensor of shape {x.shape}; only for one axis it may be left out.")
        axis = 0
    axis = normalize_axis(op.name, axis, x.ndim)
    y = apply(op, (x,), (axis, False))
    if not include_initial:
        return y
    start = full(tuple([1 if i == axis else n for i, n in enumerate(x.shape)]), first, dtype=y.dtype, device=y.device)
    return concat([start, y], axis=axis)


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Tensor:
    """Returns, for each element, the sum of all elements up to and including it along the axis. Integers are summed in 64 bits.

    `include_initial` puts a 0 first. `axis` may be left out for a vector. Raises ShapeError.
    """
    return _scan(_cumulative_sum, 0, x, axis, dtype, include_initial)


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Tensor:
    """Returns, for each element, the product of all elements up to and including it along the axis.

    `include_initial` puts a 1 first. `axis` may be left out for a vector. Raises ShapeError.
    """
    return _scan(_cumulative_prod, 1, x, axis, dtype, include_initial)


def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Tensor:
    """Returns the n-th differences of neighbours along the axis. Joins `prepend` and `append` to x first. Raises ShapeError."""
    x = own(x)  # own, because x is the result if n is 0
    axis = normalize_axis("diff", axis, x.ndim)
    times = length("diff", "n", n)
    parts = [as_tensor(p) for p in (prepend, x, append) if p is not None and times]
    x = concat(parts, axis=axis) if len(parts) > 1 else x
    lead = (slice(None),) * axis
    for _ in range(min(times, x.shape[axis])):  # after that many steps the axis is empty
        x = view(SLICE, x, (*lead, slice(1, None))) - view(SLICE, x, (*lead, slice(0, -1)))
    return settled(x)
