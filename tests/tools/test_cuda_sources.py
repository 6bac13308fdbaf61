"""nvcc's front end accepts every CUDA source: no kernel calls a function of the host, and all templates can be instantiated.

The simulator compiles the same sources as C++, where host and device are one, so it cannot see such errors. No machine code is
made, which test_nvcc.py does, and which takes ten times as long.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from conftest import ROOT, find_nvcc

SOURCES = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
NVCC = find_nvcc()


@pytest.mark.skipif(NVCC is None, reason="nvcc was not found")
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_nvcc_accepts_the_source(source: Path, tmp_path: Path) -> None:
    flags = ["-std=c++17", "-DPB_CUDA", "-arch=sm_90", "-Werror=cross-execution-space-call", "-I", str(ROOT / "csrc")]
    command = [str(NVCC), "--cuda", *flags, str(source), "-o", str(tmp_path / "source.ii")]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
