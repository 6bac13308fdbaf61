"""The benchmark for a GPU: limits hold, results are written at once, nothing is lost, and README shows the measurements.

The commands of the benchmark run here on the simulated device.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from conftest import ROOT, simulated

pytestmark = pytest.mark.skipif(
    pb.cuda.is_available() and not simulated(), reason="what is tested here runs these tests; it was tested without a GPU"
)
FOLDER = ROOT / "benchmarks" / "gpu"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports modules of benchmarks/gpu by name, and unloads them after the test, because their names are common words."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = {path.stem for path in FOLDER.glob("*.py")}
    before = {name: sys.modules.pop(name) for name in names & set(sys.modules)}
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


@pytest.fixture
def run(scripts: Callable[[str], Any], tmp_path: Path) -> Any:
    """Returns a run of 30 seconds that writes into the test's folder."""
    place, copy = tmp_path / "gpu-2026-01-01.json", tmp_path / "out" / "copy.json"
    results = scripts("results").Results(place, "gpu", "figures", True, [copy], lambda: {"sources": "abc"})
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return scripts("stages").Run(results, 30, tmp_path / "logs", environment, ROOT)


def program(text: str) -> list[str]:
    return [sys.executable, "-u", "-c", text]


def stored(run: Any) -> dict[str, Any]:
    return json.loads(run.results.path.read_text())["commands"]["figures"]["stages"]


# ---- limits


def test_a_stage_that_hangs_is_stopped_keeps_its_rows_and_later_stages_run(scripts: Callable[[str], Any], run: Any) -> None:
    stages = scripts("stages")

    def hang(run: Any) -> str:
        text = 'import time; print(\'{"name": "first", "us": 3}\'); print(\'words\'); time.sleep(600)'
        stages.expect(run.process(program(text), "hang"), "the program")
        return "not reached"

    seen: list[Any] = []

    def look(run: Any) -> str:
        seen.append(stored(run)["hangs"])
        return "looked"

    assert not run.perform([stages.Stage("hangs", hang, 2), stages.Stage("looks", look, 5)])
    assert seen[0]["rows"] == [{"name": "first", "us": 3}]
    assert "was stopped after 2 s" in seen[0]["outcome"]
    assert "words" in seen[0]["outcome"]
    looked = stored(run)["looks"]
    assert [looked[key] for key in ("ok", "outcome", "rows", "on")] == [True, "looked", [], {"sources": "abc"}]
    assert (run.logs / "hang.log").read_text().endswith("words\n")
    assert run.results.copies[0].read_text() == run.results.path.read_text()


def test_a_row_is_on_disk_while_its_process_still_runs(run: Any) -> None:
    run.results.begin("")
    text = f"""
import json, time
print('{{"name": "a"}}')
while not json.load(open({str(run.results.path)!r}))["commands"]["figures"]["stages"][""]["rows"]: time.sleep(0.01)
"""
    assert run.process(program(text), "waits", 20).status == 0


