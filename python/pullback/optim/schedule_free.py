"""Schedule-free optimizers, which average the weights instead of lowering the learning rate (kernels: csrc/math/update.h)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from weakref import ref

import numpy as np

from ..errors import PullbackError
from ..hashing import hash
from ..launch import capturing
from ..ops.writing import write
from ..tensors import devices
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from . import arena, sets as c, state
from .groups import Betas, Number, Rate
from .optimizer import Optimizer
from .options import Options, Params, Unpack
from .rules import mixed, penalised
from .stages.projection import projected
from .stages.stage import Stage

_MODE = c.STATE + 3  # the number of a set that is 1 in evaluation mode; the kernels leave it as it is


class _ScheduleFree(Optimizer):
    """A rule whose Parameters hold the points y, at which gradients are computed, or in evaluation mode their average x.

    y = (1 - beta) z + beta x, with the sequence z of a slot and beta the momentum, or the first of the betas.
    """

    def _make(self) -> None:
        for stage in self._stages.values():
            if stage.acts and type(stage).after is not Stage.after:
                rule = type(self).__name__
                raise PullbackError(f"{rule}: {stage.name} changes the weights, of which this rule has two kinds. Leave it out.")
        super()._make()
        # In evaluation mode y of each Parameter, with the version or the hash of its x. None for one whose y is not known.
        self._trained: list[tuple[Any, int | str] | None] = []
        for p in self._parameters:
            p.storage.followers = [*[other for other in p.storage.followers if other() is not None], ref(self)]

    def __getstate__(self) -> dict[str, Any]:
        kept = {i: np.array(devices.move(y, "cpu")) for i, y in self._points().items()}
        return {**super().__getstate__(), "_trained": kept}

    def _validate(self, values: Mapping[str, Any]) -> None:
        if np.any(np.asarray(self._beta(values)) == 0):
            name = "momentum" if "momentum" in self.hyper else "betas"
            raise PullbackError(f"{type(self).__name__}: {name}={values[name]}; the average needs a momentum above 0, such as 0.9.")

    def _beta(self, values: Mapping[str, Any]) -> Any:
        return values["momentum"] if "momentum" in self.hyper else values["betas"][0]

    @property
    def evaluating(self) -> bool:
        """True after `eval()`: the Parameters hold the average of the weights, and steps are refused. A read waits for steps."""
        return bool(self._table.on_host()[0, _MODE])

    def eval(self) -> None:
        """Puts the average x of the weights into the Parameters, for evaluation. `Module.eval()` calls this."""
        self._switch(True)

    def train(self) -> None:
        """Puts the points y back into the Parameters, bit for bit unless they were changed. `Module.train()` calls this."""
        self._switch(False)

    def _switch(self, evaluating: bool) -> None:
        capturing.refuse("train() or eval()", "Call it outside.")
        if evaluating == self.evaluating:
            return
        self._follow_parameters()
        saved = self._trained
        self._trained = []
        before = [devices.copied(p.array) for p in self._parameters] if evaluating else []
        table = self._table.on_host()
        for group in self._groups:
            beta = np.asarray(self._beta(group.values()), np.float64)
            for i in group.entries:
                p, kept = self._parameters[i], saved[i] if saved else None
                if kept is not None and _is_at(p, kept[1]):
                    write(p.array, kept[0])
                elif table[i * self._members, c.STEP] > 0:
                    self._mix(p, i, 1 - 1 / beta if evaluating else 1 - beta)
                p.storage.changed()
        self._trained = [(array, p.storage.version) for array, p in zip(before, self._parameters)]
        self._table.write_all(_MODE, float(evaluating))

    def _mix(self, p: Parameter, i: int, share: Any) -> None:
        """Moves a Parameter by a share, one or one per member, of its way to z."""
        z = Tensor(self._memory.slots["z"][i])
        share = share.reshape((-1,) + (1,) * (len(p.shape) - 1)) if share.ndim else share
        weights = Tensor(p.array).astype(arena.slot_dtype(p))
        moved = weights + Tensor(devices.move(np.asarray(share, z.dtype), self._memory.device)) * (z - weights)
        write(p.array, projected(self._memory, i, moved.astype(p.dtype)).array)

    def _update(self, leaves: list[Any], *, preview: bool = False, wanted: bool = False, scaler: Any = None) -> list[Tensor] | None:
        if capturing.thread.recording is not None:  # A replay in evaluation mode records itself again, and is refused then.
            capturing.thread.recording.guard(self._parameters, lambda: not self._trained)
        if self._trained:
            raise PullbackError(
                f"{type(self).__name__}: the Parameters hold the average of the weights, at which the rule takes no gradients. "
                f"Call opt.train(), or train() of the network, before the forward pass."
            )
        return super()._update(leaves, preview=preview, wanted=wanted, scaler=scaler)

    def _points(self) -> dict[int, Any]:
        """Returns in evaluation mode y of the Parameters that have not been changed since, by their indices."""
        kept = {i: one for i, one in enumerate(self._trained) if one is not None}
        return {i: y for i, (y, mark) in kept.items() if _is_at(self._parameters[i], mark)}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state. In evaluation mode it has y of each Parameter, too, and the hash of the x that the Parameter holds."""
        saved = super().state_dict()
        found = [(self._names[i], y, hash(self._parameters[i])) for i, y in self._points().items()]
        kept = {name: {"y": Tensor(devices.copied(y)), "x": x} for name, y, x in found}
        return {**saved, "evaluation": kept} if self._trained else saved

    def load_state_dict(self, given: Mapping[str, Any]) -> None:
        """Restores a state. If it was saved in evaluation mode, `train()` puts y back into each Parameter that then holds its x."""
        rest: Any = given
        points: Any = {}
        if isinstance(rest, Mapping):
            rest = {**rest}
            points = rest.pop("evaluation", points)
        named = [name for name in self._names if isinstance(points, Mapping) and name in points]
        state.check_entries("the evaluation", points, named)
        kept = {i: self._point(i, points[name]) for i, name in enumerate(self._names) if name in named}
        super().load_state_dict(rest)
        self._restore_mode(kept)

    def _point(self, i: int, given: Any) -> tuple[Any, str]:
        """Returns y of a parameter in a state, and the hash of its x. Raises PullbackError."""
        p = self._parameters[i]
        what = f'the evaluation of "{self._names[i]}"'
        state.check_entries(what, given, ["y", "x"])
        return Tensor(state.floats(what, given["y"], p.shape, p.device)).astype(p.dtype).array, str(given["x"])

    def __setstate__(self, state: dict[str, Any]) -> None:
        points = state.pop("_trained")
        super().__setstate__(state)
        self._restore_mode({i: (devices.move(y, self._memory.device), self._parameters[i].version) for i, y in points.items()})

    def _restore_mode(self, points: Mapping[int, tuple[Any, int | str]]) -> None:
        """Follows the mode in the sets, after they have been replaced."""
        self._trained = [points.get(i) for i in range(len(self._parameters))] if self.evaluating else []

    def _rate(self, h: Any) -> float:
        return h.lr * (h.step / h.warmup_steps) if h.step <= h.warmup_steps else h.lr

    def _step_numbers(self, h: Any) -> Sequence[float]:
        _, total, most, _ = h.numbers if h.step > 1 else (0.0, 0.0, 0.0, 0.0)
        most = max(h.lr, most)
        weight = h.step**h.r * most**h.weight_lr_power
        total += weight
        return weight / total if total > 0 else 0.0, total, most

    def _moved(self, y: Any, g: Any, z: Any, beta: float, h: Any) -> tuple[Any, Any]:
        """Returns the change of y, and z moved along g."""
        z, share = y if h.step <= 1 else z, h.numbers[0]
        return share * (z - y) + (h.lr * (beta * (1 - share) - 1)) * g, z - h.lr * g


