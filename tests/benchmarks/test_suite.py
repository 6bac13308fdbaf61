"""The runner of the tests on a GPU: lists are shared and complete, risky files come first, and a crash or a hang costs one test."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import conftest
import pullback as pb
from conftest import ROOT, simulated
from gpu_scripts import imported

pytestmark = pytest.mark.skipif(
    pb.cuda.is_available() and not simulated(), reason="what is tested here runs these tests; it was tested without a GPU"
)
Files = dict[str, str]


@pytest.fixture(autouse=True)
def suite(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for scripts in imported(monkeypatch):
        yield scripts("suite")


class Ran:
    """What a run of tests has left: the stage in the file of results, and the tests in the order of the logs."""

    def __init__(self, stage: dict[str, Any], logs: Path) -> None:
        self.outcome, self.rows, self.ok = stage["outcome"], stage["rows"], stage["ok"]
        self.log = "".join([path.read_text() for path in sorted(logs.glob("tests-*.log"))])
        self.began = re.findall(r'^@ \{"at": "tests/(.*)"\}$', self.log, re.M)

    def files(self) -> dict[tuple[str, str], tuple[int, int, int]]:
        found = [row for row in self.rows if "part" in row]
        counts = {(row["name"], row["part"]): (row["passed"], row["failed"], row["skipped"]) for row in found}
        assert len(counts) == len(found), "a row is written twice"
        return counts

    def failures(self) -> dict[str, str]:
        return {row["name"]: row["failed"] for row in self.rows if isinstance(row.get("failed"), str)}


Go = Callable[..., Ran]


@pytest.fixture
def go(suite: Any, tmp_path: Path) -> Go:
    """Returns a function that writes files of tests and runs them."""
    stages, results = importlib.import_module("stages"), importlib.import_module("results")
    number = iter(range(100))

    def go(written: Files, *, processes: int = 1, seconds: float = 60, durations: Any = None, **options: Any) -> Ran:
        for name, text in written.items():
            path = tmp_path / "root" / "tests" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        folder = tmp_path / f"run-{next(number)}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        output = results.Results(folder / "x.json", "x", "tests", True)
        run = stages.Run(output, seconds, folder / "logs", environment, ROOT)
        known = {"recorded_on": "x", "files": {f"tests/{name}": row for name, row in (durations or {}).items()}}
        options = {"root": tmp_path / "root", "durations": known, "sources": "s", **options}
        run.perform([stages.Stage("tests", lambda run: suite.run_tests(run, processes, **options), seconds)])
        return Ran(json.loads(output.path.read_text())["commands"]["tests"]["stages"]["tests"], run.logs)

    return go


def lasting(tests: int, seconds: float, slowest: float = 0.1) -> dict[str, float]:
    return {"tests": tests, "seconds": seconds, "slowest": slowest}


MANY = """
import os, pytest
@pytest.fixture(scope="module")
def used():
    out = ["ready"]
    yield out
    out.clear()
