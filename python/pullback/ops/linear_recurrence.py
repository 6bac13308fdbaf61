"""linear_recurrence: y_t = a_t y_{t-1} + b_t along an axis, one launch forward and one backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autodiff.primitive import Op, apply
from ..errors import ShapeError
from ..tensors.creation import zeros
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from ._shapes import broadcast_shapes, flag, normalize_axis
from .batch_rules import along_axes
from .by_name import in_float
from .conversion import same_dtype
from .declare import op
from .kinds import OWN_OF_TWO
from .movement import concat
from .operands import as_tensors
from .shape import broadcast_to, expand_dims, part_of


def _reference(xp: Any, a: Any, b: Any, axis: int, reverse: bool, late: bool) -> Any:
    """With `late`, a step multiplies by the coefficient of the step before it."""
    y = xp.empty_like(b)
    coefficients, terms, results = [xp.moveaxis(x, axis, 0) for x in (a, b, y)]
    before = None
    for t in range(len(terms) - 1, -1, -1) if reverse else range(len(terms)):
        if before is None:
            results[t] = terms[t]
        else:
            results[t] = coefficients[before if late else t] * results[before] + terms[t]
        before = t
    return y


def _moved(x: Tensor, axis: int, up: bool) -> Tensor:
    """Returns x moved by one place along the axis, towards its end or its beginning, with zeros at the free place."""
    n = x.shape[axis]
    if n == 0:
        return x
    border = zeros(tuple([1 if i == axis else m for i, m in enumerate(x.shape)]), dtype=x.dtype, device=x.device)
    kept = part_of(x, axis, slice(0, n - 1) if up else slice(1, None))
    return concat([border, kept] if up else [kept, border], axis=axis)


def _pullback(
    g: Tensor, a: Tensor, y: Tensor, axis: int, reverse: bool, late: bool, needs: Sequence[bool]
) -> list[Tensor | None]:
    """The gradient of b is the recurrence in the other direction; that of a coefficient is it times the y that it multiplied."""
    gb = apply(_linear_recurrence, (a, g), (axis, not reverse, not late))
    if not needs[0]:
        return [None, gb]
    return [_moved(gb, axis, reverse) * y if late else gb * _moved(y, axis, not reverse), gb]


def _tangent(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    (a, _), (ta, tb), (axis, reverse, late) = inputs, tangents, params
    if ta is not None:
        by_a = _moved(ta * y, axis, not reverse) if late else ta * _moved(y, axis, not reverse)
        tb = by_a if tb is None else by_a + tb
    return apply(_linear_recurrence, (a, tb), tuple(params))


def _example(rng: Any, dtype: Any) -> Any:
    return (rng.uniform(-0.9, 0.9, (2, 5, 3)).astype(dtype), rng.standard_normal((2, 5, 3)).astype(dtype)), (1, False, False)


_linear_recurrence = op(
    "linear_recurrence", kind=OWN_OF_TWO, takes="float", inputs=2, reference=_reference, batch=along_axes, tangent=_tangent,
    joint=True, pullback=_pullback, example=_example, ulp=16,
    cost=lambda a, b, axis, reverse, late, y: {"fmas": y.size - (y.size // y.shape[axis] if y.size else 0)},
)


def linear_recurrence(
    a: ArrayLike, b: ArrayLike, /, axis: int = 0, *, initial: ArrayLike | None = None, reverse: bool = False
) -> Tensor:
    """Returns the y of y_t = a_t y_{t-1} + b_t along the axis: the states of a linear recurrent network.

    Args:
        a: the coefficients. b: the terms. They broadcast.
        axis: the axis along which the steps follow one another.
        initial: y before the first step, which broadcasts to the shape of y without the axis. None: the first y is b, and the a
            of the first step is not used. That is y from an `initial` of zero, unless this a is NaN or infinite.
        reverse: runs from the end of the axis: y_t = a_t y_{t+1} + b_t.

    A step is one fused multiply-add, and the steps are computed one after the other, with all lines beside the axis at once. Half
    precision is computed in float32 and rounded once. Raises ShapeError. Cost: 2 FLOPs for each element from the second step on;
    the same again for the gradient of b, and one product more for each element of a.
    Source: Blelloch 1990; Martin & Cundy 2018 (for networks).
    """
    name = "linear_recurrence"
    reverse = flag(name, "reverse", reverse)
    given = as_tensors(name, a, b, optional=[] if initial is None else [initial])
    a, b, *start = same_dtype([in_float(x) for x in given])
    shape = broadcast_shapes(name, [a.shape, b.shape])
    axis = normalize_axis(name, axis, len(shape))
    a, b = broadcast_to(a, shape), broadcast_to(b, shape)
    if start:
        b = _begun(a, b, start[0], axis, reverse)
    return apply(_linear_recurrence, (a, b), (axis, reverse, False))


def _begun(a: Tensor, b: Tensor, start: Tensor, axis: int, reverse: bool) -> Tensor:
    """Returns b with a times `start` added at the first step."""
    n, wanted = b.shape[axis], (*b.shape[:axis], *b.shape[axis + 1 :])
    if start.ndim > len(wanted) or any([given not in (1, whole) for given, whole in zip(start.shape[::-1], wanted[::-1])]):
        raise ShapeError(f"linear_recurrence: initial has shape {start.shape}; it must broadcast to that of one step, {wanted}.")
    first, rest = (slice(n - 1, None), slice(0, n - 1)) if reverse else (slice(0, 1), slice(1, None))
    begun = part_of(a, axis, first) * expand_dims(broadcast_to(start, wanted), axis=axis) + part_of(b, axis, first)
    others = part_of(b, axis, rest)
    return concat([others, begun] if reverse else [begun, others], axis=axis)


__all__ = ["linear_recurrence"]
