"""Composed rules for some of an optimizer's parameters, while another rule with a kernel updates the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..errors import PullbackError
from ..launch import capturing
from ..ops.elementwise import where
from ..ops.movement import concat
from ..ops.writing import write
from ..tensors.creation import asarray
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from . import groups as grouping, sets as c
from .composed import Composed
from .groups import Group
from .optimizer import Optimizer
from .stages.stage import Step
from .table import SetTable

_SHARED: Final = ("lr_scale", "clip_value", "ema")  # what is set for an optimizer holds for its auxiliary, too


class Auxiliary:
    """The rule that updates the parameters which an optimizer's own rule does not: `opt.auxiliary`.

    Attributes: `rule` (its class), `parameters`, and each hyper-parameter by its name. Setting one takes effect from the next step
    on, as for an optimizer: `opt.auxiliary.lr = 1e-4`.
    """

    def __init__(self, part: Optimizer) -> None:
        vars(self).update(_part=part)

    @property
    def rule(self) -> type[Optimizer]:
        return type(self._part)

    @property
    def parameters(self) -> list[Parameter]:
        return list(self._part._parameters)

    def __getattr__(self, name: str) -> Any:
        part = vars(self).get("_part")
        if part is None or name not in part._defaults:
            known = "" if part is None else f"; it has {', '.join(part._defaults)}"
            raise AttributeError(f"the auxiliary {type(part).__name__} has no attribute {name!r}{known}.")
        return getattr(part, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._part._defaults:
            raise PullbackError(f"{name} of the auxiliary cannot be set: {', '.join(self._part._defaults)} can.")
        self._part._set(name, value)

    def __dir__(self) -> list[str]:
        return ["parameters", "rule", *self._part._defaults]

    def __repr__(self) -> str:
        hyper = ", ".join([f"{name}={self._part._shown(name)}" for name in ("lr", *self._part.hyper)])
        return f"Auxiliary({self.rule.__name__}: {hyper}; {len(self.parameters)} parameters)"


class WithAuxiliary(Composed):
    """Base class of composed rules that leave some parameters to another rule.

    Both rules share the table of sets, in which each parameter has the hyper-parameters of its own rule, and the optimizer's
    groups, clipping, averages and masks. A subclass sets `_given` (the class of the auxiliary, its options, and patterns of names)
    before it calls this class's `__init__`, and defines `_takes`.
    """

    updates_each = False
    _given: tuple[Any, Mapping[str, Any], Sequence[str]]
    _auxiliary: Optimizer | None = None  # the auxiliary. It owns no sets, and its slots, averages and masks are this optimizer's.
    _mine: list[int]  # the parameters of the optimizer's own rule
    _others: list[int]
    _tick: Tensor

    def _takes(self, shape: tuple[int, ...]) -> bool:
        """True if the rule updates one network's parameter of this shape."""
        raise NotImplementedError

    @property
    def auxiliary(self) -> Auxiliary | None:
        """The rule of all other parameters, whose hyper-parameters are attributes. None if there are no others."""
        return None if self._auxiliary is None else Auxiliary(self._auxiliary)

    # ---- making

    def _grouped(self, listed: Sequence[tuple[str, list[int], dict[str, Any]]]) -> list[Group]:
        own = [{key: self._checked(key, x) for key, x in values.items() if key in self._defaults} for _, _, values in listed]
        self._divide(*grouping.members_of(type(self).__name__, self._parameters, [self._defaults, *own]))
        groups: list[Group] = []
        rules: list[tuple[Any, list[int]]] = [(self, self._mine), (self._auxiliary, self._others)]
        for name, entries, values in listed:
            parts = [(rule, [i for i in entries if i in mine]) for rule, mine in rules]
            parts = [(rule, mine) for rule, mine in parts if mine]
            known = list(dict.fromkeys([key for rule, _ in parts for key in rule._defaults]))
            for key in values:
                if key not in known:
                    raise PullbackError(
                        f'{type(self).__name__}: group "{name}" has a value for {key}; this group can have {", ".join(known)}.'
                    )
            for rule, mine in parts:
                label = name if len(parts) == 1 else f"{name} ({type(rule).__name__})"
                values_of_rule = {key: x for key, x in values.items() if key in rule._defaults}
                groups.append(Group(self, len(groups), label, mine, rule._checked_group(name, values_of_rule), rule))
        if self._auxiliary is not None:
            vars(self._auxiliary).update(_groups=groups)
        return groups

    def _divide(self, members: int, lead: int) -> None:
        """Decides which parameters are left to the auxiliary, and makes it."""
        rule, (kind, options, patterns) = type(self).__name__, self._given
        for pattern in patterns:
            if not any([grouping.matches(name, pattern) for name in self._names]):
                also = grouping.other_paths(self._parameters, self._names, pattern)
                raise PullbackError(
                    f'{rule}: auxiliary_names has "{pattern}", which names no parameter. {also}The names are '
                    f"{', '.join(self._names)}."
                )
        named = [any([grouping.matches(name, pattern) for pattern in patterns]) for name in self._names]
        shapes = [p.shape[lead:] for p in self._parameters]
        self._mine = [i for i, shape in enumerate(shapes) if not named[i] and self._takes(shape)]
        self._others = [i for i in range(len(shapes)) if i not in self._mine]
        if not self._mine:
            raise PullbackError(
                f"{rule}: there is no matrix among the parameters that it would update. Use another optimizer, or flatten=True for "
                f"weights with more axes."
            )
        if not self._others:
            return
        if kind is None:
            p = self._parameters[self._others[0]]
            raise PullbackError(
                f"{rule}: {p.label()} of shape {p.shape} is no matrix that {rule} updates. Leave it out, or give "
                f"auxiliary=optim.AdamW, which updates all such parameters."
            )
        auxiliary = kind([self._parameters[i] for i in self._others], **options, ema=self._defaults["ema"])
        if auxiliary._lead and (auxiliary._members, auxiliary._lead) != (members, lead):
            of_rule = members if lead else "none"
            raise PullbackError(
                f"{rule}: auxiliary_options has {auxiliary._members} values for as many members, and {rule} has {of_rule}. Give "
                f"{rule} as many, too: lr=[...]."
            )
        auxiliary._members, auxiliary._lead, auxiliary._averages_weights = members, lead, True
        auxiliary._table = SetTable(len(self._others), members)
        auxiliary._rounds_at_random, auxiliary._first = self._rounds_at_random, len(self._parameters)
        auxiliary._keeps_masters = self._keeps_masters
        self._auxiliary = auxiliary

    def _choose(self, values: list[Mapping[str, Any]]) -> None:
        if self._auxiliary is not None:
            self.slot_names = tuple(dict.fromkeys([*self.slot_names, *self._auxiliary.slot_names]))
            self.slot_starts = {**self._auxiliary.slot_starts, **self.slot_starts}
            self._replays = self._auxiliary._native is not None

    def _make(self) -> None:
        super()._make()
        self._tick = asarray(np.eye(c.SIZE)[c.CLOCK], device=self._memory.device)  # advances the clock of a set that is added to it
        self._lend()

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in super().__getstate__().items() if name != "_tick"}

    def _lend(self) -> None:
        """Gives the auxiliary its part of the memory of this optimizer."""
        part = self._auxiliary
        if part is not None:
            part._memory, part._averages_weights = self._memory.part(self._others, part.slot_names), self._averages_weights
            part._memory.updates_slots = True  # as its own kernel does

    def _formula_name(self) -> str:
        own = type(self).__name__.lower()
        return own if self._auxiliary is None else f"{own} and {self._auxiliary._formula_name()}"

    # ---- hyper-parameters

    def _set(self, name: str, value: Any) -> None:
        rules = [self] if self._auxiliary is None or name not in _SHARED else [self, self._auxiliary]
        free = [rule for rule in rules if any([group.rule is rule and name not in group.own for group in self._groups])]
        for rule in free or [self]:
            Optimizer._set(rule, name, value)

    def load_state_dict(self, given: Mapping[str, Any]) -> None:
        super().load_state_dict(given)
        if self._auxiliary is not None:
            self._auxiliary._steps = self._steps

    # ---- a step

    def _follow_parameters(self) -> None:
        super()._follow_parameters()
        if self._auxiliary is not None:
            self._auxiliary._follow_parameters()

    def _update(self, leaves: list[Any], *, preview: bool = False, wanted: bool = False, scaler: Any = None) -> list[Tensor] | None:
        deltas = super()._update(leaves, preview=preview, wanted=wanted, scaler=scaler)
        if self._auxiliary is not None and not preview and any([g is not None for g in leaves]):
            capturing.increment(self._auxiliary, "_steps")  # for the learning rate that the auxiliary shows
        return deltas

    def _launch(self, step: Step) -> None:
        part, grads, table = self._auxiliary, step.grads, step.table
        given = [grads[i] for i in self._others]
        if part is None or all([g is None for g in given]):
            super()._launch(step)
            return
        masks = self._memory.masks
        part._memory.masks = masks and [masks[i] for i in self._others]
        sets = concat([*[self._rows(table, i) for i in self._others], self._rows(table, len(grads))]).array
        others, idle = set(self._others), all([grads[i] is None for i in self._mine])
        if not idle:
            step.grads = [None if i in others else g for i, g in enumerate(grads)]
            super()._launch(step)
        outputs = None if step.outputs is None else [step.outputs[i] for i in self._others]
        part._run(Step(part._memory, sets, given, outputs, step.preview))
        if not step.preview:
            tick = self._tick if step.go is None else where(step.go, self._tick, 0.0)
            rows = {i: self._rows(sets, place) for place, i in enumerate(self._others)}
            rows |= {i: self._rows(table, i) + tick if idle else self._rows(table, i) for i in self._mine}
            write(table, concat([*[rows[i] for i in range(len(grads))], self._rows(table, len(grads))]).array)

    def _rows(self, table: Any, i: int) -> Tensor:
        """Returns the sets of parameter i in a table; for the number of all parameters what follows their sets."""
        first = i * self._members
        return Tensor(table[first : first + self._members] if i < len(self._parameters) else table[first:])
