"""Profile: records the launches of one thread during a `with` statement, by phase, op, module and line."""

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
from ..interop.wrong_calls import flag
from ..launch import door
from ..launch.ledger import KEPT, Detail, Key
from .figures import AXES, Axis, Figures, Group, Row, grouped, total
from .table import phase_table, renderable

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from .compare import Comparison
    from .roofline import Roofline
    from .verify import Verification


class Span(NamedTuple):
    """An interval of time in one phase. `begin` and `end` are in seconds since the profile began."""

    phase: str
    begin: float
    end: float


class Memory(NamedTuple):
    """Bytes of device memory that pullback's arrays took, including arrays made before the profile.

    Attributes:
        samples: (seconds since the profile began, bytes, phase) at each timed launch, in order.
        live: the bytes at the last launch.
        peak: the largest number of bytes at any launch.
        peaks: the largest number of bytes at any launch of each phase.

    After replays of captured functions, in which it is not measured, `live` and `peak` are None and `peaks` is empty.
    """

    samples: list[tuple[float, int, str]]
    live: int | None
    peak: int | None
    peaks: dict[str, int]


class Host(NamedTuple):
    """The seconds that a thread spent on each kind of work. Together they are the profile's seconds.

    Attributes:
        launches: running kernels on the CPU, or submitting them to a GPU.
        tape: recording ops; on the CPU, also the work of the backward pass between its launches.
        copies: copying to a GPU.
        waiting: waiting for a GPU, and copying from it.
        python: all other work.
    """

    launches: float
    tape: float
    copies: float
    waiting: float
    python: float


def profile(*, strict: bool = False, detail: Detail = "phase") -> Profile:
    """Returns a Profile, which records what this thread launches inside `with pb.profile() as prof:`.

    Args:
        strict: the end of the `with` raises PullbackError if the cost of a launch is unknown.
        detail: "phase" times phases, and on the CPU launches too. "kernel" also times each launch on a GPU, and runs captured
            functions launch by launch. "count" times nothing.

    Read the figures after the `with`: `prof.forward.flops`, `prof.backward.seconds`, …; print(prof) shows them as tables. Raises
    PullbackError for any other detail.
    """
    return Profile(strict=strict, detail=detail)


