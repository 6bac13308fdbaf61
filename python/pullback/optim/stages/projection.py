"""What follows the kernel of an update: the stages that change the new weights, and constraints that the kernel does not apply.

One launch for each kind of constraint along axes projects all Parameters that have one. Functions, and vectors along axes that are
not neighbours, are computed with ops, Parameter by Parameter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ShapeError
from ...launch import door
from ...ops.by_name import in_dtype
from ...ops.conversion import astype, copy
from ...ops.elementwise import add, equal, greater, multiply, subtract, where
from ...ops.movement import stack
from ...ops.writing import write
from ...tensors import devices
from ...tensors.operand import as_tensor
from ...tensors.parameter import Parameter
from ...tensors.tensor import Tensor
from .. import launches, sets as c
from ..constraints import Constraint, MaxNorm, Simplex, UnitNorm
from ..memory import OptimizerMemory
from ..table import SetTable
from .scaled import chosen, goes
from .stage import Stage

LIMITS: Any = {MaxNorm: 0, UnitNorm: 1, Simplex: 2}  # the numbers of the constraints along axes in csrc/math/projection.h
Vectors = tuple[int, int, float]  # the length of vectors, the distance of their elements, and the largest norm


class Projection:
    """What follows the kernel of one step: `after` of stages, and then the constraints, all but bounds, which the kernel itself
    applies. After a stage bounds are applied again.

    A half precision weight with a float32 master is the rounded master, so its master is what the constraint applies to.

    It is made before the kernel runs, because it checks the constraints, and copies what the kernel will overwrite: the values of
    the parameters, if `wanted` or a stage needs them, and their moving averages.

    Args:
        entries: the parameters that something is done to.
        stages: those that change the new weights.
        wanted: the changes of the parameters are asked for.
        skips: the step may turn out to change nothing.

    Raises ShapeError if a constraint does not fit the shape of its parameter, or of a member of it.
    """

    def __init__(
        self, memory: OptimizerMemory, table: SetTable, entries: Sequence[int], stages: Sequence[Stage], *, wanted: bool,
        skips: bool,
    ) -> None:
        self._memory, self._table, self._entries, self._stages = memory, table, entries, stages
        self._before: dict[int, Tensor] = {}
        self._averages: dict[int, Tensor] = {}
        self._kept_if_skipped: list[tuple[Any, Tensor]] = []  # in a scaled step, all arrays that this may change, and copies
        self._projected: dict[int, list[tuple[int, Vectors]]] = {}  # by the number of their limit
        self._others: list[int] = []
        self._writes = True  # False in a preview
        for i in self._entries:
            p = memory.parameters[i]
            if isinstance(p.constraint, Constraint):
                p.constraint.check(p.shape[memory.lead :])
            limit = None if stages else LIMITS.get(type(p.constraint))
            found = None if limit is None or memory.kernels is None else _vectors(p.constraint, p.shape[memory.lead :])
            if limit is None or found is None:
                self._others.append(i)
            else:
                self._projected.setdefault(limit, []).append((i, found))
        with door.charged_to(door.OPTIMIZER):
            if wanted or stages:
                self._before = {i: copy(memory.exact(i)) for i in self._entries}
            if memory.averages is not None:
                self._averages = {i: copy(Tensor(memory.averages[i])) for i in self._entries}
            if skips:
                each = [array for i in self._entries for array in memory.written(i)]
                self._kept_if_skipped = [(array, copy(Tensor(array))) for array in each]
            if stages:
                now = self._now = devices.copied(table.array) if memory.kernels is None else memory.kernels.copy(table.array)
                launches.begin_steps(memory.kernels, table.array, now, table.count)

    # ---- for stages

    def before(self, i: int) -> Tensor:
        """Returns what the weights of parameter i were before the step, in float32 for half precision with masters."""
        return self._before[i]

    def number(self, i: int, setting: int) -> Tensor:
        """Returns a setting (sets.py) of parameter i in this step, such as c.STEP, which is 1 in the first step, or c.RATE, the
        rate by its schedule. It is float64 and broadcasts with the weights: its shape is (), or (members, 1, …).
        """
        members, axes = self._memory.members, self._before[i].ndim - 1
        column = self._now[i * members : (i + 1) * members, setting]
        return Tensor(column.reshape((-1, *[1] * axes) if self._memory.lead else ()))

    def slot(self, name: str, i: int) -> Tensor:
        """Returns the array that a stage keeps for parameter i, of its shape."""
        return Tensor(self._memory.extra[name][i])

    def write_slot(self, name: str, i: int, value: Tensor) -> None:
        """Replaces such an array, but not in a preview."""
        slot = self._memory.extra[name][i]
        if self._writes:
            write(slot, in_dtype(_masked(self._memory, i, value), slot.dtype).array)

    # ---- the end of a step

    def apply(self, deltas: list[Tensor] | None) -> None:
        """Applies the constraints to the values that the kernel has written, and corrects the list of what was added, if any.

        All functions are evaluated before the first result is written. If one raises, the others' results are written first.
        """
        memory, failed = self._memory, None
        found: dict[int, Tensor] = {}
        with door.charged_to(door.OPTIMIZER):
            for i in self._others:
                try:
                    found[i] = self._finished(i, _new(memory, i))
                except Exception as error:
                    failed = failed or error
            self._project(lambda i: (memory.weight(i), memory.copy(i), deltas and deltas[i].array, *self._kept(i)))
            for i, value in found.items():
                self._write(i, value, deltas)
            for array, before in self._kept_if_skipped:
                write(array, chosen(goes(self._table), Tensor(array), before.array).array)
        if failed is not None:
            raise failed

    def _finished(self, i: int, value: Tensor) -> Tensor:
        for stage in self._stages:
            value = in_dtype(stage.after(i, value, self), value.dtype)
        return projected(self._memory, i, value)

    def _project(self, tensors: Callable[[int], tuple[Any, ...]]) -> None:
        """Launches the projections. tensors(i): parameter i's weights, and what follows them in csrc/bindings/projection.cpp."""
        for limit, entries in self._projected.items():
            given = [(*vectors, *tensors(i)) for i, vectors in entries]
            self._memory.kernels.project(limit, given)
            if door.profiling:
                door.charge("project")

    def _kept(self, i: int) -> tuple[Any, ...]:
        """Returns the moving average of parameter i, what its weights and its average were, its mask, and its sets."""
        memory = self._memory
        before, old = [kept[i].array if i in kept else None for kept in (self._before, self._averages)]
        average = None if memory.averages is None else memory.averages[i]
        return average, before, old, memory.mask(i), self._table.of(i)

    def _write(self, i: int, value: Tensor, deltas: list[Tensor] | None) -> None:
        p, weights, low = self._memory.parameters[i], self._memory.weight(i), self._memory.copy(i)
        if deltas is not None:
            deltas[i] = _change(self._before[i], Tensor(weights), deltas[i], value)
        write(weights, value.array)
        if low is not None:
            write(low, in_dtype(value, p.dtype).array)
        p.storage.age()  # A function may have kept a view.
        if i in self._averages and self._memory.averages is not None:
            write(self._memory.averages[i], self._averaged(i, value).array)

    def changes(self, deltas: list[Tensor]) -> list[Tensor]:
        """Returns the changes that a preview computed, `deltas`, with the constraints applied to a copy of the values."""
        result, memory, self._writes = list(deltas), self._memory, False
        with door.charged_to(door.OPTIMIZER):
            before = {i: memory.exact(i) for i in self._entries}
            new = {i: add(before[i], deltas[i]) for i in self._entries}
            self._project(lambda i: (new[i].array, None, deltas[i].array, None, before[i].array, None, *self._kept(i)[3:]))
            for i in self._others:
                result[i] = _change(before[i], new[i], deltas[i], self._finished(i, new[i]))
        return result

    def _averaged(self, i: int, value: Tensor) -> Tensor:
        """Returns the moving average of parameter i after this step, by the formula of the kernel."""
        old, sets = self._averages[i], self._table.of(i)
        shape = (-1, *[1] * (old.ndim - 1)) if self._memory.members > 1 else ()
        steps, share = [Tensor(sets[:, k]).reshape(shape) for k in (c.STEP, c.KEEP)]
        later = greater(steps, 1.0)  # The first step sets the average to the weights.
        keep, take = where(later, share, 0.0), where(later, subtract(1.0, share), 1.0)
        parts = [multiply(in_dtype(x, old.dtype), in_dtype(y, old.dtype)) for x, y in ((keep, old), (take, value))]
        return _masked(self._memory, i, add(*parts))


