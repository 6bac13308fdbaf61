"""The choice of tiles and slices of a GPU's products, which is pure C++ and needs no GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT

COMPILER = shutil.which("g++")


@pytest.mark.skipif(not COMPILER, reason="g++ is not on the PATH")
def test_every_choice_covers_its_product(tmp_path: Path) -> None:
    sources = [str(ROOT / "tests" / "cpp" / "choice_test.cpp"), str(ROOT / "csrc" / "cuda" / "choice.cpp")]
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover=undefined"]
    program = str(tmp_path / "choice")
    subprocess.run([str(COMPILER), *flags, f"-I{ROOT / 'csrc'}", *sources, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
