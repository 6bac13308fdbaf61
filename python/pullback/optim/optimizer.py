"""Optimizer: owns parameters and slots, and turns gradients into one fused update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import door
from ..backends import kernel_for, native
from ..backends.native import Refused
from ..backends.reference import distinct_bytes
from ..errors import DTypeError, PullbackError, ShapeError
from ..tape import GradientTape
from ..tensor import Parameter, Tensor
from ..tree import flatten
from . import arena
from . import control as c
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
        for name, value in (("clip_norm", clip_norm), ("clip_value", clip_value)):
            if value is not None and not value > 0:
                raise PullbackError(f"{type(self).__name__}: {name}={value}; it must be positive, or None for no clipping.")
        self.clip_norm = clip_norm
        self._schedule = as_schedule(lr)
        self._control = c.new(self._schedule, clip_value)
        arena.place(self.parameters)
        self._slots = [arena.slots_like(self.parameters) for _ in self.slot_names]
        self._native: Callable[..., Any] | None = kernel_for(self.kernel)[0]
        self._kernels: Any = native.module
        self._plan: Any = None
        self._placement: list[int] = []

    # ---- state

    @property
    def lr(self) -> float:
        """The learning rate of the next step. Setting it (to a number or a schedule) takes effect from that step on."""
        return self._schedule.rate(self.steps)

    @lr.setter
    def lr(self, lr: float | Schedule) -> None:
        self._schedule = as_schedule(lr)
        c.set_schedule(self._control, self._schedule)

    @property
    def steps(self) -> int:
        """How many steps have been done."""
        return int(self._control[c.STEP])

    @property
    def gradient_norm(self) -> float:
        """The joint norm of the gradients of the last step, before clipping; known only with clip_norm."""
        return float(self._control[c.GRADIENT_NORM])

    def slots(self, p: Parameter) -> dict[str, Tensor]:
        """The named state tensors of a parameter, as they are now (copies); zeros before the first step."""
        i = self._index(p)
        return {name: Tensor(slot[i].copy()) for name, slot in zip(self.slot_names, self._slots)}

    def _index(self, p: Any) -> int:
        for i, mine in enumerate(self.parameters):
            if mine is p:
                return i
        raise PullbackError(f"{p.label() if isinstance(p, Parameter) else p!r} is not a parameter of this {type(self).__name__}.")

    def state_dict(self) -> dict[str, Any]:
        """Steps, learning rate and slots, by the parameters' names: all that an exact resume needs."""
        slots = {name: self.slots(p) for name, p in self._named()}
        return {"control": Tensor(self._control.copy()), "slots": slots}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the state of an optimizer of the same kind and parameters. Raises PullbackError; then nothing has changed."""
        named = dict(self._named())
        if set(state) != {"control", "slots"} or set(state["slots"]) != set(named):
            known = sorted(state.get("slots", {}))
            raise PullbackError(f"load_state_dict: the state is for parameters {known}, this optimizer has {sorted(named)}.")
        loads: list[tuple[Any, Any]] = []
        for name, p in named.items():
            for slot_name, slot in zip(self.slot_names, self._slots):
                value = np.asarray(state["slots"][name].get(slot_name))
                target = slot[self._index(p)]
                if value.shape != target.shape:
                    raise PullbackError(
                        f'load_state_dict: slot "{slot_name}" of {name} has shape {value.shape}, not {target.shape}.'
                    )
                loads.append((target, value))
        for target, value in loads:
            target[...] = value
        self._control[...] = np.asarray(state["control"])
        kind, base, arguments = int(self._control[c.SCHEDULE]), float(self._control[c.BASE_RATE]), self._control[c.ARGUMENT :]
        self._schedule = _schedule_from(kind, base, arguments)

    def _named(self) -> list[tuple[str, Parameter]]:
        names = [p.name or f"parameter{i}" for i, p in enumerate(self.parameters)]
        if len(set(names)) < len(names):
            names = [f"{i}.{name}" for i, name in enumerate(names)]
        return list(zip(names, self.parameters))

    # ---- updates

    def step(self, grads: Any, return_delta: bool = False) -> list[Tensor] | None:
        """Updates all parameters in one fused launch.

        Args:
            grads: one gradient per parameter, in the order of `parameters`; None leaves a parameter alone.
            return_delta: return what was added to each parameter, written by the same kernel.

        Raises: ShapeError, DTypeError, naming the parameter; then nothing has changed.
        """
        deltas = self._update(grads, preview=False, wanted=return_delta)
        for p, g in zip(self.parameters, flatten(grads)[0]):
            if g is not None:
                p.storage.version += 1
                if p.constraint is not None:
                    p.array[...] = p.constraint(Tensor(p.array)).array
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
        arrays = [None if g is None else g.array if isinstance(g, Tensor) else np.asarray(g) for g in leaves]
        for p, g in zip(self.parameters, arrays):
            if g is not None and g.shape != p.array.shape:
                raise ShapeError(f"step: the gradient of {p.label()} has shape {g.shape}, the parameter {p.shape}.")
            if g is not None and g.dtype != p.array.dtype:
                raise DTypeError(
                    f"step: the gradient of {p.label()} has dtype {g.dtype}, the parameter {p.dtype}. Convert it with .astype."
                )
        outputs = [np.zeros_like(p.array) for p in self.parameters] if wanted else None
        before = door.enter(door.OPTIMIZER)
        try:
            control = self._control.copy() if preview else self._control
            self._run(arrays, control, outputs, preview)
        finally:
            door.enter(before)
        return None if outputs is None else [Tensor(delta) for delta in outputs]

    def _run(self, grads: list[Any], control: Any, outputs: list[Any] | None, preview: bool) -> None:
        if self._native is not None:
            try:
                if self.clip_norm is not None:
                    self._kernels.clip_norm(grads, control, self.clip_norm)
                self._native(self._current_plan(), grads, control, self.hyper, outputs, preview)
                return
            except Refused:
                pass
        if self.clip_norm is not None:
            door.through("clip_norm", lambda: self._clip(grads, control), lambda _: _norm_cost(grads))
        door.through(
            self.kernel,
            lambda: self._reference(grads, control, outputs, preview),
            lambda _: self._cost(grads, control, outputs, preview),
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
        wide = [None if g is None else g.astype(s.dtype) for g, s in zip(grads, arena.slots_like(self.parameters))]
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

    def _cost(self, grads: list[Any], control: Any, outputs: list[Any] | None, preview: bool) -> dict[str, int]:
        """What a step costs: the rule's own arithmetic, counted on one element; weights, gradients and slots moved."""
        one = Tally()
        weight = one + self.change(control, one, (one * 1.0).clip(0, 0), [one] * len(self._slots))
        figures = {"flops": 0, "special_ops": 0, "bytes_read": 0, "bytes_written": 0}
        for i, (p, g) in enumerate(zip(self.parameters, grads)):
            if g is None:
                continue
            slots = sum([slot[i].nbytes for slot in self._slots])
            figures["flops"] += p.size * (weight.flops - preview)  # a preview does not add the change to the weight
            figures["special_ops"] += p.size * weight.special_ops
            figures["bytes_read"] += p.nbytes + distinct_bytes(g) + slots
            figures["bytes_written"] += (0 if preview else p.nbytes + slots) + (0 if outputs is None else p.nbytes)
        return figures

    def advance(self, control: Any) -> None:
        """Begins a step in the control block: its learning rate, and its number."""
        control[c.RATE] = self._schedule.rate(int(control[c.STEP]))
        control[c.STEP] += 1

    def change(self, control: Any, p: Any, g: Any, slots: list[Any]) -> Any:
        """What is added to a weight; changes the slots in place."""
        raise NotImplementedError(f"{type(self).__name__} has no update rule")


def _norm_cost(grads: list[Any]) -> dict[str, int]:
    given = [g for g in grads if g is not None]
    return {
        "flops": 2 * sum([g.size for g in given]), "special_ops": 2,
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
    return unique


def _schedule_from(kind: int, base: float, arguments: Sequence[float]) -> Schedule:
    from dataclasses import fields

    for cls in (Schedule, *Schedule.__subclasses__()):
        if cls.kind == kind:
            return cls(base, *[float(value) for _, value in zip(fields(cls)[1:], arguments)])
    raise PullbackError(f"load_state_dict: there is no schedule of kind {kind} in this version.")
