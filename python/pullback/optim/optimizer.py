"""Optimizer: owns parameters and slots, and turns gradients into one fused update."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import capturing, devices, door, dtypes
from ..backends import kernels_on
from ..backends.reference import distinct_bytes
from ..creation import asarray
from ..errors import DeviceError, DTypeError, PullbackError, ShapeError
from ..operand import as_tensor
from ..ops.writing import write
from ..refusal import Refused
from ..tape import GradientTape
from ..tensor import Parameter, Tensor
from ..tree import flatten
from . import arena, control as c
from .schedules import Schedule, as_schedule
from .tally import Tally


class Optimizer:
    """What all optimizers share.

    Args:
        params: the Parameters to update, in a list or any nested structure; those that are not trainable are left out.
        lr: the learning rate, a number or one of `optim.schedules`.
        clip_norm: the largest joint L2 norm of all gradients, which are scaled down to it inside the step.
        clip_value: gradients are clamped to [-clip_value, clip_value] inside the step, after clip_norm.

    The parameters move into one flat arena (unless another optimizer placed them already) and keep their identity.
    """

    kernel: str
    slot_names: tuple[str, ...] = ()
    hyper: tuple[float, ...] = ()

    def __init__(
        self, params: Any, lr: float | Schedule, *, clip_norm: float | None = None, clip_value: float | None = None
    ) -> None:
        self.parameters = _trainable(type(self).__name__, params)
        self._names = _names(self.parameters)  # in a state_dict, whatever Modules call the parameters later
        for name, value in (("clip_norm", clip_norm), ("clip_value", clip_value)):
            if value is not None and not value > 0:
                raise PullbackError(f"{type(self).__name__}: {name}={value}; it must be positive, or None for no clipping.")
        self.clip_norm = clip_norm
        self._device = self.parameters[0].device
        self._schedule = as_schedule(lr)
        self._clip_value = math.inf if clip_value is None else float(clip_value)
        self._control = c.new(self._schedule, self._clip_value, self._device)
        self._steps = 0  # as the control block counts them, without asking the device
        arena.place(self.parameters)
        self._slots = [arena.slots_like(self.parameters) for _ in self.slot_names]
        self._kernels: Any = kernels_on(self._device)
        self._native: Callable[..., Any] | None = getattr(self._kernels, self.kernel, None)
        self._plan: Any = None
        self._placement: list[int] = []

    # ---- state

    @property
    def lr(self) -> float:
        """The learning rate of the next step. Setting it (to a number or a schedule) takes effect from that step on."""
        return self._schedule.rate(self.steps)

    @lr.setter
    def lr(self, lr: float | Schedule) -> None:
        capturing.refuse("setting lr", "Set it outside: a replay reads it, and a schedule needs no setting at all.")
        self._schedule = as_schedule(lr)
        c.set_schedule(self._control, self._schedule)

    @property
    def steps(self) -> int:
        """How many steps have been done."""
        return self._steps

    @property
    def gradient_norm(self) -> float:
        """The joint norm of the gradients of the last step, before clipping; known only with clip_norm. Waits for that step."""
        return float(devices.move(self._control, "cpu")[c.GRADIENT_NORM])

    def slots(self, p: Parameter) -> dict[str, Tensor]:
        """The named state tensors of a parameter, as they are now (copies); zeros before the first step."""
        capturing.refuse("slots()", "Ask for them outside.")
        i = self._index(p)
        return {name: Tensor(devices.copied(slot[i])) for name, slot in zip(self.slot_names, self._slots)}

    def _index(self, p: Any) -> int:
        for i, mine in enumerate(self.parameters):
            if mine is p:
                return i
        raise PullbackError(f"{p.label() if isinstance(p, Parameter) else p!r} is not a parameter of this {type(self).__name__}.")

    def state_dict(self) -> dict[str, Any]:
        """The rule's name, steps, learning rate, and slots by the parameters' names when the optimizer was made: all that an
        exact resume needs.
        """
        capturing.refuse("state_dict()", "Ask for it outside.")
        slots = {name: self.slots(p) for name, p in zip(self._names, self.parameters)}
        return {"rule": type(self).__name__, "control": Tensor(np.array(devices.move(self._control, "cpu"))), "slots": slots}

    def load_state_dict(self, state: Any) -> None:
        """Takes the state of an optimizer of the same kind and parameters. Clipping stays as this optimizer was made.

        Raises: PullbackError; then nothing has changed.
        """
        capturing.refuse("loading an optimizer's state", "Load it outside.")
        _entries("the state", state, ["rule", "control", "slots"])
        if state["rule"] != type(self).__name__:
            raise PullbackError(f"load_state_dict: the state is of rule {state['rule']}, this optimizer is {type(self).__name__}.")
        _entries("the dict of slots", state["slots"], self._names)
        control, schedule = c.read(_floats("the control block", state["control"], (c.SIZE,), "cpu"))
        loads: list[tuple[Any, Any]] = []
        for i, (name, p) in enumerate(zip(self._names, self.parameters)):
            slots = state["slots"][name]
            _entries(f'the state of "{name}"', slots, self.slot_names)
            for slot_name, slot in zip(self.slot_names, self._slots):
                loads.append((slot[i], _floats(f'slot "{slot_name}" of "{name}"', slots[slot_name], p.shape, p.device)))
        for target, value in loads:
            devices.write(target, value)
        control[c.CLIP_FACTOR], control[c.CLIP_VALUE] = 1.0, self._clip_value
        c.write(self._control, 0, control)
        self._schedule, self._steps = schedule, int(control[c.STEP])

    def __deepcopy__(self, memo: Any) -> Optimizer:
        """An optimizer of the copied parameters, with a state of its own."""
        twin = copy.copy(self)
        memo[id(self)] = twin
        twin.parameters = copy.deepcopy(self.parameters, memo)
        arena.place(twin.parameters)
        twin._control = devices.copied(self._control)
        twin._slots = [arena.slots_like(twin.parameters) for _ in self._slots]
        for target, slot in zip(twin._slots, self._slots):
            for mine, theirs in zip(target, slot):
                devices.write(mine, theirs)
        twin._plan, twin._placement = None, []
        return twin

    # ---- updates

    def step(self, grads: Any, return_delta: bool = False) -> list[Tensor] | None:
        """Updates all parameters in one fused launch.

        All parameters share one count of steps, by which the schedule, Adam's bias correction and momentum's first step go. A
        parameter without a gradient keeps its weight and slots, but the count goes on (PyTorch's Adam counts for each of them
        apart). A step without any gradient does nothing, and does not count.

        Args:
            grads: one gradient per parameter, in the order of `parameters`; None leaves a parameter alone.
            return_delta: return what was added to each parameter, before constraints, written by the same kernel.

        Raises: ShapeError, DTypeError, naming the parameter; then nothing has changed. What a constraint raises comes after
            the update, and leaves that parameter and those after it without their constraints.
        """
        deltas = self._update(grads, preview=False, wanted=return_delta)
        changed = [p for p, g in zip(self.parameters, flatten(grads)[0]) if g is not None]
        for p in changed:  # all of them before the first constraint, which may raise
            p.storage.changed()
        for p in changed:
            if p.constraint is not None:
                _constrain(p)
        return deltas

    def preview(self, grads: Any) -> list[Tensor]:
        """What `step(grads)` would add to each parameter, before constraints. Changes nothing."""
        return self._update(grads, preview=True, wanted=True) or []

    def minimize(self, loss_fn: Callable[..., Tensor], *args: Any) -> Tensor:
        """Forward, backward, update: one step on loss_fn(*args), which is returned."""
        with GradientTape() as tape:
            loss = loss_fn(*args)
        self.step(tape.gradient(loss, self.parameters))
        return loss

    def _update(self, grads: Any, *, preview: bool, wanted: bool) -> list[Tensor] | None:
        leaves = flatten(grads)[0]
        if len(leaves) != len(self.parameters):
            raise ShapeError(
                f"step: {len(leaves)} gradients for {len(self.parameters)} parameters; give one for each, in the order of "
                f"opt.parameters."
            )
        arrays = [None if g is None else g.array if isinstance(g, Tensor) else asarray(g).array for g in leaves]
        for p, g in zip(self.parameters, arrays):
            if g is not None and g.shape != p.array.shape:
                raise ShapeError(f"step: the gradient of {p.label()} has shape {g.shape}, the parameter {p.shape}.")
            if g is not None and g.dtype != p.array.dtype:
                raise DTypeError(
                    f"step: the gradient of {p.label()} has dtype {g.dtype}, the parameter {p.dtype}. Convert it with .astype."
                )
        outputs = [self._delta(p, g) for p, g in zip(self.parameters, arrays)] if wanted else None
        if all([g is None for g in arrays]):
            return None if outputs is None else [Tensor(delta) for delta in outputs]
        before = door.enter(door.OPTIMIZER)
        try:
            control = self._copied_control() if preview else self._control
            self._run(arrays, control, outputs, preview)
            if not preview:
                capturing.do(self._count_step)
        finally:
            door.enter(before)
        return None if outputs is None else [Tensor(delta) for delta in outputs]

    def _count_step(self) -> None:
        self._steps += 1

    def _copied_control(self) -> Any:
        recorded = capturing.thread.recording is not None and self._native is not None
        return self._kernels.copy(self._control) if recorded else devices.copied(self._control)

    def _delta(self, p: Parameter, g: Any) -> Any:
        """Memory for what is added to a parameter: zeros where that is nothing, else to be written."""
        if g is None:
            return devices.full(self._device, p.shape, 0, p.dtype)
        with devices.working(self._device):
            return devices.array_module(self._device).empty(p.shape, p.dtype)

    def _run(self, grads: list[Any], control: Any, outputs: list[Any] | None, preview: bool) -> None:
        if capturing.thread.recording is not None:
            most = self.clip_norm
            capturing.thread.recording.guard(self, lambda: self.clip_norm == most)
        if self._native is not None:
            try:
                if self.clip_norm is not None:
                    self._kernels.clip_norm(grads, control, self.clip_norm)
                self._native(self._current_plan(), grads, control, self.hyper, outputs, preview)
                return
            except Refused:
                pass
        self._same_device(grads)
        capturing.refuse_opaque("an update without a native kernel", "Keep parameters and gradients on one device.")
        with devices.working(self._device):
            if self.clip_norm is not None:
                door.in_place("clip_norm", lambda: self._clip(grads, control), lambda _: _norm_cost(grads))
            door.in_place(
                self.kernel,
                lambda: self._reference(grads, control, outputs, preview),
                lambda _: self._cost(grads, control, outputs, preview),
            )

    def _same_device(self, grads: list[Any]) -> None:
        """Raises DeviceError where a parameter or a gradient is elsewhere than the optimizer's state."""
        for p, g in zip(self.parameters, grads):
            if p.device != self._device:
                raise DeviceError(
                    f"step: {p.label()} has moved to {p.device}, but the optimizer's state is on {self._device}. Make the "
                    f"optimizer after moving the parameters."
                )
            if g is not None and devices.device_of(g) != self._device:
                raise DeviceError(
                    f"step: the gradient of {p.label()} is on {devices.device_of(g)}, the parameter on {self._device}. Move it "
                    f'with .to("{self._device}").'
                )

    def _current_plan(self) -> Any:
        """Where the kernel finds weights and slots: made once, and again when a parameter has moved."""
        placement = [p.storage.placement for p in self.parameters]
        if self._plan is None or placement != self._placement:
            self._plan = self._kernels.update_plan([p.array for p in self.parameters], self._slots)
            self._placement = placement
        return self._plan

    # ---- the same in NumPy or CuPy

    def _clip(self, grads: list[Any], control: Any) -> None:
        """The joint norm of the gradients, and what scales it to clip_norm at most."""
        assert self.clip_norm is not None
        norm = float(sum([float((g.astype("float64") ** 2).sum()) for g in grads if g is not None])) ** 0.5
        control[c.GRADIENT_NORM] = norm
        factor = self.clip_norm / (norm + 1e-6)
        control[c.CLIP_FACTOR] = 1.0 if factor > 1 else factor

    def _reference(self, grads: list[Any], control: Any, outputs: list[Any] | None, preview: bool) -> None:
        wide = [None if g is None else g.astype(arena.slot_dtype(p)) for p, g in zip(self.parameters, grads)]
        self.advance(control)
        bound = float(control[c.CLIP_VALUE])
        for i, (p, g) in enumerate(zip(self.parameters, wide)):
            if g is None:
                continue
            g = (g * float(control[c.CLIP_FACTOR])).clip(-bound, bound)
            slots = [slot[i].copy() if preview else slot[i] for slot in self._slots]
            delta = self.change(control, p.array.astype(g.dtype), g, slots).astype(p.dtype)
            if outputs is not None:
                outputs[i][...] = delta
            if not preview:
                p.array[...] = p.array + delta

    def _cost(self, grads: list[Any], control: Any, outputs: list[Any] | None, preview: bool) -> dict[str, Any]:
        """What a step costs: the rule's own arithmetic, counted on one element; weights, gradients and slots moved."""
        one, control = Tally(), control.copy()
        if not control[c.STEP]:  # where the first step is only counted, it has not begun
            self.advance(control)
        weight = one + self.change(control, one, (one * 1.0).clip(0, 0), [one] * len(self._slots))
        figures = dict.fromkeys(("adds", "multiplies", "special_ops", "bytes_read", "bytes_written"), 0)
        figures["bytes_read"], figures["bytes_written"] = control.nbytes, 0 if preview else control.nbytes
        for i, (p, g) in enumerate(zip(self.parameters, grads)):
            if g is None:
                continue
            slots = sum([slot[i].nbytes for slot in self._slots])
            figures["adds"] += p.size * (weight.adds - preview)  # a preview does not add the change to the weight
            figures["multiplies"] += p.size * weight.multiplies
            figures["special_ops"] += p.size * weight.special_ops
            figures["bytes_read"] += p.nbytes + distinct_bytes(g) + slots
            figures["bytes_written"] += (0 if preview else p.nbytes + slots) + (0 if outputs is None else p.nbytes)
        return {"dtype": self.parameters[0].dtype, **figures}

    def advance(self, control: Any) -> None:
        """Begins a step in the control block: its learning rate, and its number."""
        control[c.RATE] = self._schedule.rate(int(control[c.STEP]))
        control[c.STEP] += 1

    def change(self, control: Any, p: Any, g: Any, slots: list[Any]) -> Any:
        """What is added to a weight; changes the slots in place."""
        raise NotImplementedError(f"{type(self).__name__} has no update rule")


