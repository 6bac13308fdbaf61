"""Runs the tests that need a device in several processes of by_file.py, the files with the highest risk first.

Every failure, and the counts of every file, are written as soon as they are known. A process that dies or hangs costs the one test
that it was in: another process goes on after this test. durations.json has the seconds of each file:

    python benchmarks/gpu/suite.py                          prints the expected time of all tests on a GPU
    python benchmarks/gpu/suite.py --record [RESULTS.json]  writes durations.json from results, or from a run on this machine's CPU
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import math
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from machine import ROOT
from stages import Ended, Run, StageError, say

from results import Results, replace

HERE = Path(__file__).resolve().parent
DURATIONS = HERE / "durations.json"
NO_DEVICE = ("tools", "words", "benchmarks", "simulated")  # folders of tests that use no device, or only the simulated one
# Patterns of files, by risk. Kernels that have never run on a GPU come first, then what crosses libraries, then tests of many ops.
RISK = (
    "attention|onnx_cases", "convolution|mlperf_tiny", "pools", "channel_norm", "recurrent", "scan|segments", "/test_capture",
    "/device/", "data|loader", "linalg", "exchange|torch_|clients", "everywhere|exactness|training|resume",
    "clipping|loss_scaler|amp", "optim|adafactor|lamb|muon|update|gates|plateau|schedule|rules|accumulator",
    "fuzz|random_|ops|corners|sizes",
)
ENVIRONMENT = {
    "PULLBACK_DEVICE": "cuda",
    "PULLBACK_CUDA_SYNC": "1",  # an error appears at the op that caused it
    "PULLBACK_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",  # the processes share the CPU
    "CUPY_ACCELERATORS": "",  # the first use of an accelerator compiles for seconds
}
PART = 25.0  # seconds on a device; files that take longer are split into parts of about this length
SECONDS_PER_TEST = 15 * 162 / 12_548  # of one process: 12,548 tests took 162 s in 15 processes on an H100
LEAST_LIMIT = 60.0  # seconds that every test may take
RESTARTS, DEATHS = 10, 3  # the highest numbers of restarts of a process, and of restarts in the middle of one file
LOST = 77  # the status of a process that ended itself because its GPU context is lost; pytest's own are 0 to 5
CRASH = ("Fatal Python error", "Timeout (")  # how faulthandler begins, whose first lines name the innermost functions
KEPT = 300  # the highest number of failures in the results; the logs hold all of them, untruncated
END = 3.0  # seconds that the stage keeps for its last rows
OUTCOMES = ("passed", "failed", "skipped")


@dataclass
class Task:
    """A file of tests, or every `parts`-th test of it, and what is known about these tests.

    Attributes:
        most: the highest number of tests to run, None for all.
        tests: the number of tests that is expected before they are collected.
        seconds: the expected seconds.
        limit: the seconds after which a test is ended.
        last: the test that began last.
        ended: True if the task's row is written.
    """

    file: str
    part: int
    parts: int
    most: int | None
    tests: int
    seconds: float
    limit: float
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    collected: int | None = None
    spent: float = 0.0
    slowest: float = 0.0
    last: str = ""
    runs: bool = False
    deaths: int = 0
    ended: bool = False

    @property
    def label(self) -> str:
        return "first test" if self.most == 1 else f"{self.part}/{self.parts}"

    def left(self) -> int:
        """Returns the number of tests without an outcome."""
        return max(0, (self.tests if self.collected is None else self.collected) - sum(self.counts.values()))

    def row(self) -> dict[str, Any]:
        row = {
            "name": self.file,
            "part": self.label,
            **self.counts,
            "seconds": round(self.spent, 2),
            "slowest": round(self.slowest, 2),
        }
        if self.collected is None or self.left():
            row["not_reached"] = self.left()
        return row | ({"in_progress": self.last} if self.runs else {})


# ---- expected times


def risk(file: str) -> int:
    return next((index for index, pattern in enumerate(RISK) if re.search(pattern, file)), len(RISK))


def seconds_more(durations: Mapping[str, Any]) -> float:
    """Returns the seconds that a test is expected to take on a GPU in addition to its recorded seconds: 0 if a GPU recorded them.

    For durations of a CPU it assumes that a test takes SECONDS_PER_TEST on a GPU on average, imports and collection included, and
    that every test is slower than on the CPU by the same number of seconds. Which tests those 12,548 were is not known.
    """
    rows = durations["files"].values()
    mean = sum([row["seconds"] for row in rows]) / max(1, sum([row["tests"] for row in rows]))
    return max(0.0, SECONDS_PER_TEST - mean) if durations["recorded_on"] == "cpu" and rows else 0.0


def tasks(durations: Mapping[str, Any], root: Path = ROOT, one_test_per_file: bool = False) -> list[Task]:
    """Returns the tasks in the order in which processes take them: by risk, then the longest first."""
    more, out = seconds_more(durations), []
    for path in sorted(root.glob("tests/**/test_*.py")):
        file = path.relative_to(root).as_posix()
        if file.split("/")[1] in NO_DEVICE:
            continue
        known = durations["files"].get(file, {"tests": 1, "seconds": 1.0, "slowest": 1.0})
        slowest, seconds = known["slowest"] + more, known["seconds"] + more * known["tests"]
        if one_test_per_file:  # on the simulated device, which is slow
            out.append(Task(file, 1, 1, 1, 1, slowest, 300 + 10 * slowest))
            continue
        parts = max(1, min(math.ceil(seconds / max(PART, slowest)), known["tests"]))
        for part in range(1, parts + 1):
            count = len(range(part, known["tests"] + 1, parts))
            out.append(Task(file, part, parts, None, count, seconds / parts, LEAST_LIMIT + 10 * slowest))
    return sorted(out, key=lambda task: (risk(task.file), -task.seconds))


def estimate(durations: Mapping[str, Any], processes: int, root: Path = ROOT) -> dict[str, Any]:
    """Returns the expected seconds of a run on a GPU under seconds_more's assumption, and what they are computed from."""
    listed, ends = tasks(durations, root), [0.0] * processes
    for task in listed:
        heapq.heapreplace(ends, ends[0] + task.seconds)
    return {
        "seconds": round(max(ends)), "processes": processes, "tests": sum([task.tests for task in listed]),
        "files": len({task.file for task in listed}), "tasks": len(listed), "recorded_on": durations["recorded_on"],
        "recorded_seconds": round(sum([row["seconds"] for row in durations["files"].values()])),
        "more_seconds_per_test_on_a_gpu": round(seconds_more(durations), 3),
    }