@functools.lru_cache(maxsize=1024)
def _vectors(constraint: Any, shape: tuple[int, ...]) -> Vectors | None:
    """Returns the vectors of a tensor of this shape that a constraint along axes projects. None if a kernel cannot do it: the axes
    are not neighbours, or there are no elements.
    """
    axes = sorted(constraint._axes(len(shape), shape))
    first, end = (axes[0], axes[-1] + 1) if axes else (0, 0)
    if end - first != len(axes) or not math.prod(shape):
        return None
    return math.prod(shape[first:end]), math.prod(shape[end:]), getattr(constraint, "c", 1.0)


def projected(memory: OptimizerMemory, i: int, value: Tensor) -> Tensor:
    """Returns the value after the constraint of the optimizer's parameter i, in the dtype of the value. Pruned weights are 0.

    Raises ShapeError if a function returns another shape.
    """
    p = memory.parameters[i]
    constraint: Any = p.constraint
    if constraint is None:
        return _masked(memory, i, value)
    if isinstance(constraint, Constraint):
        kept = value if constraint.pruned == 0 else _masked(memory, i, constraint.marked(value), constraint.pruned)
        return _masked(memory, i, constraint.project(kept, bool(memory.lead)))
    if memory.lead:
        return _masked(memory, i, stack([_result(p, constraint, value[m]) for m in range(memory.members)]))
    return _masked(memory, i, _result(p, constraint, value))


def _masked(memory: OptimizerMemory, i: int, value: Tensor, pruned: float = 0.0) -> Tensor:
    mask = memory.mask(i)
    return value if mask is None else where(Tensor(mask), value, pruned)


def _change(before: Tensor, new: Tensor, delta: Tensor, value: Tensor) -> Tensor:
    """Returns what a step adds to `before`, of which the kernel made `new` by adding `delta`, and a constraint then `value`."""
    return where(equal(value, new), delta, subtract(value, before))


def _new(memory: OptimizerMemory, i: int) -> Tensor:
    """Returns the value that the kernel has written: a copy of the master, or a view of the parameter, which tapes do not watch,
    and which becomes stale when the parameter changes.
    """
    p: Parameter = memory.parameters[i]
    if memory.copy(i) is not None:
        return copy(Tensor(memory.weight(i)))
    view = Tensor(p.array)
    p.storage.add_view(view)
    return view


def _result(p: Parameter, function: Any, value: Tensor) -> Tensor:
    result = as_tensor(function(value))
    if result.shape != value.shape:
        raise ShapeError(
            f"step: the constraint of {p.label()} returned shape {result.shape}; it must return the shape {value.shape}."
        )
    return astype(result, value.dtype, device=p.device)  # a copy of a view, because the step is about to write to that memory
