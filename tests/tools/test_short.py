"""What `make test` leaves out, and the mutants that chose it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import short

ROOT = Path(__file__).resolve().parents[2]
MATRIX = {
    "left_out": ["tests/a.py", "tests/b.py"],
    "files": {f"tests/{name}.py": {"tests": 100 * k, "seconds": 60.0 * k} for k, name in enumerate("abc", 1)},
    "mutants": [
        {"file": "x.py", "noticed": ["tests/a.py"]}, {"file": "x.py", "noticed": ["tests/b.py", "tests/c.py"]},
        {"file": "y.py", "noticed": []},
    ],
}


def test_a_file_comes_back_if_it_was_changed_or_alone_notices_a_mutant_of_a_changed_source() -> None:
    assert short.left_out(MATRIX, set()) == {"tests/a.py", "tests/b.py"}
    assert short.left_out(MATRIX, {"y.py"}) == {"tests/a.py", "tests/b.py"}
    assert short.left_out(MATRIX, {"x.py"}) == {"tests/b.py"}
    assert short.left_out(MATRIX, {"tests/b.py"}) == {"tests/a.py"}


def test_the_last_line_counts_what_was_left_out() -> None:
    line = short.sentence(MATRIX, {"tests/a.py", "tests/b.py"})
    assert line.startswith("left out 2 of 3 files of tests: 50% of the tests, 50% of the time. Of 2 changes ")
    assert line.endswith("the other files notice 1. `make test-all` runs all tests.")


def test_the_matrix_names_files_that_exist_and_keeps_most_of_what_is_noticed() -> None:
    matrix = json.loads((ROOT / "tests" / "matrix.json").read_text())
    assert not [file for file in matrix["files"] if not (ROOT / file).exists()]
    noticed = [set(row["noticed"]) for row in matrix["mutants"] if row["noticed"]]
    kept = [row for row in noticed if row - set(matrix["left_out"])]
    assert len(noticed) >= 150
    assert len(kept) >= 0.95 * len(noticed)


@pytest.fixture
def run(tmp_path: Path) -> object:
    """Returns a function that runs pytest in a folder whose tests are a, b and c, of which the matrix leaves a and b out."""
    tests = tmp_path / "tests"
    tests.mkdir()
    for name in "abc":
        (tests / f"{name}.py").write_text(f"def test_{name}(): pass\n")
    (tests / "matrix.json").write_text(json.dumps(MATRIX))
    (tests / "conftest.py").write_text(
        "from short import pytest_addoption, pytest_configure, pytest_ignore_collect\nimport pathlib, short\n"
        "short.ROOT = pathlib.Path(__file__).parents[1]\n"
    )
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npython_files = *.py\npythonpath = {ROOT / 'tests'}\n")

    def start(*arguments: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return start


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "with workers"])
def test_a_short_run_collects_the_other_files_and_ends_with_what_was_left_out(run: object, workers: list[str]) -> None:
    lines = run("--short", "tests", *workers)  # type: ignore[operator]
    assert "1 passed" in lines[-2]
    assert lines[-1] == short.sentence(MATRIX, {"tests/a.py", "tests/b.py"})
    assert "2 passed" in run("--short", "tests/c.py", "tests/b.py", *workers)[-2]  # type: ignore[operator]
    assert "3 passed" in run("tests", *workers)[-1]  # type: ignore[operator]


def test_every_mutant_changes_its_line_behind_its_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import mutants as mutation  # pyright: ignore[reportMissingImports]

    drawn = [*mutation.python_mutants(3, 40), *mutation.cpp_mutants(3, 40)]
    assert len(drawn) == 80
    for m in drawn:
        source = (mutation.ROOT / m.file).read_bytes()
        assert m.was in source[m.start : m.end].decode()
        assert "{on}" in m.text
        assert m.was != m.text
    assert [m.text for m in mutation.python_mutants(3, 5)] == [m.text for m in mutation.python_mutants(3, 5)]