def most_workers() -> int:
    return min(16, os.cpu_count() or 1)


# ---- a run


class Suite:
    """A run of tasks. Its threads run processes and write rows."""

    def __init__(
        self, run: Run, listed: Sequence[Task], sources: str, root: Path, folder: Path, variables: Mapping[str, str]
    ) -> None:
        self.run, self.tasks, self._sources, self._folder, self._variables = run, listed, sources, folder, variables
        self._lock, self._failures, self.broken = threading.Lock(), 0, 0
        seconds = run.stage_left() - END
        self._end = time.monotonic() + seconds
        plan = {"root": str(root), "lost": LOST, "end": time.time() + seconds, "tasks": [asdict(task) for task in listed]}
        (folder / "plan.json").write_text(json.dumps(plan))

    def row(self, row: dict[str, Any]) -> None:
        self.run.row({**row, "sources": self._sources})

    def failed(self, name: str, message: str) -> None:
        with self._lock:
            self._failures += 1
            kept = self._failures <= KEPT
        if kept:
            self.row({"name": name, "failed": message[:600]})

    def process(self, number: int) -> None:
        """Runs a process, and another one after each that dies, until no task is left that can end in time."""
        begin: list[str] | None = []
        for restart in range(RESTARTS + 1):
            if begin is None or (left := self._end - time.monotonic()) <= 0:
                return
            words = [sys.executable, str(HERE / "by_file.py"), str(self._folder), f"{number}-{restart}", *begin]
            follower = Follower(self)
            ended = self.run.process(words, f"tests-{number}", left, on_line=follower.take, environment=self._variables)
            if ended.status is None or (ended.status == 0 and follower.done()):  # it was stopped at the limit, or no task was left
                return
            begin = follower.died(ended)


