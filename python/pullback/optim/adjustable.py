"""What every optimizer has that can be changed between two steps: its hyper-parameters and its clipping."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from ..errors import PullbackError
from ..launch import capturing
from ..tensors import devices
from . import groups as g, sets as c
from .stages.stage import Stage
from .table import SetTable

_COMMON: Final = {"lr_scale": c.RATE_SCALE, "clip_value": c.CLIP_VALUE, "ema": c.KEEP}  # the settings that every rule has


class Value:
    """A hyper-parameter as an attribute of an optimizer."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, opt: Any, kind: Any = None) -> Any:
        return self if opt is None else opt._read(self.name)

    def __set__(self, opt: Any, value: Any) -> None:
        opt._set(self.name, value)


class Adjustable:
    """The base of Optimizer that holds its hyper-parameters.

    `_defaults` has the values that all groups share which have no value of their own.
    """

    settable: tuple[str, ...] = ()  # attributes of a subclass that can be set, in addition to the hyper-parameters
    signed: ClassVar[bool] = False  # the rule's hyper-parameters may be any finite numbers
    hyper: ClassVar[Mapping[str, int]] = {}  # name -> number of settings, in the order of csrc/math/update.h
    _parameters: list[Any]
    _groups: list[g.Group]
    slot_names: tuple[str, ...]
    _defaults: dict[str, Any]
    _table: SetTable
    _members: int
    _lead: int  # the number of axes of members, 0 or 1, with which the shapes of all parameters begin
    _stages: dict[str, Stage]
    _steps: int
    _counted: int = 0  # how many of the steps with a LossScaler, which may have changed nothing, are counted in _steps

    lr = Value("lr")  # without lr_scale, so that opt.lr = opt.lr changes nothing
    ema = Value("ema")
    lr_scale = Value("lr_scale")  # a factor of the learning rate that a schedule keeps
    clip_value = Value("clip_value")

    @property
    def parameters(self) -> list[Any]:
        """A new list of the Parameters that the optimizer updates, in the order of their gradients."""
        return list(self._parameters)

    @property
    def groups(self) -> list[g.Group]:
        """A new list of the groups of Parameters."""
        return list(self._groups)

    @property
    def steps(self) -> int:
        """The number of steps done. It cannot be read in a captured function."""
        capturing.refuse("reading steps", "Read it after the call: a replay would return the count of the first one.")
        return self._done()

    def _done(self) -> int:
        """Returns the number of steps done. It waits for the device after a step that may have been left out there."""
        owner = self._groups[0].owner
        if owner._scaled_steps != self._counted:
            self._counted = owner._scaled_steps
            self._steps = int(devices.move(owner._table.array[:1], "cpu")[0, c.CLOCK])
        return self._steps

    def _validate(self, values: Mapping[str, Any]) -> None:
        """Raises PullbackError for hyper-parameters that do not go together. It is called before any change."""

    def _choose(self, values: list[Mapping[str, Any]]) -> None:
        """Chooses the slots and the kernel of a rule that has several, by the values of its groups."""

    def _checked(self, name: str, value: Any) -> Any:
        """Returns a hyper-parameter as the sets need it. Raises PullbackError."""
        rule = type(self).__name__
        if name == "lr":
            value = g.schedules_of(rule, value)
        elif name == "clip_value":
            value = g.unlimited(rule, name, value)
        elif name == "ema" and value is None:
            return None
        else:
            value = g.checked(rule, name, value, self.hyper.get(name, 1), signed=self.signed and name in self.hyper)
        if name == "ema" and not getattr(self, "_averages_weights", True):
            raise PullbackError(f"{rule}: ema={value}, but this optimizer was made without an average of the weights.")
        if "_members" in vars(self):
            g.check_count(rule, name, value, self._members)
        return value

    def _checked_group(self, name: str, own: Mapping[str, Any]) -> dict[str, Any]:
        rule = type(self).__name__
        for key in own:
            if key not in self._defaults:
                known = ", ".join(self._defaults)
                raise PullbackError(f'{rule}: group "{name}" has a value for {key}; a group can have {known}.')
        if "lr" in own and "lr_scale" in own:
            raise PullbackError(f'{rule}: group "{name}" has lr, which is absolute, and lr_scale, which multiplies; give one.')
        absolute = {"lr_scale": 1.0} if "lr" in own else {}
        return {**{key: self._checked(key, value) for key, value in own.items()}, **absolute}

    def _settings_of(self, name: str, value: Any) -> tuple[int, list[list[float]]]:
        """Returns the settings that hold a value: the index of the first one, and their numbers, one row per member."""
        if name in _COMMON:
            return _COMMON[name], g.rows(0.0 if value is None else value, self._members)
        before = list(self.hyper)[: list(self.hyper).index(name)]
        return c.HYPER + sum([self.hyper[other] for other in before]), g.rows(value, self._members)

    def _write(self, groups: Sequence[g.Group], names: Sequence[str]) -> None:
        """Writes the values of these names into the sets of some groups."""
        if "lr" in names:
            self._table.place({group.number: g.of_members(group.values()["lr"], self._members) for group in groups})
        for group in groups:
            values = group.values()
            for name in names:
                if name == "lr":
                    index, numbers = c.SCHEDULE, [placed.settings for placed in self._table.program.placed[group.number]]
                else:
                    index, numbers = group.rule._settings_of(name, values[name])
                self._table.write(group.entries, index, numbers)

    def _set(self, name: str, value: Any) -> None:
        """Changes a hyper-parameter of all groups that have no value of their own. After an error nothing has changed."""
        g.refuse_in_capture(name)
        value = self._checked(name, value)
        users = [group for group in self._groups if group.rule is self and name not in group.own]
        if not users:
            raise PullbackError(
                f"{type(self).__name__}: every group has a value of {name} of its own, so this would change nothing. Set it for "
                f"each: for group in opt.groups: group.{name} = ..."
            )
        for group in users:
            self._validate({**group.values(), name: value})
        self._defaults[name] = value
        users[0].owner._write(users, [name])

    def _read(self, name: str, group: g.Group | None = None) -> Any:
        """Returns a value of a group, or of the optimizer, for a user. Raises CaptureError for a learning rate in a captured
        function, because no recording can follow a schedule.
        """
        if name == "lr":
            capturing.refuse(
                "reading lr", "Read it after the call, or compute schedule.rate(t) there: a replay would return the first rate."
            )
        g.constant(lambda: (self._defaults if group is None else group.values())[name])
        return self._shown(name, group)

    def _shown(self, name: str, group: g.Group | None = None) -> Any:
        """Returns a value of a group, or of the optimizer, as its attribute shows it."""
        value = self._defaults[name] if group is None else group.values()[name]
        if name == "lr":
            if group is None:  # the first one that shares this value
                group = next(iter([group for group in self._groups if group.rule is self and "lr" not in group.own]), None)
            return self._rates(value, group)
        return None if name == "clip_value" and value == math.inf else self._as_given(name, value)

    def _as_given(self, name: str, value: Any) -> Any:
        """Returns a value of a set as the user gives it: the reverse of `_checked`."""
        return value

    def _rates(self, value: Any, group: g.Group | None) -> Any:
        """Returns the present learning rate, or an array of those of the members if they differ.

        It is computed on the host, and read from the device, which waits, only if it depends on observations.
        """
        schedules = g.of_members(value, self._members)
        if group is not None and any([schedule.observes for schedule in schedules]):
            schedules = group.owner._table.present_schedules(group.number)
        rates = [schedule.rate(self._done()) for schedule in schedules]
        return rates[0] if not isinstance(value, list) and len({*rates}) == 1 else np.array(rates)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("change", "advance"):
            if callable(vars(cls).get(name)):
                raise PullbackError(
                    f"{cls.__name__}.{name}: a rule no longer changes its slots in place. Define formula(self, p, g, slots, h), "
                    f"which returns (change, new slots), with h.lr, h.step and the hyper-parameters as attributes of h."
                )
        for name in vars(cls).get("hyper", ()):
            setattr(cls, name, Value(name))

    def __setattr__(self, name: str, value: Any) -> None:
        attribute = getattr(type(self), name, None)
        known = hasattr(attribute, "__set__") and getattr(attribute, "fset", attribute) is not None
        if "_memory" in vars(self) and not name.startswith("_") and name not in self.settable and not known:
            settable = ", ".join(["lr", *self.hyper, "clip_value", *self._stages])
            raise PullbackError(
                f"{type(self).__name__}.{name} cannot be set: {settable} can, all else is as the optimizer was made."
            )
        object.__setattr__(self, name, value)
