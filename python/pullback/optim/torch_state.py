"""The state of optimizers of torch.optim, and back: slots, step counts and hyper-parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, NamedTuple

import numpy as np

from ..duck import has
from ..errors import PullbackError, ShapeError
from ..launch import capturing
from ..tensors import devices
from ..tensors.creation import asarray
from . import sets as c
from .arguments import trainable
from .optimizer import Optimizer
from .options import Params
from .torch_rules import IMPLEMENTATION, ROWS, TorchRule, rule_of_optimizer, rule_of_state

# ---- to torch


def to_torch(opt: Optimizer) -> dict[str, Any]:
    """Returns the state of an optimizer for `load_state_dict` of the torch optimizer of the same name, with torch tensors.

    Make the torch optimizer with the same groups of parameters, in the order of `opt.groups`, and with the same flags; it then has
    the slots, the steps of each parameter, and the hyper-parameters. The learning rate is the present one: a schedule stays here.
    Clipping, constraints, masks and averages of weights, which torch's optimizers lack, are not part of it, and neither are the
    weights.

    Raises PullbackError if torch.optim has no such rule, if the optimizer has several values for members, or without torch.
    """
    capturing.refuse("to_torch()", "Call it outside.")
    name = next((name for name, row in ROWS.items() if row.rule is type(opt)), None)
    if name is None:
        raise PullbackError(f"to_torch: {type(opt).__name__} has no counterpart in torch.optim; {', '.join(ROWS)} have one.")
    own: Any = opt
    if own._lead:
        raise PullbackError(
            f"to_torch: this {name} has {own._members} values for as many members, and a torch optimizer has one. Make an "
            f"optimizer for each member."
        )
    if lacks := ROWS[name].lacks(opt):
        raise PullbackError(f"to_torch: this {name} has {lacks}, which torch.optim.{name} has not.")
    torch = _torch()
    row, table = ROWS[name], own._table.on_host()
    groups: list[dict[str, Any]] = []
    state: dict[int, dict[str, Any]] = {}
    for group in opt.groups:
        first = sum([len(other["params"]) for other in groups])
        groups.append({**_values(opt, row, group), "params": list(range(first, first + len(group.entries)))})
        for number, i in enumerate(group.entries, first):
            if entry := _entry(torch, opt, row, own._parameters[i], table[i]):
                state[number] = entry
    return {"state": state, "param_groups": groups}


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise PullbackError("to_torch: it returns torch tensors, and torch is not installed here: pip install torch.") from None
    return torch


def _values(opt: Any, row: TorchRule, group: Any) -> dict[str, Any]:
    """Returns the hyper-parameters of a group, as torch names them."""
    values = group.values()
    rate = values["lr"].rate(opt.steps) * values["lr_scale"]
    flags = {name: read(opt) for name, read in row.flags.items()}
    return {"lr": rate, **{name: getattr(group, name) for name in row.hyper()}, **flags, **row.fixed, **IMPLEMENTATION}


def _entry(torch: Any, opt: Any, row: TorchRule, p: Any, settings: Any) -> dict[str, Any]:
    """Returns torch's state of a parameter: nothing if it has none."""
    if settings[c.STEP] == 0 and not row.begins:
        return {}
    slots = {row.slots[name]: torch.tensor(slot.numpy()) for name, slot in opt.slots(p).items() if name in row.slots}
    counts = {"step": torch.tensor(float(settings[c.STEP]))} if row.counts else {}
    return {**counts, **slots, **{name: torch.tensor(float(settings[at]), dtype=torch.float64) for name, at in row.numbers.items()}}


# ---- from torch


class _Loaded(NamedTuple):
    """What torch's state says of one parameter: its steps, its slots by our names, and numbers of its set by their indices."""

    steps: int
    slots: dict[str, Any]
    numbers: dict[int, float]


class _State(NamedTuple):
    """A torch state whose structure has been checked.

    Attributes:
        groups: its groups of parameters.
        keys: the keys of the parameters, in the order of the groups.
        entries: the state of each parameter that has one, without values that are None.
    """

    groups: list[Mapping[str, Any]]
    keys: list[str]
    entries: dict[str, dict[str, Any]]