class Follower:
    """Reads the events of one process."""

    def __init__(self, suite: Suite) -> None:
        self._suite, self._begun, self._crash = suite, 0.0, list[str]()
        self._task: Task | None = None

    def take(self, line: str) -> None:
        if line.startswith(CRASH) or self._crash:
            self._crash.append(line)
        event = json.loads(line[2:]) if line.startswith("@ {") else {}
        if "begin" in event:
            self._task, self._begun = self._suite.tasks[event["begin"]], time.monotonic()
        task = self._task
        if task is None:
            return
        if "at" in event:
            task.last, task.runs = event["at"], True
        elif "outcome" in event:
            self._outcome(task, event["test"], event["outcome"], event["seconds"], event.get("message", ""))
        elif "tests" in event:
            task.collected = sum(task.counts.values()) + event["tests"]
        if task.collected is not None and not task.left() and not task.ended:
            self._end(task)

    def done(self) -> bool:
        return self._task is None or self._task.ended

    def _outcome(self, task: Task, test: str, outcome: str, seconds: float, message: str) -> None:
        now = time.monotonic()
        task.spent, self._begun = task.spent + now - self._begun, now
        task.last, task.runs, task.slowest = test, False, max(task.slowest, seconds)
        task.counts[outcome] += 1
        if outcome == "failed":
            self._suite.failed(test, message)

    def _end(self, task: Task) -> None:
        task.ended = True
        self._suite.row(task.row())

    def died(self, ended: Ended) -> list[str] | None:
        """Reports what ended the process. Returns the arguments of the next process, None if that could not begin either."""
        task = self._task
        others = "\n".join([line for line in ended.tail.splitlines() if not line.startswith("@ {")])
        words = "".join(self._crash)[:500] or others[-500:]
        message = f"ended the process (status {ended.status}): {words.strip()}"
        if task is not None and (task.runs or task.collected is None):
            self._outcome(task, task.last if task.runs else task.file, "failed", time.monotonic() - self._begun, message)
        elif ended.status != LOST:
            self._suite.broken += 1
            self._suite.failed(f"a process, after {task.last}" if task else "a process of tests", message)
        if task is None:
            return None
        task.deaths += 1
        if task.collected is not None and task.left() and task.deaths <= DEATHS:
            return [str(self._suite.tasks.index(task)), *([task.last] if task.last else [])]
        if not task.ended:
            self._end(task)
        return []


def complete(row: Mapping[str, Any]) -> bool:
    return not row["failed"] and "not_reached" not in row


