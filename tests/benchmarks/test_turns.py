"""Libraries are timed in turns, each in a process: a process that fails costs its own rows only."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_scripts import FOLDER, Scripts, imported


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripts]:
    yield from imported(monkeypatch)


LIBRARY = """
import os, sys, time
sys.path.insert(0, {folder!r})
from serving import Prepared, Server
log = open({log!r}, "a", buffering=1)
def make(work):
    if work["name"] == "broken": raise ValueError("this cannot be made")
    def call():
        if work["name"] == "dies" and {side!r} == "torch": os._exit(7)
        time.sleep({seconds})
    def after():
        return {{"loss_after": 1.5}}
    def within():
        log.write({side!r} + " " + work["way"] + "\\n")
        import contextlib
        return contextlib.nullcontext()
    return Prepared(call, lambda: None, 1, 2, {{"loss_first": 2.5}}, after, within)
Server(make, threads={threads}).run(version="1.0")
"""


@pytest.fixture
def turns(scripts: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the module, with libraries that sleep: torch for 1 ms, pullback for 2, JAX for 4. They log when they are timed."""
    module = scripts("turns")
    for side, seconds, threads in (("pullback", 0.002, 0), ("torch", 0.001, 0), ("jax", 0.004, 3)):
        text = LIBRARY.format(folder=str(FOLDER), log=str(tmp_path / "log"), side=side, seconds=seconds, threads=threads)
        (tmp_path / f"{side}.py").write_text(text)
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "SCRIPTS", {side: side for side in ("pullback", "torch", "jax")})
    monkeypatch.setattr(module.timing, "FULL", module.timing.Effort(3, 0.01))
    return module


def rows_of(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [row for row in map(json.loads, capsys.readouterr().out.splitlines()) if row["name"] != "version"]


def test_libraries_are_timed_in_turns_and_each_round_is_a_ratio(turns: Any, tmp_path: Path, capsys: Any) -> None:
    cases = [turns.Case(side, "net", "float32", "captured") for side in ("pullback", "torch", "jax")]
    turns.Turns(False, 60).run([cases])
    ours, torch, jax = rows_of(capsys)
    asked = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()[3:]]
    assert asked == ["pullback", "torch", "jax", "torch", "jax", "pullback", "jax", "pullback", "torch"]
    assert "ratio" not in ours
    assert ours["us"]["median"] > 1000  # one of the two steps of a call, which sleeps for at least 2 ms
    assert torch["ratio"]["median"] > 1 > jax["ratio"]["median"]
    assert [row["rounds"] for row in (ours, torch, jax)] == [3, 3, 3]
    assert (jax["loss_first"], jax["loss_after"]) == (2.5, 1.5)


def test_a_library_that_ends_costs_its_own_rows_and_comes_back(turns: Any, capsys: Any) -> None:
    group = lambda name: [turns.Case(side, name, "float32", "captured") for side in ("pullback", "torch")]
    turns.Turns(False, 60).run([group("broken"), group("dies"), group("net")])
    rows = rows_of(capsys)
    found = {(row["name"], row["side"]): row.get("failed", "measured") for row in rows}
    assert found == {
        ("broken", "pullback"): "ValueError: this cannot be made", ("broken", "torch"): "ValueError: this cannot be made",
        ("dies", "torch"): "the process ended with status 7", ("dies", "pullback"): "measured",
        ("net", "pullback"): "measured", ("net", "torch"): "measured",
    }
    assert len(rows) == len(found)


def test_a_library_that_does_not_get_ready_is_left_behind(turns: Any, capsys: Any) -> None:
    (turns.HERE / "torch.py").write_text("import time\nprint('{\"facts\": {}}', flush=True)\ntime.sleep(600)\n")
    begin = time.monotonic()
    turns.Turns(False, 60, 5).run([[turns.Case(side, "net", "float32", "captured") for side in ("pullback", "torch")]])
    failed, measured = rows_of(capsys)
    assert (failed["side"], failed["failed"]) == ("torch", "the process did not answer within 5 s")
    assert measured["side"] == "pullback"
    assert time.monotonic() - begin < 30


def test_a_library_that_cannot_be_started_is_tried_once_and_its_rows_say_why(turns: Any, tmp_path: Path, capsys: Any) -> None:
    (turns.HERE / "torch.py").write_text(f"open({str(tmp_path / 'starts')!r}, 'a').write('.')\nraise SystemExit(5)\n")
    group = lambda name: [turns.Case(side, name, "float32", "captured") for side in ("pullback", "torch")]
    turns.Turns(False, 60).run([group("a"), group("b")])
    found = {(row["name"], row["side"]): row.get("failed", "measured") for row in rows_of(capsys)}
    why = "the process ended with status 5"
    assert found == {("a", "pullback"): "measured", ("b", "pullback"): "measured", ("a", "torch"): why, ("b", "torch"): why}
    assert (tmp_path / "starts").read_text() == "."


def test_each_form_of_jax_that_may_not_end_has_a_process(scripts: Scripts) -> None:
    module, workloads = scripts("turns"), scripts("workloads")
    cases = [case for net in workloads.workloads(False) for case in module.cases_of(net, ("pullback", "torch", "jax"))]
    processes = {case.library: {other.variant for other in cases if other.library == case.library} for case in cases}
    assert processes == {
        ("pullback", ""): {""}, ("torch", ""): {""}, ("jax", ""): {"", "GRU unroll=8"}, ("jax", "unroll=16"): {"unroll=16"},
        ("jax", "XLA unrolls loops"): {"XLA unrolls loops"}, ("jax", "XLA captures loops"): {"XLA captures loops"},
    }


def test_what_no_time_is_left_for_is_told(turns: Any, capsys: Any) -> None:
    turns.Turns(False, -1).run([[turns.Case("pullback", "net", "float32", "captured")]])
    assert rows_of(capsys) == [{"name": "net", "failed": "no time was left"}]


def test_jax_is_tried_in_every_form_that_may_be_faster(scripts: Scripts) -> None:
    module, workloads = scripts("turns"), scripts("workloads")
    for net in workloads.workloads(False):
        cases = module.cases_of(net, ("pullback", "torch", "jax"))
        assert len({(case.side, *case.work, case.variant) for case in cases}) == len(cases)
        for precision in net.precisions:
            forms = [case.variant for case in cases if case.side == "jax" and case.work == (net.name, precision, workloads.SEVERAL)]
            unrolled = ["unroll=16", "XLA unrolls loops"] if isinstance(net, workloads.Net) else []
            cells = ["GRU unroll=8"] if isinstance(net, workloads.Recurrent) else []
            assert forms == ["", *cells, *unrolled, "XLA captures loops"]
