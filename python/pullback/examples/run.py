"""Run and Result: what all examples have in common."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import pullback as pb

if TYPE_CHECKING:
    from typing_extensions import Self

Mode = Literal["machine", "everywhere"]
BLUE, ORANGE, GREY = "#2f81f7", "#e8710a", "#808080"  # the colours of all pictures, readable on white and on black
READ: Final = 16  # losses that are read from the device together, so that a step on a GPU does not wait


class Measure(NamedTuple):
    """A figure of merit of the trained network, and the text that is printed for it."""

    value: float
    text: str


@dataclass
class Result:
    """The result of a training run.

    Attributes:
        model: the trained network.
        losses: the loss of each step.
        measures: what was measured after the training, by name.
        reference: the published or exact value that the measures can be compared with, and its source, or "".
        profile: all launches of the training steps.
        seconds: the wall time of the training steps.
        reproducible: the mode of the run.
        why_machine: if the mode is not "everywhere", the reason, or "" if the caller chose it.
        draw: a function that draws the example's picture on a matplotlib Figure, or None if there is none.
    """

    model: pb.nn.Module
    losses: list[float]
    measures: dict[str, Measure]
    reference: str
    profile: pb.profiling.Profile
    seconds: float
    reproducible: str
    why_machine: str
    draw: Callable[[Any], None] | None

    @property
    def steps(self) -> int:
        """The number of training steps."""
        return len(self.losses)


class Run:
    """The seed, the device and the mode of a training run, its loop, and the figures of that loop.

    Inside `with run:` new tensors are on the device, and the mode is set. Equal arguments give equal bits, under "everywhere" on
    every machine. Each Run is for one training.

    Args:
        seed: the seed of `pb.random` and of shuffling.
        device: the device, or None for the default one.
        reproducible: the `pb.config.reproducible` of this run. None takes "everywhere" if the device can, else "machine".
        progress: a function that wraps the range of rounds, as tqdm does. If its result has a `set_postfix`, that is called with
            loss=…, the mean of the losses that were read last.

    Raises: PullbackError, DeviceError.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        device: str | None = None,
        reproducible: Mode | None = None,
        progress: Callable[[Sequence[int]], Any] | None = None,
    ) -> None:
        self.seed, self.device, self.seconds = seed, device, 0.0
        self.losses: list[float] = []
        self.profile: pb.profiling.Profile
        self._mode: Mode | None = reproducible
        self._progress, self._why_machine = progress, ""
        self._unread: list[pb.Tensor] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            pb.random.seed(self.seed)
            if self.device is not None:
                stack.enter_context(pb.use_device(self.device))
            why_not = pb.config.why_not() or ""
            stack.callback(setattr, pb.config, "reproducible", pb.config.reproducible)
            pb.config.reproducible = self._mode or ("machine" if why_not else "everywhere")
            self._why_machine = "" if self._mode else why_not
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def repeat(self, work: Callable[[], pb.Tensor | Sequence[pb.Tensor]], count: int) -> None:
        """The loop of the training: calls `work` `count` times, under a profile, and keeps the losses that it returns."""
        rounds: Any = self._progress(range(count)) if self._progress else range(count)
        start = time.perf_counter()
        with pb.profile() as self.profile:
            for _ in rounds:
                done = work()
                self._unread += [done] if isinstance(done, pb.Tensor) else done
                if len(self._unread) >= READ:
                    self._read(rounds)
            self._read(rounds)
        self.seconds = time.perf_counter() - start

    def _read(self, rounds: Any) -> None:
        if not self._unread:
            return
        read = [loss.item() for loss in self._unread]
        self._unread.clear()
        self.losses += read
        if hasattr(rounds, "set_postfix"):
            rounds.set_postfix(loss=f"{sum(read) / len(read):.3g}", refresh=False)

    def result(
        self, model: pb.nn.Module, measures: dict[str, Measure], *, reference: str = "", draw: Callable[[Any], None] | None = None
    ) -> Result:
        """Returns the result of the run, with what the example adds to it."""
        return Result(
            model, self.losses, measures, reference, self.profile, self.seconds, pb.config.reproducible, self._why_machine, draw
        )


def smoothed(losses: Sequence[float]) -> tuple[list[float], list[float], int]:
    """Returns the means of groups of losses, about 50 of them: the middles of the groups, the means, and the size of a group."""
    size = max(1, len(losses) // 50)
    starts = range(0, len(losses) - size + 1, size)
    return [i + size * 0.5 for i in starts], [sum(losses[i : i + size]) / size for i in starts], size


def check(lr: float, **counts: int) -> None:
    """Raises PullbackError for a learning rate that is not positive and finite, and for the first count that is below 1, or too
    large for Python to count to.
    """
    if not 0 < lr < math.inf:
        raise pb.PullbackError(f"train: lr={lr} must be a finite number above 0.")
    for name, number in counts.items():
        if not 1 <= number <= sys.maxsize:
            raise pb.PullbackError(f"train: {name}={number} must be 1 or more, and at most {sys.maxsize}.")
