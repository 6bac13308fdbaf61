"""The state of optimizers of torch.optim, and back: slots, step counts and hyper-parameters.

`ROWS` has a row for each rule that both libraries have. A hyper-parameter has one name in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np

from ..errors import PullbackError, ShapeError
from ..launch import capturing
from ..tensors import devices
from ..tensors.tensor import Tensor
from . import sets as c
from .adafactor_rule import Adafactor
from .arguments import trainable
from .moments import Adam, Adamax, AdamW, NAdam, RAdam
from .muon_rule import Muon
from .optimizer import Optimizer, Params
from .rules import SGD, Adadelta, Adagrad, RMSprop


class Row(NamedTuple):
    """A rule of both libraries.

    Attributes:
        rule: the class of the optimizer here.
        slots: torch's name of each slot.
        flags: arguments that all groups share here, and how to read them from an optimizer.
        fixed: values of torch's groups that the rule itself determines.
        numbers: torch's numbers of a parameter, and their indices in its set.
        counts: torch's state of a parameter has the number of its steps.
        begins: torch has the state of a parameter before the first step.
        options: arguments here that make the rule torch's.
        lacks: what an optimizer has that torch's has not, in words; "" for nothing.
    """

    rule: type[Any]
    slots: Mapping[str, str]
    flags: Mapping[str, Callable[[Any], Any]] = {}
    fixed: Mapping[str, Any] = {}
    numbers: Mapping[str, int] = {}
    counts: bool = True
    begins: bool = False
    options: Mapping[str, Any] = {}
    lacks: Callable[[Any], str] = lambda opt: ""

    def hyper(self) -> list[str]:
        """Returns the hyper-parameters other than the learning rate."""
        return list(self.rule.hyper)


_MOMENTS: Final = {"m": "exp_avg", "v": "exp_avg_sq"}
_ADAM: Final = {**_MOMENTS, "most": "max_exp_avg_sq"}
_AMSGRAD: Final = {"amsgrad": attrgetter("amsgrad")}
_FACTORS: Final = ("row_var", "col_var", "variance")
_DECOUPLED: Final = {"decoupled_weight_decay": attrgetter("decoupled")}

ROWS: Final[dict[str, Row]] = {
    "SGD": Row(SGD, {"momentum": "momentum_buffer"}, {"nesterov": attrgetter("nesterov")}, counts=False),
    "RMSprop": Row(
        RMSprop, {"v": "square_avg", "momentum": "momentum_buffer", "m": "grad_avg"}, {"centered": attrgetter("centered")}
    ),
    "Adagrad": Row(Adagrad, {"v": "sum"}, {"initial_accumulator_value": lambda opt: opt.slot_starts["v"]}, begins=True),
    "Adadelta": Row(Adadelta, {"v": "square_avg", "u": "acc_delta"}),
    "Adam": Row(Adam, _ADAM, _AMSGRAD, {"decoupled_weight_decay": False}),
    "AdamW": Row(AdamW, _ADAM, _AMSGRAD, {"decoupled_weight_decay": True}),
    "Adamax": Row(Adamax, {"m": "exp_avg", "u": "exp_inf"}),
    "NAdam": Row(NAdam, _MOMENTS, _DECOUPLED, numbers={"mu_product": c.STATE + 2}),
    "RAdam": Row(RAdam, _MOMENTS, _DECOUPLED),
    "Adafactor": Row(Adafactor, dict(zip(_FACTORS, _FACTORS))),
    "Muon": Row(
        Muon,
        {"momentum": "momentum_buffer"},
        {name: attrgetter(name) for name in ("nesterov", "ns_steps", "adjust_lr_fn")},
        counts=False,
        options={"dtype": "bfloat16"},
        lacks=lambda opt: "an auxiliary rule" if opt.auxiliary else "bias_correction=True" if opt.bias_correction else "",
    ),
}
# What torch's groups have besides: the choice of an implementation, which both libraries make by themselves.
_IMPLEMENTATION: Final = {"maximize": False, "foreach": None, "capturable": False, "differentiable": False, "fused": None}


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
    row, table = ROWS[name], devices.move(own._sets, "cpu")
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


def _values(opt: Any, row: Row, group: Any) -> dict[str, Any]:
    """Returns the hyper-parameters of a group, as torch names them."""
    values = group.values()
    rate = values["lr"].rate(opt.steps) * values["lr_scale"]
    flags = {name: read(opt) for name, read in row.flags.items()}
    return {"lr": rate, **{name: getattr(group, name) for name in row.hyper()}, **flags, **row.fixed, **_IMPLEMENTATION}


def _entry(torch: Any, opt: Any, row: Row, p: Any, settings: Any) -> dict[str, Any]:
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


def from_torch(torch_opt: Any, params: Params) -> Optimizer:
    """Returns an optimizer for `params` that goes on where a torch optimizer stopped.

    Args:
        torch_opt: an optimizer of torch.optim, or its `state_dict()`. torch itself is not needed then.
        params: the Parameters in the order in which the torch optimizer has its own, that of its groups. Their values are not
            changed.

    The optimizer has the rule, groups, hyper-parameters, slots and step counts of torch's. torch's SGD counts no steps: `steps` is
    then 1 if there is a momentum buffer, otherwise 0. A torch scheduler is not part of the state; set `opt.lr` to a schedule.

    Raises PullbackError for a rule that is not here or a state that is none, ShapeError if the parameters are others. Nothing has
    changed then.
    """
    capturing.refuse("from_torch()", "Call it outside.")
    name, given = _state_of(torch_opt)
    row, groups, parameters = ROWS[name], given["param_groups"], trainable("from_torch", params)
    numbers = [number for group in groups for number in group["params"]]
    if len(numbers) != len(parameters):
        raise ShapeError(
            f"from_torch: the torch optimizer has {len(numbers)} parameters, and {len(parameters)} trainable ones were given. Give "
            f"those that it updates, in its order."
        )
    values = [_read_group(name, row, group) for group in groups]
    shared = {flag: values[0][flag] for flag in row.flags}
    for flag, value in [*shared.items(), *row.fixed.items()]:
        if any([group.get(flag, value) != value for group in groups]):
            raise PullbackError(f"from_torch: the groups have several values of {flag}, which is one for the whole optimizer here.")
    own = [{key: x for key, x in group.items() if key not in shared} for group in values]
    loaded = [_read(row, number, given["state"]) for number in numbers]
    opt = row.rule(_listed(parameters, groups, own), **own[0], **shared, **row.options)
    _check_slots(opt, row, loaded)
    _load(opt, loaded)
    return opt


def _state_of(given: Any) -> tuple[str, Mapping[str, Any]]:
    """Returns the name of a torch optimizer's rule and its state. Raises PullbackError."""
    state = given if isinstance(given, Mapping) else given.state_dict() if hasattr(given, "state_dict") else None
    groups = state.get("param_groups") if isinstance(state, Mapping) else None
    if not isinstance(state, Mapping) or not groups or not isinstance(state.get("state"), Mapping):
        raise PullbackError(
            f"from_torch: a {type(given).__name__} was given; give an optimizer of torch.optim, or the dict of its state_dict()."
        )
    if given is not state:
        name = type(given).__name__
        if name not in ROWS or not type(given).__module__.startswith("torch.optim"):
            raise PullbackError(f"from_torch: the rule {type(given).__module__}.{name} is not here; {', '.join(ROWS)} are.")
        if all([groups[0].get(key, value) == value for key, value in ROWS[name].fixed.items()]):
            return name, state
        # torch's Adam with decoupled_weight_decay=True is AdamW, which is then found by its values.
    names = [name for name, row in ROWS.items() if _fits(row, groups[0])]
    if not names:
        known = sorted(set(groups[0]) - {"params", *_IMPLEMENTATION})
        raise PullbackError(
            f"from_torch: no rule has the hyper-parameters of this state_dict, which are {', '.join(known)}. The rules are "
            f"{', '.join(ROWS)}. Give the optimizer itself if it was saved by another version of torch."
        )
    return max(names, key=lambda name: len(ROWS[name].hyper()) + len(ROWS[name].flags)), state


