"""Runs a compiler and keeps its messages next to the object file: a CMAKE_CUDA_COMPILER_LAUNCHER for tests/tools/test_nvcc.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

command = sys.argv[1:]
run = subprocess.run(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, check=False)
if "-o" in command:
    Path(command[command.index("-o") + 1] + ".report").write_text(run.stdout)
if run.returncode:
    sys.stdout.write(run.stdout)
sys.exit(run.returncode)
