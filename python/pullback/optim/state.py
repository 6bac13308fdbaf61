"""The state of an optimizer as a dict, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import PullbackError
from ..launch import capturing
from ..tensors import devices, dtypes
from ..tensors.creation import asarray
from ..tensors.tensor import Tensor
from . import groups as grouping, sets as c
from .launcher import bounds_of
from .program import Program
from .schedules.schedule import Schedule
from .table import SetTable


def saved(opt: Any) -> dict[str, Any]:
    """Returns the state of an optimizer."""
    capturing.refuse("state_dict()", "Ask for it outside.")
    more: dict[str, Any] = {} if opt.pruning is None else {"pruning": opt.pruning.saved()}
    for stage in opt._stages.values():
        more |= stage.saved()
    table, memory = opt._table, opt._memory
    sets, rows = np.split(np.array(table.on_host()), [table.count])
    sets[:, c.CLIP_FACTOR] = 1.0  # that of the last step, which no later step reads
    return {
        "rule": type(opt).__name__,
        "kernel": opt._formula_name(),  # rules of one name may have several formulas
        "steps": opt.steps,
        "settings": {name: Tensor(rows) for name, rows in zip(opt._names, sets.reshape(-1, table.members, c.SIZE))},
        "slots": {name: memory.copied(i) for i, name in enumerate(opt._names)},
        **more,
        "program": Tensor(rows),
    }


def load(opt: Any, state: Mapping[str, Any]) -> None:
    """Restores a state. Raises PullbackError, and then nothing has changed."""
    capturing.refuse("loading an optimizer's state", "Load it outside.")
    steps = _checked(opt, state)
    check_entries("the dict of settings", state["settings"], opt._names)
    check_entries("the dict of slots", state["slots"], opt._names)
    loads: list[tuple[Any, Any]] = []
    rows: list[Any] = []
    program = _program(opt._table, state["program"])
    table, memory = opt._table, opt._memory
    for i, name in enumerate(opt._names):
        numbers = floats(f'the settings of "{name}"', state["settings"][name], (table.members, c.SIZE), "cpu").astype(np.float64)
        for row in numbers:
            c.check(name, row.tolist())
        rows.append(numbers)
        slots = state["slots"][name]
        mine = memory.kept_of(i)
        check_entries(f'the state of "{name}"', slots, list(mine))
        for slot_name, slot in mine.items():
            loads.append((slot, floats(f'slot "{slot_name}" of "{name}"', slots[slot_name], slot.shape, memory.device)))
    values = [_of_group(opt, group, rows, program) for group in opt._groups]
    sets = np.concatenate(rows)
    found = {name: stage.found(state, sets) for name, stage in opt._stages.items()}
    sets[:, c.LEAST : c.MOST + 1] = np.repeat(bounds_of(memory.parameters), table.members, axis=0)
    masks, sparsities = ([], {}) if opt.pruning is None else opt.pruning.checked(state.get("pruning"))
    for target, value in [*loads, *masks]:
        devices.write(target, value)
    table.load([sets], program)
    if opt.pruning is not None:
        opt.pruning.restore(sparsities)
    opt._steps = steps
    _keep(opt._groups, values)
    for name, value in found.items():
        opt._stages[name].set(value, table)
    opt._follow_stages()


def _keep(groups: Sequence[Any], values: Sequence[dict[str, Any]]) -> None:
    """Makes the values in a state those of the groups and of their rules."""
    seen: set[Any] = set()
    for group, saved in zip(groups, values):
        for name, value in saved.items():
            if name not in group.own and (id(group.rule), name) not in seen:
                seen.add((id(group.rule), name))
                group.rule._defaults[name] = value  # The first group that has no value of its own decides.
    for group, saved in zip(groups, values):
        defaults = group.rule._defaults
        group.own.update({name: value for name, value in saved.items() if name in group.own or differ(value, defaults[name])})


def _checked(opt: Any, state: Any) -> int:
    """Returns the number of steps of a state. Raises PullbackError unless it is one of the optimizer's rule."""
    if isinstance(state, Mapping) and "slots" in state and "program" not in state:
        raise PullbackError('load_state_dict: the state has no "program"; an earlier version, with other settings, has saved it.')
    own = [stage.name for stage in opt._stages.values() if not stage.in_sets]
    check_entries(
        "the state", state, ["rule", "kernel", "steps", "settings", "slots", "program"], optional=("pruning", *own)
    )
    if opt.pruning is None and "pruning" in state:
        raise PullbackError(
            "load_state_dict: the state has masks of pruned weights; make optim.Pruning(opt, ...) before loading it."
        )
    if state["rule"] != type(opt).__name__:
        raise PullbackError(f"load_state_dict: the state is of rule {state['rule']}, this optimizer is {type(opt).__name__}.")
    steps = state["steps"]
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 0:
        raise PullbackError(f"load_state_dict: steps={steps!r} is not a valid number of steps.")
    if state["kernel"] != opt._formula_name():
        raise PullbackError(
            f"load_state_dict: the state is of the formula {state['kernel']!r}, this optimizer's is {opt._formula_name()!r}."
        )
    return int(steps)