def run_tests(
    run: Run,
    processes: int,
    *,
    sources: str = "",
    earlier: Iterable[Mapping[str, Any]] = (),
    only_missing: bool = False,
    one_test_per_file: bool = False,
    files: str = "",
    root: Path = ROOT,
    durations: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] = ENVIRONMENT,
) -> str:
    """Runs the tests that need a device. Returns the outcome in words. Raises StageError if a test failed or was not reached.

    Args:
        sources: the hash of the sources, which every row carries.
        earlier: the rows of an earlier run.
        only_missing: leaves out files that passed as a whole in `earlier` with these sources, and writes their rows again. Files
            with failures run first.
        one_test_per_file: runs the first test of each file.
        files: a regular expression that the names of the files match somewhere.
    """
    begin = time.monotonic()
    listed = tasks(durations or json.loads(DURATIONS.read_text()), root, one_test_per_file)
    listed = [task for task in listed if re.search(files, task.file)]
    rows = {(row["name"], row["part"]): row for row in earlier if only_missing and "part" in row and row.get("sources") == sources}
    pairs = [(task, rows.get((task.file, task.label))) for task in listed]
    kept = [row for _, row in pairs if row is not None and complete(row)]
    for row in kept:
        run.results.add(run.stage, dict(row))
    pairs = [(task, row) for task, row in pairs if row is None or not complete(row)]
    listed = [task for task, _ in sorted(pairs, key=lambda pair: pair[1] is None or not pair[1]["failed"])]
    with tempfile.TemporaryDirectory(prefix="pullback-tests-", ignore_cleanup_errors=True) as folder:
        suite = Suite(run, listed, sources, root, Path(folder), environment)
        with ThreadPoolExecutor(processes) as pool:
            list(pool.map(suite.process, range(min(processes, len(listed)))))
    for task in listed:
        if not task.ended and (task.collected is not None or task.runs):
            suite.row(task.row())
    counts = {name: sum([row[name] for row in [*kept, *[task.counts for task in listed]]]) for name in OUTCOMES}
    left, seconds = sum([task.left() for task in listed]), round(time.monotonic() - begin, 1)
    suite.row({"name": "tests", **counts, "not_reached": left, "seconds": seconds, "processes": processes})
    done = sum(counts.values())
    text = f"{done:,} of {done + left:,} tests: {', '.join([f'{count:,} {name}' for name, count in counts.items()])}"
    not_reached = [f"{task.file} {task.label}" for task in listed if task.collected is None]
    not_ended = [f"{task.file} {task.label} ({task.last})" for task in listed if task.collected is not None and task.left()]
    text += f"; {len(not_reached)} files or parts were not reached: {', '.join(not_reached)}" if not_reached else ""
    text += f"; {len(not_ended)} did not end, with their last tests: {', '.join(not_ended)}" if not_ended else ""
    text += f"; {suite.broken} processes died outside of a test" if suite.broken else ""
    if not_reached or not_ended or counts["failed"] or suite.broken:
        raise StageError(text)
    return text


# ---- recorded durations


def recorded(rows: Iterable[Mapping[str, Any]], device: str) -> dict[str, Any]:
    """Returns durations from the rows of files that ended with all of their parts, which are added up."""
    ended: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if "/" in row.get("part", "") and "not_reached" not in row:
            ended.setdefault(row["name"], []).append(row)
    files = {
        name: {
            "tests": sum([row[kind] for row in parts for kind in OUTCOMES]),
            "seconds": round(sum([row["seconds"] for row in parts]), 2),
            "slowest": max([row["slowest"] for row in parts]),
        }
        for name, parts in sorted(ended.items())
        if len(parts) == int(parts[0]["part"].split("/")[1])
    }
    return {"recorded_on": device, "files": files}


def record(source: Path | None, processes: int) -> dict[str, Any]:
    """Returns the durations in a file of results, or measures them on this machine's CPU."""
    if source is not None:
        data = json.loads(source.read_text())
        stages = [command["stages"].get("tests", {"rows": []}) for command in data["commands"].values()]
        return recorded([row for stage in stages for row in stage["rows"]], data["gpu"])
    results = Results(ROOT / "build" / "gpu" / "durations.json", "cpu", "record", False)
    results.begin("tests")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PULLBACK_", "PYTEST_"))}
    run = Run(results, 7200, ROOT / "build" / "gpu" / "logs" / "record", variables, ROOT)
    run.stage = "tests"
    with contextlib.suppress(StageError):  # a test that fails has a duration too
        say(run_tests(run, processes, environment=ENVIRONMENT | {"PULLBACK_DEVICE": "cpu"}))
    return recorded(results.rows("tests"), "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", nargs="?", metavar="RESULTS.json", const="", help="writes durations.json")
    parser.add_argument("--processes", type=int, default=most_workers())
    options = parser.parse_args()
    if options.record is not None:
        data = record(Path(options.record) if options.record else None, options.processes)
        lines = ",\n".join([f"{json.dumps(file)}: {json.dumps(row)}" for file, row in data["files"].items()])
        replace(DURATIONS, f'{{"recorded_on": {json.dumps(data["recorded_on"])}, "files": {{\n{lines}\n}}}}\n')
    say(json.dumps(estimate(json.loads(DURATIONS.read_text()), options.processes), indent=1))


if __name__ == "__main__":
    main()
