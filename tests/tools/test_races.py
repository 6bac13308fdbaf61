"""The simulator finds races in shared memory, also those that change no result."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import ROOT

COMPILER = shutil.which("g++")
TEST = ROOT / "tests" / "cpp" / "races_test.cu"
pytestmark = pytest.mark.skipif(COMPILER is None, reason="the simulator needs g++, which is not on the PATH")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("races")
    flags = ["-x", "c++", "-std=c++17", "-O1", "-Wall", "-Werror", "-Wno-unknown-pragmas", f"-I{ROOT / 'csrc'}", "-DCUDASIM_RACES"]

    def compiled(source: Path) -> str:
        target = str(folder / f"{source.stem}.o")
        own = ["-fsanitize=thread", "-g1"] if source == TEST else []
        subprocess.run([str(COMPILER), *flags, *own, "-c", str(source), "-o", target], check=True)
        return target

    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        objects = list(pool.map(compiled, [TEST, *sorted((ROOT / "csrc" / "cudasim").glob("*.cpp"))]))
    subprocess.run([str(COMPILER), *objects, "-o", str(folder / "races"), "-lpthread", "-ldl"], check=True)
    return folder / "races"


def run(program: Path, kernel: str, seed: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(program), kernel], capture_output=True, text=True, env={**os.environ, "CUDASIM_SEED": str(seed)})


@pytest.mark.parametrize(("kernel", "what"), [
    ("same_value", "write after write"), ("lanes_of_a_warp", "write after write"), ("part_of_a_word", "write after write"),
    ("write_then_read", "(read after write|write after read)"), ("read_then_write", "(read after write|write after read)"),
])
def test_a_race_is_found_in_every_schedule(program: Path, kernel: str, what: str) -> None:
    for seed in range(4):
        ran = run(program, kernel, seed)
        assert ran.returncode != 0
        assert re.search(f"a race in shared memory, {what}, with thread .* block ", ran.stderr), ran.stderr
        assert kernel in ran.stderr


def test_the_message_has_both_places(program: Path) -> None:
    error = run(program, "same_value", 0).stderr
    for address in re.findall(r"0x[0-9a-f]+", error):
        place = subprocess.run(["addr2line", "-e", str(program), address], capture_output=True, text=True).stdout
        line = int(place.strip().rpartition(":")[2])
        assert TEST.read_text().splitlines()[line - 1].strip() == "flag = 1;"


@pytest.mark.parametrize("kernel", ["barriers_order", "two_blocks"])
def test_what_barriers_order_is_no_race(program: Path, kernel: str) -> None:
    for seed in range(4):
        ran = run(program, kernel, seed)
        assert (ran.returncode, ran.stdout) == (0, "no race\n"), ran.stderr
