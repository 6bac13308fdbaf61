"""Ledger: the door's record of a thread's launches, as sums over launches with equal keys and a list of the latest launches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, get_args

PHASES: Final = ("forward", "backward", "recompute", "optimizer", "data", "other", "solver")
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, DATA, OTHER, SOLVER = range(7)
END: Final = -1  # the phase of a ledger's last border
Detail = Literal["count", "phase", "kernel"]
DETAILS: Final[tuple[Detail, ...]] = get_args(Detail)
FIGURES: Final = (
    "adds", "multiplies", "fmas", "matmul_flops", "executed_flops", "special_ops", "integer_ops", "bytes_read", "bytes_written",
)
HOST: Final = ("launches", "tape", "copies", "waiting")  # the parts of the host's time that are counted separately
KEPT: Final = 1 << 14  # number of latest launches (and of phase borders) that are kept one by one


class Key(NamedTuple):
    """The key of a sum: launches with equal keys are summed. scope: the scope's number (scopes.py)."""

    kernel: str
    phase: int
    scope: int
    dtype: str
    known: bool = True  # False if there is no formula for the cost


@dataclass(slots=True)
class Launch:
    """The cost of one launch. Times are in nanoseconds of the monotonic clock; 0 if launches are not timed."""

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
        """The algorithm's operations; a multiply-add counts as two."""
        return self.adds + self.multiplies + 2 * self.fmas


@dataclass(eq=False)
class Ledger:
    """The launches of one thread.

    Attributes:
        detail: the index in DETAILS of the requested detail; -1 if launches are counted but do not run.
        sums: for each key [launches, nanoseconds, *FIGURES], in the order of the first launch of each key.
        launches: the latest launches.
        borders: pairs (nanoseconds, phase): the time at which a phase began; the latest ones, then the end.
        phases: nanoseconds spent in each phase before the borders.
        device: the device that native launches ran on, "cpu" or "cuda".
        host: nanoseconds of this thread, by the parts in HOST.
        elsewhere: number of launches of other threads between the beginning of the ledger and its end.
        paths: for the id and the path of each outermost Module that was called: the Module, and those inside with their paths.
    """

    detail: int = 0
    sums: dict[Key, list[int]] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    borders: list[tuple[int, int]] = field(default_factory=list)
    phases: list[int] = field(default_factory=lambda: [0] * len(PHASES))
    device: str = "cpu"
    host: dict[str, int] = field(default_factory=lambda: dict.fromkeys(HOST, 0))
    elsewhere: int = 0
    paths: dict[tuple[int, str], tuple[Any, list[tuple[Any, str]]]] = field(default_factory=dict)

    @property
    def timed(self) -> bool:
        """True if launches are timed: on a GPU only with detail "kernel", because events between kernels keep them apart."""
        return self.detail > (self.device != "cpu")

    @property
    def count(self) -> int:
        """The number of launches."""
        return sum([sums[0] for sums in self.sums.values()])

    def add(self, key: Key, launches: int, nanoseconds: int, figures: Any) -> None:
        """Adds a number of launches to the sum of their key. figures: their totals in the order of FIGURES."""
        row = (launches, nanoseconds, *figures)
        before = self.sums.get(key)
        self.sums[key] = list(row) if before is None else [a + b for a, b in zip(before, row)]

    def add_launch(self, x: Launch) -> None:
        """Adds a launch of the reference."""
        figures = [getattr(x, name) for name in FIGURES]
        self.add(Key(x.kernel, x.phase, x.scope, x.dtype, x.known), 1, x.end_ns - x.begin_ns, figures)
        self.host["launches"] += x.end_ns - x.begin_ns
        self.launches.append(x)
        if len(self.launches) > 2 * KEPT:
            del self.launches[:-KEPT]

    def merge(self, device: str, sums: Any, launches: Any, borders: Any, phases: Any, launching: int) -> None:
        """Adds the ledger of a module of kernels. The phase times are those of the last module with launches: the GPU's, if any."""
        if sums:
            self.device = device
        self.host["launches"] += launching
        for key, count, nanoseconds, figures in sums:
            self.add(Key(*key), count, nanoseconds, figures)
        self.launches += [Launch(*[*key, *figures, *rest]) for key, figures, *rest in launches]
        if sums or not self.borders:
            self.borders, self.phases = borders, phases

    def extend(self, later: Ledger) -> None:
        """Adds the launches of the ledger that follows this one, with this ledger's detail."""
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
        """Adds later borders. The last phase so far lasts until the first of them."""
        if self.borders:
            self.borders.pop()  # drops the end
        if any(phases):  # the times before `borders`, whose own borders were dropped
            self._fold(len(self.borders), borders[0][0] - sum(phases))
            self.phases = [a + b for a, b in zip(self.phases, phases)]
        same = bool(self.borders) and self.borders[-1][1] == borders[0][1]
        self.borders += borders[1:] if same else borders
        if len(self.borders) > 2 * KEPT:
            self._fold(len(self.borders) - KEPT, self.borders[-KEPT][0])

    def _fold(self, count: int, end_ns: int) -> None:
        """Adds the times between the first `count` borders to `phases`, and drops these. The last of them lasts until end_ns."""
        folded, self.borders = self.borders[:count], self.borders[count:]
        for (begin, phase), (end, _) in zip(folded, [*folded[1:], (end_ns, END)]):
            self.phases[phase] += end - begin
