"""Parts of the kernels that are pure C++ and need no GPU, each tested by a program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT

COMPILER = shutil.which("g++")
FLAGS = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined,address", "-fno-sanitize-recover=undefined"]
# The source that a program of tests/cpp tests, by its name.
SOURCES = {
    "choice": "csrc/cuda/choice.cpp",  # every choice of tiles and slices of a GPU's products covers the product
    "signature": "csrc/launch/signature.cpp",  # a signature of a kernel that cannot be read is refused
}


@pytest.mark.skipif(not COMPILER, reason="g++ is not on the PATH")
@pytest.mark.parametrize("name", SOURCES)
def test_a_program_of_tests_finds_nothing(name: str, tmp_path: Path) -> None:
    sources = [str(ROOT / "tests" / "cpp" / f"{name}_test.cpp"), str(ROOT / SOURCES[name])]
    program = str(tmp_path / name)
    subprocess.run([str(COMPILER), *FLAGS, f"-I{ROOT / 'csrc'}", *sources, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