def _fits(row: Row, group: Mapping[str, Any]) -> bool:
    """True if a group has all values of the rule, with those that the rule fixes."""
    return {*row.hyper(), *row.flags} <= set(group) and all([group.get(name) == value for name, value in row.fixed.items()])


def _read_group(name: str, row: Row, group: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the learning rate, the hyper-parameters and the flags of a torch group. Raises PullbackError."""
    if group.get("maximize"):
        raise PullbackError(
            "from_torch: the torch optimizer maximizes; negate the loss, and make the torch optimizer without that."
        )
    missing = [key for key in ("lr", *row.hyper(), *row.flags) if key not in group]
    if missing:
        raise PullbackError(f"from_torch: a group of the torch optimizer has no {', '.join(missing)}, which {name} needs.")
    numbers = {key: _number(group[key]) for key in ("lr", *row.hyper())}
    return {**numbers, **{flag: _number(x) if hasattr(x := group[flag], "detach") else x for flag in row.flags}}


def _number(x: Any) -> Any:
    """Returns a number, or a tuple of them, of torch's, which may be tensors."""
    return tuple([_number(part) for part in x]) if isinstance(x, (tuple, list)) else None if x is None else float(x)


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


def _read(row: Row, number: Any, state: Mapping[Any, Any]) -> _Loaded:
    """Returns the state of one parameter. Raises PullbackError."""
    entry = {key: x for key, x in state.get(number, {}).items() if x is not None}
    slots = {ours: _array(entry[theirs]) for ours, theirs in row.slots.items() if theirs in entry}
    steps = float(_array(entry.get("step", 0.0))) if row.counts else float(bool(slots))
    if not (0 <= steps < 2**53 and steps == int(steps)):
        raise PullbackError(f"from_torch: the torch optimizer's parameter {number} has {steps} steps, which is not a valid number.")
    unknown = set(entry) - {"step", *row.slots.values(), *row.numbers}
    if unknown:
        raise PullbackError(
            f"from_torch: the torch optimizer's state has {', '.join(sorted(unknown))}, which this rule does not use."
        )
    return _Loaded(int(steps), slots, {at: float(_array(entry[name])) for name, at in row.numbers.items() if name in entry})


def _array(x: Any) -> Any:
    """Returns a tensor of torch's, or an array, as float64 on the host."""
    if hasattr(x, "detach"):
        x = x.detach().cpu().double().numpy()
    return np.asarray(x.numpy() if isinstance(x, Tensor) else x, np.float64)


def _check_slots(opt: Any, row: Row, loaded: Sequence[_Loaded]) -> None:
    """Raises PullbackError if the state of a parameter that has done steps lacks a slot, ShapeError if one has another shape."""
    for group in opt.groups:
        unused = set() if group.values().get("momentum", 1) else {"momentum"}
        for i in group.entries:
            slots = {name: slot[i].shape for name, slot in zip(opt.slot_names, opt._slots) if slot[i] is not None}
            for name, slot in loaded[i].slots.items():
                if slot.shape != slots.get(name, slot.shape):
                    raise ShapeError(
                        f"from_torch: {row.slots[name]} of the torch optimizer's parameter {i} has shape {slot.shape}, which "
                        f"is not that of {opt._parameters[i].label()}. Give the Parameters in the order of the torch optimizer's."
                    )
            missing = set(slots) - unused - set(loaded[i].slots) if loaded[i].steps else ()
            if missing or (loaded[i].steps and len(loaded[i].numbers) < len(row.numbers)):
                names = [row.slots[name] for name in missing] or list(row.numbers)
                raise PullbackError(
                    f"from_torch: the torch optimizer's state of {opt._parameters[i].label()} has no {', '.join(names)}."
                )


def _load(opt: Any, loaded: Sequence[_Loaded]) -> None:
    """Writes slots, step counts and numbers into a new optimizer. The clock of all parameters is the largest count."""
    table = np.array(devices.move(opt._sets, "cpu"))
    opt._steps = max([of.steps for of in loaded])
    table[: opt._set_count, c.CLOCK] = opt._steps
    for i, of in enumerate(loaded):
        table[i, c.STEP] = of.steps
        for at, number in of.numbers.items():
            table[i, at] = number
        for name, slot in zip(opt.slot_names, opt._slots):
            if name in of.slots and slot[i] is not None:
                devices.write(slot[i], devices.move(of.slots[name], opt._device))
    devices.write(opt._sets, devices.move(table, opt._device))
