"""What CMakeLists.txt decides from what it finds: a compiler, nvcc, a GPU. It is configured only; nothing is compiled here."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from pullback.backends import native


def _tool(name: str) -> str | None:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def _missing() -> str:
    needed = {"cmake": _tool("cmake"), "ninja": _tool("ninja"), "a C++ compiler": shutil.which("c++")}
    try:
        import pybind11  # noqa: F401
        import scipy_openblas32  # noqa: F401
    except ImportError as error:
        return str(error)
    return next((f"{name} was not found" for name, path in needed.items() if not path), "")


pytestmark = [
    pytest.mark.skipif(not (ROOT / "CMakeLists.txt").exists(), reason="the source tree is not here: an installed package"),
    pytest.mark.skipif(bool(_missing()), reason=_missing()),
]


def program(folder: Path, name: str, output: str) -> None:
    """Writes a program that prints this."""
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
    path.chmod(0o755)


def configure(folder: Path, *options: str, **variables: str) -> tuple[bool, str]:
    """Returns True if it succeeded, and the output as one line."""
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", **variables}
    given = [f"-D{option}" for option in (*options, f"CMAKE_MAKE_PROGRAM={_tool('ninja')}", f"Python_EXECUTABLE={sys.executable}")]
    command = [str(_tool("cmake")), "-S", str(ROOT), "-B", str(folder / "build"), "-G", "Ninja", *given]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode == 0, " ".join((done.stdout + done.stderr).split())


def test_without_a_compiler_the_error_says_how_to_install_without_one(tmp_path: Path) -> None:
    succeeded, output = configure(tmp_path, CXX="/bin/false")
    assert not succeeded
    assert "no C++ compiler was found that works" in output
    assert "PULLBACK_NATIVE=OFF pip install ." in output


OLD_NVCC = "Cuda compilation tools, release 12.4, V12.4.131"
NVCC = "Cuda compilation tools, release 13.0, V13.0.88"


@pytest.mark.parametrize(
    ("nvcc", "gpus", "options", "said"),
    [
        (NVCC, "", [], "CUDA kernels are left out: there is nvcc, but no GPU. PULLBACK_CUDA=ON (make CUDA=ON) compiles them"),
        (NVCC, "6.1", [], "CUDA kernels are left out: there is nvcc, but no GPU"),
        (OLD_NVCC, "9.0", [], "CUDA kernels are left out: nvcc 12.4 is too old, they need 13.0"),
        (OLD_NVCC, "", ["PULLBACK_CUDA=ON"], "PULLBACK_CUDA=ON, but nvcc 12.4 is too old"),
        (NVCC, "9.0\n8.6\n9.0\n6.1", [], "CUDA kernels for 90-real, 86-real: they take about"),
        (NVCC, "", ["PULLBACK_CUDA=ON"], "CUDA kernels for 75-real, 80: they take about"),
        (NVCC, "9.0", ["PULLBACK_CUDA_ARCHITECTURES=RELEASE"], "CUDA kernels for 75-real, 80-real, 90-real, 100-real, 120: they"),
        (NVCC, "", ["PULLBACK_CUDA_ARCHITECTURES=89-real"], "CUDA kernels for 89-real: they take about"),
    ],
    ids=["no GPU", "an old GPU", "an old nvcc", "an old nvcc, ON", "GPUs", "no GPU, ON", "RELEASE", "a list"],
)
def test_cuda_kernels_are_for_the_gpus_of_this_machine(tmp_path: Path, nvcc: str, gpus: str, options: list[str], said: str) -> None:
    program(tmp_path, "nvidia-smi", gpus)
    program(tmp_path, "nvcc", nvcc)
    # CMake takes the compiler without trying it. What follows this output is nvcc's own configuration, which fails with a stand-in.
    succeeded, output = configure(tmp_path, f"CMAKE_CUDA_COMPILER={tmp_path / 'nvcc'}", *options)
    assert said in output
    assert succeeded == ("left out" in said)
    if minutes := re.search(r"about (\d+) minutes of one processor core", output):
        sources, architectures = len([*(ROOT / "csrc" / "cuda").glob("*.cu")]), said.count(", ") + 1
        assert 20 * sources * architectures / 60 <= int(minutes[1]) <= 30 * sources * architectures / 60


def test_kernels_are_not_taken_from_a_folder_that_was_never_configured(tmp_path: Path) -> None:
    succeeded, output = configure(tmp_path, f"PULLBACK_KERNELS={tmp_path / 'missing'}", "PULLBACK_CUDA=OFF")
    assert not succeeded
    assert "is not a build folder. Configure it first." in output


def test_the_smaller_openblas_has_the_functions_that_the_kernels_call() -> None:
    script = (ROOT / "tools" / "build_openblas.sh").read_text()
    listed = re.search(r'functions="([^"]*)"', script)
    assert listed
    modules = [*Path(native.module.__file__).parent.glob("_cpu_*.so")]
    called = {name.decode() for path in modules for name in re.findall(rb"\0scipy_(\w+)(?=\0)", path.read_bytes())}
    assert called == set(listed[1].split())


@pytest.mark.skipif(not importlib.util.find_spec("pullback._cuda"), reason="this build has no CUDA kernels")
def test_the_module_of_cuda_kernels_loads_without_a_gpu() -> None:
    assert callable(importlib.import_module("pullback._cuda").why_not)


def test_an_openblas_in_another_folder_is_taken(tmp_path: Path) -> None:
    succeeded, output = configure(tmp_path, f"PULLBACK_OPENBLAS={tmp_path / 'missing'}", "PULLBACK_CUDA=OFF")
    assert not succeeded
    assert f"no libscipy_openblas in {tmp_path / 'missing'}" in output
