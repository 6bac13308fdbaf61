"""The reader of the signatures of kernels, which is pure C++."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT

COMPILER = shutil.which("g++")


@pytest.mark.skipif(not COMPILER, reason="g++ is not on the PATH")
def test_a_signature_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    sources = [str(ROOT / "tests" / "cpp" / "signature_test.cpp"), str(ROOT / "csrc" / "launch" / "signature.cpp")]
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined,address", "-fno-sanitize-recover=undefined"]
    program = str(tmp_path / "signature")
    subprocess.run([str(COMPILER), *flags, f"-I{ROOT / 'csrc'}", *sources, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
