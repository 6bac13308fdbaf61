"""Runs a function while the door records its launches, and makes a Replay of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import ref

import numpy as np

from ..autodiff.kept import Kept
from ..backends import modes, native
from ..backends.reference import MOST_AXES
from ..errors import CaptureError
from ..launch import capturing, door
from ..launch.made import Made
from ..launch.refusal import Refused
from ..ops.conversion import copy
from ..tensors import devices, gpu, views
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..tree import flatten, unflatten
from .facts.behind import RETURN, Behind
from .facts.watch import Watch
from .layout import layout_in, owner_of
from .replay import DrawnGenerator, Output, Replay, SideEffects

FUSIONS: Final = {"none": 0, "exact": 2, "fast": 3}  # the values of Fusion in csrc/launch/plan.h


class FirstCall(Kept):
    """While entered, no thread can set `pb.config.reproducible`, so that a recording and the replays of its steps have one mode."""

    def _begin(self) -> None:
        modes.hold(self)

    def _end(self) -> None:
        modes.release(self)


class Recording(Kept):
    """Collects what a replay has to repeat while a captured function runs (see `capturing.Recording`).

    Args:
        kernels: the kernel module of the device whose launches are recorded.
        inputs: the argument arrays of this run. A replay reads the arrays that it is called with instead.
        layouts: results that are parts of larger blocks keep their layout, and share the memory of the block.
        function: the captured function.
        leaves: the arguments.
    """

    opaque, rereads = False, True  # A replay consists of native kernels only, which read arrays from outside in place.

    def __init__(
        self, kernels: Any, device: str, inputs: Sequence[Any], layouts: bool, function: Any, leaves: Sequence[Any]
    ) -> None:
        self._kernels, self._device, self._inputs = kernels, device, inputs
        self.keeps = layouts
        self.watch = Watch(kernels, device, function, leaves)
        self.behind = Behind([], [])
        self._increments: list[tuple[Any, str, int]] = []
        self._guards: dict[int, tuple[Any, Callable[[], bool]]] = {}
        self._preparations: dict[int, tuple[Any, Callable[[], object]]] = {}
        self._checks: list[Callable[[], None]] = []
        self._lasting: list[Callable[[], bool]] = []
        self._generators: dict[Any, DrawnGenerator] = {}
        self._modules: dict[int, ref[Any]] = {}
        self._set: dict[tuple[int, str], Any] = {}  # by id and name, the owners of attributes that the run sets for a time
        self.made = Made()
        self._refused: CaptureError | None = None

    def refusal(self, what: str, line: str, instead: str) -> Exception:
        """Returns the CaptureError for something that a replay could not repeat."""
        self._refused = CaptureError(f"{what} inside a captured function, at {line}: a replay could not repeat it. {instead}")
        return self._refused

    def increments(self, owner: Any, name: str) -> None:
        """Makes every replay add one to this attribute, after the launches recorded so far."""
        self._increments.append((owner, name, self._kernels.plan_length()))

    def guard(self, key: Any, holds: Callable[[], bool]) -> None:
        """Makes the recording valid only while holds() is true. Only the first guard of a key counts.

        A condition on what the run itself has made always holds, because every replay makes it anew.
        """
        if key not in self.made:
            self._guards.setdefault(id(key), (key, holds))

    def mode(self, module: Any) -> None:
        """Makes the recording valid only while the Module has its present mode."""
        if id(module) not in self._modules and module not in self.made:
            self.watch.read(module, "training")
            self.watch.read(module, "forward")
            self._modules[id(module)] = ref(module)

    def sets(self, owner: Any, name: str) -> None:
        """Makes the recording valid for each value of an attribute, because the run itself sets it for a time."""
        self._set[id(owner), name] = owner

    def fact(self, owner: Any, name: str) -> None:
        """Makes the recording valid only while an attribute is what it is."""
        if owner not in self.made:
            self.watch.read(owner, name)

    def note(self, tensor: Any) -> None:
        """Notes a tensor that Python has made, perhaps over an array that each replay reads in place."""
        self._kernels.plan_note(tensor)
        if not self.changes(tensor.array):
            self.watch.in_place.append(tensor.array)

    def prepare(self, key: Any, action: Callable[[], object]) -> None:
        """Makes every replay call action() before it runs. Only the first action of a key counts."""
        self._preparations.setdefault(id(key), (key, action))

    def repeats(self, check: Callable[[], None]) -> None:
        """Calls check() at the end of the run if one call of the captured function has several steps, which repeat the run."""
        self._checks.append(check)

    def reads(self, storage: Any) -> None:
        """Makes the recording valid only until this Storage changes, because then the view that the run read is stale."""
        version = storage.version
        self._lasting.append(lambda: storage.version == version)
        self.guard(storage, self._lasting[-1])

    def random_state(self, generator: Any, state: dict[str, int], device: str) -> Any:
        """Returns the state of a draw. It is computed on the device from the state of the run's first draw and an offset."""
        drawn = self._generators.get(generator)
        if drawn is None:
            memory = devices.move(np.array([state["seed"], state["serial"]], np.uint64), device)
            drawn = self._generators[generator] = DrawnGenerator(generator, memory, state)
        offset = state["serial"] - drawn.first
        drawn.draws.append((self._kernels.plan_length(), offset))
        return self._kernels.random_state(drawn.memory, offset)

    def changes(self, array: Any) -> bool:
        """True if the array lies in memory that each replay provides anew: that of an argument or of a temporary."""
        try:
            return self._kernels.plan_home(array) is not None
        except Refused:  # an array that no kernel takes
            return True

    def __enter__(self) -> Recording:
        """Starts recording the launches of this thread. A launch on another device then raises."""
        super().__enter__()
        return self

    def _begin(self) -> None:
        wide = next((x.shape for x in self._inputs if x.ndim > MOST_AXES), None)
        if wide is not None:
            raise CaptureError(
                f"capture: an argument has the shape {wide}, of {len(wide)} axes, and kernels take at most {MOST_AXES}. Join axes "
                f"of it before the call, by pb.reshape."
            )
        self._kernels.plan_begin(list(self._inputs))
        for kernels in _all_kernels():
            if kernels is not self._kernels:
                kernels.plan_begin(None)
        door.attend(True)
        capturing.begin(self)
        views.begin(self)
        self.watch.begin()

    def _end(self) -> None:
        self.watch.end()
        views.end(self)
        capturing.thread.recording = None
        capturing.running.discard(self)
        for kernels in _all_kernels():
            kernels.plan_abort()
        door.attend(False)

    def finish(
        self, returned: list[Any], given: Sequence[Any], fusion: str, stacked: bool, unchanged: bool
    ) -> tuple[Replay | None, Any]:
        """Returns the Replay of the run, and the value of this run. The Replay is None if the run has left something behind.

        returned: [the function's value], which is taken out, because what is alive besides the result is left behind.
        given: the leaves that the function received.
        unchanged: True if the lists and dicts among the arguments have the items that they came with.
        """
        self.watch.end()
        for (_, name), owner in self._set.items():
            self.watch.forget(owner, name)
        for check in self._checks if stacked else ():
            check()
        if self._refused is not None:  # the function has caught it, and gone on without the value
            raise self._refused
        if not unchanged:
            raise CaptureError(f"capture: the function changes a list or a dict that it was called with. {RETURN}")
        leaves, spec = flatten(returned.pop())
        made: dict[int, Any] = {}  # result arrays by the number of their block
        found = [self._output(x, given, made, stacked) for x in leaves]
        values = [Tensor(made[y.place]) if y.kind == "result" else x for x, y in zip(leaves, found)]  # "part", "memory": x itself
        made_inside = [x for x in leaves if x in self.made and not (stacked and isinstance(x, Parameter))]
        objects = [] if self.keeps else [x for x in leaves if not isinstance(x, Tensor)]
        del leaves
        self.behind = self.watch.left(values, objects, made_inside, given)
        if self.behind.reasons:
            return None, unflatten(spec, values)
        for drawn in self._generators.values():
            drawn.count = drawn.generator.state_dict()["serial"] - drawn.first
            self._kernels.advance_state(drawn.memory, drawn.count)
            drawn.at = (drawn.at[0], drawn.at[1] + drawn.count)
        numbers = {block: i for i, block in enumerate(made)}
        plan = self._kernels.plan_end(list(made.values()), FUSIONS[fusion])
        places = [x._replace(place=numbers[x.place]) if x.kind in ("result", "part") else x for x in found]
        generators, guards = list(self._generators.values()), list(self._guards.values())
        preparations = [action for _, action in self._preparations.values()]
        facts, modules = self.watch.facts(), list(self._modules.values())
        effects = SideEffects(self._increments, generators, guards, facts, modules, self._lasting, preparations)
        return Replay(self._kernels, plan, effects, places, spec), unflatten(spec, values)

    def _output(self, x: Any, given: Sequence[Any], made: dict[int, Any], stacked: bool) -> Output:
        """Returns what a replay yields for a leaf of the result. Copies a tensor that is not a whole block of the plan."""
        if not isinstance(x, Tensor):
            return Output("constant", -1, x.copy() if type(x) is np.ndarray else x)
        for place, leaf in enumerate(given):
            if x is leaf and not isinstance(x, Parameter):
                return Output("input", place, None)
        if isinstance(x, Parameter) and not stacked:
            return Output("constant", -1, x)
        if x.ndim > MOST_AXES:
            raise CaptureError(
                f"capture: a result has the shape {x.shape}, of {x.ndim} axes, and a replay can return at most {MOST_AXES}. Return "
                f"it with fewer, and reshape it after the call."
            )
        home = self._kernels.plan_home(x.array)
        if self.keeps and (part := self._part(x, home, made)) is not None:
            return part
        if home is None or home < len(self._inputs) or not _alike(made.get(home, x.array), x.array):
            x = copy(x)
            home = self._kernels.plan_home(x.array)
        made.setdefault(home, x.array)
        return Output("result", home, None)

    def _part(self, x: Tensor, home: int | None, made: dict[int, Any]) -> Output | None:
        """Returns how a replay yields a tensor that is a part of a block, or in memory that stays in place. Otherwise None."""
        if home is None:
            return Output("memory", -1, (x.array, x.storage))
        if home >= len(self._inputs):
            if home in made:  # another tensor with this memory, which tapes tell from the first one
                return Output("part", home, layout_in(x.array, x.array))
            made[home] = x.array
            return Output("result", home, None)
        owner = owner_of(x.array) if x.size else None
        for place, given in enumerate(self._inputs):
            if owner is given:
                return Output("argument", place, layout_in(owner, x.array))
        block = self._kernels.plan_home(owner) if owner is not None else None
        if block is None or block < len(self._inputs):
            return None
        made.setdefault(block, owner)
        return Output("part", block, layout_in(owner, x.array))


def _alike(a: Any, b: Any) -> bool:
    """True if both arrays, which are whole blocks, have one shape and one dtype: a block is returned in one form only."""
    return a.shape == b.shape and a.dtype == b.dtype


def _all_kernels() -> list[Any]:
    return [kernels for kernels in (native.module, gpu.loaded_kernels()) if kernels is not None]