def _norm_cost(grads: list[Any]) -> dict[str, Any]:
    given = [g for g in grads if g is not None]
    elements = sum([g.size for g in given])
    return {
        "adds": elements, "multiplies": elements, "special_ops": 2, "dtype": "float64",
        "bytes_read": sum([distinct_bytes(g) for g in given]), "bytes_written": 16,
    }  # fmt: skip


def _trainable(name: str, params: Any) -> list[Parameter]:
    leaves = flatten(params if not hasattr(params, "__next__") else list(params))[0]
    for p in leaves:
        if not isinstance(p, Parameter):
            raise PullbackError(f"{name}: a {type(p).__name__} among the parameters; only a pb.Parameter can be updated in place.")
    unique = list({id(p): p for p in leaves if p.trainable}.values())
    if not unique:
        raise PullbackError(f"{name}: there are no trainable parameters to update.")
    for p in unique:
        if p.device != unique[0].device:
            raise DeviceError(
                f"{name}: {unique[0].label()} is on {unique[0].device}, {p.label()} on {p.device}; the parameters of an optimizer "
                f"must be on one device. Move them with Module.to, or make an optimizer for each device."
            )
        if not dtypes.is_float(p.dtype):
            raise DTypeError(
                f"{name}: {p.label()} has dtype {p.dtype}; only floating-point Parameters can be trained. Make it with "
                f"dtype=pb.float32, or leave it out with trainable=False."
            )
    return unique


