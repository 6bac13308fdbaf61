"""The CUDA simulator: its tests pass under several schedules and sanitizers, and they compile as CUDA."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import ROOT

TEST = ROOT / "tests" / "cpp" / "cudasim_test.cu"
SOURCES = [TEST, *sorted((ROOT / "csrc" / "cudasim").glob("*.cpp"))]
LANGUAGE = ["-std=c++17", f"-I{ROOT / 'csrc'}"]
STRICT = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]  # g++ does not know CUDA's pragmas
BUILDS = {
    "plain": ["-O2"],
    "sanitized": ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "ucontext": ["-O1", "-DCUDASIM_UCONTEXT"],  # the way in which machines other than x86-64 switch stacks
}
SCHEDULES = [
    {},
    *[{"CUDASIM_SEED": str(seed)} for seed in (1, 2, 3, 4, 5)],
    {"CUDASIM_THREADS": "2"},
    {"CUDASIM_THREADS": "2", "CUDASIM_SEED": "6"},
]
NVCC = shutil.which("nvcc")

Run = Callable[..., None]


def environment(**variables: str) -> dict[str, str]:
    """Returns the environment without variables that configure a simulator or a sanitizer.

    Python itself may run under a sanitizer.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDASIM_", "ASAN_", "UBSAN_", "LD_PRELOAD"))}
    return {**kept, **variables}


def execute(command: list[str], **variables: str) -> str:
    done = subprocess.run(command, env=environment(**variables), capture_output=True, text=True, timeout=120)
    output = done.stdout + done.stderr
    assert done.returncode == 0, f"{' '.join(command[:1])} {variables}: status {done.returncode}\n{output[-4000:]}"
    return output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Returns a function that runs a build of the tests. All builds are compiled on first use, in parallel."""
    compiler = shutil.which("g++")
    if not compiler:
        pytest.skip("the simulator's tests need g++, which is not on the PATH")
    folder = tmp_path_factory.mktemp("cudasim")

    def compile_one(build: str, source: Path) -> str:
        target = str(folder / f"{build}-{source.stem}.o")
        execute([compiler, "-x", "c++", *LANGUAGE, *STRICT, *BUILDS[build], "-c", str(source), "-o", target])
        return target

    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        objects = {build: [pool.submit(compile_one, build, source) for source in SOURCES] for build in BUILDS}
        for build, made in objects.items():
            execute([compiler, *BUILDS[build], *[one.result() for one in made], "-o", str(folder / build), "-lpthread"])

    def run(build: str, **variables: str) -> None:
        assert "tests, 0 failed" in execute([str(folder / build)], **variables)

    return run


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: ",".join(f"{k[8:].lower()}={v}" for k, v in s.items()) or "in order")
def test_kernels_and_findings(run: Run, schedule: dict[str, str]) -> None:
    run("plain", **schedule)


@pytest.mark.parametrize("schedule", SCHEDULES[:2] + SCHEDULES[-1:], ids=["in order", "seed=1", "threads=2,seed=6"])
def test_under_sanitizers(run: Run, schedule: dict[str, str]) -> None:
    run("sanitized", **schedule)


def test_without_the_switch_in_assembly(run: Run) -> None:
    run("ucontext")


@pytest.mark.skipif(not NVCC, reason="nvcc is not on the PATH")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_the_same_sources_are_cuda(architecture: str, tmp_path: Path) -> None:
    command = [str(NVCC), *LANGUAGE, f"-arch={architecture}", "-Xptxas=-v", "-c", str(TEST), "-o", str(tmp_path / "test.o")]
    report = execute(command)
    assert "warning" not in report, report[-4000:]
    spills = [line for line in report.splitlines() if "spill" in line and " 0 bytes spill stores, 0 bytes spill loads" not in line]
    assert not spills
