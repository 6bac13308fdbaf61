"""The rules that torch.optim has, too: how its states name their numbers, and which rule a state is of.

`ROWS` has a row for each rule that both libraries have. A hyper-parameter has one name in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ..errors import PullbackError
from . import sets as c
from .adafactor_rule import Adafactor
from .moments import Adam, Adamax, AdamW, NAdam, RAdam
from .muon_rule import Muon
from .rules import SGD, Adadelta, Adagrad, RMSprop


class TorchRule(NamedTuple):
    """A rule of both libraries.

    Attributes:
        rule: the class of the optimizer here.
        slots: torch's name of each slot.
        flags: arguments that all groups share here, and how to read them from an optimizer.
        fixed: values of torch's groups that the rule itself determines.
        added: what later versions of torch added to the groups, in their order, and the values that the rule had before.
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
    added: Mapping[str, Any] = {}
    numbers: Mapping[str, int] = {}
    counts: bool = True
    begins: bool = False
    options: Mapping[str, Any] = {}
    lacks: Callable[[Any], str] = lambda opt: ""

    def hyper(self) -> list[str]:
        """Returns the hyper-parameters other than the learning rate."""
        return list(self.rule.hyper)

    def keys(self) -> set[str]:
        """Returns what a group of this rule has in the newest version of torch, besides `COMMON`."""
        return {"lr", *self.hyper(), *self.flags, *self.fixed}

    def entries(self) -> set[str]:
        """Returns the names that torch's state of a parameter may have."""
        return {"step", *self.slots.values(), *self.numbers}


_MOMENTS: Final = {"m": "exp_avg", "v": "exp_avg_sq"}
_ADAM: Final = {**_MOMENTS, "most": "max_exp_avg_sq"}
_AMSGRAD: Final = {"amsgrad": attrgetter("amsgrad")}
_FACTORS: Final = ("row_var", "col_var", "variance")
_DECOUPLED: Final = {"decoupled_weight_decay": attrgetter("decoupled")}
_COUPLED: Final = {"decoupled_weight_decay": False}
_INITIAL: Final = {"initial_accumulator_value": lambda opt: opt.slot_starts["v"]}

ROWS: Final[dict[str, TorchRule]] = {
    "SGD": TorchRule(SGD, {"momentum": "momentum_buffer"}, {"nesterov": attrgetter("nesterov")}, counts=False),
    "RMSprop": TorchRule(
        RMSprop, {"v": "square_avg", "momentum": "momentum_buffer", "m": "grad_avg"}, {"centered": attrgetter("centered")}
    ),
    "Adagrad": TorchRule(Adagrad, {"v": "sum"}, _INITIAL, added={"eps": 1e-10}, begins=True),
    "Adadelta": TorchRule(Adadelta, {"v": "square_avg", "u": "acc_delta"}),
    "Adam": TorchRule(Adam, _ADAM, _AMSGRAD, _COUPLED, added={"amsgrad": False, **_COUPLED}),
    "AdamW": TorchRule(AdamW, _ADAM, _AMSGRAD, {"decoupled_weight_decay": True}, added={"decoupled_weight_decay": True}),
    "Adamax": TorchRule(Adamax, {"m": "exp_avg", "u": "exp_inf"}),
    "NAdam": TorchRule(NAdam, _MOMENTS, _DECOUPLED, added=_COUPLED, numbers={"mu_product": c.STATE + 2}),
    "RAdam": TorchRule(RAdam, _MOMENTS, _DECOUPLED, added=_COUPLED),
    "Adafactor": TorchRule(Adafactor, dict(zip(_FACTORS, _FACTORS))),
    "Muon": TorchRule(
        Muon,
        {"momentum": "momentum_buffer"},
        {name: attrgetter(name) for name in ("nesterov", "ns_steps", "adjust_lr_fn")},
        counts=False,
        options={"dtype": "bfloat16"},
        lacks=lambda opt: "an auxiliary rule" if opt.auxiliary else "bias_correction=True" if opt.bias_correction else "",
    ),
}
# The choice of an implementation in torch's groups, which both libraries make by themselves, and maximize.
IMPLEMENTATION: Final = {"maximize": False, "foreach": None, "capturable": False, "differentiable": False, "fused": None}
# What a group of any rule may have: names, and what torch's schedulers leave there.
_MARKS: Final = ("initial_lr", "max_lr", "min_lr", "swa_lr", "max_momentum", "base_momentum")
COMMON: Final = {"params", "param_names", "name", *_MARKS, *IMPLEMENTATION}