@pytest.mark.parametrize("i", range(10))
def test_a(i, used): assert used
"""

# ---- which tests run where


def test_parts_of_a_file_have_no_test_in_common_and_leave_none_out(go: Go) -> None:
    ran = go({"x/test_many.py": MANY}, processes=2, durations={"x/test_many.py": lasting(10, 90)})
    assert ran.files() == {("tests/x/test_many.py", f"{part}/4"): (3 if part < 3 else 2, 0, 0) for part in (1, 2, 3, 4)}
    assert sorted(ran.began) == [f"x/test_many.py::test_a[{i}]" for i in range(10)]
    assert ran.outcome == "10 of 10 tests: 10 passed, 0 failed, 0 skipped"
    assert ran.ok


def test_folders_without_a_device_are_left_out_and_exist(go: Go, suite: Any) -> None:
    one = "def test_a(): pass\n"
    ran = go({"x/test_a.py": one, "tools/test_a.py": one, "words/test_a.py": one})
    assert ran.began == ["x/test_a.py::test_a"]
    assert [name for name in suite.NO_DEVICE if not list((ROOT / "tests" / name).glob("test_*.py"))] == []


def test_files_run_by_risk_and_then_the_longest_first(go: Go) -> None:
    one = "def test_a(): pass\n"
    names = ["x/test_tree.py", "x/test_pools.py", "x/test_words.py", "x/test_attention.py", "device/test_z.py"]
    ran = go(dict.fromkeys(names, one), durations={"x/test_words.py": lasting(1, 5), "x/test_tree.py": lasting(1, 2)})
    order = ["x/test_attention", "x/test_pools", "device/test_z", "x/test_words", "x/test_tree"]
    assert ran.began == [f"{name}.py::test_a" for name in order]


def test_every_pattern_of_risk_has_a_file_and_what_never_ran_on_a_gpu_comes_before_the_rest(suite: Any) -> None:
    listed = suite.tasks({"recorded_on": "cpu", "files": {}})
    ranks = [suite.risk(task.file) for task in listed]
    assert set(ranks) == set(range(len(suite.RISK) + 1))
    assert ranks == sorted(ranks)
    first = {task.file for task in listed if suite.risk(task.file) == 0}
    assert first >= {"tests/any_backend/ops/test_attention.py", "tests/native/test_attention_kernels.py"}


def test_sixteen_processes_end_at_about_the_same_time(suite: Any) -> None:
    durations = json.loads(suite.DURATIONS.read_text())
    expected = suite.estimate(durations, 16)
    tasks = suite.tasks(durations)
    assert expected["seconds"] < 1.1 * sum([task.seconds for task in tasks]) / 16
    assert expected["tests"] == sum([task.tests for task in tasks]) > 25_000
    assert suite.estimate(durations, 1)["seconds"] == round(sum([task.seconds for task in tasks]))
    assert max([task.seconds for task in tasks]) < 100
    alone = suite.estimate({**durations, "recorded_on": "NVIDIA X"}, 1)
    new = {task.file for task in tasks} - set(durations["files"])  # not recorded yet: a second each
    assert alone["seconds"] == pytest.approx(sum([row["seconds"] for row in durations["files"].values()]) + len(new), abs=1)


def test_durations_are_recorded_for_the_files_that_there_are(suite: Any) -> None:
    known = json.loads(suite.DURATIONS.read_text())["files"]
    there = {task.file for task in suite.tasks({"recorded_on": "cpu", "files": {}})}
    assert len(there - set(known)) <= 0.2 * len(there), "run: python3 benchmarks/gpu/suite.py --record"


def test_durations_are_read_from_the_rows_of_a_run(go: Go, suite: Any) -> None:
    files = {"x/test_many.py": MANY, "x/test_slow.py": "import time\ndef test_a(): time.sleep(0.3)\ndef test_b(): pass\n"}
    ran = go(files, durations={"x/test_many.py": lasting(10, 50)})
    assert ran.ok
    found = suite.recorded(ran.rows, "x")["files"]
    assert {name: row["tests"] for name, row in found.items()} == {"tests/x/test_many.py": 10, "tests/x/test_slow.py": 2}
    without = [row for row in ran.rows if row.get("part") != "1/2"]
    assert set(suite.recorded(without, "x")["files"]) == {"tests/x/test_slow.py"}
    assert 0.3 <= found["tests/x/test_slow.py"]["slowest"] <= found["tests/x/test_slow.py"]["seconds"]


def test_one_test_per_file(go: Go) -> None:
    ran = go({"x/test_many.py": MANY, "x/test_more.py": MANY}, one_test_per_file=True)
    assert ran.files() == {(f"tests/x/test_{name}.py", "first test"): (1, 0, 0) for name in ("many", "more")}
    assert go({}, one_test_per_file=True, files="^(?!.*many)").began == ["x/test_more.py::test_a[0]"]


# ---- what is counted


def test_each_outcome_is_counted_once_and_failures_have_their_message(go: Go) -> None:
    text = """
