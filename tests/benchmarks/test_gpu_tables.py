"""README and docs/gpu_speed.md show what the files of results say, like for like, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_scripts import Scripts, imported


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripts]:
    yield from imported(monkeypatch)


def made(side: str, us: float, **more: Any) -> dict[str, Any]:
    return {"side": side, "us": {"median": us, "q1": us, "q3": us}, **more}


def write_results(folder: Path, date: str, rows: list[dict[str, Any]], simulated: bool = False) -> Path:
    stages = {"steps": {"ok": True, "outcome": "", "seconds": 1.0, "rows": rows}}
    data = {"gpu": "NVIDIA X", "date": date, "simulated": simulated, "commands": {"figures": {"begun": date, "stages": stages}}}
    path = folder / f"nvidia-x-{date}.json"
    path.write_text(json.dumps(data))
    return path


def test_the_readme_and_the_page_hold_what_the_files_of_results_say(scripts: Scripts) -> None:
    table = scripts("table")
    found = table.newest_first(table.FOLDER)
    assert table.README.read_text() == table.with_section(table.README.read_text(), table.section(found)), "run: table.py"
    assert table.PAGE.read_text() == table.page(found), "run: python3 benchmarks/gpu/table.py"
    for path in table.FOLDER.glob("*.json"):
        assert not table.load(path)["simulated"], f"{path} is of a simulated run"


def cells_of(text: str, *words: str) -> list[str]:
    """Returns the cells of the only line of a table that has these words."""
    (line,) = [line for line in text.splitlines() if line.startswith("|") and all(word in line for word in words)]
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_the_tables_say_what_was_measured_and_what_was_not(scripts: Scripts, tmp_path: Path) -> None:
    table = scripts("table")
    assert table.section([]) == "No GPU has been measured yet. `benchmarks/gpu/run.sh` measures one."
    step = {"name": "MLP 784-128-10, batch 64", "precision": "bfloat16"}
    write_results(tmp_path, "2026-01-01", [made("pullback", 999.0, **step, way="captured")])
    several = {**step, "way": "16 steps a call"}
    write_results(tmp_path, "2026-01-02", [
        made("pullback", 21.04, **step, way="captured"), made("torch", 42.08, **step, way="captured"),
        made("pullback", 20.0, **several), made("jax", 25.0, **several), made("jax", 16.0, **several, variant="unroll=16"),
        made("jax", 18.0, **several, variant="XLA unrolls loops"),
    ])
    write_results(tmp_path, "2026-01-03", [made("pullback", 1.0, **step, way="captured")], simulated=True)
    found = table.newest_first(tmp_path)
    text = table.section(found)
    assert text.startswith("NVIDIA X, 2026-01-02. Against torch, one graph of 16 steps,: not measured.")
    assert "pullback takes 1.25 to 1.25 of its time (median 1.25): it is faster in 0 of 1 rows, slower in 1 and equal" in text
    assert "Forms of JAX that were timed: XLA unrolls loops, as it is, unroll=16." in text
    nothing = "not measured"
    assert cells_of(text, "784-128-10") == [
        "MLP 784-128-10, batch 64, bfloat16", "21 µs", "42.1 µs", nothing, "20 µs", nothing, "16 µs (unroll=16)", "", "1.25",
    ]
    page = table.page(found[:1])
    assert cells_of(page, "784-128-10", "bfloat16") == [
        "MLP 784-128-10, batch 64", "bfloat16", nothing, nothing, "21 µs", "42.1 µs", nothing, "20 µs", nothing,
        "16 µs (unroll=16)", "", "1.25",
    ]
    assert page.count(nothing) > 100


def test_a_ratio_of_turns_comes_before_a_quotient_of_medians(scripts: Scripts) -> None:
    table = scripts("table")
    ours = made("pullback", 20.0)
    assert table.ratio(ours, made("torch", 40.0)) == "0.50"
    assert table.ratio(ours, made("torch", 40.0, ratio={"median": 0.61, "q1": 0.6, "q3": 0.62})) == "0.61 (0.60–0.62)"
    assert table.ratio(ours, None) == table.ratio(None, ours) == ""


def test_a_row_is_only_called_tf32_if_tf32_kernels_ran(scripts: Scripts, tmp_path: Path) -> None:
    table = scripts("table")
    row = lambda name, precision, error: made("pullback", 5.0, name=name, precision=precision, way="captured", error=error)
    small, large = "MLP 784-128-10, batch 64", "MLP 784-1024-1024-10, batch 512"
    rows = [row(small, "float32", 1e-7), row(small, "tf32", 1e-7), row(large, "float32", 1e-7), row(large, "tf32", 2e-4)]
    write_results(tmp_path, "2026-01-01", rows)
    text = table.section(table.newest_first(tmp_path))
    assert [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| MLP")] == [
        f"{small}, float32", f"{small}, tf32 (pullback: float32)", f"{large}, float32", f"{large}, tf32",
    ]


def test_bandwidth_is_a_share_of_the_best_rate_of_any_kernel(scripts: Scripts, tmp_path: Path) -> None:
    table = scripts("table")
    row = lambda side, name, rate: made(side, 100.0, name=name, precision="float32", gb_per_s=rate)
    write_results(tmp_path, "2026-01-01", [row("pullback", "add, 100,000,000", 1500.0), row("torch", "exp, 100,000,000", 3000.0)])
    page = table.page(table.newest_first(tmp_path))
    assert cells_of(page, "add, 100,000,000")[3] == "50 %"
    assert "is 3,000 GB/s" in page


def test_a_run_of_the_tests_that_was_interrupted_is_a_sentence(scripts: Scripts) -> None:
    table = scripts("table")

    def of(outcome: str, **more: int) -> dict[str, Any]:
        rows = [{"name": "tests/test_a.py", "passed": 1}, {"name": "tests", "passed": 26100, "failed": 12, "skipped": 8, **more}]
        return {"commands": {"tests": {"stages": {"tests": {"outcome": outcome, "rows": rows}}}}}

    assert table.tests(of("fine")) == "26,100 passed, 12 failed and 8 were skipped"
    assert table.tests(of("fine", not_reached=40)).endswith("40 were not reached in the time of the run")
    assert table.tests(of("interrupted before the limit: {'passed': 1}")).endswith("until the run was interrupted at its limit")
    assert table.tests({"commands": {}}) == "not measured"


def test_results_of_a_simulated_run_are_not_taken_in(scripts: Scripts, tmp_path: Path) -> None:
    table = scripts("table")
    (tmp_path / "to").mkdir()
    real = write_results(tmp_path, "2026-01-01", [])
    assert table.take_in(real, tmp_path / "to") == tmp_path / "to" / real.name
    with pytest.raises(ValueError, match="simulated run"):
        table.take_in(write_results(tmp_path, "2026-01-01", [], simulated=True), tmp_path / "to")
