"""Runs tests file by file in one process of pytest, and reports every outcome at once. suite.py starts several such processes.

    python benchmarks/gpu/by_file.py FOLDER NAME [TASK [TEST]]

FOLDER/plan.json lists the tasks: files of tests, or parts of files. The processes share the list. Each takes the next task that no
other process has taken, so that all end at about the same time, whatever the recorded durations are worth on this machine. With
TASK, the process begins with this task, after TEST: the test that ended an earlier process.

Each event is a line "@ {...}": a task that is taken, its number of tests once they are collected, a test that begins, its outcome.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

UNUSED = ("xdist", "jaxtyping", "benchmark", "anyio", "cov")  # plugins that other packages may have installed, and that take time


class ByFile:
    """The plugin. A file is imported when it is taken, because importing all files takes longer than the tests of most files."""

    def __init__(self, folder: Path, plan: dict[str, Any], begin: tuple[int, str | None] | None) -> None:
        self._folder, self._plan, self._begin = folder, plan, begin
        self._out = os.dup(1)  # pytest redirects descriptor 1
        self._index = 0
        self._now: dict[str, Any] = {}  # the outcome of the current test so far
        self._modules: dict[Path, Any] = {}
        self._items: dict[Path, list[pytest.Item]] = {}
        self._not_collected: list[pytest.CollectReport] = []
        self._lost = False
        self._arm()

    def _tell(self, **event: Any) -> None:
        os.write(self._out, f"\n@ {json.dumps(event)}\n".encode())

    def _arm(self) -> None:
        """Prints all stacks and ends the process unless it is armed again within the limit, also while a kernel blocks Python."""
        faulthandler.dump_traceback_later(self._plan["tasks"][self._index]["limit"], exit=True, file=self._out)

    def _taken(self) -> Iterator[tuple[int, str | None]]:
        """Takes tasks until none is left that can end in time."""
        if self._begin is not None:
            yield self._begin
        while (index := next(filter(self._take, range(len(self._plan["tasks"]))), None)) is not None:
            yield index, None

    def _take(self, index: int) -> bool:
        if time.time() + self._plan["tasks"][index]["seconds"] > self._plan["end"]:
            return False
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._folder / f"taken-{index}", os.O_CREAT | os.O_EXCL))  # only one process can create the file
            return True
        return False

    def _chosen(self, session: pytest.Session, after: str | None) -> list[pytest.Item]:
        """Collects the task's file and returns the tests to run. A file that cannot be imported or that skips counts as a test."""
        task = self._plan["tasks"][self._index]
        path = Path(self._plan["root"], task["file"])
        self._not_collected.clear()
        if path not in self._items:  # another part of the file may have run in this process
            items = self._items[path] = list(session.genitems(self._modules[path]))
            session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
        chosen = self._items[path][task["part"] - 1 :: task["parts"]][: task["most"]]
        if after is not None:
            chosen = chosen[[item.nodeid for item in chosen].index(after) + 1 :]
        self._tell(tests=len(chosen) + len(self._not_collected))
        for report in self._not_collected:
            self._now = {"test": report.nodeid, "outcome": "passed", "seconds": 0.0}
            self._note(report)
            self._tell(**self._now)
        return chosen

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        """Changes the current outcome by a report on one of the phases of a test."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._now.update(outcome="failed", message=(crash.message if crash else report.longreprtext[-600:])[:600])
            text = [f"FAILED {report.nodeid}", *report.longreprtext.splitlines(), *report.capstdout.splitlines()[-40:]]
            os.write(self._out, "\n    ".join(["", *text, ""]).encode(errors="replace"))
        elif report.skipped and self._now["outcome"] == "passed":
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
            self._now.update(outcome="skipped", message=reason[:600])

    # ---- hooks

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        self._modules = {module.path: module for module in session.perform_collect(genitems=False)}  # imports no module
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for index, after in self._taken():
            self._index = index
            self._arm()
            self._tell(begin=index)
            chosen = self._chosen(session, after)
            # After the last test of a task only the fixtures of the session stay.
            for item, following in zip(chosen, [*chosen[1:], session]):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._not_collected.append(report)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._arm()
        self._now = {"test": nodeid, "outcome": "passed", "seconds": 0.0}
        self._tell(at=nodeid)

    def pytest_runtest_makereport(self, call: pytest.CallInfo[Any]) -> None:
        is_sticky = getattr(sys.modules.get("conftest"), "is_sticky", None)
        self._lost |= is_sticky is not None and call.excinfo is not None and is_sticky(call.excinfo.value)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._now["seconds"] = round(self._now["seconds"] + report.duration, 3)
        self._note(report)

    def pytest_runtest_logfinish(self) -> None:
        self._tell(**self._now)
        if self._lost:  # every later CUDA call in this process would fail
            os._exit(self._plan["lost"])


def main() -> int:
    folder, name, *begin = sys.argv[1:]
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [path for path in sys.path if path != here]  # the modules of this folder have common names
    plan = json.loads(Path(folder, "plan.json").read_text())
    options = ["-q", "--tb=short", "--no-summary", "-o", "console_output_style=classic", "-p", "no:cacheprovider"]
    options += [word for plugin in UNUSED for word in ("-p", f"no:{plugin}")]
    options += [f"--basetemp={folder}/{name}", f"--rootdir={plan['root']}"]
    options += sorted({str(Path(plan["root"], task["file"])) for task in plan["tasks"]})
    first = (int(begin[0]), begin[1] if len(begin) > 1 else None) if begin else None
    status = int(pytest.main(options, plugins=[ByFile(Path(folder), plan, first)]))
    return 0 if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED) else status


if __name__ == "__main__":
    sys.exit(main())
