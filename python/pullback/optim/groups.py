"""Hyper-parameters: the values that an optimizer was given, and those of its groups of parameters.

A value is a number, or one number for each of M members. `hyper` of a rule names the values in the order of their settings, each
with the number of its settings: {"betas": 2, "eps": 1, "weight_decay": 1}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias

import numpy as np

from ..errors import PullbackError, ShapeError
from ..launch import capturing
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from .schedules.schedule import Schedule, as_schedule

# Arguments. A list or an array has one value for each member.
Number: TypeAlias = float | Sequence[float] | np.ndarray[Any, Any] | Tensor
Betas: TypeAlias = tuple[Number, Number]
Rate: TypeAlias = Number | Schedule | Sequence[Schedule]

SHARES: Final = frozenset({"betas", "rho", "alpha", "ema"})  # values that are the shares which running means keep, in [0, 1)


def checked(rule: str, name: str, value: Any, count: int, *, signed: bool = False) -> Any:
    """Returns a hyper-parameter as floats and arrays of floats: one of them, or a tuple of `count`. Raises PullbackError.

    signed: the value may be any finite number, whatever its name is.
    """
    parts = [value] if count == 1 else value
    if count > 1 and isinstance(parts, (list, tuple)) and any([isinstance(part, tuple) for part in parts]):
        raise PullbackError(f"{rule}: {name}={value!r}; for members give {count} lists, one number per member in each.")
    if not isinstance(parts, (list, tuple)) or len(parts) != count:
        raise PullbackError(f"{rule}: {name}={value!r}; it must be a {'pair' if count == 2 else 'tuple'} of numbers.")
    floats = [_numbers(part) for part in parts]
    share, it = not signed and name in SHARES, "it" if count == 1 else "each of them"
    for part in floats:
        least, bound = (-np.inf if signed else 0, 1 if share else np.inf)
        if part is None or not np.all((np.asarray(part) >= least) & (np.asarray(part) < bound) & np.isfinite(part)):
            must = f"{it} must be a finite number" + ("" if signed else " of 0 or more") + ", or one for each member"
            raise PullbackError(f"{rule}: {name}={value!r}; {'each number must be in [0, 1), such as 0.9' if share else must}.")
    return floats[0] if count == 1 else tuple(floats)


def _numbers(value: Any) -> Any:
    """Returns a float, or an array of one float per member, which cannot be written to, or None for anything else."""
    if isinstance(value, (bool, np.bool_)):  # a flag at the position of a number, as in SGD(params, 0.1, 0.9, True)
        return None
    try:
        array = np.asarray(value.numpy() if isinstance(value, Tensor) else value)
        if array.dtype.kind not in "iufVO" or value is None or array.ndim > 1 or not array.size:
            return None
        array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    array.flags.writeable = False
    return array if array.ndim else float(array)


def schedules_of(rule: str, lr: Any) -> Schedule | list[Schedule]:
    """Returns the schedule of a learning rate, or a list of one for each member. Raises PullbackError."""
    what = f"{rule}: lr"
    if isinstance(lr, (list, tuple)) and any([isinstance(x, Schedule) for x in lr]):
        return [as_schedule(what, x) for x in lr]
    numbers = None if isinstance(lr, Schedule) else _numbers(lr)
    if isinstance(numbers, np.ndarray):
        return [as_schedule(what, float(x)) for x in numbers]
    return as_schedule(what, lr if numbers is None else numbers)


def of_members(lr: Schedule | list[Schedule], members: int) -> list[Schedule]:
    """Returns one schedule for each member."""
    return lr if isinstance(lr, list) else [lr] * members


def rows(value: Any, members: int) -> list[list[float]]:
    """Returns the settings of a value, one row per member."""
    return np.stack([np.broadcast_to(part, (members,)) for part in parts_of(value)], axis=1).tolist()


def check_count(rule: str, name: str, value: Any, members: int) -> None:
    """Raises ShapeError if a new value has numbers for another number of members than the optimizer was made with."""
    for part in parts_of(value):
        if _many(part) and len(part) != members:
            raise ShapeError(
                f"{rule}: {name} has {len(part)} values, and this optimizer was made for {members} "
                f"{'member' if members == 1 else 'members'}. Give one number, or make an optimizer with {len(part)} values."
            )


def _many(part: Any) -> bool:
    """True for a list or an array of one number per member."""
    return isinstance(part, (list, np.ndarray))


def parts_of(value: Any) -> tuple[Any, ...]:
    """Returns the settings of a value: numbers, or lists and arrays of one number per member."""
    return value if isinstance(value, tuple) else (value,)


class Group:
    """Parameters of one optimizer that share their hyper-parameters.

    Attributes: `name` (the pattern that chose the parameters), `parameters`, and each hyper-parameter by its name. A value that the
    group was not given is the optimizer's. Setting an attribute gives the group a value of its own, from the next step on.
    """

    name: str
    number: int  # its place among the optimizer's groups
    entries: list[int]  # the indices of its parameters in those of the optimizer
    own: dict[str, Any]  # the values that it was given
    rule: Any  # the Adjustable with the hyper-parameters of these parameters: the optimizer, unless they have another rule

    def __init__(
        self, opt: Any, number: int, name: str, entries: Sequence[int], own: dict[str, Any], rule: Any = None
    ) -> None:
        vars(self).update(_opt=opt, number=number, name=name, entries=list(entries), own=own, rule=opt if rule is None else rule)

    @property
    def owner(self) -> Any:
        """The optimizer that has this group, and whose table has its sets."""
        return self._opt

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters of this group."""
        return [self._opt._parameters[i] for i in self.entries]

    def __getattr__(self, name: str) -> Any:
        rule = vars(self).get("rule")
        if rule is None or name not in rule._defaults:
            raise AttributeError(f"a group of {type(rule).__name__} has no attribute {name!r}")
        return rule._read(name, self)

    def __setattr__(self, name: str, value: Any) -> None:
        rule = self.rule
        if name not in rule._defaults:
            raise PullbackError(f"{name} of a group cannot be set: {', '.join(rule._defaults)} can.")
        refuse_in_capture(name)
        if name == "lr_scale" and "lr" in self.own:
            raise PullbackError(f"group {self.name!r} has an lr of its own, which is absolute: set that instead of lr_scale.")
        new = {name: rule._checked(name, value), **({"lr_scale": 1.0} if name == "lr" else {})}
        rule._validate({**self.values(), **new})
        self.own.update(new)
        self._opt._write([self], list(new))

    def __getitem__(self, name: str) -> Any:
        """Returns group.name, for programs that are used to dicts."""
        return self.parameters if name == "params" else getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        """Sets group.name, for programs that are used to dicts."""
        setattr(self, name, value)

    def keys(self) -> list[str]:
        """Returns "params" and the names of the hyper-parameters, for `dict(group)`."""
        return ["params", *self.rule._defaults]

    def __iter__(self) -> Iterator[str]:
        """Iterates over keys()."""
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        """True if group[name] exists."""
        return name in self.keys()

    def __dir__(self) -> list[str]:
        return ["name", "parameters", *self.rule._defaults]

    def __repr__(self) -> str:
        own = "".join([f", {name}={_text(self.rule._as_given(name, value))}" for name, value in self.own.items()])
        return f"Group({self.name!r}, {len(self.entries)} parameters{own})"

    def values(self) -> dict[str, Any]:
        """Returns all values of this group, those of the optimizer included."""
        return {**self.rule._defaults, **self.own}


