"""Profile: a span of one thread's launches, by phase, op, module and line."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from ..autodiff.kept import Kept
from ..autodiff.site import line_of
from ..errors import PullbackError
from ..launch import door
from .figures import AXES, Figures, Group, Row, grouped, total
from .table import phase_table, renderable

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from .compare import Comparison
    from .roofline import Roofline
    from .verify import Verification


class Span(NamedTuple):
    """A stretch of time in one phase, in seconds since the profile began."""

    phase: str
    begin: float
    end: float


class Memory(NamedTuple):
    """Bytes of the device that arrays of pullback took, those from before the profile included.

    Attributes:
        samples: (seconds since the profile began, bytes, phase) at launches, in order.
        live: at the end. peak: the most at any launch. peaks: by phase.
    """

    samples: list[tuple[float, int, str]]
    live: int
    peak: int
    peaks: dict[str, int]


class Host(NamedTuple):
    """Seconds of a thread; they add up to those of the profile.

    Attributes:
        launches: in kernels; for a GPU, handing them over. tape: recording, and on the CPU walking back.
        copies: to a GPU. waiting: for a GPU, and copying from it. python: all else.
    """

    launches: float
    tape: float
    copies: float
    waiting: float
    python: float


def profile(*, strict: bool = False, detail: str = "phase") -> Profile:
    """Makes a profile of what this thread launches inside `with pb.profile() as prof:`.

    Args:
        strict: leaving raises PullbackError if the cost of a launch is unknown.
        detail: "phase" times phases, and on the CPU launches too; "kernel" times each launch on a GPU as well, and runs captured
            functions launch by launch; "count" times nothing.

    Returns: a Profile: `prof.forward.flops`, `prof.backward.seconds`, … after the `with`; print(prof) shows it as a table.
    """
    return Profile(strict=strict, detail=detail)


class Profile(Kept):
    """The costs of what one thread launched inside a `with` statement. `pb.profile` makes one.

    Args:
        strict, detail: as in `pb.profile`.
        dry: native kernels are counted but do not run (see `pb.flops`).

    Counts come from what ran, with the shapes it ran on; a captured function counts at every replay. The six phases and their
    `total` are Figures; until the end of the `with` they are zero. A profile is for one use, in one thread. Profiles nest: what
    runs in one is in those around it, too.

    Attributes:
        launches: the last 16,384 of them at least, in order; `dropped` more are in the sums only.
        seconds: from entering to leaving.
        elsewhere: launches of other threads meanwhile, which are not in the figures (a thread has profiles of its own). Those in
            another thread's profile that has not ended are not among them.
    """

    def __init__(self, *, strict: bool = False, detail: str = "phase", dry: bool = False) -> None:
        if detail not in door.DETAILS:
            raise PullbackError(f"profile: detail={detail!r}; use {', '.join(map(repr, door.DETAILS))}.")
        self.strict, self.detail, self._dry = strict, detail, dry
        self.seconds = 0.0
        self._ledger = self._running = door.Ledger()
        self._begun = False
        self._outer = door.state.running  # the ledgers around it
        self._begin_ns = 0

    def __enter__(self) -> Profile:
        if self._begun:
            raise PullbackError("this profile has been used; make another one with pb.profile().")
        super().__enter__()
        return self

    def _begin(self) -> None:
        self._outer = door.state.running
        self._begun = True
        self._running = door.begin(self.detail, self._dry)
        self._begin_ns = time.monotonic_ns()

    def _end(self) -> None:
        self.seconds = (time.monotonic_ns() - self._begin_ns) * 1e-9
        self._ledger = door.end(self._running)
        for looked_at in ("rows", "spans", "_phases"):
            self.__dict__.pop(looked_at, None)

    def _leave(self, kind: Any = None, *error: object) -> None:
        """Raises PullbackError for a launch of unknown cost, with strict."""
        if kind is not None and issubclass(kind, KeyboardInterrupt) and self._stack is not None:
            door.end_others(self._outer)
        super()._leave(kind, *error)
        if self.strict and self.unknown and kind is None:
            raise PullbackError(
                f"profile: the cost of {sum(self.unknown.values())} launch(es) is not known: {', '.join(self.unknown)}. Declare "
                f"a cost for these ops, or profile with strict=False."
            )

    # ---- figures

    @cached_property
    def rows(self) -> list[Row]:
        """The launches by kernel, op, module, line, order, dtype and phase, in the order in which they ran first."""
        return [_row(key, sums) for key, sums in self._ledger.sums.items()]

    @cached_property
    def _phases(self) -> dict[str, Figures]:
        seconds = {phase: x * 1e-9 for phase, x in zip(door.PHASES, self._ledger.phases)}
        for span in self.spans:
            seconds[span.phase] += span.end - span.begin
        found = {phase: total([row.figures for row in self.rows if row.phase == phase]) for phase in door.PHASES}
        return {phase: replace(figures, seconds=seconds[phase]) if self.spans else figures for phase, figures in found.items()}

    @property
    def forward(self) -> Figures:
        """What ran outside all other phases: the model and the loss."""
        return self._phases["forward"]

    @property
    def backward(self) -> Figures:
        """What gradients ran, second derivatives too."""
        return self._phases["backward"]

    @property
    def recompute(self) -> Figures:
        """What checkpoints ran again."""
        return self._phases["recompute"]

    @property
    def optimizer(self) -> Figures:
        """The updates of parameters."""
        return self._phases["optimizer"]

    @property
    def data(self) -> Figures:
        """Shuffling and gathering of mini-batches."""
        return self._phases["data"]

    @property
    def other(self) -> Figures:
        return self._phases["other"]

    @property
    def total(self) -> Figures:
        """All phases; its seconds are theirs."""
        return total(self._phases.values())

    def by(self, axis: str) -> list[Group]:
        """The figures by "op", "module", "line", "kernel", "order" (of the derivative) or "dtype", each by phase; the groups in the
        order in which they ran first. Seconds are those inside launches, 0 where these are not timed.
        """
        if axis not in AXES:
            raise PullbackError(f"by: axis={axis!r}; use {', '.join(map(repr, AXES))}.")
        return grouped(self.rows, axis)

    @property
    def unknown(self) -> dict[str, int]:
        """Kernels without a known cost, and how often each ran."""
        names: dict[str, int] = {}
        for row in self.rows:
            if not row.known:
                names[row.kernel] = names.get(row.kernel, 0) + row.figures.launches
        return names

    @property
    def coverage(self) -> float:
        """The share of launches whose cost is known; 1.0 where nothing ran."""
        launches = sum([row.figures.launches for row in self.rows])
        return 1 - sum(self.unknown.values()) / launches if launches else 1.0

    @property
    def elsewhere(self) -> int:
        return self._ledger.elsewhere

    # ---- time and memory

    @property
    def launches(self) -> list[door.Launch]:
        return self._ledger.launches

    @property
    def dropped(self) -> int:
        """Launches that are not in `launches`."""
        return sum([row.figures.launches for row in self.rows]) - len(self.launches)

    @cached_property
    def spans(self) -> list[Span]:
        """What phase it was when, without gaps: the last 16,384 stretches at least; none with detail="count"."""
        borders = self._ledger.borders
        end_ns = self._begin_ns + int(self.seconds * 1e9)
        if borders and self.device == "cpu":  # a GPU may be at work for longer
            borders = [*borders[:-1], (min(borders[-1][0], end_ns), borders[-1][1])]
        return [
            Span(door.PHASES[phase], max(0, begin - self._begin_ns) * 1e-9, (end - self._begin_ns) * 1e-9)
            for (begin, phase), (end, _) in zip(borders, borders[1:])
        ]

    @property
    def kernel_seconds(self) -> float:
        """Inside launches; nan where they were not timed."""
        return math.fsum([row.figures.seconds for row in self.rows]) if self._ledger.timed else math.nan

    @property
    def host(self) -> Host:
        """What this thread was busy with. Raises PullbackError where it was not timed."""
        if self.detail != "kernel":
            raise PullbackError('profile: what the host did is timed with pb.profile(detail="kernel") only.')
        seconds = {what: nanoseconds * 1e-9 for what, nanoseconds in self._ledger.host.items()}
        inside = math.fsum([row.figures.seconds for row in self.rows if row.phase == "backward"])
        if self.device == "cpu":
            seconds["tape"] += max(0.0, self.backward.seconds - inside)
        return Host(python=self.seconds - math.fsum(seconds.values()), **seconds)

    @property
    def memory(self) -> Memory:
        """Live and peak bytes, as of the launches that are kept; over time, where they are timed."""
        launches = [((x.begin_ns - self._begin_ns) * 1e-9, x.live_bytes, door.PHASES[x.phase]) for x in self.launches]
        peaks: dict[str, int] = {}
        for _, live, phase in launches:
            peaks[phase] = max(peaks.get(phase, 0), live)
        samples = [sample for sample, x in zip(launches, self.launches) if x.begin_ns]
        return Memory(samples, launches[-1][1] if launches else 0, max(peaks.values(), default=0), peaks)

    def roofline(self) -> Roofline:
        """For each kernel its FLOPs per byte, the rates it reached, and what bounds it: compute, memory or launches.

        Against the peaks of this device, which are measured once and kept. Raises PullbackError where launches were not timed.
        """
        from .roofline import roofline

        return roofline(self, device=self.device)

    def verify(self, step: Callable[[], Any] | None = None) -> Verification:
        """Runs step() under NVIDIA's `ncu` and compares the ledger with the GPU's counters, kernel by kernel (see verify.py).

        Raises PullbackError where there is no step, no GPU, no `ncu`, or no permission to read counters.
        """
        from .verify import verify

        return verify(step)

    # ---- views

    @property
    def device(self) -> str:
        """Where the launches ran: "cpu" or "cuda"."""
        return self._ledger.device

    def to_html(self, path: str | PathLike[str]) -> None:
        """Writes one page with tables and pictures, which needs nothing else to be read."""
        from .page import to_html

        to_html(self, path)

    def to_json(self, path: str | PathLike[str]) -> None:
        """Writes all figures, rows, times and the last launches."""
        from .record import to_json

        to_json(self, path)

    def to_trace(self, path: str | PathLike[str]) -> None:
        """Writes a trace for ui.perfetto.dev or chrome://tracing. Raises PullbackError where nothing was timed."""
        from .trace import to_trace

        to_trace(self, path)

    def to_tensorboard(self, directory: str | PathLike[str], step: int = 0) -> None:
        """Writes figures by phase and by module as scalars, by tensorboardX."""
        from .tensorboard import to_tensorboard

        to_tensorboard(self, directory, step)

    def compare(self, other: Profile, *, noise: float = 0.1) -> Comparison:
        """What is different in `other`: counts exactly, times by more than the share `noise`.

        Prints as a table; `.rows` are the data.
        """
        from .compare import compare

        return compare(self, other, noise=noise)

    def __str__(self) -> str:
        return phase_table(self)

    def __rich__(self) -> Any:
        return renderable(self)

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        return f"<pre>{escape(str(self))}</pre>"

    def __repr__(self) -> str:
        if not self._begun:
            return "Profile(not entered yet)"
        return f"Profile({self.total.launches} launches, {self.total.flops} FLOPs, coverage {self.coverage:.3f})"


def _row(key: door.Key, sums: list[int]) -> Row:
    """`sums`: launches, nanoseconds, then the counts of Figures."""
    kernel, phase, scope, dtype, known = key
    at = door.scopes[scope]
    launches, nanoseconds, *counts = sums
    figures = replace(Figures(*counts), seconds=nanoseconds * 1e-9, launches=launches)
    line = line_of((at.code, at.offset)) if at.code is not None else ""
    return Row(kernel, at.op or door.op_of(kernel), at.module, line, at.order, dtype, door.PHASES[phase], known, figures)
