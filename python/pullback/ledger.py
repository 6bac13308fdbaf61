"""What a thread launched, as the door keeps it: launches that are alike summed up, and the last ones one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
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


@dataclass
class Ledger:
    """What a thread launched.

    Attributes:
        sums: of launches that are alike: [launches, nanoseconds, *FIGURES], in the order in which they ran first.
        launches: the last ones. borders: (nanoseconds, phase) from which on it is that phase, the last ones, then the end.
        phases: nanoseconds of each phase before the borders.
        timed: launches are. device: "cpu" or "cuda", where native launches ran.
        host: nanoseconds of this thread by HOST.
    """

    sums: dict[Key, list[int]] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    borders: list[tuple[int, int]] = field(default_factory=list)
    phases: list[int] = field(default_factory=lambda: [0] * len(PHASES))
    timed: bool = False
    device: str = "cpu"
    host: dict[str, int] = field(default_factory=lambda: dict.fromkeys(HOST, 0))

    def add(self, key: Key, launches: int, nanoseconds: int, figures: Any) -> None:
        """Adds launches to their sum."""
        row = (launches, nanoseconds, *figures)
        before = self.sums.get(key)
        self.sums[key] = list(row) if before is None else [a + b for a, b in zip(before, row)]


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
