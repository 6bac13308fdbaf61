"""What a thread launched, as the door keeps it: launches that are alike summed up, and the last ones one by one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Final, NamedTuple

PHASES: Final = ("forward", "backward", "recompute", "optimizer", "data", "other")
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, DATA, OTHER = range(6)
END: Final = -1  # the phase of a ledger's last border
DETAILS: Final = ("count", "phase", "kernel")
FIGURES: Final = (
    "adds", "multiplies", "fmas", "matmul_flops", "executed_flops", "special_ops", "integer_ops", "bytes_read", "bytes_written",
)  # fmt: skip
HOST: Final = ("launches", "tape", "copies", "waiting")  # what the host's time is counted apart for
KEPT: Final = 1 << 14  # launches that are remembered one by one


class Key(NamedTuple):
    """What launches have in common that are summed up. scope: its number in `scopes`."""

    kernel: str
    phase: int
    scope: int
    dtype: str
    known: bool = True  # False where no formula tells the cost


@dataclass(slots=True)
class Launch:
    """What one launch cost. Times are in nanoseconds of the monotonic clock, 0 where launches are not timed."""

    kernel: str
    phase: int
    scope: int
    dtype: str
    adds: int
    multiplies: int
    fmas: int
    matmul_flops: int
    executed_flops: int
    special_ops: int
    integer_ops: int
    bytes_read: int
    bytes_written: int
    live_bytes: int
    begin_ns: int
    end_ns: int
    known: bool = True

    @property
    def flops(self) -> int:
        """Algorithmic; a multiply-add is two."""
        return self.adds + self.multiplies + 2 * self.fmas


@dataclass(eq=False)
class Ledger:
    """What a thread launched.

    Attributes:
        detail: the index in DETAILS of what is asked for, -1 where launches are counted but do not run.
        sums: of launches that are alike: [launches, nanoseconds, *FIGURES], in the order in which they ran first.
        launches: the last ones. borders: (nanoseconds, phase) from which on it is that phase, the last ones, then the end.
        phases: nanoseconds of each phase before the borders.
        device: "cpu" or "cuda", where native launches ran.
        host: nanoseconds of this thread by HOST.
        elsewhere: launches of other threads from the beginning of the ledger to its end.
    """

    detail: int = 0
    sums: dict[Key, list[int]] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    borders: list[tuple[int, int]] = field(default_factory=list)
    phases: list[int] = field(default_factory=lambda: [0] * len(PHASES))
    device: str = "cpu"
    host: dict[str, int] = field(default_factory=lambda: dict.fromkeys(HOST, 0))
    elsewhere: int = 0

    @property
    def timed(self) -> bool:
        """True if launches are timed: an event between two kernels of a GPU keeps them apart, so there it must be asked for."""
        return self.detail > (self.device != "cpu")

    @property
    def count(self) -> int:
        """How many launches there were."""
        return sum([sums[0] for sums in self.sums.values()])

    def add(self, key: Key, launches: int, nanoseconds: int, figures: Any) -> None:
        """Adds launches to their sum."""
        row = (launches, nanoseconds, *figures)
        before = self.sums.get(key)
        self.sums[key] = list(row) if before is None else [a + b for a, b in zip(before, row)]

    def extend(self, later: Ledger) -> None:
        """Adds what was launched next, as finely as this ledger asks for."""
        self.device = later.device if later.device != "cpu" else self.device
        for key, (launches, nanoseconds, *figures) in later.sums.items():
            self.add(key, launches, nanoseconds if self.timed else 0, figures)
        self.launches += later.launches if self.detail > 0 else [replace(x, begin_ns=0, end_ns=0) for x in later.launches]
        del self.launches[: -2 * KEPT]
        for what, nanoseconds in later.host.items():
            self.host[what] += nanoseconds
        if self.detail > 0 and later.borders:
            self._extend_borders(later.borders, later.phases)

    def _extend_borders(self, borders: list[tuple[int, int]], phases: list[int]) -> None:
        """The phase before lasts until the first of them."""
        if self.borders:
            self.borders.pop()  # the end
        if any(phases):  # of borders that are not kept any more
            self._fold(len(self.borders), borders[0][0] - sum(phases))
            self.phases = [a + b for a, b in zip(self.phases, phases)]
        same = bool(self.borders) and self.borders[-1][1] == borders[0][1]
        self.borders += borders[1:] if same else borders
        if len(self.borders) > 2 * KEPT:
            self._fold(len(self.borders) - KEPT, self.borders[-KEPT][0])

    def _fold(self, count: int, end_ns: int) -> None:
        """Keeps no more than the times between the first borders, the last of which lasts until end_ns."""
        folded, self.borders = self.borders[:count], self.borders[count:]
        for (begin, phase), (end, _) in zip(folded, [*folded[1:], (end_ns, END)]):
            self.phases[phase] += end - begin


class Scope(NamedTuple):
    """What a launch is for.

    Attributes:
        module: the path of the Module that runs. op: the op that was called, "" where the kernel tells it.
        code, offset: the user's line that called it, as in site.py.
        order: of the derivative.
    """

    module: str = ""
    op: str = ""
    code: CodeType | None = None
    offset: int = 0
    order: int = 0
