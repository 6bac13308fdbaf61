"""The memory of an optimizer: what it keeps on the device for each of its Parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..backends import kernels_on
from ..errors import DeviceError, DTypeError
from ..ops.by_name import in_dtype
from ..ops.elementwise import equal, where
from ..tensors import devices
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from . import arena


class OptimizerMemory:
    """What an optimizer keeps for each of its Parameters. Lists have one entry for each of them.

    Attributes:
        parameters: the Parameters.
        members, lead: the number of members, and the number of axes of members, 0 or 1, with which all shapes begin.
        device: the device of the Parameters when this was made.
        kernels: the module of kernels for this device, or None.
        slots: the arrays of each slot by its name, None for a parameter without it.
        updates_slots: the update's kernel writes the slots, which other launches do for a composed rule.
        masters: the float32 values of half precision weights, None for others; or None.
        averages: the moving averages of the weights, or None.
        masks: the bytes that are 0 for pruned weights, None for others; or None.
        extra: the arrays that stages keep, by name.
        copied_masks: the memory in which previews choose masks, once there was one.
    """

    def __init__(
        self, parameters: list[Parameter], members: int, lead: int, slots: Mapping[str, Sequence[Any]],
        starts: Mapping[str, float], *, masters: bool, averages: bool, updates_slots: bool, extra: Sequence[str] = (),
    ) -> None:
        """Allocates the memory. slots: the shapes of each slot. starts: what its elements are at first, if not 0. extra: the names
        of arrays that stages keep.
        """
        arena.place(parameters)
        self.parameters, self.members, self.lead = parameters, members, lead
        self.device, self.updates_slots = parameters[0].device, updates_slots
        self.kernels: Any = kernels_on(self.device)
        self.slots = {name: arena.slots_like(parameters, starts.get(name, 0), shapes) for name, shapes in slots.items()}
        self.masters = [self._master(p) for p in parameters] if masters else None
        self.averages = arena.slots_like(parameters) if averages else None
        self.extra = {name: arena.slots_like(parameters) for name in extra}
        self._masks: list[Any] | None = None
        self.copied_masks: list[Any] | None = None
        self._plan: Any = None
        self._placement: list[int] = []  # the moves of each parameter when they were last checked
        self._dtypes = [p.dtype for p in parameters]

    def _master(self, p: Parameter) -> Any:
        if p.dtype.itemsize > 2:
            return None
        with devices.working(self.device):
            return p.array.astype("float32")

    @property
    def masks(self) -> list[Any] | None:
        """The bytes that are 0 for pruned weights, None for others; or None without pruned weights."""
        return self._masks

    @masks.setter
    def masks(self, masks: list[Any] | None) -> None:
        if [*map(id, masks or ())] != [*map(id, self._masks or ())]:
            self._plan = None
        self._masks = masks

    # ---- reading

    def weight(self, i: int) -> Any:
        """Returns the array that an update of parameter i changes: that of the parameter, or its master."""
        master = self.masters and self.masters[i]
        return self.parameters[i].array if master is None else master

    def copy(self, i: int) -> Any:
        """Returns the own array of parameter i if it has a master, because an update writes both, and otherwise None."""
        return None if self.masters is None or self.masters[i] is None else self.parameters[i].array

    def weights(self) -> list[Any]:
        """Returns `weight` of each parameter."""
        return [self.weight(i) for i in range(len(self.parameters))]

    def copies(self) -> list[Any]:
        """Returns `copy` of each parameter."""
        return [self.copy(i) for i in range(len(self.parameters))]

    def exact(self, i: int) -> Tensor:
        """Returns the weights that an update of parameter i changes: those of the parameter itself, or its master.

        A parameter that is not the rounded master, because it has been assigned since the last step, replaces the master.
        """
        p = Tensor(self.parameters[i].array)
        if self.masters is None or self.masters[i] is None:
            return p
        master = Tensor(self.masters[i])
        return where(equal(in_dtype(master, p.dtype), p), master, in_dtype(p, master.dtype))

    def mask(self, i: int) -> Any:
        """Returns the mask of parameter i, None without one."""
        return None if self._masks is None else self._masks[i]

    def kept(self) -> dict[str, list[Any]]:
        """Returns all state tensors by name: the slots, "average", "master", and what stages keep."""
        more = {"average": self.averages, "master": self.masters}
        return {**self.slots, **{name: arrays for name, arrays in more.items() if arrays is not None}, **self.extra}

    def written(self, i: int) -> list[Any]:
        """Returns the arrays of parameter i that may change after the update's kernel."""
        extra = [arrays[i] for arrays in self.extra.values()]
        found = [self.weight(i), self.copy(i), self.averages and self.averages[i], *extra]
        return [array for array in found if array is not None]

    def kept_of(self, i: int) -> dict[str, Any]:
        """Returns the state tensors of parameter i by name."""
        return {name: arrays[i] for name, arrays in self.kept().items() if arrays[i] is not None}

    def copied(self, i: int) -> dict[str, Tensor]:
        """Returns copies of the state tensors of parameter i by name."""
        return {name: Tensor(devices.copied(array)) for name, array in self.kept_of(i).items()}

    def new_deltas(self, grads: Sequence[Any]) -> list[Any]:
        """Returns memory for the changes of all weights: zeros for those without a gradient, otherwise uninitialized."""
        weights, xp = self.weights(), devices.array_module(self.device)
        empty = xp.empty if self.kernels is None else self.kernels.empty  # from the pool: new pages cost more than a step
        with devices.working(self.device):
            new = [None if g is None else empty(p.shape, p.dtype) for p, g in zip(weights, grads)]
        return [devices.full(self.device, p.shape, 0, p.dtype) if x is None else x for p, x in zip(weights, new)]

    # ---- checks

    def follow(self) -> None:
        """Drops the plan if a parameter has moved to different memory. Raises DeviceError or DTypeError if the state that was made
        for a parameter no longer fits it.
        """
        placement = [p.storage.placement for p in self.parameters]
        if placement == self._placement:
            return
        for p, dtype in zip(self.parameters, self._dtypes):
            if p.device != self.device:
                raise DeviceError(
                    f"step: {p.label()} has moved to {p.device}, but the optimizer's state is on {self.device}. Make the "
                    f"optimizer after moving the parameters."
                )
            if p.dtype != dtype:
                raise DTypeError(
                    f"step: {p.label()} has changed its dtype from {dtype} to {p.dtype}, but the optimizer's state was made for "
                    f"{dtype}. Make the optimizer after net.to(pb.{p.dtype})."
                )
        self._plan, self._placement = None, placement

    def check_device(self, grads: Sequence[Any]) -> None:
        """Raises DeviceError if a gradient is not on the device of the state."""
        for p, g in zip(self.parameters, grads):
            if g is not None and devices.device_of(g) != self.device:
                raise DeviceError(
                    f"step: the gradient of {p.label()} is on {devices.device_of(g)}, the parameter on {self.device}. Move it "
                    f'with .to("{self.device}").'
                )

    def plan(self) -> Any:
        """Returns the kernel's table of the addresses of weights and slots."""
        if self._plan is None:
            slots, optional = [*self.slots.values()] if self.updates_slots else [], (self.averages, self._masks, self.copies())
            self._plan = self.kernels.update_plan(self.weights(), slots, *optional, self.members)
        return self._plan

    # ---- parts and copies

    def part(self, entries: Sequence[int], names: Sequence[str] | None = None) -> OptimizerMemory:
        """Returns the memory of an optimizer that has some of the parameters and of the slots, which is a part of this one.

        names: those of the slots in their order, None for all.
        """
        pick = lambda each: each and [each[i] for i in entries]
        lists = {name: pick(vars(self)[name]) for name in ("parameters", "masters", "averages", "_masks", "_dtypes")}
        slots = {name: pick(self.slots[name]) for name in (self.slots if names is None else names)}
        other = object.__new__(OptimizerMemory)
        extra = {name: pick(arrays) for name, arrays in self.extra.items()}
        vars(other).update(vars(self), **lists, slots=slots, extra=extra, _plan=None, _placement=[])
        return other

    def on_host(self) -> dict[str, Any]:
        """Returns copies of all state tensors and of the masks as NumPy arrays. It waits for the steps."""
        copied = lambda arrays: [None if x is None else np.array(devices.move(x, "cpu")) for x in arrays]
        return {"kept": {name: copied(arrays) for name, arrays in self.kept().items()}, "masks": copied(self._masks or [])}

    def restore(self, saved: dict[str, Any]) -> None:
        """Writes what `on_host` returned into this memory, which was made for the same parameters."""
        masks = [None if mask is None else devices.move(mask, self.device) for mask in saved["masks"]]
        self.masks = masks or None
        for name, arrays in self.kept().items():
            for array, value in zip(arrays, saved["kept"][name]):
                if array is not None:
                    devices.write(array, devices.move(value, self.device))
