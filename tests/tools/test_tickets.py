"""The last block to arrive at a ticket sees what the others wrote, and on a recent GPU the others keep their L1 cache.

The simulator has no caches, so the instructions are checked here.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT, find_nvcc

NVCC = find_nvcc()
SOURCE = """
#include "cuda/fold.cuh"
__global__ void arrive(unsigned* ticket, float* out, const float* partial) {
  if (pb::cuda::last_to_arrive(ticket, gridDim.x)) out[threadIdx.x] = partial[threadIdx.x];
}
"""


def instructions(folder: Path, architecture: int) -> list[str]:
    """Returns the barriers, fences, atomics and branches of last_to_arrive(), in order."""
    source, result = folder / "tickets.cu", folder / "tickets.ptx"
    source.write_text(SOURCE)
    flags = ["-std=c++17", "-DPB_CUDA", f"-arch=compute_{architecture}", "-ptx", "-I", str(ROOT / "csrc")]
    subprocess.run([str(NVCC), *flags, str(source), "-o", str(result)], check=True, capture_output=True)
    found = re.findall(r"^\s*(bar\.\w+|barrier\.\w+|fence\.\S+|membar\.\S+|atom\.\S+|@%p\d+ bra)", result.read_text(), re.MULTILINE)
    return [word.rstrip(";") if "bra" not in word else "branch" for word in found]


@pytest.mark.skipif(NVCC is None, reason="nvcc was not found")
def test_only_the_last_block_acquires(tmp_path: Path) -> None:
    """A fence.acquire empties the L1 cache, and waits for nothing."""
    found = instructions(tmp_path, 90)
    release, acquire = "atom.release.gpu.global.add.u32", "fence.acquire.gpu"
    assert [word for word in found if word.startswith(("atom", "fence", "membar"))] == [release, acquire]
    first = found.index("bar.sync")
    assert found[first : first + 7] == ["bar.sync", "branch", release, "branch", acquire, "branch", "bar.sync"]


@pytest.mark.skipif(NVCC is None, reason="nvcc was not found")
def test_without_such_a_fence_the_atomic_operation_acquires(tmp_path: Path) -> None:
    found = instructions(tmp_path, 75)
    assert [word for word in found if word.startswith(("atom", "fence", "membar"))] == ["atom.acq_rel.gpu.global.add.u32"]