def _program(table: SetTable, saved: Any) -> Program:
    """Returns the program of a state, with at least as many rows as the table's. Raises PullbackError."""
    shape = saved.shape if isinstance(saved, (Tensor, np.ndarray)) and len(saved.shape) == 2 else (0, c.SIZE)
    rows = floats("the program", saved, (shape[0], c.SIZE), "cpu").astype(np.float64)
    more = max(0, len(table.program.rows) - len(rows))
    return Program(np.concatenate([rows, np.zeros((more, c.SIZE))]), table.members)


def _of_group(opt: Any, group: Any, rows: list[Any], program: Program) -> dict[str, Any]:
    """Returns the values of a group of parameters in a state, and enters its schedules into the program. Raises PullbackError if
    its parameters differ.
    """
    placed = [[program.read(row[c.SCHEDULE : c.HYPER].tolist()) for row in rows[i]] for i in group.entries]
    if not group.entries:
        return group.values()
    per_entry = [values_in(group.rule, rows[i], [each.schedule for each in of]) for i, of in zip(group.entries, placed)]
    program.placed[group.number] = [
        first._replace(rows=frozenset().union(*[other.rows for other in others])) for first, *others in zip(placed[0], *placed)
    ]
    for name, value in per_entry[0].items():
        if any([differ(other[name], value) for other in per_entry]):
            raise PullbackError(
                f"load_state_dict: the parameters of group {group.name!r} have several values of {name} in the state; make the "
                f"optimizer with the groups that it had when the state was saved."
            )
    group.rule._validate({**group.values(), **per_entry[0]})
    return per_entry[0]


def values_in(opt: Any, rows: Any, schedules: list[Schedule]) -> dict[str, Any]:
    """Returns the learning rate and the hyper-parameters that the sets of a parameter hold, one set and schedule per member."""
    settings: dict[str, Any] = {"lr": schedules[0] if all([s == schedules[0] for s in schedules]) else schedules}
    settings["lr_scale"] = _one_or_all(rows[:, c.RATE_SCALE])
    settings["clip_value"] = grouping.unlimited(type(opt).__name__, "clip_value", float(rows[0, c.CLIP_VALUE]))
    settings["ema"] = opt._checked("ema", _one_or_all(rows[:, c.KEEP])) if opt._averages_weights else None
    at = c.HYPER
    for name, count in opt.hyper.items():
        parts = [_one_or_all(rows[:, k]) for k in range(at, at + count)]
        settings[name] = opt._checked(name, opt._as_given(name, parts[0] if count == 1 else tuple(parts)))
        at += count
    return settings


def _one_or_all(column: Any) -> Any:
    return float(column[0]) if (column == column[0]).all() else np.array(column)


def differ(a: Any, b: Any) -> bool:
    """True if two values of a hyper-parameter are not the same numbers or schedules."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return any([differ(x, y) for x, y in zip(a, b)])
    return not (np.shape(a) == np.shape(b) and np.all(np.asarray(a) == np.asarray(b)))


def check_entries(label: str, entries: Any, wanted: Sequence[str], optional: Sequence[str] = ()) -> None:
    """Raises PullbackError unless this is a dict with exactly these keys. It may also have the optional ones."""
    if not isinstance(entries, Mapping):
        raise PullbackError(f"load_state_dict: {label} is a {type(entries).__name__}; give the dict that state_dict() made.")
    if set(entries) - {*optional} != set(wanted):
        names = label in ("the dict of settings", "the dict of slots")
        remedy = " docs/optimizers.md shows how a state is changed for new or renamed Parameters." if names else ""
        raise PullbackError(
            f"load_state_dict: {label} has entries for {sorted(map(str, entries))}, not for {sorted(wanted)}.{remedy}"
        )


def floats(label: str, value: Any, shape: tuple[int, ...], device: str) -> Any:
    """Returns the array of a tensor in a state. Raises PullbackError if it is not floats of this shape."""
    if not isinstance(value, (Tensor, np.ndarray, np.generic)):
        raise PullbackError(f"load_state_dict: {label} is a {type(value).__name__}; it must be a tensor.")
    array = asarray(value, device=device).array
    if array.shape != shape or not dtypes.is_float(array.dtype):
        raise PullbackError(f"load_state_dict: {label} has shape {array.shape} and dtype {array.dtype}; it must be floats {shape}.")
    return array
