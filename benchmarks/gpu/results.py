"""The results file of one GPU on one day. Every change is written to disk before the next one begins."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def slug(name: str) -> str:
    """Returns the name of a GPU as a part of a file name: "NVIDIA H200" becomes nvidia-h200."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def replace(path: Path, text: str) -> None:
    """Writes a file atomically: a reader gets the old text or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def empty(gpu: str, date: str, simulated: bool) -> dict[str, Any]:
    return {"gpu": gpu, "date": date, "simulated": simulated, "commands": {}}


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the results of both files. If both ran a stage, the results that began later are kept."""
    out = json.loads(json.dumps(first))
    for name, command in second["commands"].items():
        known = out["commands"].setdefault(name, {"stages": {}})
        later = command.get("begun", "") >= known.get("begun", "")
        stages = dict(known["stages"])
        for stage, found in command["stages"].items():
            if stage not in stages or begun(command, stage) >= begun(known, stage):
                stages[stage] = found
        out["commands"][name] = {**(command if later else known), "stages": stages}
    return out


def begun(command: Mapping[str, Any], stage: str) -> str:
    """Returns when a stage began. Stages that do not say it began with their command."""
    return command["stages"][stage].get("begun") or command.get("begun", "")


def load(path: Path) -> dict[str, Any]:
    """Reads a file of results. Raises ValueError if it is not one."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or not isinstance(found.get("commands"), dict):
        raise ValueError(f"{path} is no file of results: it has no commands.")
    return found


class Results:
    """The results of one command, written as they arrive. `path` also holds the results of the other commands of the day.

    Args:
        copies: files that always hold the same text as `path`.
        conditions: returns what a stage's figures depend on, such as the sources and the clocks. It is stored with each stage.
    """

    def __init__(
        self, path: Path, gpu: str, command: str, simulated: bool, copies: Sequence[Path] = (),
        conditions: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self.path, self.copies, self._conditions = path, tuple(copies), conditions
        self._lock = threading.RLock()
        self._begin = time.monotonic()
        self.data = self._earlier() or empty(gpu, today(), simulated)
        self._before: dict[str, Any] = json.loads(json.dumps(self.data["commands"]))
        self.command = self.data["commands"].setdefault(command, {"stages": {}})
        self.command["begun"] = now()

    def _earlier(self) -> dict[str, Any] | None:
        for path in (self.path, *self.copies):
            if not path.exists():
                continue
            try:
                return load(path)
            except ValueError:
                path.replace(path.with_suffix(".broken"))
        return None

    def facts(self, **facts: Any) -> None:
        """Adds facts about the whole command."""
        with self._lock:
            self.command.update(facts)
        self.write()

    def begin(self, stage: str) -> None:
        unknown = {"ok": False, "outcome": "it did not end", "seconds": None, "rows": []}
        with self._lock:
            self.command["stages"][stage] = {**unknown, "begun": now(), "on": dict(self._conditions())}
        self.write()

    def add(self, stage: str, row: dict[str, Any]) -> None:
        with self._lock:
            self.command["stages"][stage]["rows"].append(row)
        self.write()

    def rows(self, stage: str) -> list[dict[str, Any]]:
        """Returns the rows of a stage so far."""
        with self._lock:
            return list(self.command["stages"].get(stage, {"rows": []})["rows"])

    def earlier_rows(self, command: str, stage: str) -> list[dict[str, Any]]:
        """Returns the rows that a stage had before this command began."""
        return list(self._before.get(command, {"stages": {}})["stages"].get(stage, {"rows": []})["rows"])

    def end(self, stage: str, ok: bool, outcome: str, seconds: float) -> None:
        with self._lock:
            self.command["stages"][stage].update(ok=ok, outcome=outcome[:4000], seconds=seconds)
        self.write()

    def write(self) -> None:
        with self._lock:
            self.command["seconds"] = round(time.monotonic() - self._begin, 1)
            text = json.dumps(self.data, indent=1) + "\n"
            for path in (self.path, *self.copies):
                replace(path, text)


def archive(logs: Path, to: Sequence[Path]) -> None:
    """Packs the whole folder of logs into a compressed file, and copies this file to every path in `to`."""
    first, *others = to
    first.parent.mkdir(parents=True, exist_ok=True)
    new = first.with_name(f".{first.name}.{os.getpid()}")
    with tarfile.open(new, "w:gz") as file:
        file.add(logs, arcname=logs.name)
    new.replace(first)
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(first, other)