def _text(value: Any) -> str:
    """Returns a value for `repr`: the number of a constant learning rate."""
    return str(value.base) if type(value) is Schedule else str(value)


def matches(name: str, pattern: str) -> bool:
    """True if a name of a Parameter is the pattern, or matches it as a name of a file does (`fnmatch`)."""
    return name == pattern or fnmatchcase(name, pattern)


def other_paths(parameters: list[Parameter], names: list[str], pattern: str) -> str:
    """Says under which names those Parameters are listed that a network also has under a path that matches the pattern."""
    found = ""
    for p, name in zip(parameters, names):
        walk = p.storage.paths and p.storage.paths()
        for path, other in walk() if walk is not None else ():
            found += f"{path} is listed as {name}. " if other is p and matches(path, pattern) else ""
    return found


def split(
    rule: str, parameters: list[Parameter], names: list[str], groups: Mapping[str, Mapping[str, Any]] | None
) -> list[tuple[str, list[int], dict[str, Any]]]:
    """Returns the groups of an optimizer as (name, indices of parameters, own values): one for each set of patterns that name a
    parameter, in the order of the patterns. The first one has what no pattern names.

    A parameter that several patterns name has the values of all of them, those of a later pattern before those of an earlier one.
    Raises PullbackError.
    """
    given: Any = {} if groups is None else groups
    if not isinstance(given, Mapping) or not all([isinstance(pattern, str) for pattern in given]):
        raise PullbackError(f'{rule}: groups={groups!r}; give a dict of patterns of names: {{"*.bias": {{"weight_decay": 0}}}}.')
    for pattern, own in given.items():
        if not hasattr(own, "keys"):
            raise PullbackError(f'{rule}: groups["{pattern}"] is a {type(own).__name__}; give a dict of hyper-parameters.')
        if not any([matches(name, pattern) for name in names]):
            also = other_paths(parameters, names, pattern)
            shown = f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
            sets = " Brackets are a set of characters in a pattern; write [[] for a bracket." if "[" in pattern else ""
            raise PullbackError(f'{rule}: groups["{pattern}"] names no parameter. {also}The names are {shown}.{sets}')
    found: dict[tuple[str, ...], list[int]] = {}
    for i, name in enumerate(names):
        found.setdefault(tuple([pattern for pattern in given if matches(name, pattern)]), []).append(i)
    order = {pattern: place for place, pattern in enumerate(given)}
    return [
        (" and ".join(patterns) or "rest", found[patterns], {key: x for pattern in patterns for key, x in given[pattern].items()})
        for patterns in sorted(found, key=lambda patterns: [order[pattern] for pattern in patterns])
    ]


