"""Runs the stages of a command one after the other, each in separate processes and within its share of the time.

A stage's output is logged line by line as it appears. A line that is a JSON object is a result: it is written to the results file
and printed before the next line is read. A stage that is stopped therefore loses only what it had not measured yet.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from results import Results

Line = Callable[[str], None]


class StageError(Exception):
    """A stage has failed; the message is the reason."""


class Stage(NamedTuple):
    """One step of a command.

    Attributes:
        work: runs the stage and returns one line about its outcome. Raises StageError.
        limit: the highest number of seconds that the stage may take.
        reserve: the number of seconds that the earlier stages leave for this stage.
        essential: True if no later stage can work without this one. Its failure then ends the command.
    """

    name: str
    work: Callable[[Run], str]
    limit: float
    reserve: float = 5
    essential: bool = False


class Ended(NamedTuple):
    """The end of a process: its status (None if it was stopped at its limit), its last lines, and the seconds that it ran."""

    status: int | None
    tail: str
    seconds: float


def share(limit: float, left: float, reserved: float) -> float:
    """Returns the seconds that a stage may take: its limit, or what the later stages leave of the time."""
    return max(0.0, min(limit, left - reserved))


class Run:
    """One run of a command: its results, its processes' environment and logs, and the seconds that are left."""

    def __init__(self, results: Results, seconds: float, logs: Path, environment: Mapping[str, str], folder: Path) -> None:
        self.results, self.logs, self.folder = results, logs, folder
        self.environment = dict(environment)
        self._end = time.monotonic() + seconds
        self.stage, self._stage_end = "", self._end

    def left(self) -> float:
        """Returns the seconds until the whole command must be over."""
        return self._end - time.monotonic()

    def stage_left(self) -> float:
        """Returns the seconds until the current stage must be over."""
        return self._stage_end - time.monotonic()

    def perform(self, stages: Sequence[Stage]) -> bool:
        """Runs the stages in order, and returns True if none failed."""
        fine = True
        for place, stage in enumerate(stages):
            seconds = share(stage.limit, self.left(), sum([later.reserve for later in stages[place + 1 :]]))
            ok = self._one(stage, seconds)
            fine = fine and ok
            if not ok and stage.essential:
                say(f"{stage.name} failed, and nothing later can work without it.")
                return False
        return fine

    def _one(self, stage: Stage, seconds: float) -> bool:
        self.stage, self._stage_end = stage.name, time.monotonic() + seconds
        say(f"== {stage.name} (at most {seconds:.0f} s)")
        self.results.begin(stage.name)
        begin, ok = time.monotonic(), False
        try:
            if seconds < 2:
                raise StageError("no time was left")
            outcome = stage.work(self)
            ok = True
        except Exception as error:
            outcome = str(error) if isinstance(error, StageError) else f"{type(error).__name__}: {error}"
        taken = round(time.monotonic() - begin, 1)
        self.results.end(stage.name, ok, outcome, taken)
        say(f"== {stage.name}: {'ok' if ok else 'FAILED'} after {taken} s: {outcome}"[:2500])
        return ok

    def row(self, row: dict[str, Any]) -> None:
        """Adds a result to the current stage and prints it."""
        self.results.add(self.stage, row)
        say(as_words(row))

    def process(
        self,
        command: Sequence[str],
        log: str,
        limit: float | None = None,
        on_line: Line | None = None,
        environment: Mapping[str, str] | None = None,
        interrupt: float = 0,
    ) -> Ended:
        """Runs a process until it ends or reaches its limit. The limit is at most the time that is left for the stage.

        Args:
            log: the name of the log file, which is appended to.
            on_line: receives every line. By default the lines that are JSON objects become rows.
            environment: variables in addition to those of the run.
            interrupt: the number of seconds before the limit at which the process receives SIGINT, so that it can write a report.
        """
        limit = self.stage_left() if limit is None else min(limit, self.stage_left())
        path = self.logs / f"{log}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        variables = {**self.environment, **(environment or {})}
        with path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"$ {' '.join(command)}\n")
            return watch(command, file, limit, on_line or self.take, variables, self.folder, interrupt)

    def take(self, line: str) -> None:
        """Adds the line as a result if it is a JSON object."""
        if (row := as_row(line)) is not None:
            self.row(row)


def expect(ended: Ended, what: str) -> None:
    """Raises StageError if the process did not end by itself with status 0."""
    if ended.status == 0:
        return
    how = f"failed with status {ended.status}" if ended.status is not None else f"was stopped after {ended.seconds:.0f} s"
    last = ended.tail.strip().splitlines()[-1:] or ["it printed nothing"]
    raise StageError(f"{what} {how}: {last[0]}\n{ended.tail}")


def as_row(line: str) -> dict[str, Any] | None:
    """Returns the result in a line, or None if the line is not a JSON object."""
    if not line.startswith("{"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def say(text: str) -> None:
    print(text, flush=True)


def as_words(row: Mapping[str, Any]) -> str:
    """Returns a row as one line: its name first, then its other figures."""
    name = " | ".join([str(row[key]) for key in ("side", "name", "precision", "way") if row.get(key)])
    rest = [f"{key}={_short(value)}" for key, value in row.items() if key not in ("side", "name", "precision", "way", "group")]
    return f"   {name}: {' '.join(rest)}"[:400]


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict) and "median" in value:
        return f"{value['median']:.4g} ({value['q1']:.4g} to {value['q3']:.4g})"
    return str(value)


# ---- one process


def watch(
    command: Sequence[str],
    file: Any,
    limit: float,
    on_line: Line,
    environment: Mapping[str, str],
    folder: Path,
    interrupt: float = 0,
) -> Ended:
    """Runs a process within `limit` seconds, as Run.process does. Every process that it has started ends with it."""
    begin = time.monotonic()
    if limit <= 0:
        return Ended(None, "no time was left", 0.0)
    with _started(command, environment, folder) as process:
        last: list[str] = []
        reader = threading.Thread(target=_read, args=(process.stdout, file, on_line, last), daemon=True)
        reader.start()
        status = _wait(process, limit, interrupt)
        _kill(process)
        reader.join(5)
    return Ended(status, "\n".join(last[-25:])[-3000:], time.monotonic() - begin)


@contextlib.contextmanager
def _started(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(environment), cwd=folder,
        start_new_session=True, text=True, errors="replace",
    )
    try:
        yield process
    finally:
        _kill(process)
        # A process that a hung driver blocks does not end even when it is killed.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kills the process and all processes it has started, which share its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _wait(process: subprocess.Popen[str], limit: float, interrupt: float) -> int | None:
    """Waits for the end of the process. Returns its status, or None if the process must be killed."""
    before = min(interrupt, limit)
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(limit - before)
    if before:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(before)
    return None


def _read(stream: Any, file: Any, on_line: Line, last: list[str]) -> None:
    for line in stream:
        with contextlib.suppress(ValueError):  # the log is closed if a process outlived the one that was watched
            file.write(line)
            file.flush()
        last.append(line.rstrip())
        del last[:-60]
        try:
            on_line(line)
        except Exception as error:
            last.append(f"this line could not be kept ({type(error).__name__}: {error})")