def _is_at(p: Parameter, mark: int | str) -> bool:
    """True if the Parameter has this version, or a value with this hash."""
    return mark == (p.version if isinstance(mark, int) else hash(p))


class ScheduleFreeSGD(_ScheduleFree):
    """Schedule-free stochastic gradient descent (Defazio et al. 2024): no schedule and no last step have to be known.

    weight_decay is an L2 penalty at y. The rate rises linearly in the first warmup_steps. The average weighs step t by t^r, and by
    the largest rate so far to the power of weight_lr_power. The slot "z" is the sequence of plain gradient steps. Call `opt.eval()`
    before evaluation and `opt.train()` before further training; `eval()` and `train()` of a Module with all the Parameters do it. A
    step moves 20 bytes per float32 weight.
    """

    kernel = "schedule_free_step"
    slot_names = ("z",)
    hyper: ClassVar[Mapping[str, int]] = {"momentum": 1, "weight_decay": 1, "warmup_steps": 1, "r": 1, "weight_lr_power": 1}
    momentum: Number
    weight_decay: Number
    warmup_steps: Number
    r: Number
    weight_lr_power: Number

    def __init__(
        self, params: Params, lr: Rate = 1.0, momentum: Number = 0.9, weight_decay: Number = 0, warmup_steps: Number = 0,
        r: Number = 0, weight_lr_power: Number = 2, **options: Unpack[Options],
    ) -> None:
        given = (momentum, weight_decay, warmup_steps, r, weight_lr_power)
        hyper = dict(zip(self.hyper, given))
        super().__init__(params, lr, hyper, **options)

    def formula(self, p: Any, g: Any, slots: Any, h: Any) -> tuple[Any, Sequence[Any]]:
        change, z = self._moved(p, penalised(g, p, h.weight_decay), slots[0], h.momentum, h)
        return change, (z,)