def rule_of_optimizer(opt: Any, groups: list[Mapping[str, Any]], rule: Any) -> str:
    """Returns the name of the rule of a torch optimizer, which has these groups. Raises PullbackError."""
    name = type(opt).__name__
    if name not in ROWS or not type(opt).__module__.startswith("torch.optim"):
        raise PullbackError(
            f"from_torch: the rule {type(opt).__module__}.{name} is not here; {', '.join(ROWS)} are. If its formula is one of "
            f'theirs, give its state_dict(), and the name as rule="Adam".'
        )
    if not _has_fixed(ROWS[name], groups[0]):  # torch's Adam with decoupled_weight_decay=True is AdamW
        name = next(other for other, row in ROWS.items() if row.fixed and _has_fixed(row, groups[0]))
    if rule is not None and _named(rule) != name:
        raise PullbackError(f"from_torch: rule={_named(rule)!r} was given with an optimizer whose rule is {name}. Leave rule= out.")
    return name


def rule_of_state(groups: list[Mapping[str, Any]], names: set[str], rule: Any) -> str:
    """Returns the name of the rule of a state that was given as a dict.

    names: all names that its parameters have in their states. rule: the rule that the caller names, or None.

    A dict has no name of its rule. Several versions of torch wrote Adam and AdamW alike, and RAdam like the LAMB of other
    libraries, so only a dict with all keys that exactly one rule has in the newest version speaks for itself.

    Raises PullbackError.
    """
    fitting = [name for name, row in ROWS.items() if names <= row.entries() and all([_may_have(row, group) for group in groups])]
    whole = [name for name in fitting if all([ROWS[name].keys() <= set(group) for group in groups])]
    if rule is not None:
        _check_named(_named(rule), groups, whole if names else [])
        return _named(rule)
    if len(fitting) == 1 and whole:
        return whole[0]
    keys = ", ".join(sorted(set().union(*groups) - COMMON))
    if not fitting:
        states = f", and whose state has {', '.join(sorted(names))}" if names else ""
        raise PullbackError(
            f"from_torch: no rule has exactly the entries of this state_dict, whose groups have {keys}{states}. The rules are "
            f'{", ".join(ROWS)}. If it is one of them, and its groups have entries of your own, name it: rule="Adam".'
        )
    raise PullbackError(
        f"from_torch: this state_dict does not say which rule wrote it: its groups have {keys}, as those of "
        f"{' and '.join(fitting)} had in earlier versions of PyTorch, or as another library's. Name it: rule={fitting[0]!r}."
    )


def _named(rule: Any) -> str:
    """Returns the name of the rule that the caller names, by a string or a class. Raises PullbackError."""
    name = rule if isinstance(rule, str) else getattr(rule, "__name__", repr(rule))
    if name not in ROWS:
        raise PullbackError(f"from_torch: rule={name!r} is none of the rules that PyTorch has, too. They are {', '.join(ROWS)}.")
    return name


def _check_named(name: str, groups: list[Mapping[str, Any]], whole: list[str]) -> None:
    """Raises PullbackError if the groups are not those of the rule that the caller names.

    whole: the rules whose newest version has exactly this state.
    """
    row, known = ROWS[name], set().union(*[row.keys() for row in ROWS.values()])
    for group in groups:
        wrong = sorted(set(group) & known - row.keys())
        wrong += [f"{key}={group[key]}" for key, value in row.fixed.items() if bool(group.get(key, value)) != value]
        if wrong or (whole and name not in whole):
            also = f"; it is one of {whole[0]}" if whole else f": its groups have {', '.join(wrong)}"
            raise PullbackError(f"from_torch: rule={name!r}, and this state_dict is not one of {name}{also}. Name its own rule.")


def _may_have(row: TorchRule, group: Mapping[str, Any]) -> bool:
    """True if some version of torch made such a group for the rule."""
    keys = set(group) - COMMON
    lacking = row.keys() - keys
    versions = [set(list(row.added)[i:]) for i in range(len(row.added) + 1)]  # what the groups of each one lack
    return keys <= row.keys() and lacking in versions and _has_fixed(row, group)


def _has_fixed(row: TorchRule, group: Mapping[str, Any]) -> bool:
    """True if no value of a group contradicts those that the rule determines."""
    return all([bool(group.get(key, value)) == value for key, value in row.fixed.items()])
