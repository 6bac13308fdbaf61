"""Profile: a span of one thread's launches, by phase."""

from __future__ import annotations

from typing import Any

from .. import door
from ..errors import PullbackError
from .figures import Figures
from .table import phase_table


class Profile:
    """`with pb.profile() as prof:` keeps what this thread launches inside: `prof.forward.flops`, `prof.backward.seconds`, …

    Args:
        strict: leaving raises PullbackError where the cost of a launch is not known.

    Counts come from what ran, with the shapes it ran on. The six phases and their `total` are Figures; until the end of the
    `with` they are zero. A profile is for one use, in one thread. Raises PullbackError where another one is running.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self.launches: list[door.Launch] = []
        self._begun = False
        self._sums: dict[Any, Figures] = {}

    def __enter__(self) -> Profile:
        if self._begun:
            raise PullbackError("this profile has been used; make another one with pb.profile().")
        if door.state.ledger is not None:
            raise PullbackError("a profile is running in this thread already; leave it first.")
        door.begin()
        self._begun = True
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.launches = door.end()
        self._sums.clear()
        if self.strict and self.unknown and kind is None:
            raise PullbackError(
                f"profile: the cost of {sum(self.unknown.values())} launch(es) is not known: {', '.join(self.unknown)}. Declare "
                f"a cost for these ops, or profile with strict=False."
            )

    def _phase(self, phase: int | None) -> Figures:
        if phase not in self._sums:
            self._sums[phase] = Figures.of([x for x in self.launches if phase is None or x.phase == phase])
        return self._sums[phase]

    @property
    def forward(self) -> Figures:
        """What ran outside all other phases: the model and the loss."""
        return self._phase(door.FORWARD)

    @property
    def backward(self) -> Figures:
        """What gradients ran, second derivatives too."""
        return self._phase(door.BACKWARD)

    @property
    def recompute(self) -> Figures:
        """What checkpoints ran again."""
        return self._phase(door.RECOMPUTE)

    @property
    def optimizer(self) -> Figures:
        """The updates of parameters."""
        return self._phase(door.OPTIMIZER)

    @property
    def data(self) -> Figures:
        """Shuffling and gathering of mini-batches."""
        return self._phase(door.DATA)

    @property
    def other(self) -> Figures:
        return self._phase(door.OTHER)

    @property
    def total(self) -> Figures:
        return self._phase(None)

    @property
    def unknown(self) -> dict[str, int]:
        """Kernels without a known cost, and how often each ran."""
        names: dict[str, int] = {}
        for launch in self.launches:
            if not launch.known:
                names[launch.kernel] = names.get(launch.kernel, 0) + 1
        return names

    @property
    def coverage(self) -> float:
        """The share of launches whose cost is known; 1.0 where nothing ran."""
        return 1 - sum(self.unknown.values()) / len(self.launches) if self.launches else 1.0

    def __str__(self) -> str:
        return phase_table(self)

    def __repr__(self) -> str:
        if not self._begun:
            return "Profile(not entered yet)"
        return f"Profile({len(self.launches)} launches, {self.total.flops} FLOPs, coverage {self.coverage:.3f})"
