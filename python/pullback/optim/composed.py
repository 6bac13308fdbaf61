"""Rules that are composed of ops on whole arrays, where a rule with a kernel is a formula for one element."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from ..autodiff.listeners import listeners
from ..autodiff.scalars import Scalar, Scalars
from ..errors import PullbackError
from ..launch import capturing, door
from ..launch.refusal import Refused
from ..ops.by_name import in_dtype
from ..ops.elementwise import maximum, minimum, where
from ..ops.movement import stack
from ..ops.writing import write
from ..replays.capture import Captured, capture
from ..tensors import devices
from ..tensors.tensor import Tensor
from . import arena, launches, reference, sets as c
from .groups import Group
from .optimizer import Optimizer
from .stages import scaled
from .stages.stage import Step

RECORDINGS: Final = 8  # the most kinds of steps, such as those that lack certain gradients, that an optimizer records


class Hyper:
    """The numbers of a step that a formula reads: `lr` and `step`, which is 1 in the first step, and the rule's hyper-parameters
    by their names. A hyper-parameter of several numbers is a tuple.

    Each number is a Scalar: a float64 number in device memory. Arithmetic among Scalars is in float64, and with an array in the
    dtype of the array. Its shape is () for one network, and (M, 1, …) if the arrays hold M networks.

    Args:
        rows: the sets of the networks in the arrays, as they are after the step has begun: an array of shape (M, sets.SIZE).
        shape: the shape of each number.
        dtype: the dtype of the arrays.
        hyper: the names of the rule's hyper-parameters, with the number of settings of each.
    """

    def __init__(self, rows: Any, shape: tuple[int, ...], dtype: Any, hyper: Mapping[str, int]) -> None:
        self.rows, self._shape, self._hyper = rows, shape, hyper
        self.scalars = Scalars(self._column, dtype)
        self._places = {"lr": (c.RATE, 1), "step": (c.STEP, 1)}
        at = c.HYPER
        for name, count in hyper.items():
            self._places[name] = (at, count)
            at += count

    def _column(self, index: Any) -> Tensor:
        return Tensor(self.rows[:, index].reshape(self._shape))

    def setting(self, index: int) -> Scalar:
        """Returns the setting with this index in a set (see sets.py)."""
        return self.scalars.named(index)

    def __getattr__(self, name: str) -> Any:
        places = vars(self).get("_places", {})
        if name not in places:
            known = ", ".join(places)
            raise AttributeError(f"a formula has no hyper-parameter {name!r}; it has {known}.")
        at, count = places[name]
        numbers = tuple([self.setting(k) for k in range(at, at + count)])
        return numbers[0] if count == 1 else numbers


class Item:
    """The arrays of one network's parameter: the weights `p`, the slots and the clipped gradient `g`, of one shape and one dtype,
    and the hyper-parameters `h`. The dtype is that of the slots, float32 for half-precision weights.
    """

    def __init__(self, p: Any, g: Any, slots: Sequence[Any], h: Hyper, clips: tuple[bool, bool]) -> None:
        self._p, self._g, self.h, self._clips = p, g, h, clips
        self.slots = tuple([Tensor(slot) for slot in slots])
        self.shape: tuple[int, ...] = p.shape
        self.dtype = arena.slot_dtype(p)

    @property
    def p(self) -> Tensor:
        return in_dtype(Tensor(self._p), self.dtype)

    @property
    def g(self) -> Tensor:
        """The gradient, clipped by this property, which is therefore read once."""
        g = in_dtype(Tensor(self._g), self.dtype)
        scaled, by_value = self._clips
        if scaled:
            g = g * (self.h.setting(c.CLIP_FACTOR) * self.h.setting(c.GRADIENT_SCALE))
        if by_value:
            bound = self.h.setting(c.CLIP_VALUE)
            g = minimum(maximum(g, -bound), bound)
        return g


class Composed(Optimizer):
    """Base class of rules that are composed of pb ops on whole arrays.

    A subclass defines `slot_names`, `hyper` and, if needed, `slot_starts`, as every rule does, and either

    - `formula(p, g, slots, h)`, which returns (change, new slots): what is added to the weights of one network, and one array for
      each slot. All arrays have the shape and the dtype of p, which is float32 for half-precision weights. `h` is a Hyper:
      `h.lr`, `h.step` and the rule's hyper-parameters are numbers in device memory, which cannot be read on the host.
    - or `changes(items)`, which yields the same for each item, to compute several parameters together, such as matrices of one
      shape.

    Everything else is done around it. A step runs `begin_steps`, which computes the learning rates and counts of this step into a
    copy of the table of sets; then the formula on clipped gradients; and then the kernel of the rule "add", which adds the changes
    to the weights. That kernel applies bounds, masks and moving averages, writes deltas, and advances the sets, as it does for
    rules with a kernel. Groups, schedules, members, clipping, states, previews and captures are therefore those of Optimizer.

    If the optimizer trains M networks, the weights of which are stacked along the first axis, a formula receives the part of each
    network by itself, of shape p.shape[1:].
    """

    kernel = "add_step"
    composed = True
    _replays = True  # each op of the formula has a kernel
    _recorded: dict[Any, Any]  # recordings of steps, by the missing gradients and what is wanted
    _by_value: bool | None = None  # gradients are clipped by their value; None if that is not known
    _quick: Any = None  # the last recording of a step with all gradients, if a replay has no effects but those of its launches
    apart: Mapping[str, Any] = {"_replays": False, "_recorded": {}, "_quick": None}  # A recording would be used for one step only.
    hyper: ClassVar[Mapping[str, int]] = {}

    def changes(self, items: Sequence[Item]) -> Iterable[tuple[Tensor, Sequence[Tensor]]]:
        """Yields (change, new slots) for each item. The items belong to all parameters with a gradient, in their order, and for M
        networks there are M adjacent items for each parameter. The slots of an item are written before the next one is computed.
        """
        for item in items:
            yield self.formula(item.p, item.g, item.slots, item.h)

    # ---- memory

    def _make(self) -> None:
        super()._make()
        self._by_value = None
        self._recorded, self._quick = {}, None

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in super().__getstate__().items() if name not in ("_recorded", "_quick")}

    # ---- a step

    def _run(self, step: Step) -> None:
        """Runs a step: as a replay of its launches if kernels can do all of it, because consecutive elementwise ops then share a
        pass over memory. A captured function records the launches as its own.
        """
        quick, plain = self._quick, step.outputs is None and step.scaler is None
        if quick is not None and plain and quick.replays(step.grads):
            return
        before = listeners.truncate(0)  # The ops are hidden from tapes, as the work of kernels is.
        try:
            recording = self._recording(step)
            if recording is None:
                self._run_ops(step)
                return
            deltas = recording(*[Tensor(g) for g in step.grads if g is not None])
            if plain:
                self._quick = recording.quick()
            if step.outputs is not None:
                step.outputs[:] = [delta.array for delta in deltas]
        finally:
            listeners.restore(before)

    def _recording(self, step: Step) -> Captured[..., list[Tensor]] | None:
        """Returns a captured function that does a step like this one with the gradients that there are, and returns the deltas if
        they are wanted. None if the step has to run op by op.
        """
        if self._native is None or not self._replays or capturing.thread.recording is not None:
            return None
        missing, wanted = tuple([g is None for g in step.grads]), step.outputs is not None
        preview, scaler = step.preview, step.scaler
        key = missing, wanted, preview, scaler is not None
        if key not in self._recorded and len(self._recorded) < RECORDINGS:

            def run(*given: Tensor) -> list[Tensor]:
                memory, arrays, table = self._memory, iter(given), self._table.array
                found = [None if none else next(arrays).array for none in missing]
                outputs = [memory.kernels.fill(p.shape, p.dtype, 0) for p in memory.weights()] if wanted else None
                again = Step(memory, memory.kernels.copy(table) if preview else table, found, outputs, preview, scaler)
                self._run_ops(again)
                return [Tensor(delta) for delta in outputs or ()]

            self._recorded[key] = capture(run)
        return self._recorded.get(key)

    def _run_ops(self, step: Step) -> None:
        """Runs a step op by op."""
        self._memory.check_device(step.grads)
        self._guard_recording()
        with devices.working(self._memory.device):
            step.go = scaled.goes(self._table) if step.scaler is not None else None
            self._begin(step)
            self._launch(step)

    def _launch(self, step: Step) -> None:
        """Runs a step whose factor of clipping is in the table."""
        self._add(self._computed(step, self._begun(step.table)), step)

    def _facts(self, alone: bool) -> Any:
        masks = self._memory.masks is None, id(self._pruning)  # A preview replaces the list of masks for a moment.
        return super()._facts(alone), self._clips_by_value(), masks

    def _clips_by_value(self) -> bool:
        """True if gradients are clipped by their value."""
        if self._by_value is None:
            self._by_value = any([group.values()["clip_value"] != math.inf for group in self._groups])
        return self._by_value

    def _clips(self, step: Step) -> tuple[bool, bool]:
        """Returns two flags: gradients are scaled, by clip_norm, gradient_scale or a LossScaler, and they are clipped by value."""
        scales = step.normed or step.scaler is not None or self._stages["gradient_scale"].acts
        return scales, self._clips_by_value()

    def _write(self, groups: Sequence[Group], names: Sequence[str]) -> None:
        super()._write(groups, names)
        self._by_value = None

    def load_state_dict(self, given: Mapping[str, Any]) -> None:
        try:
            super().load_state_dict(given)
        finally:
            self._by_value = None

    def _computed(self, step: Step, now: Any) -> list[Any]:
        """Returns the changes of the parameters as arrays, None without a gradient, and writes the slots unless it is a preview.

        now: the table of sets after the step has begun.
        """
        return self._each(step.grads, step, now)

    def _each(self, grads: list[Any], step: Step, now: Any) -> list[Any]:
        """Returns the changes for some of the gradients, which are computed one after another."""
        clips = self._clips(step)
        places = [(i, m) for i, g in enumerate(grads) if g is not None and g.size for m in range(self._members)]
        items = [self._item(i, m, grads[i], now, clips) for i, m in places]
        parts: list[list[Tensor]] = [[] for _ in grads]
        for (i, m), (change, new) in zip(places, self.changes(items)):
            parts[i].append(change)
            if not step.preview:
                mask = self._part(self._memory.mask(i), m)
                for slot, value in zip(self._slots_of(i, m), new):
                    write_slot(slot, value, mask, step.go)
        return [self._joined(i, given) if given else grads[i] for i, given in enumerate(parts)]

    def _item(self, i: int, m: int, g: Any, now: Any, clips: tuple[bool, bool]) -> Item:
        row = i * self._members + m
        h = Hyper(now[row : row + 1], (), arena.slot_dtype(g), self.hyper)
        return Item(self._part(self._memory.exact(i).array, m), self._part(g, m), self._slots_of(i, m), h, clips)

    def _slots_of(self, i: int, m: int) -> list[Any]:
        """Returns the slots of parameter i that belong to network m."""
        return [self._part(slot[i], m) for slot in self._memory.slots.values() if slot[i] is not None]

    def _part(self, array: Any, m: int) -> Any:
        """Returns a view of the part of an array that belongs to network m, and None for None."""
        return array if not self._lead or array is None else array[m, ...]

    def _joined(self, i: int, parts: list[Tensor]) -> Any:
        """Returns the change of a parameter from those of its networks."""
        return self._as_change(stack(parts) if self._lead else parts[0], self._parameters[i].dtype)

    def _as_change(self, change: Tensor, dtype: Any) -> Any:
        """Returns the array of a change of weights of this dtype, as the kernel takes it: in their dtype, or exact if the kernel
        adds it to a master, or rounds their sum at random.
        """
        return change.array if self._rounds_at_random or self._keeps_masters else in_dtype(change, dtype).array

    # ---- the launches around a formula

    def _begun(self, table: Any) -> Any:
        """Returns a copy of the table of sets as it is after the step has begun."""
        kernels = self._memory.kernels if self._native is not None else None
        now = devices.copied(table) if kernels is None else kernels.copy(table)
        launches.begin_steps(kernels, table, now, len(self._parameters) * self._members)
        if kernels is not None and door.profiling:
            door.charge("begin_steps")
        return now

    def _add(self, added: list[Any], step: Step) -> None:
        """Adds the changes to the weights, and advances the sets."""
        given = added, step.table, step.outputs, step.preview, self._rounding()
        if self._native is None:
            reference.update(self, self._memory, self.kernel, *given)
            return
        try:
            self._native(self._memory.plan(), *given)
        except Refused as refused:
            remedy = " Let one thread do all steps of an optimizer." if "another thread" in str(refused) else ""
            raise PullbackError(f"{type(self).__name__}: {refused}.{remedy}") from None


def write_slot(slot: Any, value: Tensor, mask: Any, go: Tensor | None) -> None:
    """Writes a new slot, which is 0 for pruned weights if it has a number for each weight, if the step changes anything."""
    if mask is not None and mask.shape == slot.shape:
        value = where(Tensor(mask.view("bool")), value, 0.0)
    write(slot, scaled.chosen(go, value, slot).array)
