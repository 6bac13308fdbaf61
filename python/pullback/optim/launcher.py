"""How an optimizer launches its update: its memory on the device, the choice between kernel and formula, and the kernel's plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

import numpy as np

from ..autodiff.listeners import listeners
from ..errors import DeviceError, DTypeError, PullbackError, ShapeError
from ..launch import capturing, door
from ..launch.made import MadeOutside
from ..launch.refusal import Refused
from ..ops.conversion import copy as snapshot
from ..tensors import devices, dtypes
from ..tensors.creation import asarray
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..typing import Tree
from . import groups as grouping, launches, reference, sets as c
from .adjustable import Adjustable
from .arguments import Form
from .memory import OptimizerMemory
from .stages import scaled
from .stages.projection import Projection
from .stages.stage import Stage, Step


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
    _form: Form  # of the gradients
    _acting: tuple[Any, ...]  # the facts of the stages
    _of: Any = None  # the optimizer whose memory this one shares, if it updates one parameter of it
    slot_starts: Mapping[str, float] = {}  # what the elements of a slot are before the first step, if not 0
    _averages_weights: bool
    _keeps_masters: bool
    _rounds_at_random: bool
    _first: int = 0  # the number of the first parameter, which chooses the random bits of stochastic rounding
    _pruning: Any = None  # the optim.Pruning that chooses the masks
    _scaled_steps: int = 0  # the number of steps with a LossScaler, which may have changed nothing
    _constraints: list[Any]  # those whose bounds are in the sets

    def _make(self) -> None:
        """Allocates the memory on the parameters' device, and looks up the kernels there."""
        shapes = {name: [self._slot_shape(name, i) for i in range(len(self._parameters))] for name in self.slot_names}
        self._memory = OptimizerMemory(
            self._parameters, self._members, self._lead, shapes, self.slot_starts, masters=self._keeps_masters,
            averages=self._averages_weights, updates_slots=not self.composed,
            extra=[name for stage in self._stages.values() if stage.acts for name in stage.slots],
        )
        kernels, name = self._memory.kernels, self._own_kernel()
        self._native: Callable[..., Any] | None = getattr(kernels, name, None)
        if name and kernels is not None and self._native is None:
            raise PullbackError(
                f"{type(self).__name__}: there is no kernel {name!r}. `kernel` is the name of a row of csrc/math/update.def "
                f'followed by "_step", or "" for a rule that runs its formula.'
            )
        self._measure: Any = getattr(kernels, name.replace("_step", "_ratio"), None)
        for stage in self._stages.values():
            stage.make(self._memory.device)

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

    def _step_scaled(self, grads: Tree, numbers: Parameter) -> None:
        """Does a step with the gradients of a scaled loss, or changes nothing if one of them is not finite. numbers: those of the
        LossScaler.
        """
        scaled.check(self, numbers)
        scale = grouping.constant(lambda: self._stages["gradient_scale"].value)
        leaves = self._form.one_each(grads)
        if all([g is None for g in leaves]):
            self._update(leaves)
            return
        capturing.increment(self, "_scaled_steps")
        try:
            try:
                self._update(leaves, scaler=numbers.array)
            finally:
                scaled.end(self._table, scale)
        except BaseException:  # Ctrl-C may have interrupted the restore, too.
            scaled.end(self._table, scale)
            raise

    def _update(
        self, leaves: list[Any], *, preview: bool = False, wanted: bool = False, scaler: Any = None
    ) -> list[Tensor] | None:
        """Does a step, or previews one. Returns what it adds to each parameter, if that is wanted."""
        self._follow_parameters()
        arrays = self._arrays(leaves)
        self._follow_constraints()
        outputs = self._memory.new_deltas(arrays) if wanted else None
        if all([g is None for g in arrays]):
            return None if outputs is None else [Tensor(delta) for delta in outputs]
        end = self._projection(arrays, wanted and not preview, scaler is not None)
        if not preview:
            capturing.step()
        before = door.state.phase
        try:
            try:
                door.enter(door.OPTIMIZER)
                if self._pruning is not None:
                    self._pruning.begin(arrays, preview)
                step = Step(self._memory, self._copied_table() if preview else self._table.array, arrays, outputs, preview, scaler)
                if scaler is not None:
                    scaled.begin(step)
                self._run(step)
                if not preview:
                    capturing.increment(self, "_steps")
            finally:
                door.enter(before)
        finally:  # This repeats the restore, because Ctrl-C may have interrupted the inner finally.
            door.enter(before)
        deltas = None if outputs is None else [Tensor(delta) for delta in outputs]
        if preview:
            return deltas if end is None or deltas is None else end.changes(deltas)
        for p, g in zip(self._parameters, leaves):
            if g is not None:
                p.storage.changed()
        if end is not None:
            end.apply(deltas)
        return deltas

    def _projection(self, grads: list[Any], wanted: bool, skips: bool) -> Projection | None:
        """Returns what follows the kernel, None if nothing does."""
        stages = [stage for stage in self._stages.values() if stage.acts and type(stage).after is not Stage.after]
        limits = [None if g is None else p.constraint for p, g in zip(self._parameters, grads)]
        entries = [i for i, limit in enumerate(limits) if limit is not None and not hasattr(limit, "bounds")]
        if stages:
            entries = [i for i, g in enumerate(grads) if g is not None and g.size]
        return Projection(self._memory, self._table, entries, stages, wanted=wanted, skips=skips) if entries else None

    def _arrays(self, leaves: list[Any]) -> list[Any]:
        """Returns the gradients as arrays. Raises ShapeError or DTypeError for one that is not like its parameter."""
        arrays = []
        for p, g in zip(self._parameters, leaves):
            if g is not None:
                g, mine = g.array if g.__class__ is Tensor and g.storage is None else _array(g), p.array
                if g.shape != mine.shape:
                    raise ShapeError(f"step: the gradient of {p.label()} has shape {g.shape}, the parameter {p.shape}.")
                if g.dtype is not mine.dtype and g.dtype != mine.dtype:
                    raise DTypeError(
                        f"step: the gradient of {p.label()} has dtype {g.dtype}, the parameter {p.dtype}. Convert it with .astype."
                    )
            arrays.append(g)
        return arrays

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

    def _run(self, step: Step) -> None:
        memory, rounding = self._memory, self._rounding()
        self._guard_recording()
        self._begin(step)
        given = step.grads, step.table, step.outputs, step.preview, rounding
        if self._native is not None:
            try:
                if self.measured:
                    self._measure(memory.plan(), step.grads, step.table)
                self._native(memory.plan(), *given)
                return
            except Refused as refused:
                if "another thread" in str(refused):
                    raise PullbackError(f"{type(self).__name__}: {refused}. Let one thread do all steps of an optimizer.") from None
        memory.check_device(step.grads)
        if self._own_kernel():
            remedy = "Keep parameters and gradients on one device."
        else:
            remedy = "Make the rule with optim.rule, whose steps can be captured; or return the gradients, and call step() outside."
        capturing.refuse_opaque("an update without a native kernel", remedy)
        with devices.working(memory.device):
            if self.measured:
                reference.measure(self, memory, self._own_kernel(), step.grads, step.table)
            reference.update(self, memory, self._own_kernel(), *given)

    def _begin(self, step: Step) -> None:
        """Runs the stages before the rule, whose ops are hidden from tapes, as the work of kernels is."""
        for stage in self._stages.values():
            if stage.acts:
                before = listeners.truncate(0) if listeners.stack else None
                try:
                    stage.before(step)
                finally:
                    if before is not None:
                        listeners.restore(before)
                if door.profiling and self._native is not None:
                    door.charge(stage.name)

    def _skip(self, entries: Iterable[int]) -> None:
        """Notes that a step has updated other parameters, but not these."""

    def _rounding(self) -> int:
        """Returns how the kernel rounds half precision weights: 0 to the nearest, or 1 + the number of the first parameter."""
        return 1 + self._first if self._rounds_at_random else 0

    def _guard_recording(self) -> None:
        """Makes a recording of this optimizer's launches valid only while it would launch the same again, on the same table."""
        if capturing.thread.recording is not None:
            whole, alone = self._of or self, self._of is not None
            facts, kept = whole._facts(alone), (whole._table.array, whole._pruning)  # kept, so that no other object gets their ids
            capturing.thread.recording.guard(whole, lambda: kept and whole._facts(alone) == facts)

    def _facts(self, alone: bool) -> Any:
        """Returns what a recording of a step depends on, which each replay compares.

        alone: the step updates one parameter, as an optimizer of its own would, which copies a program of schedules that is used.
        """
        table = self._table
        return id(table.array), self._acting, alone and table.program.used

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