def from_torch(torch_opt: Any, params: Params, *, rule: str | type[Any] | None = None) -> Optimizer:
    """Returns an optimizer for `params` that goes on where a torch optimizer stopped.

    Args:
        torch_opt: an optimizer of torch.optim, or its `state_dict()`, also one that was read from JSON or whose tensors are arrays
            of NumPy or JAX. torch itself is not needed then.
        params: the Parameters in the order in which the torch optimizer has its own, that of its groups. Their values are not
            changed.
        rule: the name of the rule that wrote a `state_dict()`, such as "AdamW", or its class. A dict needs it if it is of an
            earlier version of torch and several rules had such a state, or if its groups have entries of your own.

    The optimizer has the rule, groups, hyper-parameters, slots and step counts of torch's. torch's SGD counts no steps: `steps` is
    then 1 if there is a momentum buffer, otherwise 0. A torch scheduler is not part of the state; set `opt.lr` to a schedule.

    Raises PullbackError for a rule that is not here or a state that is none, ShapeError if the parameters are others. Nothing has
    changed then.
    """
    capturing.refuse("from_torch()", "Call it outside.")
    state, parameters = _state_of(torch_opt), trainable("from_torch", params)
    if isinstance(torch_opt, Mapping):
        name = rule_of_state(state.groups, set().union(*state.entries.values()), rule)
    else:
        name = rule_of_optimizer(torch_opt, state.groups, rule)
    row = ROWS[name]
    if len(state.keys) != len(parameters):
        raise ShapeError(
            f"from_torch: the torch optimizer has {len(state.keys)} parameters, and {len(parameters)} trainable ones were given. "
            f"Give those that it updates, in its order."
        )
    values = [_read_group(name, row, group) for group in state.groups]
    shared = {flag: values[0][flag] for flag in row.flags}
    for flag, value in [*shared.items(), *row.fixed.items()]:
        if any([group.get(flag, value) != value for group in [*values, *state.groups]]):
            raise PullbackError(f"from_torch: the groups have several values of {flag}, which is one for the whole optimizer here.")
    own = [{key: x for key, x in group.items() if key not in shared} for group in values]
    loaded = [_read(row, key, state.entries.get(key, {})) for key in state.keys]
    opt = row.rule(_listed(parameters, state.groups, own), **own[0], **shared, **row.options)
    _check_slots(opt, row, loaded)
    _load(opt, loaded)
    return opt


def _state_of(given: Any) -> _State:
    """Returns the state of a torch optimizer, or of its state_dict. Raises PullbackError."""
    asked = given if isinstance(given, Mapping) else given.state_dict() if has(given, "state_dict") else None
    state: Any = asked if isinstance(asked, Mapping) else {}
    groups = state.get("param_groups")
    if not (groups and isinstance(groups, (list, tuple)) and isinstance(entries := state.get("state"), Mapping)):
        raise PullbackError(
            f"from_torch: a {type(given).__name__} was given; give an optimizer of torch.optim, or the dict of its state_dict()."
        )
    for i, group in enumerate(groups):
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), (list, tuple)):
            raise PullbackError(f'from_torch: group {i} of the state_dict is no dict with a list of its parameters as "params".')
    keys = [_key(key) for group in groups for key in group["params"]]
    found: dict[str, dict[str, Any]] = {}
    for given_key, entry in entries.items():
        key = _key(given_key)
        wrong = "is in none of its groups" if key not in keys else "is there twice" if key in found else "is no dict"
        if key not in keys or key in found or not isinstance(entry, Mapping):
            raise PullbackError(
                f"from_torch: the state_dict has the state of a parameter {given_key!r}, which {wrong}. Give it as state_dict() "
                f"returned it, with one dict in its state for each parameter that its groups name."
            )
        found[key] = {name: x for name, x in entry.items() if x is not None}
    if len(set(keys)) < len(keys):
        raise PullbackError("from_torch: the groups of the state_dict name a parameter twice. Give it as state_dict() returned it.")
    return _State([*groups], keys, found)


def _key(key: Any) -> str:
    """Returns the key of a parameter, which is a number or a name, as a string: in JSON, the keys of a dict are strings."""
    return str(index(key) if hasattr(key, "__index__") else key)