def test_what_a_stopped_process_has_started_ends_with_it(run: Any, tmp_path: Path) -> None:
    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    ended = run.process(program(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"), "starts", 3)
    assert ended.status is None
    pid = int((tmp_path / "pid").read_text())
    for _ in range(500):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or ") Z " in state.read_text():
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} still runs")


def test_what_cannot_work_without_an_earlier_stage_is_not_tried(scripts: Callable[[str], Any], run: Any) -> None:
    stages = scripts("stages")

    def fail(run: Any) -> str:
        raise stages.StageError("no compiler")

    assert not run.perform([stages.Stage("build", fail, 2, essential=True), stages.Stage("later", fail, 2)])
    assert list(stored(run)) == ["build"]
    assert stored(run)["build"]["outcome"] == "no compiler"


def test_stages_leave_the_time_that_is_reserved_for_later_ones(scripts: Callable[[str], Any], run: Any) -> None:
    stages = scripts("stages")
    assert stages.share(limit=100, left=500, reserved=60) == 100
    assert stages.share(limit=100, left=130, reserved=60) == 70
    assert stages.share(limit=100, left=50, reserved=60) == 0
    given: list[float] = []

    def look(run: Any) -> str:
        given.append(run.stage_left())
        return ""

    assert not run.perform([stages.Stage("a", look, 100, 5), stages.Stage("b", look, 100, 20), stages.Stage("c", look, 9, 10)])
    assert stored(run)["a"]["outcome"] == "no time was left"
    assert given[0] <= 20
    assert given[1] <= 9


def test_the_stages_of_each_command_leave_time_to_build(scripts: Callable[[str], Any]) -> None:
    module = scripts("run")
    for command, make in module.COMMANDS.items():
        options = module.arguments([command])
        stages = make(module.Place(options, scripts("machine").Gpu("x", "9.0", 1, "CUDA 13.0")))
        names = [stage.name for stage in stages]
        assert len(set(names)) == len(names)
        after_build = sum([stage.reserve for stage in stages[names.index("build") + 1 :]])
        assert options.seconds <= 590
        assert options.seconds - after_build > 200, f"{command} leaves little time to build"


def test_a_stage_that_there_is_not_is_named(scripts: Callable[[str], Any]) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), "figures", "--simulated", "--only", "smok"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "no stage is called smok. There are: wheels, build, native, smoke" in done.stderr


@pytest.mark.parametrize("equal", [True, False])
def test_weights_with_other_bits_are_a_failure(equal: bool, scripts: Callable[[str], Any], run: Any, tmp_path: Path) -> None:
    stages, module = scripts("stages"), scripts("run")

    class Place:
        site = tmp_path

        def script(self, name: str, device: str) -> list[str]:
            row = {"network": "MLP", "device": device, "level": "v3", "sha256": "a" if equal else device}
            return program(f"print({json.dumps(row)!r})")

    fine = run.perform([stages.Stage("weights", lambda run: module.trained_weights(run, Place()), 20)])
    found = stored(run)["weights"]
    assert (fine, found["outcome"]) == (equal, "equal bits on v3, cuda" if equal else "different bits in MLP on v3, cuda")
    assert found["rows"][-1]["equal"] is equal


# ---- the file of results


def test_commands_of_one_day_share_a_file_and_lose_nothing(scripts: Callable[[str], Any], tmp_path: Path) -> None:
    make = scripts("results").Results
    path = tmp_path / "x.json"
    for command, stage in (("figures", "steps"), ("tests", "soak"), ("figures", "jax: steps")):
        results = make(path, "x", command, False)
        results.begin(stage)
        results.add(stage, {"name": command})
        results.end(stage, True, "fine", 1.0)
    data = json.loads(path.read_text())
    assert {name: list(command["stages"]) for name, command in data["commands"].items()} == {
        "figures": ["steps", "jax: steps"],
        "tests": ["soak"],
    }
    assert data["commands"]["figures"]["stages"]["steps"]["rows"] == [{"name": "figures"}]


