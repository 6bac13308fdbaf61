"""What the stages of a step have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from ...errors import PullbackError
from .. import groups as grouping
from ..memory import OptimizerMemory
from ..table import SetTable

V = TypeVar("V")


class Step:
    """A step under way.

    Attributes:
        memory: that of the optimizer.
        table: the array of its table of sets, or a copy of it for a preview.
        grads: an array for each parameter, None for one without a gradient. A stage may replace them, and then sets `normed` to
            False.
        outputs: the arrays for what the step adds, or None.
        preview: nothing but the outputs changes.
        scaler: the numbers of the LossScaler in a step with the gradients of a scaled loss, otherwise None.
        normed: the joint norm of these gradients is in the sets.
        go: of a composed rule in such a step, whether it changes anything, a bool in the device's memory.
    """

    __slots__ = ("go", "grads", "memory", "normed", "outputs", "preview", "scaler", "table")

    def __init__(
        self, memory: OptimizerMemory, table: Any, grads: list[Any], outputs: list[Any] | None, preview: bool, scaler: Any = None
    ) -> None:
        self.memory, self.table, self.grads, self.outputs = memory, table, grads, outputs
        self.preview, self.scaler, self.normed = preview, scaler, scaler is not None
        self.go: Any = None


class Stage:
    """An option of all optimizers, with one value for all parameters, which is an attribute of the optimizer, and what it does in
    each step before and after the rule. An optimizer of one of the parameters has the same stages, so a stage keeps nothing of the
    optimizer.

    A subclass sets `name`: of the option, of the attribute, and of the entry in a state. Its docstring is that of the attribute.

    Attributes:
        value: as `checked` returns it.
        acts: it does something in a step, because the value is not `neutral`.
    """

    name: ClassVar[str]
    neutral: ClassVar[Any] = None  # the value with which the stage does nothing
    slots: ClassVar[tuple[str, ...]] = ()  # the names of arrays that the stage keeps for each parameter, zeros at first
    on_device: ClassVar[bool] = False  # steps read the value from the device's memory, so it may change between replays
    in_sets: ClassVar[bool] = False  # states hold the value in the sets, and not in an entry of its own

    def __init__(self, rule: str, given: Any) -> None:
        """Raises PullbackError for a value that does not fit. rule: the name of the optimizer's class, for errors."""
        self.value = self.checked(rule, given)
        self.acts = self.value != self.neutral

    def checked(self, rule: str, given: Any) -> Any:
        """Returns a value that was given, as it is kept. Raises PullbackError."""
        raise NotImplementedError

    def set(self, value: Any, table: SetTable) -> None:
        """Changes the value between two steps. Raises PullbackError if that turns a stage on or off whose arrays would be old."""
        acts = value != self.neutral
        if self.slots and acts != self.acts:
            raise PullbackError(
                f"{self.name}={value!r}: an optimizer keeps {', '.join(self.slots)} for it from its first step on, so it cannot be "
                f"turned {'on' if acts else 'off'} later. Make an optimizer {'with' if acts else 'without'} it."
            )
        self.value, self.acts = value, acts
        self.write(table)

    def write(self, table: SetTable) -> None:
        """Writes the value to where steps read it: into all sets, or memory of the stage. Nothing waits for the device."""

    def make(self, device: str) -> None:
        """Moves memory of the stage to a device."""

    def facts(self) -> Any:
        """Returns what a recording of a step depends on."""
        return self.acts if self.on_device else self.value

    def before(self, step: Step) -> None:
        """Changes the gradients or the sets of a step before the rule.

        Gradients may be multiplied by a gradient_scale or a LossScaler, which has decided already whether they are finite. So a
        stage does not enlarge them.
        """

    def after(self, i: int, value: Any, end: Any) -> Any:
        """Returns the new weights of parameter i, a tensor, for those that the rule has computed. Constraints follow. `end` is the
        Projection of the step, which has the weights before it, numbers of the set, and the slots of this stage.

        The result is rounded to the dtype of `value`: float32 for half precision with masters, without them half precision.
        """
        return value

    # ---- states

    def saved(self) -> dict[str, Any]:
        """Returns the entry in the state of an optimizer: the value, if the option is on and the value is not in the sets."""
        return {} if self.in_sets or not self.acts else {self.name: self.value}

    def found(self, state: Mapping[str, Any], sets: Any) -> Any:
        """Returns the value in a state, the sets of which these are. Raises PullbackError."""
        return self.checked("load_state_dict", state.get(self.name, self.neutral))


class Limit(Stage):
    """A stage whose value is a bound in the device's memory."""

    on_device = True

    def checked(self, rule: str, given: Any) -> float | None:
        most = grouping.unlimited(rule, self.name, given)
        return None if most == math.inf else most


def one_positive(name: str, column: Any) -> float:
    """Returns the number that all sets in a state have for a value of the whole optimizer. Raises PullbackError."""
    value = float(column[0])
    if not (value > 0 and (column == value).all()):
        raise PullbackError(f"load_state_dict: the settings are damaged: {name} must be one positive number.")
    return value


class Setting(Generic[V]):
    """The value of a stage as an attribute of an optimizer."""

    def __init__(self, kind: type[Stage]) -> None:
        self.name, self.__doc__ = kind.name, kind.__doc__

    def __get__(self, opt: Any, kind: Any = None) -> V:
        if opt is None:
            return self  # type: ignore[return-value]
        stage = opt._stages[self.name]
        return grouping.constant(lambda: stage.value)

    def __set__(self, opt: Any, given: V) -> None:
        grouping.refuse_in_capture(self.name)
        opt._set_stage(self.name, given)
