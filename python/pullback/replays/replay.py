"""Replays of a recorded run: one native call, and the side effects that Python repeats around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..launch import capturing
from ..launch.refusal import BadIndex, Refused
from ..tensors import devices
from ..tensors.operand import own
from ..tensors.storage import Storage
from ..tensors.tensor import Tensor
from ..tree import unflatten


class Output(NamedTuple):
    """What a replay returns in one place: result `place` of the plan, the argument's leaf `place`, or a constant."""

    kind: str
    place: int
    value: Any


class DrawnGenerator:
    """A random generator that the function drew from.

    Attributes:
        memory: [seed, serial], which the plan reads and moves on.
        at: what it holds now, as the host knows it.
        first: the serial of the first draw when it was recorded; count: how many a replay consumes.
        draws: the launches before each, and how far from the first it is.
    """

    def __init__(self, generator: Any, memory: Any, state: dict[str, int]) -> None:
        self.generator, self.memory = generator, memory
        self.at = (state["seed"], state["serial"])
        self.first, self.count = state["serial"], 0
        self._begun = self.at  # where the run began
        self.draws: list[tuple[int, int]] = []

    def before(self) -> None:
        """The plan draws from where the generator is."""
        state = self.generator.state_dict()
        now = (state["seed"], state["serial"])
        if now != self.at:
            devices.write(self.memory, devices.move(np.array(now, np.uint64), devices.device_of(self.memory)))
            self.at = now
        self._begun = now

    def after(self, steps: int) -> None:
        """The generator is where the plan has come to."""
        seed, serial = self._begun
        self.at = (seed, serial + self.count * steps)
        self.generator.load_state_dict({"seed": seed, "serial": self.at[1]})

    def after_error(self, steps: int, launches: int) -> None:
        """The plan stopped within the step after so many."""
        seed, serial = self.at
        drawn = max([offset + 1 for place, offset in self.draws if place < launches], default=0)
        self.at = (-1, -1)  # what the memory holds is of no use: it is written before the next run
        self.generator.load_state_dict({"seed": seed, "serial": serial + self.count * steps + drawn})


class SideEffects(NamedTuple):
    """What a replay does in addition to its launches, and the conditions under which it is valid.

    Attributes:
        increments: (object, name of an attribute to add one to, how many launches were recorded before that).
        generators: random generators that move on.
        guards: (an object to keep, a function that tells whether the recording holds).
        lasting: those of these functions that are false for ever once they are.
    """

    increments: Sequence[tuple[Any, str, int]]
    generators: Sequence[DrawnGenerator]
    guards: Sequence[tuple[Any, Callable[[], bool]]]
    lasting: Sequence[Callable[[], bool]]


class Replay:
    """A plan with its side effects: each replay moves versions, counts and random generators on.

    Attributes:
        runs: how often it was replayed.
    """

    def __init__(self, kernels: Any, plan: Any, effects: SideEffects, outputs: Sequence[Output], spec: Any) -> None:
        self.plan, self.runs = plan, 0
        self._kernels, self._run = kernels, kernels.plan_run
        self._effects, self._generators, self._increments = effects, effects.generators, list(effects.increments)
        self._storages = list({id(owner): owner for owner, _, _ in effects.increments if isinstance(owner, Storage)}.values())
        self._guards = [holds for _, holds in effects.guards]
        self._outputs, self._spec = outputs, spec
        self._changes = capturing.changes
        self._single = spec is None and len(outputs) == 1 and outputs[0].kind == "result"

    def holds(self) -> bool:
        """Whether nothing has changed that the recording relies on."""
        return self._changes == capturing.changes and all([holds() for holds in self._guards])

    def fresh(self) -> bool:
        """Whether it may hold again: no Parameter has moved since, and no view that it reads is stale."""
        return self._changes == capturing.changes and all([holds() for holds in self._effects.lasting])

    def run(self, inputs: Sequence[Any], leaves: Sequence[Any], steps: int = 0) -> Any:
        """The function's value for these inputs, tensors or arrays of what was recorded. With steps, they have a leading axis of so
        many. Raises Refused, and does nothing, where they are not of the shapes, dtypes and layouts that were recorded.
        """
        for drawn in self._generators:
            drawn.before()
        try:
            results = self._run(self.plan, inputs, steps, self._increments)
            for drawn in self._generators:
                drawn.after(steps or 1)
        except Refused:
            raise
        except BaseException as error:
            self._after_error(error)
            raise
        for storage in self._storages:
            if storage.views:
                storage.age()
        self.runs += 1
        if self._single:
            return results[0]
        return unflatten(self._spec, [self._value(output, results, leaves) for output in self._outputs])

    @staticmethod
    def _value(output: Output, results: Sequence[Tensor], leaves: Sequence[Any]) -> Any:
        if output.kind == "input":
            return own(leaves[output.place])  # an array of the caller's is copied
        return results[output.place] if output.kind == "result" else output.value

    def _after_error(self, error: BaseException) -> None:
        """What was drawn before the error is accounted for, as it would be without capture. The plan has done its counts."""
        whole, launches, name = self._kernels.plan_done(self.plan)
        for owner, _, place in self._increments:
            if isinstance(owner, Storage) and (whole or place < launches):
                owner.age()
        for drawn in self._generators:
            drawn.after_error(whole, launches)
        if isinstance(error, BadIndex):
            where, index, length, _ = error.args
            raise IndexError(
                f"{name}: index {index} at position {where} is out of range for an axis of length {length}. It was found in a "
                f"replay; call the function without capture to see the line."
            ) from None

    def argument_at(self, place: int) -> int | None:
        """Returns the number of the argument leaf that result `place` is; None if the result is not an argument."""
        output = self._outputs[place]
        return output.place if output.kind == "input" else None

    def rows(self) -> list[Any]:
        """Of each launch: (the recorded ones that it does, group, phase, dtype, shape, why it begins a group)."""
        return self._kernels.plan_rows(self.plan)

    def state(self) -> tuple[int, int, int, str | None]:
        """(CUDA graphs that are kept, nodes of the last one, kernels among them, why kernels are launched one by one or None)."""
        return self._kernels.plan_state(self.plan)

    def facts(self) -> tuple[int, int, int, int, int]:
        """(launches recorded, dead, kept, kernels per replay, bytes of the arena)."""
        return self._kernels.plan_facts(self.plan)
