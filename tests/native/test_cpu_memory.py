"""The CPU's memory: a container's limits apply, the cache shrinks before they are reached, and `pb.trim` empties the cache."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import ROWS
from conftest import environment
from pullback import backends, cli
from pullback.backends import native

MIB = 2**20
needs_kernels = pytest.mark.skipif(native.module is None, reason=f"no native kernels: {backends.why_not('cpu')}")
# A sanitizer gets every block from the system, and its shadow memory exceeds any resource limit.
needs_cache = pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="under a sanitizer nothing is cached")
needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system has no /proc/self/statm")


def output(program: str, **variables: str) -> list[str]:
    """Runs a program on the CPU with one thread, and returns the words that it prints."""
    start = """
import resource
from pathlib import Path
import numpy as np, pullback as pb
from pullback.backends import native
MIB = 2**20
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
"""
    env = environment(PULLBACK_DEVICE="cpu", PULLBACK_NUM_THREADS="1")
    env.pop("PULLBACK_CACHE_BYTES", None)
    done = subprocess.run(
        [sys.executable, "-c", start + program], env={**env, **variables}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# ---- limits


def tree(root: Path, groups: str, **limits: int | str) -> str:
    """Creates a folder with proc/self/cgroup and these files below sys/fs/cgroup, and returns its path."""
    for path, text in [("proc/self/cgroup", groups), *[(f"sys/fs/cgroup/{name}", limit) for name, limit in limits.items()]]:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return str(root)


TREES: dict[str, tuple[str, dict[str, int | str], str]] = {
    "version 2, a container": ("0::/", {"memory.max": 64 * MIB}, "memory.max"),
    "version 2, below": ("0::/a/b", {"a/b/memory.max": 64 * MIB, "a/memory.max": 96 * MIB}, "a/b/memory.max"),
    "version 2, above": ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": 64 * MIB}, "a/memory.max"),
    "version 2, soft": ("0::/a", {"a/memory.max": 96 * MIB, "a/memory.high": 64 * MIB}, "a/memory.high"),
    "version 2, not its own": ("0::/a", {"a/memory.max": 64 * MIB, "b/memory.max": 32 * MIB}, "a/memory.max"),
    "version 2, the host's path": ("0::/docker/1f", {"memory.max": 64 * MIB}, "memory.max"),
    "version 1, a container": (
        "5:cpu,cpuacct:/x\n4:memory:/docker/1f\n0::/",
        {"memory/memory.limit_in_bytes": 64 * MIB, "memory/x/memory.limit_in_bytes": 32 * MIB},
        "memory/memory.limit_in_bytes",
    ),
    "version 1, below": (
        "4:hugetlb,memory:/a/b",
        {"memory/memory.limit_in_bytes": 2**63 - 4096, "memory/a/b/memory.limit_in_bytes": 64 * MIB},
        "memory/a/b/memory.limit_in_bytes",
    ),
}


@needs_kernels
@pytest.mark.parametrize("name", TREES)
def test_the_least_limit_of_the_own_groups_counts(name: str, tmp_path: Path) -> None:
    groups, limits, file = TREES[name]
    root = tree(tmp_path, groups, **limits)
    assert native.module.memory_limit(root) == (64 * MIB, f"{root}/sys/fs/cgroup/{file}")


@needs_kernels
@pytest.mark.parametrize(("quota", "cpus"), {
    "150000 100000": 2, "140000 100000": 1, "20000 100000": 1, "800000 400000": 2,
    "max 100000": 10**6, "100000 0": 10**6, "": 10**6,
}.items())
def test_the_processors_are_no_more_than_the_quota_of_the_own_groups(quota: str, cpus: int, tmp_path: Path) -> None:
    machine = native.module.usable_cpus(tree(tmp_path / "empty", "not a group"))
    assert machine == min(len(os.sched_getaffinity(0)), 256)
    root = tree(tmp_path, "0::/a", **{"a/cpu.max": quota, "b/cpu.max": "100000 100000"})
    assert native.module.usable_cpus(root) == min(machine, cpus)


@needs_kernels
@pytest.mark.parametrize("limit", ["max", "", "many", 2**63 - 4096, 2**64 - 1])
@pytest.mark.parametrize("file", ["memory.max", "memory.high", "memory/memory.limit_in_bytes"])
def test_a_group_without_a_limit_leaves_the_machines_memory(limit: int | str, file: str, tmp_path: Path) -> None:
    root = tree(tmp_path, "4:memory:/\n0::/", **{file: limit})
    nothing = tree(tmp_path / "empty", "not a group")
    assert native.module.memory_limit(root) == native.module.memory_limit(nothing)
    assert native.module.memory_limit(root)[0] > 64 * MIB


LIMITED = """
{limit}
cached, limit, source = native.module.cache_use()
print(limit, source.replace(" ", "_"))
"""


@needs_kernels
@needs_cache
@pytest.mark.parametrize("name", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_the_cache_holds_a_quarter_of_a_resource_limit(name: str) -> None:
    limit = 3 * 2**30 if name == "RLIMIT_AS" else 512 * MIB
    set_limit = f"resource.setrlimit(resource.{name}, ({limit}, {limit}))"
    assert output(LIMITED.format(limit=set_limit)) == [str(limit // 4), f"a_quarter_of_the_limit_by_{name}"]


@needs_kernels
def test_the_environment_sets_the_limit_of_the_cache() -> None:
    program = LIMITED.format(limit="")
    assert output(program, PULLBACK_CACHE_BYTES="12345678") == ["12345678", "PULLBACK_CACHE_BYTES"]
    limit, source = output(program)
    assert int(limit) == min(2**30, native.module.memory_limit()[0] // 4)
    assert source == "the_default" or source.startswith("a_quarter_of_the_limit_by_")


@needs_kernels
def test_info_prints_the_limit_of_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    _, limit, source = native.module.cache_use()
    assert cli.main(["info"]) == 0
    assert f"at most {limit / MIB:,.0f} MiB ({source})" in capsys.readouterr().out


@needs_kernels
@needs_cache
@needs_proc
def test_the_cache_shrinks_before_the_process_reaches_its_limit() -> None:
    """The system would grant all of this memory. Only the resident size shows that 3/4 of the limit are reached."""
    if native.module.memory_limit()[0] < 2**31:
        pytest.skip("this test occupies 800 MiB")
    program = """
resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
filled = lambda mib: pb.exp(pb.zeros(mib * MIB // 4))
def growth():
    filled(40)  # in the cache from here on
    before = native.module.cache_use()[0]
    kept = filled(24)
    return before, native.module.cache_use()[0]
little = growth()
native.trim()
users = np.ones(690 * MIB // 8)
print(*little, *growth())
"""
    little_before, little_after, much_before, much_after = map(int, output(program, OPENBLAS_NUM_THREADS="1"))
    assert little_before == little_after == much_before >= 40 * MIB
    assert much_after == 0


# ---- trim


@needs_kernels
@needs_cache
def test_trim_returns_the_bytes_of_the_cached_blocks() -> None:
    pb.trim()
    with pb.use_device("cpu"):
        kept = pb.exp(pb.zeros(MIB))
        pb.exp(pb.zeros(2 * MIB))
    cached = native.module.cache_use()[0]
    assert cached >= 8 * MIB
    assert pb.trim() == cached
    assert native.module.cache_use()[0] == 0
    assert pb.trim() == 0
    np.testing.assert_array_equal(kept.numpy(), np.ones(MIB, np.float32))


def test_trim_without_kernels_returns_0() -> None:
    assert output("pb.exp(pb.zeros(100_000)); print(pb.trim())", PULLBACK_BACKEND="reference") == ["0"]


def test_trim_is_a_public_name() -> None:
    assert "trim" in dir(pb)


@needs_kernels
def test_threads_compute_while_another_trims(on_cpu: Any) -> None:
    x = pb.tensor(np.random.default_rng(0).standard_normal(300_000).astype(np.float32))
    wanted = pb.cumulative_sum(pb.exp(x)).numpy()
    wrong: list[int] = []

    def compute() -> None:
        for k in range(50):
            if not np.array_equal(pb.cumulative_sum(pb.exp(x)).numpy(), wanted):
                wrong.append(k)

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any([thread.is_alive() for thread in threads]):
        pb.trim()
    assert not wrong


@needs_kernels
@needs_cache
@needs_proc
def test_memory_of_a_cleared_capture_goes_back_to_the_system() -> None:
    program = """
@pb.capture
def f(x):
    ys = [pb.cumulative_sum(x * float(k), axis=-1) for k in range(8)]
    return sum([pb.sum(y * pb.mean(z)) for y, z in zip(ys, ys[::-1])])
x = pb.tensor(np.ones((4, 2_000_000), np.float32))
f(x), f(x)
arena, before = f.stats().arena_bytes, resident()
f.clear()
given = pb.trim()
print(arena, before, given, resident())
"""
    arena, before, given, after = map(int, output(program))
    assert arena > 200 * MIB
    # a smaller cache returns large blocks to the system as soon as they are released
    assert given >= arena or native.module.cache_use()[1] < 2 * arena
    assert before - after > 0.9 * arena


@needs_kernels
@needs_cache
@needs_proc
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim() is a function of glibc")
def test_memory_that_malloc_keeps_goes_back_to_the_system() -> None:
    program = """
np.ones(30 * MIB // 8)  # after it is freed, glibc takes blocks of up to 30 MiB from its heap
x = pb.zeros(MIB // 4)
blocks = [pb.exp(x) for _ in range(200)]
above = bytearray(100_000)  # keeps the heap from shrinking at its end
before = resident()
del blocks
pb.trim()
print(before - resident())
"""
    assert int(*output(program)) > 180 * MIB


@needs_kernels
def test_clear_forgets_recordings_over_a_loader(on_cpu: Any) -> None:
    rng = np.random.default_rng(0)
    loader = pb.data.Loader((rng.standard_normal((5 * ROWS, 5)).astype(np.float32),), batch_size=ROWS, seed=7)
    f = pb.capture(lambda x: pb.sum(x * x))
    f(loader)
    assert f.stats().recordings == 1
    f.clear()
    assert f.stats().recordings == 0
    f(loader)
    assert f.stats().recordings == 1


def test_zeros_are_tried_again_once_the_cache_is_empty(native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy allocates them, and cannot use the memory that the kernels' cache holds."""
    from pullback.tensors import devices

    original, tries = devices.full, []

    def full(*args: Any) -> Any:
        tries.append(args)
        if len(tries) == 1:
            raise MemoryError
        return original(*args)

    monkeypatch.setattr(devices, "full", full)
    assert pb.zeros((3,), device="cpu").numpy().tolist() == [0, 0, 0]
    assert len(tries) == 2


# ---- memory of OpenBLAS

# In each child the libraries have taken no memory for matrices yet, and `extra` MiB more than there are in use is the limit. The
# text of a deep list has made the stack long enough before: Linux ends a process whose stack cannot grow.
CHILDREN = """
import os, sys
deep = []
for _ in range(3000):
    deep = [deep]
sys.setrecursionlimit(10_000)
repr(deep)
many = pb.tensor(np.stack([np.eye(200)] * 32))
one = pb.tensor(np.eye(600))
calls = {{
    "cholesky": lambda: pb.linalg.cholesky(many), "cholesky in blocks": lambda: pb.linalg.cholesky(one),
    "qr": lambda: pb.linalg.qr(many), "svd": lambda: pb.linalg.svd(many[:4]), "svdvals": lambda: pb.linalg.svdvals(many[:4]),
    "eigh": lambda: pb.linalg.eigh(many[:4]), "solve": lambda: pb.linalg.solve(many, many), "matmul": lambda: one @ one,
    "inv": lambda: pb.linalg.inv(many), "lstsq": lambda: pb.linalg.lstsq(many[:2], many[:2]),
    "transposed": lambda: one.T @ one[:, :3],
}}
results = set()
for name, call in calls.items():
    for extra in {extras}:
        child = os.fork()
        if child == 0:
            used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + extra * MIB,) * 2)
            try:
                call()
                os._exit(10)
            except MemoryError:
                os._exit(11)
        status = os.waitpid(child, 0)[1]
        results.add(os.waitstatus_to_exitcode(status))
        if os.waitstatus_to_exitcode(status) not in (10, 11):
            print(name.replace(" ", "_"), extra, status)
print(*sorted(results))
"""


@needs_kernels
@needs_cache
@needs_proc
@pytest.mark.parametrize("threads", ["1", "4"])
def test_a_matrix_for_which_openblas_has_no_memory_is_an_out_of_memory_error(threads: str) -> None:
    program = CHILDREN.format(extras="(1, 8, 20, 28, 32, 36, 40, 48, 60, 64, 72, 100, 600)", threads=threads)
    assert output(program, OPENBLAS_NUM_THREADS="1", PULLBACK_NUM_THREADS=threads) == ["10", "11"]


@needs_kernels
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries do not end the process")
def test_a_thread_has_the_thread_local_data_of_openblas_from_its_first_call_on() -> None:
    """glibc ends a process that has no memory for it. An inverse does not need the data, so it was reserved."""
    program = """
import ctypes, threading
class Library(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("start", "name", "parts", "count", "added", "gone", "number", "local")]
Visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Library), ctypes.c_size_t, ctypes.c_void_p)
def reserved():
    found = []
    def visit(library, size, data):
        name = ctypes.string_at(library.contents.name)
        if b"openblas" in name and b"numpy" not in name:
            found.append(library.contents.local != 0)
        return 0
    ctypes.CDLL(None).dl_iterate_phdr(Visit(visit), None)
    return found
a = pb.tensor(np.eye(200))
def work():
    print(*reserved())
    pb.linalg.inv(a)
    print(*reserved())
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    assert output(program, OPENBLAS_NUM_THREADS="1") == ["False", "True"]
