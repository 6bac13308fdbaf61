"""Writes a profile as a trace for Perfetto and Chrome: tracks of phases and of launches, and the live memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..autodiff.site import line_of
from ..errors import PullbackError
from ..launch import door
from .record import write_text

if TYPE_CHECKING:
    from .session import Profile

Event = dict[str, Any]  # an event of the Trace Event Format, whose times are in microseconds
PROCESS: Final = 1
PHASE_TRACK, LAUNCH_TRACK = 1, 2  # Launches that overlap go to further tracks, with larger numbers.


def to_trace(prof: Profile, path: str | os.PathLike[str]) -> None:
    """Writes a trace in Chrome's JSON format, to open in ui.perfetto.dev or chrome://tracing.

    One track shows the phases. Another shows the timed launches (the last ones, if the profile does not keep all), each with its
    op, module, line, FLOPs, bytes and dtype. A counter shows the live bytes of the device. Times are exact to the nanosecond.

    The file is compressed with gzip if the path ends in .gz. Raises PullbackError if the profile has no times.
    """
    if not prof.spans:
        raise PullbackError(
            f"to_trace: this profile has no times (detail={prof.detail!r}, {prof.total.launches} launches); profile with "
            f'detail="phase" or detail="kernel".'
        )
    timed = [(round(begin * 1e9), launch) for (begin, _, _), launch in zip(prof.memory.samples, prof.launches) if launch.begin_ns]
    name: Event = {"ph": "M", "pid": PROCESS, "name": "process_name", "args": {"name": "pullback"}}
    events = [name, *_track(PHASE_TRACK, "phases"), *_phases(prof), *_launches(timed), *_memory(timed)]
    left_out = prof.dropped + len(prof.launches) - len(timed)
    trace = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"launches left out": str(left_out)}}
    write_text(path, json.dumps(trace))


def _track(number: int, name: str) -> list[Event]:
    """Returns the events that name a track and set its position."""
    place = {"ph": "M", "pid": PROCESS, "tid": number}
    return [
        {**place, "name": "thread_name", "args": {"name": name}},
        {**place, "name": "thread_sort_index", "args": {"sort_index": number}},
    ]


def _slice(track: int, name: str, category: str, begin_ns: int, end_ns: int, args: Event) -> Event:
    times = {"ts": begin_ns / 1000, "dur": (end_ns - begin_ns) / 1000}
    return {"ph": "X", "pid": PROCESS, "tid": track, "name": name, "cat": category, **times, "args": args}


def _phases(prof: Profile) -> list[Event]:
    return [_slice(PHASE_TRACK, x.phase, "phase", round(x.begin * 1e9), round(x.end * 1e9), {}) for x in prof.spans]


def _launches(timed: Sequence[tuple[int, door.Launch]]) -> Iterator[Event]:
    """Yields the events of `timed`: pairs of (start in nanoseconds since the profile began, launch)."""
    ends: list[int] = []  # when the last launch on each track ends, in nanoseconds
    for begin, launch in sorted(timed, key=lambda pair: pair[0]):
        end = begin + launch.end_ns - launch.begin_ns
        lane = next((k for k, busy_until in enumerate(ends) if busy_until <= begin), len(ends))
        if lane == len(ends):
            ends.append(end)
            yield from _track(LAUNCH_TRACK + lane, "launches" if lane == 0 else f"launches {lane + 1}")
        ends[lane] = end
        yield _slice(LAUNCH_TRACK + lane, launch.kernel, door.PHASES[launch.phase], begin, end, _args(launch))


def _args(launch: door.Launch) -> Event:
    at = door.scopes[launch.scope]
    return {
        "op": at.op or door.op_of(launch.kernel),
        "module": at.module,
        "line": line_of((at.code, at.offset)) if at.code is not None else "",
        "flops": launch.flops,
        "bytes": launch.bytes_read + launch.bytes_written,
        "dtype": launch.dtype,
    }


def _memory(timed: Sequence[tuple[int, door.Launch]]) -> Iterator[Event]:
    for begin, launch in timed:
        yield {"ph": "C", "pid": PROCESS, "name": "live memory", "ts": begin / 1000, "args": {"bytes": launch.live_bytes}}
