"""Perfetto reads a profile's trace: the same slices, to the nanosecond, and the same figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from made_profile import launch, made, mlp, trained
from pullback.launch import door
from pullback.profiling.trace import to_trace


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the made profile with launches, one of which was not timed and two of which overlap."""
    code = mlp.__code__
    monkeypatch.setattr(door, "scopes", [door.Scope(), door.Scope("encoder.0", "linear", code, 0)])
    prof = made()
    prof.launches = [
        launch("linear", "forward", 1, 100_001, 300_003, 7000, adds=1, fmas=6_426_623, bytes_read=40, bytes_written=2),
        launch("tanh", "forward", 0, 400_004, 1, 2**53 + 1),
        launch("tanh_pullback", "backward", 0, 1_000_000, 250_000, 9000),
        launch("copy", "backward", 0, 1_100_000, 50_000, 9500),
        launch("late", "backward", 0, 1_400_000, 0, 1),
    ]
    return prof


def processed(prof: Any, path: Path) -> Any:
    from trace_processor import TraceProcessor

    to_trace(prof, path)
    processor = TraceProcessor(path.read_bytes())
    assert processor.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []
    return processor


SLICES = (
    "select s.name, ts, dur, depth, t.name as track from slice s join thread_track k on s.track_id = k.id "
    "join thread t using (utid)"
)


def test_perfetto_reads_phases_and_launches_to_the_nanosecond(launched: Any, tmp_path: Path) -> None:
    found = processed(launched, tmp_path / "trace.json").query(f"{SLICES} order by ts, track desc")
    assert [row for row in found if row[4] == "phases"] == [
        ("data", 0, 100_000, 0, "phases"), ("forward", 100_000, 900_000, 0, "phases"),
        ("backward", 1_000_000, 600_000, 0, "phases"), ("optimizer", 1_600_000, 200_000, 0, "phases"),
    ]
    assert [row for row in found if row[4] != "phases"] == [
        ("linear", 100_001, 300_003, 0, "launches"), ("tanh", 400_004, 1, 0, "launches"),
        ("tanh_pullback", 1_000_000, 250_000, 0, "launches"), ("copy", 1_100_000, 50_000, 0, "launches 2"),
    ]


def test_a_launch_tells_its_op_module_line_and_cost(launched: Any, tmp_path: Path) -> None:
    processor = processed(launched, tmp_path / "trace.json")
    asked = "select key, display_value from args join slice using (arg_set_id) where slice.name = '{}' and key glob 'args.*'"
    told = {key.removeprefix("args."): value for key, value in processor.query(asked.format("linear"))}
    line = mlp.__code__.co_firstlineno
    assert told.pop("line") == f'"{mlp.__code__.co_filename}", line {line}, in mlp'
    assert told == {"op": "linear", "module": "encoder.0", "flops": "12853247", "bytes": "42", "dtype": "float32"}
    assert dict(processor.query(asked.format("tanh_pullback")))["args.op"] == "tanh"
    assert processor.query("select category from slice where name = 'copy'") == [("backward",)]


def test_live_memory_is_a_counter(launched: Any, tmp_path: Path) -> None:
    processor = processed(launched, tmp_path / "trace.json")
    counted = processor.query("select ts, value, t.name from counter c join counter_track t on c.track_id = t.id order by ts")
    assert [(ts, value) for ts, value, _ in counted] == [(100_001, 7000), (400_004, 2**53), (1_000_000, 9000), (1_100_000, 9500)]
    assert {name for _, _, name in counted} == {"live memory bytes"}
    assert json.loads((tmp_path / "trace.json").read_text())["otherData"] == {"launches left out": "1"}


def test_a_trace_of_a_profile_without_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pb.PullbackError, match=r'to_trace.*detail=.count.*detail="phase"'):
        to_trace(made(spans=None), tmp_path / "trace.json")
    assert not list(tmp_path.iterdir())


def test_perfetto_reads_a_real_step(tmp_path: Path) -> None:
    prof = trained()
    processor = processed(prof, tmp_path / "trace.json")
    slices = processor.query(SLICES)
    kernels = [name for name, _, _, _, track in slices if track.startswith("launches")]
    assert {name: kernels.count(name) for name in kernels} == {g.name: g.total.launches for g in prof.by("kernel")}
    inside = sum([dur for _, _, dur, _, track in slices if track.startswith("launches")])
    assert inside == pytest.approx(prof.kernel_seconds * 1e9, abs=1)
    for phase in ("forward", "backward", "optimizer"):
        lasted = sum([dur for name, _, dur, _, track in slices if track == "phases" and name == phase])
        assert lasted == pytest.approx(getattr(prof, phase).seconds * 1e9, abs=1)
    (flops,) = processor.query("select sum(int_value) from slice join args using (arg_set_id) where key = 'args.flops'")
    assert flops == (prof.total.flops,)
