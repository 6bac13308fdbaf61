"""Runs the tests on the device, prints failures as they happen, and always leaves a report."""

from __future__ import annotations

import os
import re
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from machine import has
from stages import Run, StageError, say

INTERRUPT = 30  # seconds before the limit at which pytest is interrupted; its workers get 10 of them, then it writes its report
KEPT = 150  # the highest number of failures in the results; the logs hold all of them, untruncated
UNUSED = ("jaxtyping", "benchmark", "anyio", "cov")  # plugins that other packages may have installed, and that would only take time
OUTCOME = re.compile(r"^\[gw\d+\] \[ *(\d+)%\] (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S.*)")


def command(report: Path, workers: int, chosen: list[str]) -> list[str]:
    out = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", f"--junitxml={report}"]
    out += ["-o", "faulthandler_timeout=40", *[f"-pno:{name}" for name in UNUSED]]
    if has("xdist"):
        out += ["--numprocesses", str(workers), "--max-worker-restart", "20"]
    return [*out, "--ignore=tests/tools", *chosen]  # tests/tools do not use a device


class Watch:
    """Counts outcomes while pytest prints them. Prints every failure and, at intervals, the progress."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._told = 0
        self._next = time.monotonic() + 15

    def __call__(self, line: str) -> None:
        found = OUTCOME.match(line)
        if found is None:
            return
        percent, outcome, test = found.groups()
        self.counts[outcome] = self.counts.get(outcome, 0) + 1
        if outcome in ("FAILED", "ERROR") and self._told < KEPT:
            self._told += 1
            say(f"   {outcome} {test.strip()[:200]}")
        if time.monotonic() > self._next:
            self._next = time.monotonic() + 15
            say(f"   {percent} %: {self.counts}")


def tests(run: Run, workers: int, chosen: list[str]) -> str:
    """Runs the tests on device "cuda" and waits for every kernel, so that an error appears at the op that caused it."""
    report = run.logs / "tests.xml"
    report.unlink(missing_ok=True)
    watch = Watch()
    variables = {
        "PULLBACK_DEVICE": "cuda",
        "PULLBACK_CUDA_SYNC": "1",
        "PULLBACK_NUM_THREADS": "2",  # the workers share the CPU
        "CUPY_ACCELERATORS": "",
    }  # the first use of an accelerator compiles for seconds
    asked = command(report, workers, chosen)
    ended = run.process(asked, "tests", on_line=watch, environment=variables, interrupt=INTERRUPT)
    counts, failed = read(report) if report.exists() else (dict(watch.counts), [])
    run.row({"name": "tests", **counts, "status": ended.status, "seconds": round(ended.seconds, 1), "report": report.exists()})
    for failure in failed[:KEPT]:
        run.results.add("tests", failure)
    if not report.exists():
        raise StageError(f"no report was written: {ended.tail}")
    if ended.status != 0:
        how = {None: "killed at the limit", 2: "interrupted before the limit"}.get(ended.status, f"status {ended.status}")
        first = f" The first: {failed[0]['name']}: {failed[0]['failed'][:300]}" if failed else f" {ended.tail[-600:]}"
        raise StageError(f"{how}: {counts}.{first}")
    return str(counts)


def read(report: Path) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Returns the number of tests per outcome, and the failures, with each test listed once."""
    try:
        root = ElementTree.parse(report).getroot()
    except ElementTree.ParseError as error:
        raise StageError(f"{report} was not written whole ({error})") from error
    outcomes: dict[str, str] = {}
    failed: dict[str, dict[str, Any]] = {}
    for case in root.iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        kinds = {child.tag: child for child in case}
        bad = kinds.get("failure", kinds.get("error"))
        if bad is not None:
            text = bad.get("message") or ""
            failed.setdefault(name, {"name": name, "failed": text[:600]})
            outcomes[name] = "failed"
        else:
            outcomes.setdefault(name, "skipped" if "skipped" in kinds else "passed")
    counts = {kind: list(outcomes.values()).count(kind) for kind in ("passed", "failed", "skipped")}
    return counts, list(failed.values())


def most_workers() -> int:
    return min(12, os.cpu_count() or 1)