import pytest
@pytest.fixture
def breaks(): yield; raise ValueError("at the end")
def test_passes(shared): assert shared == 5
def test_fails(): assert 0, "wrong"
def test_skips(): pytest.skip("no reason")
def test_breaks_twice(breaks): assert 0, "in the test"
@pytest.mark.xfail
def test_is_expected(): assert 0
"""
    files = {
        "conftest.py": "import pytest\n@pytest.fixture(scope='session')\ndef shared(): return 5\n",
        "x/test_some.py": text, "y/test_same.py": "def test_passes(shared): assert shared == 5\n",
        "y/test_none.py": "import pytest\npytest.skip('not here', allow_module_level=True)\n",
        "y/test_not.py": "import not_there\n",
    }
    ran = go(files)
    assert ran.files() == {
        ("tests/x/test_some.py", "1/1"): (1, 2, 2), ("tests/y/test_same.py", "1/1"): (1, 0, 0),
        ("tests/y/test_none.py", "1/1"): (0, 0, 1), ("tests/y/test_not.py", "1/1"): (0, 1, 0),
    }
    failed = ran.failures()
    assert "wrong" in failed["tests/x/test_some.py::test_fails"]
    assert "not_there" in failed["tests/y/test_not.py"]
    assert set(failed) == {"tests/y/test_not.py", *[f"tests/x/test_some.py::test_{name}" for name in ("fails", "breaks_twice")]}
    assert ran.outcome == "8 of 8 tests: 2 passed, 3 failed, 3 skipped"
    assert (
        ran.rows[-1].items() >= {"name": "tests", "passed": 2, "failed": 3, "skipped": 3, "not_reached": 0, "processes": 1}.items()
    )
    assert all(row["sources"] == "s" for row in ran.rows)
    assert "    E   AssertionError: wrong" in ran.log


# ---- processes that die


ENDS = {"os._exit(0)": "status 0", "os.kill(os.getpid(), 9)": "status -9", "ctypes.string_at(0)": "Segmentation fault"}


@pytest.mark.parametrize("end", ENDS)
def test_a_crash_costs_only_its_test(go: Go, end: str) -> None:
    text = f"import ctypes, os\ndef test_a(): pass\ndef test_b(): {end}\ndef test_c(): pass\ndef test_d(): assert 0\n"
    ran = go({"x/test_pools.py": text, "x/test_z.py": "def test_a(): pass\n"})
    assert ran.files() == {("tests/x/test_pools.py", "1/1"): (2, 2, 0), ("tests/x/test_z.py", "1/1"): (1, 0, 0)}
    assert "ended the process" in ran.failures()["tests/x/test_pools.py::test_b"]
    assert ENDS[end] in ran.failures()["tests/x/test_pools.py::test_b"]
    assert ran.began == [*[f"x/test_pools.py::test_{name}" for name in "abcd"], "x/test_z.py::test_a"]


def test_a_crash_in_an_import_costs_only_its_file(go: Go) -> None:
    ran = go({"x/test_pools.py": "import os\nos._exit(7)\n", "x/test_z.py": MANY})
    assert ran.files()["tests/x/test_z.py", "1/1"] == (10, 0, 0)
    assert "ended the process (status 7)" in ran.failures()["tests/x/test_pools.py"]


def test_a_test_that_hangs_is_ended_and_named_with_the_line_where_it_hangs(
    go: Go, suite: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "LEAST_LIMIT", 5)
    text = "import time\ndef wait():\n    time.sleep(600)\ndef test_a(): wait()\ndef test_b(): pass\n"
    ran = go({"x/test_x.py": text}, durations={"x/test_x.py": lasting(2, 0.1, 0.0)})
    assert ran.files() == {("tests/x/test_x.py", "1/1"): (1, 1, 0)}
    message = ran.failures()["tests/x/test_x.py::test_a"]
    assert "Timeout (0:00:05)" in message
    assert "line 3 in wait" in message


def test_after_a_sticky_error_a_new_process_goes_on(go: Go) -> None:
    text = """
