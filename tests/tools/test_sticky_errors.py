"""A pytest worker that loses its GPU context ends, so that one bug does not fail every later test of that worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pullback as pb
from conftest import ROOT, environment, is_sticky

TESTS = """
import os, pathlib, pytest

def worker_is(name):
    path = pathlib.Path(__file__).with_name(name)
    if not path.exists():
        path.write_text(str(os.getpid()))
    return path.read_text() == str(os.getpid())

def test_a(): assert worker_is("first")
def test_b(): raise RuntimeError("tanh failed: an illegal memory access was encountered (cudaErrorIllegalAddress)")
def test_c(): assert not worker_is("first") and worker_is("second")
def test_d(): assert 0, "child said: cudaErrorIllegalAddress"
def test_e(): assert worker_is("second")
"""


def test_the_worker_ends_after_its_report_and_another_one_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "test_it.py").write_text(TESTS)
    variables = environment()
    variables = {name: value for name, value in variables.items() if not name.startswith("PYTEST_")}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), variables["PYTHONPATH"]])
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "conftest", "--rootdir", str(tmp_path)]
    command += ["--numprocesses", "1", "--max-worker-restart", "5", str(tmp_path / "test_it.py")]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True)
    for name, outcome in (("a", "PASSED"), ("b", "FAILED"), ("c", "PASSED"), ("d", "FAILED"), ("e", "PASSED")):
        assert f"{outcome} test_it.py::test_{name}" in done.stdout, done.stdout
    assert "RuntimeError: tanh failed" in done.stdout
    assert done.stdout.count("replacing crashed worker") == 1


def test_errors_that_were_caused_by_a_sticky_one_are_sticky() -> None:
    inner = pb.DeviceError("waiting for the GPU failed: … (cudaErrorLaunchFailure)")
    outer = ValueError("the test went on")
    outer.__cause__ = inner
    assert is_sticky(inner)
    assert is_sticky(outer)
    assert not is_sticky(ValueError("out of memory (cudaErrorMemoryAllocation)"))
    assert not is_sticky(None)