def members_of(rule: str, parameters: Sequence[Parameter], values: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Returns the number of members, which is that of the numbers in a list or an array, and the number of axes of members that
    each parameter has, which is 1. Without a list or an array it returns (1, 0). Raises ShapeError.
    """
    counts = {name: len(part) for group in values for name, value in group.items() for part in parts_of(value) if _many(part)}
    if not counts:
        return 1, 0
    name, members = next(iter(counts.items()))
    for other, count in counts.items():
        if count != members:
            raise ShapeError(f"{rule}: {name} has {members} values and {other} has {count}; each member needs one of both.")
    for p in parameters:
        if not p.shape or p.shape[0] != members:
            raise ShapeError(
                f"{rule}: {name} has {members} values, one for each member, but the first axis of {p.label()} is not that of "
                f"{members} members: its shape is {p.shape}."
            )
    return members, 1


def refuse_in_capture(name: str) -> None:
    """Raises CaptureError inside a captured function, because a replay would not repeat the change."""
    capturing.refuse(f"setting {name}", "Set it outside: a replay reads the new value, and a schedule needs no setting at all.")


def constant(read: Callable[[], Any]) -> Any:
    """Returns read(). A recording that is being made takes it for a constant, so it is valid only until another value is set."""
    value = read()
    if capturing.thread.recording is not None:

        def holds() -> bool:
            return read() is value

        capturing.thread.recording.guard(holds, holds)
    return value


def unlimited(rule: str, name: str, value: Any) -> float:
    """Returns a bound for clipping; infinity for None. Raises PullbackError unless it is positive."""
    if value is None:
        return math.inf
    if not positive(value):
        raise PullbackError(f"{rule}: {name}={value}; it must be one positive number, or None for no clipping.")
    return float(value)


def positive(value: Any) -> bool:
    """True for a number above 0, infinity included."""
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and bool(value > 0)