def test_a_damaged_file_is_put_aside(scripts: Callable[[str], Any], tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{")
    scripts("results").Results(path, "x", "tests", False).write()
    assert (tmp_path / "x.broken").read_text() == "{"
    assert list(json.loads(path.read_text())["commands"]) == ["tests"]


def test_of_two_results_of_a_stage_those_that_began_later_stay(scripts: Callable[[str], Any]) -> None:
    def of(begun: str, **stages: str | None) -> dict[str, Any]:
        found = {name: {"outcome": begun, **({"begun": when} if when else {})} for name, when in stages.items()}
        return {"gpu": "x", "date": "d", "simulated": False, "commands": {"figures": {"begun": begun, "stages": found}}}

    merged = scripts("results").merged
    first, second = of("1", a=None, b="3", c="1"), of("2", b="2", c="2", d=None)
    for one, other in ((first, second), (second, first)):
        command = merged(one, other)["commands"]["figures"]
        assert command["begun"] == "2"
        assert {name: stage["outcome"] for name, stage in command["stages"].items()} == {"a": "1", "b": "1", "c": "2", "d": "2"}


def test_rows_of_an_earlier_run_can_be_read_after_the_stage_has_begun_again(scripts: Callable[[str], Any], tmp_path: Path) -> None:
    make, path = scripts("results").Results, tmp_path / "x.json"
    for number in range(2):
        results = make(path, "x", "tests", False)
        results.begin("tests")
        assert results.rows("tests") == []
        assert results.earlier_rows("tests", "tests") == [{"name": "row of run 0"}] * number
        assert results.earlier_rows("rest", "missing tests") == []
        results.add("tests", {"name": f"row of run {number}"})


# ---- turns


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
def turns(scripts: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
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
    }  # fmt: skip
    assert len(rows) == len(found)


def test_a_library_that_does_not_get_ready_is_left_behind(turns: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PREPARING", 5.0)
    (turns.HERE / "torch.py").write_text("import time\nprint('{\"facts\": {}}', flush=True)\ntime.sleep(600)\n")
    begin = time.monotonic()
    turns.Turns(False, 60).run([[turns.Case(side, "net", "float32", "captured") for side in ("pullback", "torch")]])
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


def test_each_form_of_jax_that_may_not_end_has_a_process(scripts: Callable[[str], Any]) -> None:
    module, workloads = scripts("turns"), scripts("workloads")
    cases = [case for net in workloads.workloads(False) for case in module.cases_of(net, ("pullback", "torch", "jax"))]
    processes = {case.library: {other.variant for other in cases if other.library == case.library} for case in cases}
    assert processes == {
        ("pullback", ""): {""}, ("torch", ""): {""}, ("jax", ""): {"", "GRU unroll=8"}, ("jax", "unroll=16"): {"unroll=16"},
        ("jax", "XLA unrolls loops"): {"XLA unrolls loops"}, ("jax", "XLA captures loops"): {"XLA captures loops"},
    }  # fmt: skip


def test_what_no_time_is_left_for_is_told(turns: Any, capsys: Any) -> None:
    turns.Turns(False, -1).run([[turns.Case("pullback", "net", "float32", "captured")]])
    assert rows_of(capsys) == [{"name": "net", "failed": "no time was left"}]


def test_jax_is_tried_in_every_form_that_may_be_faster(scripts: Callable[[str], Any]) -> None:
    module, workloads = scripts("turns"), scripts("workloads")
    for net in workloads.workloads(False):
        cases = module.cases_of(net, ("pullback", "torch", "jax"))
        assert len({(case.side, *case.work, case.variant) for case in cases}) == len(cases)
        for precision in net.precisions:
            forms = [case.variant for case in cases if case.side == "jax" and case.work == (net.name, precision, workloads.SEVERAL)]
            unrolled = ["unroll=16", "XLA unrolls loops"] if isinstance(net, workloads.Net) else []
            cells = ["GRU unroll=8"] if isinstance(net, workloads.Recurrent) else []
            assert forms == ["", *cells, *unrolled, "XLA captures loops"]


# ---- README


def made(side: str, us: float, **more: Any) -> dict[str, Any]:
    return {"side": side, "us": {"median": us, "q1": us, "q3": us}, **more}


def write_results(folder: Path, date: str, rows: list[dict[str, Any]], simulated: bool = False) -> Path:
    stages = {"steps": {"ok": True, "outcome": "", "seconds": 1.0, "rows": rows}}
    data = {"gpu": "NVIDIA X", "date": date, "simulated": simulated, "commands": {"figures": {"begun": date, "stages": stages}}}
    path = folder / f"nvidia-x-{date}.json"
    path.write_text(json.dumps(data))
    return path


def test_the_readme_and_the_page_hold_what_the_files_of_results_say(scripts: Callable[[str], Any]) -> None:
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


def test_the_tables_say_what_was_measured_and_what_was_not(scripts: Callable[[str], Any], tmp_path: Path) -> None:
    table = scripts("table")
    assert table.section([]) == "No GPU has been measured yet. `benchmarks/gpu/run.sh` measures one."
    step = {"name": "MLP 784-128-10, batch 64", "precision": "bfloat16"}
    write_results(tmp_path, "2026-01-01", [made("pullback", 999.0, **step, way="captured")])
    several = {**step, "way": "16 steps a call"}
    write_results(tmp_path, "2026-01-02", [
        made("pullback", 21.04, **step, way="captured"), made("torch", 42.08, **step, way="captured"),
        made("pullback", 20.0, **several), made("jax", 25.0, **several), made("jax", 16.0, **several, variant="unroll=16"),
        made("jax", 18.0, **several, variant="XLA unrolls loops"),
    ])  # fmt: skip
    write_results(tmp_path, "2026-01-03", [made("pullback", 1.0, **step, way="captured")], simulated=True)
    found = table.newest_first(tmp_path)
    text = table.section(found)
    assert text.startswith("NVIDIA X, 2026-01-02. Against torch, one graph of 16 steps,: not measured.")
    assert "pullback takes 1.25 to 1.25 of its time (median 1.25): it is faster in 0 of 1 rows, slower in 1 and equal" in text
    assert "Forms of JAX that were timed: XLA unrolls loops, as it is, unroll=16." in text
    nothing = "not measured"
    assert cells_of(text, "784-128-10") == [
        "MLP 784-128-10, batch 64, bfloat16", "21 µs", "42.1 µs", nothing, "20 µs", nothing, "16 µs (unroll=16)", "", "1.25",
    ]  # fmt: skip
    page = table.page(found[:1])
    assert cells_of(page, "784-128-10", "bfloat16") == [
        "MLP 784-128-10, batch 64", "bfloat16", nothing, nothing, "21 µs", "42.1 µs", nothing, "20 µs", nothing,
        "16 µs (unroll=16)", "", "1.25",
    ]  # fmt: skip
    assert page.count(nothing) > 100


def test_a_ratio_of_turns_comes_before_a_quotient_of_medians(scripts: Callable[[str], Any]) -> None:
    table = scripts("table")
    ours = made("pullback", 20.0)
    assert table.ratio(ours, made("torch", 40.0)) == "0.50"
    assert table.ratio(ours, made("torch", 40.0, ratio={"median": 0.61, "q1": 0.6, "q3": 0.62})) == "0.61 (0.60–0.62)"
    assert table.ratio(ours, None) == table.ratio(None, ours) == ""


def test_a_row_is_only_called_tf32_if_tf32_kernels_ran(scripts: Callable[[str], Any], tmp_path: Path) -> None:
    table = scripts("table")
    row = lambda name, precision, error: made("pullback", 5.0, name=name, precision=precision, way="captured", error=error)
    small, large = "MLP 784-128-10, batch 64", "MLP 784-1024-1024-10, batch 512"
    rows = [row(small, "float32", 1e-7), row(small, "tf32", 1e-7), row(large, "float32", 1e-7), row(large, "tf32", 2e-4)]
    write_results(tmp_path, "2026-01-01", rows)
    text = table.section(table.newest_first(tmp_path))
    assert [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| MLP")] == [
        f"{small}, float32", f"{small}, tf32 (pullback: float32)", f"{large}, float32", f"{large}, tf32",
    ]  # fmt: skip


def test_bandwidth_is_a_share_of_the_best_rate_of_any_kernel(scripts: Callable[[str], Any], tmp_path: Path) -> None:
    table = scripts("table")
    row = lambda side, name, rate: made(side, 100.0, name=name, precision="float32", gb_per_s=rate)
    write_results(tmp_path, "2026-01-01", [row("pullback", "add, 100,000,000", 1500.0), row("torch", "exp, 100,000,000", 3000.0)])
    page = table.page(table.newest_first(tmp_path))
    assert cells_of(page, "add, 100,000,000")[3] == "50 %"
    assert "is 3,000 GB/s" in page


def test_a_run_of_the_tests_that_was_interrupted_is_a_sentence(scripts: Callable[[str], Any]) -> None:
    table = scripts("table")

    def of(outcome: str, **more: int) -> dict[str, Any]:
        rows = [{"name": "tests/test_a.py", "passed": 1}, {"name": "tests", "passed": 26100, "failed": 12, "skipped": 8, **more}]
        return {"commands": {"tests": {"stages": {"tests": {"outcome": outcome, "rows": rows}}}}}

    assert table.tests(of("fine")) == "26,100 passed, 12 failed and 8 were skipped"
    assert table.tests(of("fine", not_reached=40)).endswith("40 were not reached in the time of the run")
    assert table.tests(of("interrupted before the limit: {'passed': 1}")).endswith("until the run was interrupted at its limit")
    assert table.tests({"commands": {}}) == "not measured"


def test_results_of_a_simulated_run_are_not_taken_in(scripts: Callable[[str], Any], tmp_path: Path) -> None:
    table = scripts("table")
    (tmp_path / "to").mkdir()
    real = write_results(tmp_path, "2026-01-01", [])
    assert table.take_in(real, tmp_path / "to") == tmp_path / "to" / real.name
    with pytest.raises(ValueError, match="simulated run"):
        table.take_in(write_results(tmp_path, "2026-01-01", [], simulated=True), tmp_path / "to")


# ---- the table of needs


def test_wheels_never_hide_packages_that_are_installed(scripts: Callable[[str], Any], tmp_path: Path) -> None:
    machine = scripts("machine")
    for name in ("ml_dtypes-9.9", "numpy-9.9", "optree-9.9"):
        (tmp_path / f"{name}-py3-none-any.whl").touch()
    assert machine.to_install(tmp_path) == []
    machine.has = lambda module: module != "optree"
    assert [path.name for path in machine.to_install(tmp_path)] == ["optree-9.9-py3-none-any.whl"]


def test_everything_that_is_missing_is_told_at_once_with_the_line_that_fetches_it(scripts: Callable[[str], Any]) -> None:
    machine = scripts("machine")
    assert len(machine.WHEELS) == 22
    script = (FOLDER / "run.sh").read_text().replace("#", "").replace("\\", "").split()
    assert [name for name in machine.WHEELS if name not in script] == []
    need = machine.Need
    text = machine.table([
        need("nvcc 13 or newer", None, "the build", True), need("numpy", "2", "", True), need("optree", None, "pullback", True),
        need("hypothesis", None, "the tests", False),
    ])  # fmt: skip
    assert "nvcc 13 or newer   MISSING, for the build (FATAL)" in text
    assert "hypothesis         MISSING, for the tests\n" in text
    assert text.endswith("-d .whl optree hypothesis")


def test_without_a_gpu_the_command_ends_at_once_with_the_reason(scripts: Callable[[str], Any], tmp_path: Path) -> None:
    reason = scripts("machine").find_gpu()
    if not isinstance(reason, str):
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), "figures", "--out", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert f"nothing can be measured: {reason}." in done.stdout
    assert "GPU and driver     MISSING, for everything (FATAL)" in done.stdout
    assert not any((ROOT / "benchmarks").glob("results/no-gpu*"))


# ---- ncu's table of the captured steps


NAME = "void pb::cuda::(anonymous namespace)::step<float, (int)4, (bool)1>(long)"


def test_kernels_of_each_step_are_read_from_the_table_of_ncu(scripts: Callable[[str], Any]) -> None:
    kernels = scripts("kernels")
    lines = ["==PROF== Connected", '"ID","Kernel Name",' + ",".join([f'"{name}"' for name in kernels.METRICS.values()])]
    lines.append('"","","ns","register/thread","",""')
    for number in range(len(kernels.cases(True))):
        lines.append(f'"{number}","{kernels.MARK}","1","1","1","1"')
        lines.append(f'"{number}","{NAME}","1,{number}00","32","132","256"')
    rows = list(kernels.rows_of("\n".join(lines), kernels.METRICS, True))
    assert len(rows) == len(kernels.cases(True))
    assert rows[2]["by_ncu"] == [{"kernel": "step<float, 4, 1>", "us": 1.2, "registers": 32.0, "blocks": 132.0, "threads": 256.0}]
    with pytest.raises(ValueError, match=f"ncu saw {len(rows) - 1} steps of {len(rows)}"):
        list(kernels.rows_of("\n".join(lines[:-2]), kernels.METRICS, True))


# ---- the commands, on the simulated device


def test_the_plan_adds_up_and_fits(scripts: Callable[[str], Any]) -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run([str(FOLDER / "run.sh"), "plan"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    together = [line for line in done.stdout.splitlines() if " together " in line]
    assert [line.split()[0] for line in together] == ["figures", "tests", "rest"]
    for line in together:
        about, most = [float(word) for word in line.split() if word.isdigit()]
        assert about < most <= 590, line


@pytest.mark.skipif(not simulated(), reason="device cuda is not simulated: build with PULLBACK_CUDA=SIM")
@pytest.mark.parametrize(
    ("command", "skipped"), [("figures", "micro,memcheck"), ("tests", "tests"), ("rest", "missing tests,compiled steps")]
)
def test_the_command_runs_on_the_simulated_device(command: str, skipped: str, scripts: Any, tmp_path: Path) -> None:
    site = Path(pb.__file__).parent.parent
    words = [str(FOLDER / "run.sh"), command, "--simulated", "--site", str(site), "--out", str(tmp_path), "--skip", skipped]
    done = subprocess.run(words, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    (path,) = tmp_path.glob("simulated-*.json")
    found = json.loads(path.read_text())
    assert found["simulated"] is True
    stages = found["commands"][command]["stages"]
    assert (tmp_path / f"logs-{command}.tar.gz").stat().st_size > 1000
    assert all(len(stage["on"]["sources"]) == 64 and stage["on"]["processor"] for stage in stages.values())
    if command == "tests":
        assert min(stages["soak"]["rows"][-1]["cases"].values()) > 0
    if command != "figures":
        return
    steps = [row for row in stages["steps"]["rows"] if "us" in row]
    ours = [row for row in steps if row["side"] == "pullback"]
    workloads = scripts("workloads")
    networks = workloads.workloads(True)
    assert len(ours) == sum([len(net.precisions) for net in networks]) * len(workloads.WAYS)
    worst = {"float32": 1e-6, "tf32": 1e-3, "bfloat16": 2e-2}
    for row in steps:
        assert row.get("error", 0) < worst[row["precision"]], row
        first = [other["loss_first"] for other in steps if (other["name"], other["precision"]) == (row["name"], "float32")]
        assert row["loss_first"] == pytest.approx(first[0], rel=worst[row["precision"]] * 10), row
        assert row["loss_after"] == pytest.approx(first[0], rel=0.5), row
    kernels = {(row["name"], row["precision"]): row for row in stages["single kernels"]["rows"] if row["side"] == "pullback"}
    for single in scripts("singles").singles(True):
        row = kernels[single.name, single.precision]
        assert row["tflop_per_s" if single.flops else "gb_per_s"] > 0, row
        assert (row["error"] or 0) < worst[single.precision], row
    assert all(row["nodes"] > 5 for row in stages["kernels"]["rows"])
    assert all(row["nodes"] > 0.9 for row in stages["nodes"]["rows"])
    equal = stages["weights"]["rows"][-1]
    assert equal["equal"], equal
    assert "cuda" in equal["on"]
    assert [row["ratio"]["median"] > 0 for row in stages["everywhere"]["rows"]] == [True] * len(networks)
