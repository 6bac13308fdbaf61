"""How an optimizer launches its update: its memory on the device, the choice between kernel and formula, and the kernel's plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

import numpy as np

from ..errors import DeviceError, DTypeError, PullbackError, ShapeError
from ..launch import capturing, door
from ..launch.made import MadeOutside
from ..launch.refusal import Refused
from ..ops.conversion import copy as snapshot
from ..tensors import devices, dtypes
from ..tensors.creation import asarray
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from . import launches, reference, sets as c
from .adjustable import Adjustable
from .memory import OptimizerMemory


class Launcher(MadeOutside, Adjustable):
    """The base of Optimizer that updates the parameters with their gradients."""

    _instead = "; an inner step is p.assign(p - lr * g)"

    measured: bool = False  # true for a rule with trust ratios, which a launch before the update computes
    composed: bool = False  # the kernel adds a change that other launches have computed
    kernel: str = ""  # the name of a kernel in csrc/math/update.def; "" for a rule without a kernel
    # The attributes that are None, or have one entry for each parameter.
    listed: tuple[str, ...] = ("_parameters", "_names", "_constraints")
    updates_each: bool = True  # an optimizer of one of the parameters, with its slots and sets, does the same to this parameter
    apart: Mapping[str, Any] = {}  # the attributes of such an optimizer that differ, besides those listed
    _memory: OptimizerMemory
    _of: Any = None  # the optimizer whose memory this one shares, if it updates one parameter of it
    slot_starts: Mapping[str, float] = {}  # what the elements of a slot are before the first step, if not 0
    _averages_weights: bool
    _keeps_masters: bool
    _rounds_at_random: bool
    _first: int = 0  # the number of the first parameter, which chooses the random bits of stochastic rounding
    _pruning: Any = None  # the optim.Pruning that chooses the masks
    _scaler: Any = None  # in a step with the gradients of a scaled loss, the numbers of the LossScaler
    _scaled_steps: int = 0  # the number of such steps, which may have changed nothing
    _constraints: list[Any]  # those whose bounds are in the sets

    def _make(self) -> None:
        """Allocates the memory on the parameters' device, and looks up the kernels there."""
        shapes = {name: [self._slot_shape(name, i) for i in range(len(self._parameters))] for name in self.slot_names}
        self._memory = OptimizerMemory(
            self._parameters, self._members, self._lead, shapes, self.slot_starts, masters=self._keeps_masters,
            averages=self._averages_weights, updates_slots=not self.composed,
        )
        kernels, name = self._memory.kernels, self._own_kernel()
        self._native: Callable[..., Any] | None = getattr(kernels, name, None)
        if name and kernels is not None and self._native is None:
            raise PullbackError(
                f"{type(self).__name__}: there is no kernel {name!r}. `kernel` is the name of a row of csrc/math/update.def "
                f'followed by "_step", or "" for a rule that runs its formula.'
            )
        self._measure: Any = getattr(kernels, name.replace("_step", "_ratio"), None)
        self._adaptive.make(self._memory.device)

    def _slot_shape(self, name: str, i: int) -> tuple[int, ...] | None:
        """Returns the shape of a slot of parameter i, or None if the parameter does not have this slot."""
        return self._parameters[i].shape

    def _own_kernel(self) -> str:
        """Returns the name of the kernel that computes this rule, or "" if a subclass overrides the formula but not `kernel`."""
        for kind in type(self).__mro__:
            if "kernel" in vars(kind) or self.composed:
                return self.kernel
            if not {"formula", "_rate", "_step_numbers"}.isdisjoint(vars(kind)):
                break
        return ""

    def _formula_name(self) -> str:
        """Returns the name in a state that tells formulas of one class apart."""
        return self.kernel

    def _update(self, leaves: list[Any], *, preview: bool, wanted: bool) -> list[Tensor] | None:
        self._follow_parameters()
        arrays = [None if g is None else _array(g) for g in leaves]
        for p, g in zip(self._parameters, arrays):
            if g is not None and g.shape != p.array.shape:
                raise ShapeError(f"step: the gradient of {p.label()} has shape {g.shape}, the parameter {p.shape}.")
            if g is not None and g.dtype != p.array.dtype:
                raise DTypeError(
                    f"step: the gradient of {p.label()} has dtype {g.dtype}, the parameter {p.dtype}. Convert it with .astype."
                )
        self._follow_constraints()
        outputs = self._memory.new_deltas(arrays) if wanted else None
        if all([g is None for g in arrays]):
            return None if outputs is None else [Tensor(delta) for delta in outputs]
        if not preview:
            capturing.step()
        before = door.state.phase
        try:
            try:
                door.enter(door.OPTIMIZER)
                if self._pruning is not None:
                    self._pruning.begin(arrays, preview)
                if self._scaler is not None:
                    self._clip_norm(arrays, self._table.array, self._scaler)
                arrays = self._adaptive.before(self._memory, self._table, arrays)
                table = self._copied_table() if preview else self._table.array
                self._run(arrays, table, outputs, preview)
                if not preview:
                    capturing.increment(self, "_steps")
            finally:
                door.enter(before)
        finally:  # This repeats the restore, because Ctrl-C may have interrupted the inner finally.
            door.enter(before)
        return None if outputs is None else [Tensor(delta) for delta in outputs]

    def _follow_parameters(self) -> None:
        """Raises DeviceError or DTypeError if the state that was made for a parameter no longer fits it."""
        self._memory.follow()

    def _follow_constraints(self) -> None:
        """Writes the bounds of constraints that the parameters got since the last step into their sets."""
        constraints = [p.constraint for p in self._parameters]
        if constraints == self._constraints:
            return
        for i, (least, most) in enumerate(bounds_of(self._parameters)):
            if constraints[i] is not self._constraints[i]:
                self._table.write([i], c.LEAST, [[least, most]] * self._members)
        self._constraints = constraints

    def _copied_table(self) -> Any:
        recorded = capturing.thread.recording is not None and self._native is not None
        return self._memory.kernels.copy(self._table.array) if recorded else devices.copied(self._table.array)

    def _run(self, grads: list[Any], table: Any, outputs: list[Any] | None, preview: bool) -> None:
        memory = self._memory
        self._guard_recording()
        if self._clips_by_norm():
            self._clip_norm(grads, table)
        if self._native is not None:
            try:
                if self.measured:
                    self._measure(memory.plan(), grads, table)
                self._native(memory.plan(), grads, table, outputs, preview, self._rounding())
                return
            except Refused as refused:
                if "another thread" in str(refused):
                    raise PullbackError(f"{type(self).__name__}: {refused}. Let one thread do all steps of an optimizer.") from None
        memory.check_device(grads)
        if self._own_kernel():
            remedy = "Keep parameters and gradients on one device."
        else:
            remedy = "Return the gradients, and call step() outside."
        capturing.refuse_opaque("an update without a native kernel", remedy)
        with devices.working(memory.device):
            if self.measured:
                reference.measure(self, memory, self._own_kernel(), grads, table)
            reference.update(self, memory, self._own_kernel(), grads, table, outputs, preview, self._rounding())

    def _clip_norm(self, grads: list[Any], table: Any, scaler: Any = None) -> None:
        launches.clip_norm(self._memory.kernels, grads, table, self._members, scaler, check=self._memory.check_device)

    def _clips_by_norm(self) -> bool:
        """True if a launch of this step computes the joint norm, for clip_norm. In a scaled step it has been computed already."""
        return self._most != math.inf and (self._scaler is None or self._adaptive.clips)

    def _skip(self, entries: Iterable[int]) -> None:
        """Notes that a step has updated other parameters, but not these."""

    def _rounding(self) -> int:
        """Returns how the kernel rounds half precision weights: 0 to the nearest, or 1 + the number of the first parameter."""
        return 1 + self._first if self._rounds_at_random else 0

    def _guard_recording(self) -> None:
        """Makes a recording of this optimizer's launches valid only while it would launch the same again, on the same table."""
        if capturing.thread.recording is not None:
            whole, alone = self._of or self, self._of is not None
            table, clips = whole._table, whole._most != math.inf
            array, used = table.array, table.program.used
            capturing.thread.recording.guard(
                whole,
                lambda: (
                    table.array is array
                    and (whole._most != math.inf) == clips
                    and (not alone or table.program.used == used)  # the update of one parameter copies a program that is used
                ),
            )

    def observe(self, metric: Any) -> None:
        """Moves all learning rates that are an `optim.schedules.ReduceOnPlateau`, or have one among their pieces, by one value of
        the metric, such as the loss of the validation. It takes effect from the next step on.

        It is one launch on the device of the parameters, and nothing waits for a metric that is there. In a captured function it
        is a part of every replay.

        Args:
            metric: a number, or a floating or integer tensor of shape () on the optimizer's device; or one for each member, of
                shape (members,).

        Raises: PullbackError, ShapeError, DTypeError, DeviceError. After an error nothing has changed.
        """
        table = self._table
        if not table.program.observes:
            raise PullbackError(
                f"{type(self).__name__}.observe: no learning rate of this optimizer depends on a metric. Make it with "
                f"lr=optim.schedules.ReduceOnPlateau(1e-3), or with a Product or a Sequential that has one."
            )
        found, array = self._metric(metric), table.array
        if capturing.thread.recording is not None:
            capturing.thread.recording.guard(table.program, lambda: table.array is array and table.program.observes)
        with door.charged_to(door.OPTIMIZER):
            launches.observe(self._memory.kernels, array, found.array, table.count, table.members)

    def _metric(self, metric: Any) -> Tensor:
        """Returns a metric as a floating tensor on the optimizer's device. Raises PullbackError."""
        rule = type(self).__name__
        if not isinstance(metric, Tensor):
            numbers = isinstance(metric, (Real, list, tuple))
            metric = asarray(np.asarray(metric) if numbers else metric, device=self._memory.device)
        if metric.device != self._memory.device:
            raise DeviceError(
                f"{rule}.observe: the metric is on {metric.device}, the optimizer on {self._memory.device}. Move it with "
                f'.to("{self._memory.device}"), or give a number.'
            )
        if metric.shape not in ((), (self._members,)):
            raise ShapeError(f"{rule}.observe: the metric has shape {metric.shape}; it must be () or ({self._members},), one each.")
        if metric.dtype == dtypes.bool_:
            raise DTypeError(f"{rule}.observe: the metric is a bool; give a number.")
        return metric if dtypes.is_float(metric.dtype) else metric.astype(dtypes.float64)


def _array(g: Any) -> Any:
    """Returns the array of a gradient; a copy, if it is memory of a Parameter, which the step may write to."""
    if not isinstance(g, Tensor):
        return asarray(g).array
    return g.array if g.storage is None else snapshot(g).array


def bounds_of(params: list[Parameter]) -> list[tuple[float, float]]:
    """Returns the smallest and the largest value that the constraint of each parameter allows, infinite without bounds."""
    return [getattr(p.constraint, "bounds", (-math.inf, math.inf)) for p in params]
