"""The benchmark for a GPU: limits hold, results are written at once, nothing is lost, and README shows the measurements.

The commands of the benchmark run here on the simulated device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from conftest import ROOT, simulated
from gpu_scripts import FOLDER, Scripts, imported

pytestmark = pytest.mark.skipif(
    pb.cuda.is_available() and not simulated(), reason="what is tested here runs these tests; it was tested without a GPU"
)


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripts]:
    yield from imported(monkeypatch)


@pytest.fixture
def run(scripts: Scripts, tmp_path: Path) -> Any:
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


def test_a_stage_that_hangs_is_stopped_keeps_its_rows_and_later_stages_run(scripts: Scripts, run: Any) -> None:
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


def test_what_cannot_work_without_an_earlier_stage_is_not_tried(scripts: Scripts, run: Any) -> None:
    stages = scripts("stages")

    def fail(run: Any) -> str:
        raise stages.StageError("no compiler")

    assert not run.perform([stages.Stage("build", fail, 2, essential=True), stages.Stage("later", fail, 2)])
    assert list(stored(run)) == ["build"]
    assert stored(run)["build"]["outcome"] == "no compiler"


def test_stages_leave_the_time_that_is_reserved_for_later_ones(scripts: Scripts, run: Any) -> None:
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


def test_the_stages_of_each_command_leave_time_to_build(scripts: Scripts) -> None:
    module = scripts("run")
    for command, make in module.COMMANDS.items():
        options = module.arguments([command])
        stages = make(module.Place(options, scripts("machine").Gpu("x", "9.0", 1, "CUDA 13.0")))
        names = [stage.name for stage in stages]
        assert len(set(names)) == len(names)
        after_build = sum([stage.reserve for stage in stages[names.index("build") + 1 :]])
        assert options.seconds <= 590
        assert options.seconds - after_build > 200, f"{command} leaves little time to build"


def test_a_stage_that_there_is_not_is_named(scripts: Scripts) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), "figures", "--simulated", "--only", "smok"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "no stage is called smok. There are: wheels, build, native, smoke" in done.stderr


@pytest.mark.parametrize("equal", [True, False])
def test_weights_with_other_bits_are_a_failure(equal: bool, scripts: Scripts, run: Any, tmp_path: Path) -> None:
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


def test_commands_of_one_day_share_a_file_and_lose_nothing(scripts: Scripts, tmp_path: Path) -> None:
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


def test_a_damaged_file_is_put_aside(scripts: Scripts, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{")
    scripts("results").Results(path, "x", "tests", False).write()
    assert (tmp_path / "x.broken").read_text() == "{"
    assert list(json.loads(path.read_text())["commands"]) == ["tests"]


def test_of_two_results_of_a_stage_those_that_began_later_stay(scripts: Scripts) -> None:
    def of(begun: str, **stages: str | None) -> dict[str, Any]:
        found = {name: {"outcome": begun, **({"begun": when} if when else {})} for name, when in stages.items()}
        return {"gpu": "x", "date": "d", "simulated": False, "commands": {"figures": {"begun": begun, "stages": found}}}

    merged = scripts("results").merged
    first, second = of("1", a=None, b="3", c="1"), of("2", b="2", c="2", d=None)
    for one, other in ((first, second), (second, first)):
        command = merged(one, other)["commands"]["figures"]
        assert command["begun"] == "2"
        assert {name: stage["outcome"] for name, stage in command["stages"].items()} == {"a": "1", "b": "1", "c": "2", "d": "2"}


def test_rows_of_an_earlier_run_can_be_read_after_the_stage_has_begun_again(scripts: Scripts, tmp_path: Path) -> None:
    make, path = scripts("results").Results, tmp_path / "x.json"
    for number in range(2):
        results = make(path, "x", "tests", False)
        results.begin("tests")
        assert results.rows("tests") == []
        assert results.earlier_rows("tests", "tests") == [{"name": "row of run 0"}] * number
        assert results.earlier_rows("rest", "missing tests") == []
        results.add("tests", {"name": f"row of run {number}"})


# ---- the table of needs


def test_wheels_never_hide_packages_that_are_installed(scripts: Scripts, tmp_path: Path) -> None:
    machine = scripts("machine")
    for name in ("ml_dtypes-9.9", "numpy-9.9", "optree-9.9"):
        (tmp_path / f"{name}-py3-none-any.whl").touch()
    assert machine.to_install(tmp_path) == []
    machine.has = lambda module: module != "optree"
    assert [path.name for path in machine.to_install(tmp_path)] == ["optree-9.9-py3-none-any.whl"]


def test_everything_that_is_missing_is_told_at_once_with_the_line_that_fetches_it(scripts: Scripts) -> None:
    machine = scripts("machine")
    assert len(machine.WHEELS) == 22
    script = (FOLDER / "run.sh").read_text().replace("#", "").replace("\\", "").split()
    assert [name for name in machine.WHEELS if name not in script] == []
    need = machine.Need
    text = machine.table([
        need("nvcc 13 or newer", None, "the build", True), need("numpy", "2", "", True), need("optree", None, "pullback", True),
        need("hypothesis", None, "the tests", False),
    ])
    assert "nvcc 13 or newer   MISSING, for the build (FATAL)" in text
    assert "hypothesis         MISSING, for the tests\n" in text
    assert text.endswith("-d .whl optree hypothesis")


def test_without_a_gpu_the_command_ends_at_once_with_the_reason(scripts: Scripts, tmp_path: Path) -> None:
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


def test_kernels_of_each_step_are_read_from_the_table_of_ncu(scripts: Scripts) -> None:
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


def test_the_plan_adds_up_and_fits(scripts: Scripts) -> None:
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
    ("command", "skipped"),
    [("figures", "memcheck"), ("tests", "tests"), ("rest", "micro,missing tests,compiled steps")],
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
    with tarfile.open(tmp_path / f"logs-{command}.tar.gz") as logs:
        assert f"{command}/native.log" in logs.getnames()
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
    kernels = {
        (row["name"], row["precision"]): row
        for row in stages["single kernels"]["rows"]
        if row["side"] == "pullback" and "us" in row
    }
    for single in scripts("singles").singles(True):
        row = kernels[single.name, single.precision]
        assert row["tflop_per_s" if single.flops else "gb_per_s"] > 0, row
        assert (row["error"] or 0) < worst[single.precision], row
    for row in stages["kernels"]["rows"]:  # the last layer and the loss are one node under "everywhere"
        assert row["nodes"] > (4 if row["precision"] == "everywhere" else 5), row
    assert all(row["nodes"] > 0.9 for row in stages["nodes"]["rows"])
    equal = stages["weights"]["rows"][-1]
    assert equal["equal"], equal
    assert "cuda" in equal["on"]
    assert [row["ratio"]["median"] > 0 for row in stages["everywhere"]["rows"]] == [True] * len(networks)