def _names(params: list[Parameter]) -> list[str]:
    names = [str(p.name or f"parameter{i}") for i, p in enumerate(params)]
    return names if len(set(names)) == len(names) else [f"{i}.{name}" for i, name in enumerate(names)]


def _constrain(p: Parameter) -> None:
    value = as_tensor(p.constraint(Tensor(p.array)))
    if value.shape != p.shape:
        raise ShapeError(f"step: the constraint of {p.label()} returned shape {value.shape}; it must return the shape {p.shape}.")
    write(p.array, devices.move(value.array, p.device))


def _entries(what: str, given: Any, wanted: Sequence[str]) -> None:
    """Raises PullbackError unless this is a dict with exactly these keys."""
    if not isinstance(given, Mapping):
        raise PullbackError(f"load_state_dict: {what} is a {type(given).__name__}; give the dict that state_dict() made.")
    if set(given) != set(wanted):
        raise PullbackError(f"load_state_dict: {what} has entries for {sorted(map(str, given))}, not for {sorted(wanted)}.")


def _floats(what: str, given: Any, shape: tuple[int, ...], device: str) -> Any:
    """The array of a tensor in a state. Raises PullbackError."""
    if not isinstance(given, (Tensor, np.ndarray, np.generic)):
        raise PullbackError(f"load_state_dict: {what} is a {type(given).__name__}; it must be a tensor.")
    array = asarray(given, device=device).array
    if array.shape != shape or not dtypes.is_float(array.dtype):
        raise PullbackError(f"load_state_dict: {what} has shape {array.shape} and dtype {array.dtype}; it must be floats {shape}.")
    return array
