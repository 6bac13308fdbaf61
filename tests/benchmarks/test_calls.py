"""What benchmarks/gpu counts of the driver: a stand-in for libcuda.so.1 is asked for its functions as CUDA's runtime asks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import simulated
from gpu_scripts import FOLDER

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None or not sys.platform.startswith("linux"), reason="LD_PRELOAD and a C compiler")

# Each function returns a number that depends on all of its arguments.
DRIVER = r"""
#include <stddef.h>
#include <stdint.h>
#include <string.h>
int cuInit(unsigned flags) { return (int)flags; }
int cuMemAlloc_v2(uint64_t* data, size_t bytes) { *data = (uint64_t)bytes << 40; return 1; }
int cuMemFree_v2(uint64_t data) { return (int)(data >> 40); }
int cuStreamSynchronize(void* stream) { return (int)(intptr_t)stream; }
int cuStreamSynchronize_ptsz(void* stream) { return -(int)(intptr_t)stream; }
int cuCtxSynchronize(void) { return 77; }
int cuMemcpyPeer(uint64_t a, void* b, uint64_t c, void* d, size_t e) {
  return (int)(a + 10 * (intptr_t)b + 100 * c + 1000 * (intptr_t)d + 10000 * e);
}
int cuMemcpyHtoDAsync_v2(uint64_t a, const void* b, size_t c, void* d) {
  return (int)(a + 10 * (intptr_t)b + 100 * c + 1000 * (intptr_t)d);
}
int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags, int* status) {
  const int by_thread = (flags & 2) != 0;
  *status = version;
  *function = !strcmp(name, "cuInit")                ? (void*)cuInit
              : !strcmp(name, "cuMemAlloc")          ? (void*)cuMemAlloc_v2
              : !strcmp(name, "cuMemFree")           ? (void*)cuMemFree_v2
              : !strcmp(name, "cuMemcpyPeer")        ? (void*)cuMemcpyPeer
              : !strcmp(name, "cuMemcpyHtoDAsync")   ? (void*)cuMemcpyHtoDAsync_v2
              : !strcmp(name, "cuCtxSynchronize")    ? (void*)cuCtxSynchronize
              : !strcmp(name, "cuGetProcAddress")    ? (void*)cuGetProcAddress_v2
              : strcmp(name, "cuStreamSynchronize")  ? NULL
              : by_thread                            ? (void*)cuStreamSynchronize_ptsz
                                                     : (void*)cuStreamSynchronize;
  return *function ? 0 : 500;
}
"""

# Prints the results of the driver's functions, and then the counts, if there are any.
PROGRAM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
typedef int (*Get)(const char*, void**, int, uint64_t, int*);
static Get get;
static void* named(const char* name, uint64_t flags) {
  void* function = NULL;
  int status = 0;
  const int error = get(name, &function, 13000, flags, &status);
  if (error != 0 || status != 13000) printf("%s: %d %d\n", name, error, status);
  return function;
}
int main(int count, char** arguments) {
  (void)count;
  void* driver = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (!driver) return 2;
  uint64_t data = 0;
  int (*by_name)(void*) = (int (*)(void*))dlsym(driver, "cuStreamSynchronize");
  printf("%d %d\n", by_name((void*)5), ((int (*)(uint64_t))dlsym(driver, "cuMemFree_v2"))((uint64_t)9 << 40));
  get = (Get)dlsym(driver, "cuGetProcAddress_v2");
  get = (Get)named("cuGetProcAddress", 0);
  printf("%d ", ((int (*)(uint64_t*, size_t))named("cuMemAlloc", 0))(&data, 3));
  printf("%d\n", ((int (*)(uint64_t))named("cuMemFree", 0))(data));
  printf("%d %d\n", ((int (*)(void*))named("cuStreamSynchronize", 0))((void*)6),
         ((int (*)(void*))named("cuStreamSynchronize", 2))((void*)6));
  printf("%d ", ((int (*)(uint64_t, void*, uint64_t, void*, size_t))named("cuMemcpyPeer", 0))(1, (void*)2, 3, (void*)4, 5));
  printf("%d ", ((int (*)(uint64_t, const void*, size_t, void*))named("cuMemcpyHtoDAsync", 0))(1, (void*)2, 3, (void*)4));
  printf("%d %d\n", ((int (*)(void))named("cuCtxSynchronize", 0))(), ((int (*)(unsigned))named("cuInit", 0))(8));
  printf("%d %d\n", named("cuNothing", 0) == NULL, dlsym(driver, "cuMemAlloc_v3") == NULL);

  // The library before all others is the next one after the program.
  int (*functions)(void) = (int (*)(void))dlsym(RTLD_NEXT, "calls_functions");
  if (!functions) return 0;
  const char* (*name)(int) = (const char* (*)(int))dlsym(RTLD_DEFAULT, "calls_name");
  long (*made)(int) = (long (*)(int))dlsym(RTLD_DEFAULT, "calls_made");
  for (int k = 0; k < functions(); ++k)
    if (made(k)) printf("%s=%ld\n", name(k), made(k));
  return 0;
}
"""
RESULTS = ["5 9", "1 3", "6 -6", "54321 4321 77 8", "cuNothing: 500 13000", "1 1"]
COUNTS = ["cuMemAlloc=1", "cuMemFree=2", "cuCtxSynchronize=1", "cuStreamSynchronize=3", "cuMemcpyPeer=1", "cuMemcpyHtoDAsync=1"]