def test_a(): pass
def test_b(): raise RuntimeError("tanh failed: an illegal memory access was encountered (cudaErrorIllegalAddress)")
def test_c(): pass
"""
    sticky = "def is_sticky(error): return 'cudaErrorIllegalAddress' in str(error)\n"
    ran = go({"conftest.py": sticky, "x/test_pools.py": text, "x/test_z.py": "def test_a(): pass\n"})
    assert ran.files() == {("tests/x/test_pools.py", "1/1"): (2, 1, 0), ("tests/x/test_z.py", "1/1"): (1, 0, 0)}
    assert set(ran.failures()) == {"tests/x/test_pools.py::test_b"}
    assert "illegal memory access" in ran.failures()["tests/x/test_pools.py::test_b"]
    assert ran.log.count("$ ") == 2
    assert "4 of 4 tests" in ran.outcome
    assert conftest.is_sticky(RuntimeError("cudaErrorIllegalAddress"))  # by_file.py looks for this function


def test_a_file_whose_tests_all_crash_is_given_up_and_the_next_one_runs(go: Go, suite: Any) -> None:
    ran = go({"x/test_pools.py": MANY.replace("assert used", "os._exit(7)"), "x/test_z.py": MANY})
    assert ran.files() == {("tests/x/test_pools.py", "1/1"): (0, suite.DEATHS + 1, 0), ("tests/x/test_z.py", "1/1"): (10, 0, 0)}
    assert ran.rows[-1]["not_reached"] == 10 - suite.DEATHS - 1
    assert not ran.ok


def test_processes_that_cannot_begin_are_reported(go: Go) -> None:
    ran = go({"conftest.py": "import not_there\n", "x/test_a.py": MANY, "x/test_b.py": MANY}, processes=2)
    assert "not_there" in ran.failures()["a process of tests"]
    assert "0 of 2 tests" in ran.outcome
    assert "2 processes died outside of a test" in ran.outcome
    assert not ran.ok


def test_a_crash_after_the_last_test_is_reported(go: Go) -> None:
    ending = "import os, pytest\n@pytest.fixture(scope='session', autouse=True)\ndef crash():\n    yield\n    os._exit(7)\n"
    ran = go({"conftest.py": ending, "x/test_a.py": MANY})
    assert ran.files() == {("tests/x/test_a.py", "1/1"): (10, 0, 0)}
    assert "after tests/x/test_a.py::test_a[9]" in next(iter(ran.failures()))
    assert not ran.ok


# ---- time


def test_an_interrupted_run_keeps_its_counts_and_names_what_it_did_not_reach(go: Go) -> None:
    slow = "import time\ndef test_a(): pass\ndef test_b(): assert 0, 'wrong'\ndef test_c(): time.sleep(600)\ndef test_d(): pass\n"
    files = {"x/test_attention.py": "def test_a(): pass\n", "x/test_pools.py": slow, "x/test_z.py": MANY, "x/test_long.py": MANY}
    durations = {"x/test_z.py": lasting(10, 1), "x/test_long.py": lasting(10, 24, 24)}
    ran = go(files, seconds=15, durations=durations)
    assert ran.files() == {("tests/x/test_attention.py", "1/1"): (1, 0, 0), ("tests/x/test_pools.py", "1/1"): (1, 1, 0)}
    assert ran.rows[2].items() >= {"not_reached": 2, "in_progress": "tests/x/test_pools.py::test_c"}.items()
    assert "wrong" in ran.failures()["tests/x/test_pools.py::test_b"]
    assert ran.rows[-1]["not_reached"] == 22
    assert ran.outcome == (
        "3 of 25 tests: 2 passed, 1 failed, 0 skipped; "
        "2 files or parts were not reached: tests/x/test_long.py 1/1, tests/x/test_z.py 1/1; "
        "1 did not end, with their last tests: tests/x/test_pools.py 1/1 (tests/x/test_pools.py::test_c)"
    )


def test_a_file_that_cannot_end_in_time_does_not_begin_and_a_shorter_one_does(go: Go) -> None:
    files = {"x/test_pools.py": MANY, "x/test_short.py": MANY}
    ran = go(files, seconds=15, durations={"x/test_pools.py": lasting(10, 20, 20), "x/test_short.py": lasting(10, 1)})
    assert ran.files() == {("tests/x/test_short.py", "1/1"): (10, 0, 0)}
    assert ran.outcome.endswith("1 files or parts were not reached: tests/x/test_pools.py 1/1")


# ---- a run that continues another one


def test_only_what_is_missing_runs_again_and_failures_come_first(go: Go, tmp_path: Path) -> None:
    broken = "def test_a(): assert 0\ndef test_b(): pass\n"
    files = {"x/test_attention.py": MANY, "x/test_pools.py": MANY, "x/test_z.py": broken}
    first = go(files)
    earlier = [row for row in first.rows if row["name"] != "tests/x/test_pools.py"]  # as if this file had not been reached
    second = go({"x/test_z.py": broken.replace("assert 0", "pass")}, earlier=earlier, only_missing=True)
    assert [name.split("::")[0] for name in second.began] == ["x/test_z.py"] * 2 + ["x/test_pools.py"] * 10
    assert second.outcome == "22 of 22 tests: 22 passed, 0 failed, 0 skipped"
    assert len(second.files()) == 3
    assert len(go({}, earlier=second.rows, only_missing=True).began) == 0
    assert len(go({}, earlier=second.rows, only_missing=True, sources="others").began) == 22
    assert len(go({}, earlier=second.rows, one_test_per_file=True).began) == 3
    unfinished = [row | {"not_reached": 1} if "attention" in row["name"] else row for row in second.rows]
    assert len(go({}, earlier=unfinished, only_missing=True).began) == 10
