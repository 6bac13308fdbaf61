"""The benchmark for a GPU: limits hold, results are written at once, nothing is lost, and README shows the measurements.

Two commands of the benchmark run here on the simulated device.
"""

from __future__ import annotations

import importlib
import json
import math
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
    results = scripts("results").Results(tmp_path / "gpu-2026-01-01.json", "gpu", "figures", True, [tmp_path / "out" / "copy.json"])
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
    assert stored(run)["looks"] | {"seconds": 0} == {"ok": True, "outcome": "looked", "seconds": 0, "rows": []}
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
        assert options.seconds <= 9 * 60
        assert options.seconds - after_build > 200, f"{command} leaves little time to build"


def test_a_stage_that_there_is_not_is_named(scripts: Callable[[str], Any]) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), "figures", "--simulated", "--only", "smok"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "no stage is called smok. There are: wheels, build, native, smoke" in done.stderr


# ---- the tests' report


SLOW = "import time\ndef test_a(): pass\ndef test_b(): assert 0, 'wrong'\ndef test_c(): time.sleep(600)\n"


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_run_of_the_tests_leaves_its_report(
    scripts: Callable[[str], Any], run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xdist")
    stages, suite = scripts("stages"), scripts("suite")
    monkeypatch.setattr(suite, "INTERRUPT", 60)
    (tmp_path / "test_slow.py").write_text(SLOW)
    run = stages.Run(run.results, 115, run.logs, run.environment, run.folder)
    run.perform([stages.Stage("tests", lambda run: suite.tests(run, 1, [str(tmp_path / "test_slow.py")]), 100)])
    found = stored(run)["tests"]
    assert (run.logs / "tests.xml").exists(), found
    assert "interrupted before the limit" in found["outcome"]
    assert found["rows"][0]["passed"] >= 1
    (failed,) = found["rows"][1:]
    assert failed["name"].endswith("test_slow::test_b")  # after a path, if the repository and the file have a folder in common
    assert "wrong" in found["rows"][1]["failed"]


def test_what_a_device_has_no_part_in_is_a_folder(scripts: Callable[[str], Any], tmp_path: Path) -> None:
    assert "--ignore=tests/tools" in scripts("suite").command(tmp_path, 1, ["tests"])
    assert (ROOT / "tests" / "tools" / "test_layers.py").exists()
    assert "--ignore tests/tools" in (ROOT / "Makefile").read_text()


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


def test_the_later_of_two_files_stays_stage_by_stage(scripts: Callable[[str], Any]) -> None:
    def of(begun: str, **stages: int) -> dict[str, Any]:
        return {"gpu": "x", "date": "d", "simulated": False, "commands": {"figures": {"begun": begun, "stages": stages}}}

    merged = scripts("results").merged
    for first, second in [(of("1", a=1, b=1), of("2", b=2, c=2)), (of("2", b=2, c=2), of("1", a=1, b=1))]:
        assert merged(first, second)["commands"]["figures"] == {"begun": "2", "stages": {"a": 1, "b": 2, "c": 2}}


# ---- README


def made(side: str, us: float, **more: Any) -> dict[str, Any]:
    return {"side": side, "us": {"median": us, "q1": us, "q3": us}, **more}


def write_results(folder: Path, date: str, rows: list[dict[str, Any]], simulated: bool = False) -> Path:
    stages = {"steps": {"ok": True, "outcome": "", "seconds": 1.0, "rows": rows}}
    data = {"gpu": "NVIDIA X", "date": date, "simulated": simulated, "commands": {"figures": {"begun": date, "stages": stages}}}
    path = folder / f"nvidia-x-{date}.json"
    path.write_text(json.dumps(data))
    return path


def test_the_readme_holds_what_the_files_of_results_say(scripts: Callable[[str], Any]) -> None:
    table = scripts("table")
    text = table.README.read_text()
    assert text == table.with_section(text, table.section(table.newest(table.FOLDER))), "run: python3 benchmarks/gpu/table.py"
    for path in table.FOLDER.glob("*.json"):
        assert not table.load(path)["simulated"], f"{path} is of a simulated run"


def test_the_tables_say_what_was_measured_and_what_was_not(scripts: Callable[[str], Any], tmp_path: Path) -> None:
    table = scripts("table")
    assert table.section(table.newest(tmp_path)).count("not measured") > 40
    step = {"name": "MLP 784-128-10, batch 64", "precision": "tf32", "way": "captured"}
    write_results(tmp_path, "2026-01-01", [made("pullback", 999.0, **step)])
    write_results(tmp_path, "2026-01-02", [made("pullback", 21.04, **step), made("torch", 42.08, **step)])
    write_results(tmp_path, "2026-01-03", [made("pullback", 1.0, **step)], simulated=True)
    text = table.section(table.newest(tmp_path))
    assert text.startswith("NVIDIA X, 2026-01-02.")
    line = next(line for line in text.splitlines() if "784-128-10" in line and "tf32" in line)
    assert [cell.strip() for cell in line.split("|")[1:-1]] == [
        "MLP 784-128-10, batch 64", "tf32", "not measured", "21 µs", "not measured", "42.1 µs", "not measured", "0.50", "",
    ]  # fmt: skip


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
    with pytest.raises(ValueError, match="ncu saw 8 steps of 9"):
        list(kernels.rows_of("\n".join(lines[:-2]), kernels.METRICS, True))


# ---- both commands, on the simulated device


@pytest.mark.skipif(not simulated(), reason="device cuda is not simulated: build with PULLBACK_CUDA=SIM")
@pytest.mark.parametrize(("command", "skipped"), [("figures", "micro"), ("tests", "racecheck")])
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
    if command == "figures":
        steps = [row for name, stage in stages.items() if name.startswith("steps in") for row in stage["rows"] if "us" in row]
        workloads = scripts("workloads")
        networks = [*workloads.nets(True), *workloads.decoders(True)]
        assert len(steps) == len(networks) * len(workloads.WAYS) * len(workloads.PRECISIONS)
        worst = {"float32": 1e-6, "tf32": 1e-3, "bfloat16": 2e-2}
        guessing = {net.name: math.log(net.characters) for net in workloads.decoders(True)}  # the loss of a model of characters
        for row in steps:
            if row["name"] in guessing:
                assert 0.5 < row["loss_after"] / guessing[row["name"]] < 1.2, row
            else:
                assert row["error"] < worst[row["precision"]], row
        assert all(row["nodes"] > 5 for row in stages["kernels"]["rows"])
        assert all(row["nodes"] > 0.9 for row in stages["nodes"]["rows"])
        assert not [row for stage in stages.values() for row in stage["rows"] if "not_compared" in row]
        equal = stages["weights"]["rows"][-1]
        assert equal["equal"], equal
        assert "cuda" in equal["on"]
        assert [row["ratio"]["median"] > 0 for row in stages["everywhere"]["rows"]] == [True] * 3
    else:
        assert stages["tests"]["rows"][0]["passed"] > 10
        assert min(stages["soak"]["rows"][-1]["cases"].values()) > 10
