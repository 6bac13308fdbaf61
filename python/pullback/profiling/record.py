"""Converts a profile to plain data, which `prof.to_json(path)` writes and the HTML page shows."""

from __future__ import annotations

import gzip
import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import PullbackError
from ..launch import door
from .figures import Row
from .ratio import ratio_explained

if TYPE_CHECKING:
    from .session import Profile

VERSION: Final = 1  # version of the format; removing a field or changing its meaning makes it 2
MOST_SAMPLES: Final = 2_000  # samples of memory in a record
MOST_LAUNCHES: Final = 5_000
MOST_SPANS: Final = 20_000
Sample = tuple[float | None, int, str]  # a sample of memory: seconds (None if the launch was not timed), bytes, phase


def to_json(prof: Profile, path: str | os.PathLike[str]) -> None:
    """Writes `record(prof)` as JSON."""
    write_text(path, json.dumps(record(prof), allow_nan=False, indent=1) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a file in UTF-8, compressed with gzip if its name ends in .gz."""
    data = text.encode("utf-8")
    Path(path).write_bytes(gzip.compress(data, mtime=0) if os.fspath(path).endswith(".gz") else data)


def record(prof: Profile) -> dict[str, Any]:
    """Returns the profile as dicts, lists, numbers and strings.

    Times are in seconds since the profile began; unknown values are None. The record holds the last MOST_LAUNCHES launches, the
    last MOST_SPANS spans, and at most MOST_SAMPLES samples of memory, which include the peak. Rows and phases are sums over all
    launches. If launches were timed, the peaks of the device are read from the cache, or measured in a few seconds.
    """
    memory = prof.memory
    launches, samples = _launches(prof)
    reached, peaks = _roofline(prof)
    return {
        "version": VERSION,
        "facts": facts(prof),
        "seconds": prof.seconds,
        "kernel_seconds": _number(prof.kernel_seconds),
        "coverage": prof.coverage,
        "unknown": prof.unknown,
        "ratio": ratio_explained(prof),
        "elsewhere": prof.elsewhere,
        "replayed": prof.replayed,
        "phases": {name: getattr(prof, name).as_dict() for name in door.PHASES},
        "total": prof.total.as_dict(),
        "rows": [_row(row) for row in prof.rows],
        "spans": [{"phase": x.phase, "begin": x.begin, "end": x.end} for x in prof.spans[-MOST_SPANS:]],
        "memory": {
            "samples": [{"seconds": s, "bytes": b, "phase": phase} for s, b, phase in thinned(samples)],
            "live": memory.live,
            "peak": memory.peak,
            "peaks": memory.peaks,
        },
        "launches": launches,
        "roofline": reached,
        "peaks": peaks,
    }


def facts(prof: Profile) -> dict[str, str]:
    """Returns the versions, the device, the detail of the profile, and the time of this call."""
    from .. import __version__

    return {
        "pullback": __version__,
        "device": prof.device,
        "detail": prof.detail,
        "python": platform.python_version(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def thinned(samples: Sequence[Sample], most: int = MOST_SAMPLES) -> list[Sample]:
    """Returns at most `most` (>= 4) of the samples, in order.

    They are the first and the last sample, and the smallest and the largest of each of equally long stretches.
    """
    if len(samples) <= most:
        return list(samples)
    kept = {0, len(samples) - 1}
    stretches = most // 2 - 1
    for k in range(stretches):
        stretch = range(len(samples) * k // stretches, len(samples) * (k + 1) // stretches)
        kept |= {min(stretch, key=lambda i: samples[i][1]), max(stretch, key=lambda i: samples[i][1])}
    return [samples[i] for i in sorted(kept)]


def _row(row: Row) -> dict[str, Any]:
    return {**{name: getattr(row, name) for name in Row._fields if name != "figures"}, **row.figures.as_dict()}


def _launches(prof: Profile) -> tuple[list[dict[str, Any]], list[Sample]]:
    """Returns the last MOST_LAUNCHES launches, and a sample of memory for every launch that the profile keeps."""
    timed = math.isfinite(prof.kernel_seconds)
    begins = iter([seconds for seconds, _, _ in prof.memory.samples])  # start times of the launches that were timed
    samples: list[Sample] = []
    for x in prof.launches:
        samples.append((next(begins) if timed and x.begin_ns else None, x.live_bytes, door.PHASES[x.phase]))
    found: list[dict[str, Any]] = []
    for (begin, _, phase), launch in zip(samples[-MOST_LAUNCHES:], prof.launches[-MOST_LAUNCHES:]):
        at = door.scopes[launch.scope]
        found.append(
            {
                "begin": begin,
                "seconds": None if begin is None else (launch.end_ns - launch.begin_ns) * 1e-9,
                "kernel": launch.kernel,
                "phase": phase,
                "op": at.op or door.op_of(launch.kernel),
                "module": at.module,
            }
        )
    return found, samples


def _roofline(prof: Profile) -> tuple[list[dict[str, Any]] | None, dict[str, Any] | None]:
    """Returns the roofline's rows and peaks; (None, None) if nothing ran, launches were not timed, or the device has no peaks."""
    if not prof.rows:
        return None, None
    try:
        found = prof.roofline()
    except PullbackError:
        return None, None
    rows = [{name: _number(value) for name, value in row._asdict().items()} for row in found.rows]
    return rows, {**asdict(found.peaks), "flops_per_second": found.peaks.flops_per_second}


def _number(x: Any) -> Any:
    """Returns x, but None for nan and infinity, which JSON cannot represent."""
    return None if isinstance(x, float) and not math.isfinite(x) else x
