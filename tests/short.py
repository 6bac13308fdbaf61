"""What `make test` leaves out: whole files of tests, so that it takes some ten minutes. `make test-all` leaves nothing out.

tools/mutate.py has chosen the files: it counted which files of tests notice which changes of the sources, and wrote that matrix to
tests/matrix.json. A file that was left out runs nevertheless if git shows that it was changed, if it is named on the command line,
or if a changed source has a mutant that no other file notices.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


def changed_files() -> set[str]:
    """Returns the files that differ from the last commit, or none outside a repository of git."""
    status = ["git", "status", "--porcelain", "--no-renames", "--untracked-files=all", "-z"]
    try:
        done = subprocess.run(status, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return set()
    return {line[3:] for line in done.stdout.split("\0")}


def left_out(matrix: dict[str, Any], changed: set[str]) -> set[str]:
    """Returns the files of tests to leave out after changes of these files."""
    files = set(matrix["left_out"])
    rows = [row for row in matrix["mutants"] if row["file"] in changed and set(row["noticed"]) <= files]
    return files - changed - {file for row in rows for file in row["noticed"]}


LEFT_OUT = pytest.StashKey[set[Path]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--short", action="store_true", help="leave out the files of tests that tests/matrix.json names")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = set()
    if config.getoption("--short"):
        matrix = json.loads((ROOT / "tests" / "matrix.json").read_text())
        named = {Path(argument.partition("::")[0]).resolve() for argument in config.args}
        files = {file for file in left_out(matrix, changed_files()) if ROOT / file not in named}
        config.stash[LEFT_OUT] = {ROOT / file for file in files}
        if not hasattr(config, "workerinput"):
            config.add_cleanup(lambda: print(sentence(matrix, files)))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if collection_path in config.stash[LEFT_OUT] else None


def sentence(matrix: dict[str, Any], files: set[str]) -> str:
    """Returns the last line of a run that left these files out."""
    every, noticed = matrix["files"], [set(row["noticed"]) for row in matrix["mutants"] if row["noticed"]]
    tests, time = [sum([every[f][key] for f in files]) / sum([x[key] for x in every.values()]) for key in ("tests", "seconds")]
    hits = sum([bool(row - files) for row in noticed])
    return (
        f"left out {len(files)} of {len(every)} files of tests: {tests:.0%} of the tests, {time:.0%} of the time. Of "
        f"{len(noticed)} changes of the sources in tests/matrix.json the other files notice {hits}. `make test-all` runs all tests."
    )
