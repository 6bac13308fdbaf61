"""The JSON of a profile contains everything, in numbers that any program can read."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from made_profile import trained
from pullback.launch import door
from pullback.profiling import Profile, record as recording
from pullback.profiling.peaks import Peaks
from pullback.profiling.record import record, thinned
from pullback.profiling.roofline import roofline

DEVICE = Peaks("a device", "0", "v4", 2, {"float32": 1e11, "float64": 5e10}, 2e10, 1e10, 1e-6)


@pytest.fixture(autouse=True)
def _known_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets fixed peaks, so that no test has to measure them."""
    monkeypatch.setattr(Profile, "roofline", lambda self: roofline(self, best=DEVICE))


@pytest.fixture(scope="module")
def prof() -> Any:
    return trained(steps=1, detail="phase")


def test_json_is_all_of_the_profile(prof: Any, tmp_path: Path) -> None:
    prof.to_json(tmp_path / "profile.json")
    found = json.loads((tmp_path / "profile.json").read_text("utf-8"), parse_constant=pytest.fail)
    assert found["version"] == 1
    assert set(found["facts"]) == {"pullback", "device", "detail", "python", "date"}
    assert found["phases"]["forward"]["matmul_flops"] == 2 * 64 * (784 * 128 + 128 * 10)
    assert {name: found["phases"][name] for name in door.PHASES} == {n: getattr(prof, n).as_dict() for n in door.PHASES}
    assert found["total"] == prof.total.as_dict()
    assert (found["seconds"], found["coverage"], found["unknown"]) == (prof.seconds, 1.0, {})
    assert [row["launches"] for row in found["rows"]] == [row.figures.launches for row in prof.rows]
    assert sum(row["flops"] for row in found["rows"]) == prof.total.flops
    assert {row["module"] for row in found["rows"]} == {row.module for row in prof.rows} > {"0", "2"}
    assert [(x["phase"], x["begin"], x["end"]) for x in found["spans"]] == [tuple(span) for span in prof.spans]
    assert [x["kernel"] for x in found["launches"]] == [launch.kernel for launch in prof.launches]
    assert found["memory"]["peak"] == prof.memory.peak == max(x["bytes"] for x in found["memory"]["samples"])


def test_launches_lie_in_their_phases(prof: Any) -> None:
    found = record(prof)
    if found["kernel_seconds"] is None:
        assert {x["begin"] for x in found["launches"]} == {None}
        return
    assert sum(x["seconds"] for x in found["launches"]) == pytest.approx(found["kernel_seconds"])
    for launch in found["launches"]:
        phase = [span.phase for span in prof.spans if span.begin <= launch["begin"] < span.end]
        assert phase == [launch["phase"]], launch


def test_what_is_not_timed_is_null_in_json() -> None:
    with pb.profile(detail="count") as prof:
        pb.exp(pb.ones(3))
    found = record(prof)
    assert (found["kernel_seconds"], found["roofline"], found["spans"]) == (None, None, [])
    assert [x["seconds"] for x in found["memory"]["samples"]] == [None] * prof.total.launches
    assert found["facts"]["detail"] == "count"


@pytest.mark.parametrize("length", [0, 1, 2_000, 2_001, 16_384])
def test_thinned_samples_are_some_of_them_with_the_peak_and_both_ends(length: int) -> None:
    rng = random.Random(length)
    samples = [(0.5 * i, rng.randrange(10**9), "forward") for i in range(length)]
    kept = thinned(samples)
    assert len(kept) == length if length <= 2_000 else 1_000 < len(kept) <= 2_000
    everything = iter(samples)
    # in order: `in` consumes the iterator, so each sample is searched after the previous one
    assert all(sample in everything for sample in kept)
    if samples:
        assert {samples[0], samples[-1], max(samples, key=lambda x: x[1]), min(samples, key=lambda x: x[1])} <= set(kept)


def test_of_many_launches_the_last_are_kept() -> None:
    x = pb.ones(2)
    with pb.profile() as prof:
        for _ in range(recording.MOST_LAUNCHES):
            x + x
        pb.exp(x)
    found = record(prof)
    assert len(found["launches"]) == recording.MOST_LAUNCHES
    assert found["launches"][-1]["op"] == "exp"
    assert found["total"]["launches"] == recording.MOST_LAUNCHES + 1


def test_the_roofline_is_in_it_with_the_peaks(prof: Any) -> None:
    found = record(prof)
    if found["kernel_seconds"] is None:
        assert found["roofline"] is None
        return
    assert {(row["kernel"], row["dtype"]) for row in found["roofline"]} == {(row.kernel, row.dtype) for row in prof.rows}
    assert sum(row["flops"] for row in found["roofline"]) == prof.total.flops
    assert (found["peaks"]["products"], found["peaks"]["flops_per_second"]) == ({"float32": 1e11, "float64": 5e10}, 1e11)
