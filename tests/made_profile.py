"""Two profiles for tests: one with known figures, and a real one."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

import pullback as pb
from pullback import nn, optim
from pullback.launch import door
from pullback.profiling import Figures, Profile
from pullback.profiling.figures import FIELDS, Group, Row, grouped, total
from pullback.profiling.session import Memory, Span


class Made:
    """A profile with the interface of Profile whose figures are given."""

    def __init__(self, rows: list[Row], spans: list[Span] | None = None, timed: bool = True) -> None:
        self.rows, self.spans, self.timed = rows, spans or [], timed
        self.detail = "phase" if spans else "count"
        self.launches: list[door.Launch] = []
        self.dropped = self.elsewhere = 0

    def __getattr__(self, name: str) -> Figures:
        if name not in door.PHASES:
            raise AttributeError(name)
        figures = total([row.figures for row in self.rows if row.phase == name])
        seconds = math.fsum([span.end - span.begin for span in self.spans if span.phase == name])
        return Figures(*[seconds if field == "seconds" else getattr(figures, field) for field in FIELDS])

    def by(self, axis: str) -> list[Group]:
        return grouped(self.rows, axis)

    @property
    def total(self) -> Figures:
        return total([getattr(self, phase) for phase in door.PHASES])

    @property
    def kernel_seconds(self) -> float:
        return math.fsum([row.figures.seconds for row in self.rows]) if self.timed else math.nan

    @property
    def unknown(self) -> dict[str, int]:
        return {row.kernel: row.figures.launches for row in self.rows if not row.known}

    @property
    def coverage(self) -> float:
        return 1 - sum(self.unknown.values()) / self.total.launches if self.rows else 1.0

    @property
    def memory(self) -> Memory:
        samples = [((x.begin_ns - BEGAN) * 1e-9, x.live_bytes, door.PHASES[x.phase]) for x in self.launches]
        return Memory(samples, 0, 0, {})


BEGAN = 5_000_000_000_123  # the time of the clock, in nanoseconds, at which the profile began


def row(op: str, module: str, phase: str, flops: int, microseconds: float, launches: int = 1, known: bool = True) -> Row:
    work = {"adds": flops % 2, "fmas": flops // 2, "executed_flops": flops}
    moved = {"bytes_read": 300 * launches, "bytes_written": 100 * launches}
    figures = Figures(**work, **moved, seconds=microseconds * 1e-6, launches=launches)
    return Row(f"{op}_kernel", op, module, '"net.py", line 3, in step', 0, "float32", phase, known, figures)


STEP = [
    row("take", "", "data", 0, 40.0, 2),
    row("linear", "0", "forward", 12_853_248, 300.0),
    row("linear", "2", "forward", 164_480, 20.0),
    row("cross_entropy", "", "forward", 2_560, 9.0),
    row("cross_entropy", "", "backward", 1_280, 1.0, 2),
    row("linear", "2", "backward", 328_320, 40.0, 4),
    row("linear", "0", "backward", 12_853_248, 400.0, 3),
    row("add_n", "", "backward", 8_192, 4.0, 2),
    row("adam", "", "optimizer", 1_017_700, 86.0),
]
SPANS = [Span("data", 0.0, 1e-4), Span("forward", 1e-4, 1e-3), Span("backward", 1e-3, 1.6e-3), Span("optimizer", 1.6e-3, 1.8e-3)]


def made(*rows: Row, **changes: Any) -> Any:
    return Made(list(rows) or STEP, **{"spans": SPANS, **changes})


def launch(kernel: str, phase: str, scope: int, begin: int, nanoseconds: int, live: int, **figures: int) -> door.Launch:
    """Returns a launch. `begin` is in nanoseconds since the profile began; a launch of 0 nanoseconds is not timed."""
    zero = dict.fromkeys(door.FIGURES, 0)
    times = (BEGAN + begin, BEGAN + begin + nanoseconds) if nanoseconds else (0, 0)
    charged = (kernel, door.PHASES.index(phase), scope, "float32")
    return door.Launch(*charged, **{**zero, **figures}, live_bytes=live, begin_ns=times[0], end_ns=times[1])


def mlp() -> Any:
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


@cache
def trained(steps: int = 2, detail: str = "kernel") -> Any:
    """Returns the profile of real training steps of an MLP with 784, 128 and 10 units. The profile is shared: do not change it."""
    net = mlp()
    opt = optim.Adam(net.parameters())
    x, y = pb.tensor(np.random.default_rng(0).standard_normal((64, 784)).astype(np.float32)), pb.tensor(np.arange(64) % 10)
    with Profile(detail=detail) as prof:
        for _ in range(steps):
            opt.minimize(lambda: nn.cross_entropy(net(x), y))
    return prof
