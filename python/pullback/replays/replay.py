"""Replays a recorded run: one native call, and the side effects that Python repeats around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from weakref import ref

import numpy as np

from ..errors import LinAlgError
from ..launch import capturing, door
from ..launch.refusal import BadIndex, Refused
from ..ops import random
from ..tensors import devices
from ..tensors.operand import own
from ..tensors.storage import Storage
from ..tensors.tensor import Tensor
from ..tree import unflatten
from .facts.facts import Facts

FOUND_IN_A_REPLAY: Final = "It was found in a replay; call the function without capture to see the line."
END: Final = 2**31 - 1  # a number of launches that no recording has: what is counted there is counted once for each complete step


class Recalled:
    """What a recording keeps of a function under a tape. `backward` holds the captured functions of its backward passes."""

    backward: dict[Any, Any]


class Output(NamedTuple):
    """The source of one leaf of the value that a replay returns.

    `kind` is "result" (result number `place` of the plan), "part" (the part of that result with the Layout `value`), "input"
    (argument leaf number `place`), "argument" (the part of the plan's input number `place` with the Layout `value`), "memory" (a
    tensor over the array and with the storage in `value`) or "constant" (`value`).
    """

    kind: str
    place: int
    value: Any


class DrawnGenerator:
    """A random generator that the function drew from.

    Attributes:
        memory: [seed, serial] on the device. The plan reads and advances it.
        at: (seed, serial) that the memory holds now, kept on the host so that no read is needed.
        first: the serial of the first recorded draw.
        count: the number of serials that a replay consumes.
        draws: for each draw, (launches recorded before it, its serial minus `first`).
    """

    def __init__(self, generator: Any, memory: Any, state: dict[str, int]) -> None:
        self.generator, self.memory = generator, memory
        self.at = (state["seed"], state["serial"])
        self.first, self.count = state["serial"], 0
        self._begun, self._end = self.at, self.at[1]  # the state before the current run, and the serial after it
        self.draws: list[tuple[int, int]] = []

    def before(self, steps: int) -> None:
        """Takes the serials of a replay of this many steps, and writes the first one to the memory unless it is there already."""
        random.drawn.note(self.generator)
        now = self.generator.take(self.count * steps)
        if now != self.at:
            devices.write(self.memory, devices.move(np.array(now, np.uint64), devices.device_of(self.memory)))
        self._begun, self._end = now, now[1] + self.count * steps
        self.at = (now[0], self._end)  # what the plan leaves there

    def after_error(self, steps: int, launches: int) -> None:
        """Gives back the serials after `steps` whole steps and the draws of the first `launches` launches of the next step."""
        seed, serial = self._begun
        drawn = max([offset + 1 for place, offset in self.draws if place < launches], default=0)
        self.at = (-1, -1)  # matches no state, so that before() rewrites the memory
        self.generator.stream.give_back(seed, self._end, serial + self.count * steps + drawn)


class SideEffects(NamedTuple):
    """The Python side effects that a replay repeats in addition to its launches, and the conditions under which it is valid.

    Attributes:
        increments: (object, name of the attribute to increment, number of launches recorded before the increment).
        generators: the random generators to advance.
        guards: (an object to keep alive, a function that returns true while the recording is valid).
        facts: what the function read in Python.
        modules: weak references to the Modules that the function called.
        lasting: those of the guard functions that never become true again once they are false.
        preparations: functions to call before a replay.
    """

    increments: Sequence[tuple[Any, str, int]]
    generators: Sequence[DrawnGenerator]
    guards: Sequence[tuple[Any, Callable[[], bool]]]
    facts: Facts
    modules: Sequence[ref[Any]]
    lasting: Sequence[Callable[[], bool]]
    preparations: Sequence[Callable[[], object]]


class Replay:
    """A plan with its side effects: each replay advances versions, counts and random generators.

    Attributes:
        runs: how often the plan was replayed.
        plain: True if a replay consists of its launches alone, without results and side effects in Python.
    """

    def __init__(self, kernels: Any, plan: Any, effects: SideEffects, outputs: Sequence[Output], spec: Any) -> None:
        self.plan, self.runs = plan, 0
        self._kernels, self._run = kernels, kernels.plan_run
        self._effects, self._generators, self._increments = effects, effects.generators, list(effects.increments)
        self._storages = list({id(owner): owner for owner, _, _ in effects.increments if isinstance(owner, Storage)}.values())
        self._guards = [holds for _, holds in effects.guards]
        self._outputs, self._spec = outputs, spec
        self._but: list[Callable[[], bool]] | None = None
        self._changed_in, self._facts = effects.facts.changed_in, effects.facts.groups
        self._changes = capturing.changes
        self.plain = not (effects.preparations or self._generators or self._increments or outputs)
        self._direct = all([y.kind == "result" and y.place == i for i, y in enumerate(outputs[:-1])])
        self._single = spec is None and len(outputs) == 1 and outputs[0].kind == "result"

    def holds_but(self, one: Any) -> bool:
        """Like holds(), except for the condition with this key."""
        if self._but is None:
            self._but = [holds for key, holds in self._effects.guards if key is not one]
        return (
            self._changes == capturing.changes and self._changed_in(self._facts) is None and all([holds() for holds in self._but])
        )

    def holds(self) -> bool:
        """True if nothing the recording depends on has changed since it was made."""
        return self._facts_hold() and all([holds() for holds in self._guards])

    def _facts_hold(self) -> bool:
        return self._changes == capturing.changes and self._changed_in(self._facts) is None

    def facts(self) -> Facts:
        """Returns what the function read in Python."""
        return self._effects.facts

    def fresh(self) -> bool:
        """True if holds() may become true again: no Parameter has moved, and nothing that the recording reads is stale or gone."""
        lasting = all([holds() for holds in self._effects.lasting])
        return self._changes == capturing.changes and lasting and not self._effects.facts.lost()

    def run(self, inputs: Sequence[Any], leaves: Sequence[Any], steps: int = 0, counted: Any = None) -> Any:
        """Replays the plan on these inputs (tensors or arrays), and returns the function's value.

        With steps, every input has a leading axis of that length. The number of completed steps is added to the attribute `done`
        of `counted`, unless that is None, even if an exception ends the run. Raises Refused, without running anything, if the
        inputs do not have the recorded shapes, dtypes and layouts.
        """
        results = self._results(inputs, steps, counted)
        if self._single:
            return results[0]
        return unflatten(self._spec, [self._value(output, results, inputs, leaves) for output in self._outputs])

    def told(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        """Replays the plan of a function that returned a list of tensors and, as the last item, a constant.

        Returns the tensors and the constant. Raises Refused as run() does.
        """
        results = self._results(inputs, 0, None)
        if not self._direct:
            results = [self._value(output, results, inputs, inputs) for output in self._outputs[:-1]]
        return results, self._outputs[-1].value

    def constant(self) -> Any:
        """Returns the last leaf of the function's value if it is the same in each replay, otherwise None."""
        return self._outputs[-1].value if self._outputs else None

    def backward(self) -> list[Any]:
        """Returns the captured functions that pull cotangents back through this recording, if it was made under a tape."""
        made = self.constant()
        return list(made.backward.values()) if isinstance(made, Recalled) else []

    def _results(self, inputs: Sequence[Any], steps: int, counted: Any) -> Any:
        """Replays the plan and its side effects, and returns the plan's results."""
        increments = self._increments if counted is None else [*self._increments, (counted, "done", END)]
        for prepare in self._effects.preparations:
            prepare()
        for drawn in self._generators:
            drawn.before(steps or 1)
        if door.state.modes:
            self._note_modes()
        try:
            results = self._run(self.plan, inputs, steps, increments)
        except Refused:
            for drawn in self._generators:
                drawn.after_error(0, 0)
            raise
        except BaseException as error:
            self._after_error(error)
            raise
        for storage in self._storages:
            if storage.views:
                storage.age()
        self.runs += 1
        return results

    def _note_modes(self) -> None:
        """Notes the modes of the Modules that the function calls, for a function that will call them again."""
        for module in self._effects.modules:
            if (called := module()) is not None:
                door.note_mode(called)

    def run_plain(self, arrays: Sequence[Any]) -> None:
        """Replays a plan that is `plain`. Raises Refused as run() does."""
        try:
            self._run(self.plan, arrays, 0, ())
        except Refused:
            raise
        except BaseException as error:
            self._after_error(error)
            raise
        self.runs += 1

    @staticmethod
    def _value(output: Output, results: Sequence[Tensor], inputs: Sequence[Any], leaves: Sequence[Any]) -> Any:
        if output.kind == "input":
            return own(leaves[output.place])  # copies an array that belongs to the caller
        if output.kind == "part":
            return Tensor(output.value.of(results[output.place].array))
        if output.kind == "argument":
            given = inputs[output.place]
            return Tensor(output.value.of(given.array if isinstance(given, Tensor) else given))
        if output.kind == "memory":
            return _over(*output.value)
        if output.kind == "result":
            return results[output.place]
        return output.value.copy() if type(output.value) is np.ndarray else output.value  # it belongs to the caller

    def _after_error(self, error: BaseException) -> None:
        """Advances generators and ages views as an eager run with this error would have done.

        The plan itself has already done the increments. A BadIndex is raised again as an IndexError that names the op, and a
        LinAlgError, which names it already, with the place where it was found.
        """
        whole, launches, name = self._kernels.plan_done(self.plan)
        for owner, _, place in self._increments:
            if isinstance(owner, Storage) and (whole or place < launches):
                owner.age()
        for drawn in self._generators:
            drawn.after_error(whole, launches)
        if isinstance(error, BadIndex):
            where, index, length, _ = error.args
            raise IndexError(
                f"{name}: index {index} at position {where} is out of range for an axis of length {length}. {FOUND_IN_A_REPLAY}"
            ) from None
        if isinstance(error, LinAlgError):
            raise LinAlgError(f"{error} {FOUND_IN_A_REPLAY}") from None

    def argument_at(self, place: int) -> int | None:
        """Returns the number of the argument leaf that is returned as leaf `place` of the value; None if it is not an argument."""
        output = self._outputs[place]
        return output.place if output.kind == "input" else None

    def rows(self) -> list[Any]:
        """Returns one tuple per launch of the plan.

        Each tuple is (names of the recorded launches it performs, group, phase, dtype, output shape, why it starts a new group).
        """
        return self._kernels.plan_rows(self.plan)

    def state(self) -> tuple[int, int, int, str | None]:
        """Returns (number of CUDA graphs kept, nodes of the newest one, kernels among these nodes, reason).

        reason: why kernels are launched one by one; None if they are not.
        """
        return self._kernels.plan_state(self.plan)

    def counts(self) -> tuple[int, int, int, int, int]:
        """Returns (launches recorded, launches left out, launches kept, kernels per replay, bytes of the arena)."""
        return self._kernels.plan_facts(self.plan)


def _over(array: Any, storage: Storage | None) -> Tensor:
    """Returns a tensor over memory that stays in place: that of a Parameter, or of a constant."""
    y = Tensor(array)
    if storage is not None:
        storage.add_view(y)
    return y