def _read_group(name: str, row: TorchRule, group: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the learning rate, the hyper-parameters and the flags of a torch group. Raises PullbackError."""
    if group.get("maximize"):
        raise PullbackError(
            "from_torch: the torch optimizer maximizes, and optimizers here minimize. Its state is that of minimizing the negated "
            'loss: negate the loss here, and give the state_dict with "maximize": False in each of its param_groups.'
        )
    group = {**row.added, **group}
    missing = [key for key in ("lr", *row.hyper(), *row.flags) if key not in group]
    if missing:
        raise PullbackError(f"from_torch: a group of the torch optimizer has no {', '.join(missing)}, which {name} needs.")
    numbers = {key: _number(key, group[key]) for key in ("lr", *row.hyper())}
    return {**numbers, **{flag: x.item() if hasattr(x := group[flag], "item") else x for flag in row.flags}}


def _number(what: str, x: Any) -> Any:
    """Returns a number, or a tuple of them, of torch's, which may be tensors. Raises PullbackError."""
    if isinstance(x, (tuple, list)):
        return tuple([_number(what, part) for part in x])
    return None if x is None else _scalar(f"{what} of the torch optimizer", x)


def _listed(parameters: Sequence[Any], groups: Sequence[Any], values: Sequence[dict[str, Any]]) -> list[Any]:
    """Returns the parameters as an optimizer takes them: with torch's groups, which have what differs from the first one."""
    if len(groups) == 1:
        return list(parameters)
    listed, first = [], 0
    for group, own in zip(groups, values):
        last = first + len(group["params"])
        differing = {key: x for key, x in own.items() if x != values[0][key]}
        listed.append({"params": list(parameters[first:last]), **differing})
        first = last
    return listed


def _read(row: TorchRule, key: str, entry: Mapping[str, Any]) -> _Loaded:
    """Returns the state of one parameter. Raises PullbackError."""
    unknown = set(entry) - row.entries()
    if unknown:
        raise PullbackError(
            f"from_torch: the torch optimizer's state has {', '.join(sorted(unknown))}, which this rule does not use."
        )
    whose = f"of the torch optimizer's parameter {key}"
    slots = {ours: _array(f"{theirs} {whose}", entry[theirs]) for ours, theirs in row.slots.items() if theirs in entry}
    if row.counts and slots and "step" not in entry:
        raise PullbackError(f"from_torch: the state {whose} has no step. Give the state_dict as the optimizer returned it.")
    steps = _scalar(f"step {whose}", entry.get("step", 0)) if row.counts else float(bool(slots))
    if not (0 <= steps < 2**53 and steps == int(steps)):
        raise PullbackError(f"from_torch: the torch optimizer's parameter {key} has {steps} steps, which is not a valid number.")
    numbers = {at: _scalar(f"{name} {whose}", entry[name]) for name, at in row.numbers.items() if name in entry}
    return _Loaded(int(steps), slots, numbers)


def _scalar(what: str, x: Any) -> float:
    """Returns a number, or an array with one element, as a float. Raises PullbackError."""
    array = _array(what, x)
    if array.size != 1:
        raise PullbackError(f"from_torch: {what} has shape {array.shape}; it must be one number.")
    return float(array.reshape(())[()])


def _array(what: str, x: Any) -> Any:
    """Returns numbers in lists, or an array or a tensor of any library, as float64 on the host. Raises PullbackError."""
    try:
        return asarray(x.detach() if hasattr(x, "detach") else x, dtype="float64", device="cpu").numpy()
    except PullbackError as error:
        raise PullbackError(f"from_torch: {what} cannot be read: {error}") from error


def _check_slots(opt: Any, row: TorchRule, loaded: Sequence[_Loaded]) -> None:
    """Raises PullbackError if the state of a parameter that has done steps lacks a slot, ShapeError if one has another shape."""
    for group in opt.groups:
        unused = set() if group.values().get("momentum", 1) else {"momentum"}
        for i in group.entries:
            slots = {name: slot[i].shape for name, slot in opt._memory.slots.items() if slot[i] is not None}
            for name, slot in loaded[i].slots.items():
                if slot.shape != slots.get(name, slot.shape):
                    raise ShapeError(
                        f"from_torch: {row.slots[name]} of the torch optimizer's parameter {i} has shape {slot.shape}, which "
                        f"is not that of {opt.parameters[i].label()}. Give the Parameters in the order of the torch optimizer's."
                    )
            missing = set(slots) - unused - set(loaded[i].slots) if loaded[i].steps else ()
            if missing or (loaded[i].steps and len(loaded[i].numbers) < len(row.numbers)):
                names = [row.slots[name] for name in missing] or list(row.numbers)
                raise PullbackError(
                    f"from_torch: the torch optimizer's state of {opt.parameters[i].label()} has no {', '.join(names)}."
                )


def _load(opt: Any, loaded: Sequence[_Loaded]) -> None:
    """Writes slots, step counts and numbers into a new optimizer. The clock of all parameters is the largest count."""
    table, memory = opt._table, opt._memory
    sets = np.array(table.on_host())[: table.count]
    opt._steps = max([of.steps for of in loaded])
    sets[:, c.CLOCK] = opt._steps
    for i, of in enumerate(loaded):
        sets[i, c.STEP] = of.steps
        for at, number in of.numbers.items():
            sets[i, at] = number
        for name, slot in memory.slots.items():
            if name in of.slots and slot[i] is not None:
                devices.write(slot[i], devices.move(of.slots[name], memory.device))
    table.load([sets], table.program)
