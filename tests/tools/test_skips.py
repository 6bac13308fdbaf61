"""A run of the tests ends with one line for each reason why tests were skipped, and the line about torch says how to install it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT, environment

TESTS = """
import sys
import pytest

sys.modules["torch"] = None  # as if it were not installed

@pytest.mark.parametrize("n", range(1200))
def test_a(n): pytest.importorskip("torch")
def test_b(): pytest.importorskip("torch.nn", reason="torch is not installed: nothing to compare with")
def test_c(torch): raise AssertionError
@pytest.mark.skipif(True, reason="there is no GPU")
def test_d(): raise AssertionError
def test_e(): pytest.skip("there is no GPU")
def test_f(): pytest.importorskip("nothing_of_this_name", reason="nothing is not installed")
def test_g(): pass
"""
FILE = """
import pytest
pytest.importorskip("torch_of_this_name", reason="torch is not installed: there is no other library")
"""


@pytest.mark.parametrize("processes", [0, 2])
def test_each_reason_has_one_line_with_the_numbers_of_tests_and_files(processes: int, tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_of_a_file.py").write_text(FILE)
    variables = {name: value for name, value in environment().items() if not name.startswith("PYTEST_")}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), variables["PYTHONPATH"]])
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", "-p", "conftest"]
    command += ["--rootdir", str(tmp_path), "--numprocesses", str(processes), "--color=no", str(tmp_path)]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert "1 passed, 1206 skipped" in done.stdout, done.stdout + done.stderr
    lines = re.findall("^skipped .*", done.stdout, re.MULTILINE)
    (torch,) = re.findall(r'^bench = .*"(torch==[^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert lines[0].startswith("skipped 1,202 tests and 1 file: torch, to compare with, is not installed. `")
    assert re.search(rf"python[\d.]* -m pip install {re.escape(torch)}` installs it$", lines[0])
    assert lines[1:] == ["skipped 2 tests: there is no GPU", "skipped 1 test: nothing is not installed"]
    assert "SKIPPED [" not in done.stdout
