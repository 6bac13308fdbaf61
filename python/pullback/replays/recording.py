"""A run of a function while the door records its launches, and what it made: a Replay."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from .. import capturing, devices, door, gpu
from ..backends import native
from ..errors import CaptureError
from ..ops.shape import copy
from ..refusal import Refused
from ..tensor import Parameter, Tensor
from ..tree import flatten, unflatten
from .replay import Beside, Output, Replay, Stream

FUSIONS: Final = {"none": 0, "exact": 2, "fast": 3}  # by their numbers in csrc/launch/plan.h


class Recording:
    """What a captured function tells of itself while it runs (see `capturing.Recording`).

    Args:
        kernels: the module of the device whose launches are recorded.
        inputs: arrays that a replay is given others for.
    """

    opaque = False  # a replay is made of native kernels

    def __init__(self, kernels: Any, device: str, inputs: Sequence[Any]) -> None:
        self._kernels, self._device, self._inputs = kernels, device, inputs
        self._effects: list[tuple[int, Callable[[], None]]] = []
        self._grown: list[tuple[int, Any]] = []
        self._guards: dict[int, tuple[Any, Callable[[], bool]]] = {}
        self._streams: dict[Any, Stream] = {}

    def refusal(self, what: str, line: str, instead: str) -> Exception:
        """What none could repeat."""
        return CaptureError(f"{what} inside a captured function, at {line}: a replay could not repeat it. {instead}")

    def do(self, effect: Callable[[], None]) -> None:
        """Every replay calls effect(), too, after the launches before this."""
        effect()
        self._effects.append((self._kernels.plan_length(), effect))

    def grows(self, storage: Any) -> None:
        """Every replay changes the memory of this Storage after the launches before this: its version grows."""
        self._grown.append((self._kernels.plan_length(), storage))

    def guard(self, key: Any, holds: Callable[[], bool]) -> None:
        """The recording is good as long as holds()."""
        self._guards.setdefault(id(key), (key, holds))

    def random_state(self, generator: Any, state: dict[str, int], device: str) -> Any:
        """The state of a draw: so many calls after the first one of the run."""
        stream = self._streams.get(generator)
        if stream is None:
            memory = devices.move(np.array([state["seed"], state["serial"]], np.uint64), device)
            stream = self._streams[generator] = Stream(generator, memory, state)
        offset = state["serial"] - stream.first
        stream.draws.append((self._kernels.plan_length(), offset))
        return self._kernels.random_state(stream.memory, offset)

    @contextmanager
    def running(self) -> Generator[None]:
        """Launches of this thread are recorded inside; those of another device are refused."""
        others = [kernels for kernels in _all_kernels() if kernels is not self._kernels]
        try:
            self._kernels.plan_begin(list(self._inputs))
        except Refused as refused:
            raise CaptureError(
                f"capture: an argument cannot be given to a kernel ({refused}); reshape it to at most 8 axes."
            ) from None
        try:
            for kernels in others:
                kernels.plan_begin(None)
            with door.attended():
                capturing.thread.recording = self
                try:
                    yield
                finally:
                    capturing.thread.recording = None
        finally:
            for kernels in (self._kernels, *others):
                kernels.plan_abort()

    def finish(self, outputs: Any, given: Sequence[Any], fusion: str, stacked: bool) -> tuple[Replay, Any]:
        """The Replay of what ran, and the value of this run. `given`: the leaves of the arguments, as the function saw them."""
        leaves, spec = flatten(outputs)
        made: dict[int, Any] = {}  # result arrays by their block
        found = [self._output(x, given, made, stacked) for x in leaves]
        values = [Tensor(made[y.place]) if y.kind == "result" else x for x, y in zip(leaves, found)]
        for stream in self._streams.values():
            stream.count = stream.generator.state_dict()["serial"] - stream.first
            self._kernels.advance_state(stream.memory, stream.count)
            stream.at = (stream.at[0], stream.at[1] + stream.count)
        numbers = {block: i for i, block in enumerate(made)}
        plan = self._kernels.plan_end(list(made.values()), FUSIONS[fusion])
        places = [x._replace(place=numbers[x.place]) if x.kind == "result" else x for x in found]
        streams, guards = list(self._streams.values()), list(self._guards.values())
        beside = Beside(self._effects, self._grown, streams, guards)
        return Replay(self._kernels, plan, beside, places, spec), unflatten(spec, values)

    def _output(self, x: Any, given: Sequence[Any], made: dict[int, Any], stacked: bool) -> Output:
        """What a replay returns in the place of a leaf. Anything but a whole array of the recording is copied into one."""
        if not isinstance(x, Tensor):
            return Output("constant", -1, x)
        for place, leaf in enumerate(given):
            if x is leaf and not isinstance(x, Parameter):
                return Output("input", place, None)
        if isinstance(x, Parameter) and not stacked:
            return Output("constant", -1, x)
        home = self._kernels.plan_home(x.array)
        if home is None or home < len(self._inputs):
            x = copy(x)
            home = self._kernels.plan_home(x.array)
        made.setdefault(home, x.array)
        return Output("result", home, None)


def _all_kernels() -> list[Any]:
    return [kernels for kernels in (native.module, gpu.loaded_kernels()) if kernels is not None]