class Profile(Kept):
    """The costs of the launches of one thread inside a `with` statement. `pb.profile` makes a Profile.

    Args:
        strict, detail: as in `pb.profile`.
        dry: native kernels are counted but do not run (see `pb.flops`).

    Counts come from the kernels that ran and their shapes; a captured function counts at every replay. The seven phases and their
    `total` are Figures, which are zero until the end of the `with`. A Profile can be used once, in one thread. Profiles nest: a
    launch in an inner profile is also in the outer ones.

    Attributes:
        launches: the launches in order: all of them, or at least the last 16,384. The sums also contain the `dropped` earlier ones.
        seconds: the time from the start to the end of the `with`.
        elsewhere: how many launches other threads made in the meantime. They are not in the figures, because a profile covers one
            thread. Launches inside another thread's profile count only once that profile has ended.
    """

    def __init__(self, *, strict: bool = False, detail: Detail = "phase", dry: bool = False) -> None:
        if detail not in door.DETAILS:
            raise PullbackError(f"profile: detail={detail!r}; use {', '.join(map(repr, door.DETAILS))}.")
        self.strict, self.detail, self._dry = flag("profile", "strict", strict), detail, dry
        self.seconds = 0.0
        self._ledger = self._running = door.Ledger()
        self._begun = False
        self._outer = door.state.running  # the ledgers of the outer profiles
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
            vars(self).pop(looked_at, None)

    def _leave(self, kind: Any = None, error: Any = None, *trace: object) -> None:
        """Ends the profile. With strict, raises PullbackError if the cost of a launch is unknown."""
        if kind is not None and issubclass(kind, KeyboardInterrupt) and self._stack is not None:
            door.end_others(self._outer)
        super()._leave(kind, error, *trace)
        if self.strict and self.unknown and kind is None:
            raise PullbackError(
                f"profile: the cost of {sum(self.unknown.values())} launch(es) is not known: {', '.join(self.unknown)}. Declare "
                f"a cost for these ops, or profile with strict=False."
            )

    # ---- figures

    @cached_property
    def rows(self) -> list[Row]:
        """The figures by kernel, op, module, line, order, dtype and phase, in the order in which these first ran."""
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
        """The figures of launches outside all other phases: the model and the loss."""
        return self._phases["forward"]

    @property
    def backward(self) -> Figures:
        """The figures of backward passes, of second and higher derivatives too."""
        return self._phases["backward"]

    @property
    def recompute(self) -> Figures:
        """The figures of launches that checkpoints ran again."""
        return self._phases["recompute"]

    @property
    def optimizer(self) -> Figures:
        """The figures of parameter updates."""
        return self._phases["optimizer"]

    @property
    def data(self) -> Figures:
        """The figures of shuffling and gathering mini-batches."""
        return self._phases["data"]

    @property
    def other(self) -> Figures:
        """The figures of `tape.explain`, `tape.diagnose` and `tape.check`, which inspect a tape."""
        return self._phases["other"]

    @property
    def solver(self) -> Figures:
        """The figures of the linear algebra of `pb.solve`. Residuals, Jacobians and gradients are in the other phases."""
        return self._phases["solver"]

    @property
    def total(self) -> Figures:
        """The sum of all phases, seconds included."""
        return total(self._phases.values())

    def by(self, axis: Axis) -> list[Group]:
        """Returns the figures by "op", "module", "line", "kernel", "order" (of the derivative), "dtype" or "phase", each by phase.

        The groups come in the order in which they ran first. Their seconds are the time inside launches, and 0 if launches are
        not timed. Raises PullbackError for any other axis.
        """
        if axis not in AXES:
            raise PullbackError(f"by: axis={axis!r}; use {', '.join(map(repr, AXES))}.")
        return grouped(self.rows, axis)

    @property
    def unknown(self) -> dict[str, int]:
        """The number of launches of each kernel whose cost is not known."""
        names: dict[str, int] = {}
        for row in self.rows:
            if not row.known:
                names[row.kernel] = names.get(row.kernel, 0) + row.figures.launches
        return names

    @property
    def coverage(self) -> float:
        """The share of launches whose cost is known; 1.0 if nothing ran."""
        launches = sum([row.figures.launches for row in self.rows])
        return 1 - sum(self.unknown.values()) / launches if launches else 1.0

    @property
    def elsewhere(self) -> int:
        """The number of launches that other threads made in the meantime."""
        return self._ledger.elsewhere

    # ---- time and memory

    @property
    def launches(self) -> list[door.Launch]:
        """The launches in order: all of them, or at least the last 16,384."""
        return self._ledger.launches

    @property
    def dropped(self) -> int:
        """The number of launches that are not in `launches`."""
        return sum([row.figures.launches for row in self.rows]) - len(self.launches)

    @cached_property
    def spans(self) -> list[Span]:
        """The phases over time, without gaps: at least the last 16,384 intervals. The list is empty with detail="count"."""
        borders = self._ledger.borders
        end_ns = self._begin_ns + int(self.seconds * 1e9)
        if borders and self.device == "cpu":  # A GPU may still be running kernels after the end of the profile.
            borders = [*borders[:-1], (min(borders[-1][0], end_ns), borders[-1][1])]
        return [
            Span(door.PHASES[phase], max(0, begin - self._begin_ns) * 1e-9, (end - self._begin_ns) * 1e-9)
            for (begin, phase), (end, _) in zip(borders, borders[1:])
        ]

    @property
    def kernel_seconds(self) -> float:
        """The time inside launches, in seconds; nan if launches were not timed."""
        return math.fsum([row.figures.seconds for row in self.rows]) if self._ledger.timed else math.nan

    @property
    def host(self) -> Host:
        """The time that this thread spent on each kind of work. Raises PullbackError unless the profile has detail="kernel"."""
        if self.detail != "kernel":
            raise PullbackError('profile: what the host did is timed with pb.profile(detail="kernel") only.')
        seconds = {what: nanoseconds * 1e-9 for what, nanoseconds in self._ledger.host.items()}
        inside = math.fsum([row.figures.seconds for row in self.rows if row.phase == "backward"])
        if self.device == "cpu":
            seconds["tape"] += max(0.0, self.backward.seconds - inside)
        return Host(python=self.seconds - math.fsum(seconds.values()), **seconds)

    @property
    def replayed(self) -> int:
        """The number of launches in replays of captured functions, which run as one piece: they are counted, not kept one by one.

        It is 0 with detail="kernel", which runs them launch by launch, and if more launches ran than a profile keeps.
        """
        return self.dropped if len(self.launches) < KEPT else 0

    @property
    def memory(self) -> Memory:
        """Live and peak bytes at the launches that are kept. There are samples over time only if launches are timed.

        In a replay of a captured function memory is not measured, unless the profile has detail="kernel". Raises PullbackError
        inside the `with`.
        """
        if self._stack is not None:
            raise PullbackError("profile: memory is known after the end of the `with`: read prof.memory there.")
        launches = [((x.begin_ns - self._begin_ns) * 1e-9, x.live_bytes, door.PHASES[x.phase]) for x in self.launches]
        peaks: dict[str, int] = {}
        for _, live, phase in launches:
            peaks[phase] = max(peaks.get(phase, 0), live)
        samples = [sample for sample, x in zip(launches, self.launches) if x.begin_ns]
        if self.replayed:
            return Memory(samples, None, None, {})
        return Memory(samples, launches[-1][1] if launches else 0, max(peaks.values(), default=0), peaks)

    def roofline(self) -> Roofline:
        """Returns, for each kernel, its FLOPs per byte, the rates it reached, and its bound: compute, memory or launches.

        The rates are compared with the peaks of this device, which are measured once and cached. Raises PullbackError if launches
        were not timed.
        """
        from .roofline import roofline

        return roofline(self, device=self.device)

    def verify(self, step: Callable[[], Any] | None = None) -> Verification:
        """Runs step() under NVIDIA's `ncu` and compares the ledger with the GPU's counters, kernel by kernel (see verify.py).

        Raises PullbackError without a step, a GPU, `ncu`, or permission to read counters.
        """
        from .verify import verify

        return verify(step)

    # ---- views

    @property
    def device(self) -> str:
        """The device that the launches ran on: "cpu" or "cuda"."""
        return self._ledger.device

    def to_html(self, path: str | PathLike[str]) -> None:
        """Writes one HTML page with tables and charts, which loads no other files."""
        from .page import to_html

        to_html(self, path)

    def to_json(self, path: str | PathLike[str]) -> None:
        """Writes all figures, rows, times and the last launches as JSON, compressed with gzip if the path ends in .gz."""
        from .record import to_json

        to_json(self, path)

    def to_trace(self, path: str | PathLike[str]) -> None:
        """Writes a trace for ui.perfetto.dev or chrome://tracing. Raises PullbackError if nothing was timed."""
        from .trace import to_trace

        to_trace(self, path)

    def to_tensorboard(self, directory: str | PathLike[str], step: int = 0) -> None:
        """Writes figures by phase and by module as scalars with tensorboardX. Raises PullbackError if it is not installed."""
        from .tensorboard import to_tensorboard

        to_tensorboard(self, directory, step)

    def compare(self, other: Profile, *, noise: float = 0.1) -> Comparison:
        """Returns the figures that differ in `other`. The result prints as a table; its `rows` are the data.

        Counts are compared exactly; times differ if they do so by more than the fraction `noise` of the longer one.
        """
        from .compare import compare

        return compare(self, other, noise=noise)

    def __str__(self) -> str:
        return phase_table(self)

    def __rich__(self) -> Any:
        return renderable(self)

    def _repr_html_(self) -> str:
        """Returns the tables as HTML, for notebooks."""
        return f"<pre>{escape(str(self))}</pre>"

    def __repr__(self) -> str:
        if not self._begun:
            return "Profile(not entered yet)"
        return f"Profile({self.total.launches} launches, {self.total.flops} FLOPs, coverage {self.coverage:.3f})"


def _row(key: Key, sums: list[int]) -> Row:
    """Converts an entry of the ledger to a Row. `sums` holds launches, nanoseconds, then the counts of Figures."""
    kernel, phase, scope, dtype, known = key
    at = door.scopes[scope]
    launches, nanoseconds, *counts = sums
    figures = replace(Figures(*counts), seconds=nanoseconds * 1e-9, launches=launches)
    line = line_of((at.code, at.offset)) if at.code is not None else ""
    op = at.op or door.op_of(kernel)
    return Row(kernel, op, at.module, line, at.order, dtype, door.PHASES[phase], known, figures, at.without)