class ScheduleFreeAdamW(_ScheduleFree):
    """Schedule-free AdamW (Defazio et al. 2024, Alg. 1): no schedule and no last step have to be known.

    As ScheduleFreeSGD, with gradients divided by the root of their mean square, which the slot "v" holds, and decoupled weight
    decay at y. The bias correction of v is part of the rate. A step moves 28 bytes per float32 weight.
    """

    kernel = "schedule_free_adamw_step"
    slot_names = ("v", "z")
    hyper: ClassVar[Mapping[str, int]] = {
        "betas": 2, "eps": 1, "weight_decay": 1, "warmup_steps": 1, "r": 1, "weight_lr_power": 1,
    }
    betas: Betas
    eps: Number
    weight_decay: Number
    warmup_steps: Number
    r: Number
    weight_lr_power: Number

    def __init__(
        self, params: Params, lr: Rate = 2.5e-3, betas: Betas = (0.9, 0.999), eps: Number = 1e-8, weight_decay: Number = 0,
        warmup_steps: Number = 0, r: Number = 0, weight_lr_power: Number = 2, **options: Unpack[Options],
    ) -> None:
        given = (betas, eps, weight_decay, warmup_steps, r, weight_lr_power)
        hyper = dict(zip(self.hyper, given))
        super().__init__(params, lr, hyper, **options)

    def _rate(self, h: Any) -> float:
        return super()._rate(h) * (1 - h.betas[1] ** h.step) ** 0.5

    def formula(self, p: Any, g: Any, slots: Any, h: Any) -> tuple[Any, Sequence[Any]]:
        v = mixed(slots[0], g * g, h.betas[1])
        change, z = self._moved(p, penalised(g / (np.sqrt(v) + h.eps), p, h.weight_decay), slots[1], h.betas[0], h)
        return change, (v, z)


# __all__ is computed so that each rule is listed once. A type checker assumes all public names defined here, which are the same.
__all__ = [
    name
    for name, value in globals().items()
    if isinstance(value, type) and value.__module__ == __name__ and not name.startswith("_")
]
