"""Applies the constraints of Parameters in a step: those that the update's kernel does not apply, right after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..errors import ShapeError
from ..launch import door
from ..ops.conversion import astype, copy
from ..ops.elementwise import add, equal, subtract, where
from ..ops.movement import stack
from ..ops.writing import write
from ..tensors.operand import as_tensor
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from .constraints import Constraint

KERNELS_APPLY_BOUNDS: Final = False  # true if the kernels of updates apply the elementwise constraints


def after_kernel(parameters: Sequence[Parameter], grads: Sequence[Any]) -> list[int]:
    """Returns the indices of the parameters that change in a step and have a constraint that the kernel does not apply."""
    return [
        i
        for i, (p, g) in enumerate(zip(parameters, grads))
        if g is not None and p.constraint is not None and not (KERNELS_APPLY_BOUNDS and _elementwise(p.constraint))
    ]


def _elementwise(constraint: Any) -> bool:
    return isinstance(constraint, Constraint) and constraint.elementwise


def check(parameters: Sequence[Parameter], which: Sequence[int], members: int) -> None:
    """Raises ShapeError if a constraint does not fit the shape of its parameter, or of a member of it."""
    for i in which:
        p = parameters[i]
        if isinstance(p.constraint, Constraint):
            p.constraint.check(p.shape if members == 1 else p.shape[1:])


def copies(parameters: Sequence[Parameter], which: Sequence[int]) -> list[Tensor]:
    """Returns copies of these parameters' values."""
    with door.charged_to(door.OPTIMIZER):
        return [copy(Tensor(parameters[i].array)) for i in which]


def apply(parameters: Sequence[Parameter], which: Sequence[int], members: int, before: Sequence[Tensor], deltas: Any) -> None:
    """Applies the constraints of these parameters to the values that the kernel has written.

    before: the values before the step, if `deltas` are wanted: a list with the change of each parameter, which is corrected. All
    constraints are evaluated before the first result is written. If one raises, the others' results are written first.
    """
    failed: Exception | None = None
    found: list[tuple[Parameter, Any]] = []
    with door.charged_to(door.OPTIMIZER):
        for k, i in enumerate(which):
            p = parameters[i]
            try:
                value = _projected(p, _view(p), members)
            except Exception as error:
                failed = failed or error
                continue
            if deltas is not None:
                deltas[i] = _change(before[k], Tensor(p.array), deltas[i], value)
            found.append((p, value.array))
        for p, value in found:
            write(p.array, value)
            p.storage.age()  # A function may have kept a view.
    if failed is not None:
        raise failed


def changes(parameters: Sequence[Parameter], which: Sequence[int], members: int, deltas: list[Tensor]) -> list[Tensor]:
    """Returns the changes of a preview, `deltas`, with those of these parameters after their constraints."""
    result = list(deltas)
    with door.charged_to(door.OPTIMIZER):
        for i in which:
            p = parameters[i]
            before = Tensor(p.array)
            new = add(before, deltas[i])
            result[i] = _change(before, new, deltas[i], _projected(p, new, members))
    return result


def _change(before: Tensor, new: Tensor, delta: Tensor, value: Tensor) -> Tensor:
    """Returns what a step adds to `before`, of which the kernel made `new` by adding `delta`, and a constraint then `value`."""
    return where(equal(value, new), delta, subtract(value, before))


def _view(p: Parameter) -> Tensor:
    """Returns a view of the parameter, which tapes do not watch, and which becomes stale when the parameter changes."""
    view = Tensor(p.array)
    p.storage.add_view(view)
    return view


def _projected(p: Parameter, value: Tensor, members: int) -> Tensor:
    """Returns the value after the parameter's constraint, in the parameter's dtype. Raises ShapeError."""
    constraint: Any = p.constraint
    if isinstance(constraint, Constraint):
        return constraint.project(value, members > 1)
    if members > 1:
        return stack([_result(p, constraint, value[m]) for m in range(members)])
    return _result(p, constraint, value)


def _result(p: Parameter, function: Any, value: Tensor) -> Tensor:
    result = as_tensor(function(value))
    if result.shape != value.shape:
        raise ShapeError(
            f"step: the constraint of {p.label()} returned shape {result.shape}; it must return the shape {value.shape}."
        )
    return astype(result, p.dtype, device=p.device)  # a copy of a view, because the step is about to write to that memory