def compiled(folder: Path, name: str, text: str, *flags: str) -> str:
    source = folder / f"{name}.c"
    source.write_text(text)
    subprocess.run([str(COMPILER), "-O2", *flags, str(source), "-o", str(folder / name), "-ldl"], check=True)
    return str(folder / name)


def lines(*command: str, **environment: str) -> list[str]:
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout.splitlines()


@pytest.fixture
def shim(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.syspath_prepend(str(FOLDER))
    code = f"import pathlib, waits; print(waits.compile_shim(pathlib.Path({str(tmp_path)!r})))"
    return lines(sys.executable, "-c", code, PYTHONPATH=os.pathsep.join(sys.path))[-1]


def test_every_call_of_the_driver_is_counted_and_arrives_with_all_arguments(shim: str, tmp_path: Path) -> None:
    driver = compiled(tmp_path, "libcuda.so.1", DRIVER, "-fPIC", "-shared")
    program = compiled(tmp_path, "program", PROGRAM)
    assert lines(program, driver) == RESULTS
    assert lines(program, driver, LD_PRELOAD=shim) == [*RESULTS, *COUNTS]


def test_a_place_in_pullback_is_found_for_a_call(shim: str, tmp_path: Path) -> None:
    """ctypes asks dlsym too. pullback calls the function here from a line of its tree.py."""
    driver = compiled(tmp_path, "libcuda.so.1", DRIVER, "-fPIC", "-shared")
    code = f"""
import ctypes, waits, pullback as pb
wait = ctypes.CDLL({driver!r}).cuStreamSynchronize
with waits.Driver().places() as where:
    wait(0)
    pb.tree.map(lambda x: wait(x), [1])
print(sorted(where))
"""
    found = lines(sys.executable, "-c", code, LD_PRELOAD=shim, PYTHONPATH=os.pathsep.join(sys.path))
    assert "cuStreamSynchronize in other code" in found[-1]
    assert "cuStreamSynchronize in tree" in found[-1]


@pytest.mark.skipif(not simulated(), reason="device cuda is not simulated: build with PULLBACK_CUDA=SIM")
def test_the_allocator_counts_its_calls_on_the_simulated_device() -> None:
    """With a cache, as on a GPU, no step after the first one asks the driver for memory."""
    limits = {"PULLBACK_CUDA_CACHE_BYTES": str(1 << 30)}
    rows = [json.loads(line) for line in lines(sys.executable, str(FOLDER / "waits.py"), "--simulated", **limits)]
    assert len(rows) == 9
    assert rows[0]["first"]["allocations"] > 0
    assert [row["later"] for row in rows] == [[{}] * 4] * 9
