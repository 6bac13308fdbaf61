"""The kernels compile without warnings for the oldest and for a recent GPU, and keep their values in registers.

These tests need nvcc, but no GPU. PULLBACK_NVCC=90 compiles only for the recent GPU, in half of the time, and PULLBACK_NVCC=RELEASE
for all architectures of a release. The build is kept in build/nvcc, so that only changes are compiled again; build/nvcc/kernels.txt
lists the resources that each kernel uses.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import ROOT, find_nvcc

BUILD = ROOT / "build" / "nvcc"


def _architectures(asked: str) -> list[str]:
    """Returns the architectures that PULLBACK_NVCC asks for, from the oldest to the most recent."""
    if asked == "RELEASE":
        (asked,) = re.findall(r"^set\(architectures_of_RELEASE ([^)]*)\)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
    return re.findall(r"\d+", asked)


ARCHITECTURES = _architectures(os.environ.get("PULLBACK_NVCC") or "75;90")
HAVE_MMA = 80  # the architecture from which on the kernels use tensor cores (csrc/cuda/mma.cuh)

# (file, pattern of a kernel's mangled name, instruction that the kernel's PTX must contain, reason why it matters)
INSTRUCTIONS = [
    ("elementwise_unary.cu", r"map_packs\w*12tanh_forward", "ld.global.v4", "16 bytes at a time"),
    ("elementwise_unary.cu", r"map_packs\w*12tanh_forward", "st.global.v4", "16 bytes at a time"),
    ("elementwise_unary.cu", r"map_packs\w*12tanh_forward", "fma.rn", "one rounding for each term of a polynomial"),
    ("elementwise_binary.cu", r"map_packs\w*11add_forward", "ld.global.v4", "16 bytes at a time"),
    ("gemm_tf32.cu", r"multiply_cores", "mma.sync.aligned.m16n8k8.row.col.f32.tf32", "on tensor cores"),
    ("gemm_half.cu", r"multiply_cores\w*3F16", "mma.sync.aligned.m16n8k16.row.col.f32.f16", "on tensor cores"),
    ("gemm_half.cu", r"multiply_cores\w*4Bf16", "mma.sync.aligned.m16n8k16.row.col.f32.bf16", "on tensor cores"),
]

# (file, pattern of a kernel's mangled name, the most KiB of machine code). A GPU fetches the instructions at each launch, which is
# long compared with the work on a small array.
HOT = [
    ("elementwise_unary.cu", r"map_packs", 10),
    ("elementwise_unary_pullback.cu", r"map_packs", 10),
    ("elementwise_binary.cu", r"map_packs", 10),
    ("elementwise_binary_pullback.cu", r"map_packs", 10),
    ("copy.cu", r"copy_units|copy_strided", 3),
    ("reduce.cu", r"reduce\w*PlainTerms", 14),
    ("softmax.cu", r"run_in_registers\w*\dSoftmax\w*Ef", 12),
    # A row of which one class is nearly sure is summed again without its largest element.
    ("softmax.cu", r"run_in_registers\w*LogSoftmax\w*Ef", 18),
    # Half of an update is the schedules of learning rates, which each block runs once at most.
    ("update_float_lean.cu", r"update_kernel", 41),
    # Way 0 reads numbers as they are, and End 0 adds a bias, and relu, at most (gemm.cuh).
    ("gemm_f32.cu", r"multiply_plain\w*WayE0\w*EndE0", 16),
    ("gemm_f32.cu", r"multiply_plain\w*WayE[01]\w*EndE1", 21),
    ("gemm_tf32.cu", r"multiply_cores\w*EndE0", 16),
    ("gemm_half.cu", r"multiply_cores\w*EndE0", 16),
]
# More KiB on one architecture.
LONGER = {("copy.cu", 100): 3.25, ("update_float_lean.cu", 100): 42.25}
# From this architecture on, ptxas adds about four NOPs for each float64 instruction. The sizes above do not count them.
PADDED = 120

# (architecture, file): the number of its kernels that spill there, and the most bytes that one spills. The kernels were written
# for 75 and 90, where none spills, and none of these may get worse.
SPILLS = {
    (80, "pool2d.cu"): (1, 16), (80, "sort.cu"): (1, 32),
    (100, "gemm_f32.cu"): (1, 8), (100, "nonzero.cu"): (1, 12), (100, "pool2d.cu"): (2, 40),
    (120, "gemm_f32.cu"): (1, 32), (120, "pool2d.cu"): (1, 40), (120, "reduce.cu"): (2, 32), (120, "scatter.cu"): (1, 28),
    (120, "sort.cu"): (2, 40), (120, "squared_error.cu"): (1, 16), (120, "update_double_any.cu"): (2, 40),
}


class Usage(NamedTuple):
    """The registers and memory that one kernel uses on one architecture."""

    file: str
    kernel: str
    architecture: str
    registers: int
    stack: int
    spilled: int


def _tool(name: str) -> str | None:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def _why_not() -> str:
    if not find_nvcc():
        return "nvcc was not found"
    missing = [name for name in ("cmake", "ninja") if not _tool(name)]
    return f"{missing[0]} was not found" if missing else ""


pytestmark = pytest.mark.skipif(bool(_why_not()), reason=_why_not())


def _forget_another_checkout(build: Path, root: Path) -> None:
    """Deletes a build folder made for another path, for example before the checkout was moved.

    CMake refuses to use such a folder.
    """
    cache = build / "CMakeCache.txt"
    if cache.exists() and f"\nCMAKE_HOME_DIRECTORY:INTERNAL={root}\n" not in cache.read_text():
        shutil.rmtree(build)


@functools.cache
def _built() -> subprocess.CompletedProcess[str]:
    _forget_another_checkout(BUILD, ROOT)
    options = ["PULLBACK_CUDA=ON", "PULLBACK_CUDA_REPORT=ON", "PULLBACK_SIMD_LEVELS=native-best"]
    options += [
        "PULLBACK_CUDA_ARCHITECTURES=" + ";".join([*[f"{number}-real" for number in ARCHITECTURES[:-1]], ARCHITECTURES[-1]]),
        f"CMAKE_MAKE_PROGRAM={_tool('ninja')}",
        f"Python_EXECUTABLE={sys.executable}",
    ]
    configure = [str(_tool("cmake")), "-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja", *[f"-D{o}" for o in options]]
    ran = subprocess.run(configure, capture_output=True, text=True)
    if ran.returncode == 0:
        ran = subprocess.run([str(_tool("ninja")), "-C", str(BUILD), "_cuda"], capture_output=True, text=True)
    return ran


@pytest.fixture(scope="module")
def objects() -> dict[str, Path]:
    """Returns the object file of every CUDA source: those of csrc/cuda, and the parts that CMake generates."""
    ran = _built()
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    compiled = {Path(command["file"]).name: BUILD / command["output"] for command in commands}
    return {name: compiled[name] for name in sorted(compiled) if name.endswith(".cu")}


@pytest.fixture(scope="module")
def reports(objects: dict[str, Path]) -> dict[str, str]:
    return {name: Path(f"{path}.report").read_text() for name, path in objects.items()}


@pytest.fixture(scope="module")
def usages(reports: dict[str, str]) -> list[Usage]:
    entry = re.compile(
        r"Compiling entry function '(\w+)' for 'sm_(\d+)'.*?"
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
        r".*?Used (\d+) registers",
        re.DOTALL,
    )
    found = [
        Usage(name, kernel, architecture, int(registers), int(stack), int(stores) + int(loads))
        for name, report in reports.items()
        for kernel, architecture, stack, stores, loads, registers in entry.findall(report)
    ]
    lines = [f"sm_{u.architecture} {u.registers:4} {u.stack:4} {u.spilled:4} {u.file} {u.kernel}\n" for u in sorted(found)]
    head = "architecture, registers, bytes of stack frame, bytes spilled, file, kernel\n"
    (BUILD / "kernels.txt").write_text(head + "".join(lines))
    return found


def _code_of(path: Path) -> dict[tuple[int, str], int]:
    """Returns the bytes of machine code in an object file, without NOPs from PADDED on, by architecture and kernel."""
    data = path.read_bytes()
    found: dict[tuple[int, str], int] = {}
    start = data.find(b"\x7fELF", 1)  # the object file is an ELF file, which contains one for each architecture
    while start > 0:
        table, flags = struct.unpack_from("<QI", data, start + 40)
        size, count, names = struct.unpack_from("<HHH", data, start + 58)
        heads = [struct.unpack_from("<IIQQQQ", data, start + table + k * size) for k in range(count)]
        for head in heads:
            at = start + heads[names][4] + head[0]
            name = data[at : data.index(b"\0", at)].decode()
            if name.startswith(".text."):
                architecture, code = flags >> 8 & 0xFF, data[start + head[4] : start + head[4] + head[5]]
                # An instruction has 16 bytes, and its first 12 bits are the operation.
                padding = 16 * [word & 0xFFF for (word,) in struct.iter_unpack("<H14x", code)].count(0x918)
                found[architecture, name[6:]] = len(code) - (padding if architecture >= PADDED else 0)
        start = data.find(b"\x7fELF", start + 1)
    return found


def test_the_architectures_of_a_release_are_those_of_the_build() -> None:
    release = _architectures("RELEASE")
    assert release == sorted(release, key=int)
    assert {"75", "90"} < set(release)
    assert _architectures("75;90-real") == ["75", "90"]


def test_a_build_for_another_path_is_made_anew(tmp_path: Path) -> None:
    for home, kept in ((ROOT, True), (tmp_path / "elsewhere", False)):
        build = tmp_path / home.name
        build.mkdir()
        (build / "CMakeCache.txt").write_text(f"# a comment\nCMAKE_HOME_DIRECTORY:INTERNAL={home}\nX:STRING=1\n")
        _forget_another_checkout(build, ROOT)
        assert build.exists() == kept
    _forget_another_checkout(tmp_path / "nothing", ROOT)


def test_the_compiler_warns_of_nothing(reports: dict[str, str]) -> None:
    assert {name: report[:2000] for name, report in reports.items() if re.search(r"\bwarning\b", report)} == {}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_keep_their_numbers_in_registers(usages: list[Usage], architecture: str) -> None:
    here = [u for u in usages if u.architecture == architecture]
    assert len(here) > 100
    spilling: dict[str, list[Usage]] = {}
    for usage in here:
        if usage.stack or usage.spilled:
            spilling.setdefault(usage.file, []).append(usage)
    for file, kernels in spilling.items():
        count, most = SPILLS.get((int(architecture), file), (0, 0))
        assert len(kernels) <= count, kernels
        assert max([usage.spilled for usage in kernels]) <= most, kernels


def bodies_of(object_file: Path, kernel: str) -> list[tuple[str, str]]:
    """Returns the names and the PTX of the kernels, for the last architecture, whose PTX the object contains as text."""
    found = re.findall(rf"\.entry (\w*{kernel}\w*)\((.*?)\n}}", object_file.read_bytes().decode("latin-1"), re.DOTALL)
    assert found, f"no kernel {kernel} in {object_file.name}"
    return found


@pytest.mark.parametrize(("file", "kernel", "most"), HOT)
def test_hot_kernels_are_short(objects: dict[str, Path], file: str, kernel: str, most: int) -> None:
    code = {key: size for key, size in _code_of(objects[file]).items() if re.search(kernel, key[1])}
    assert {architecture for architecture, _ in code} == {int(number) for number in ARCHITECTURES}, f"no kernel {kernel} in {file}"
    assert {key: size for key, size in code.items() if size > LONGER.get((file, key[0]), most) * 1024} == {}


@pytest.mark.parametrize("file", ["gemm_tf32.cu", "gemm_half.cu"])
def test_kernels_for_tensor_cores_are_a_trap_on_a_gpu_without_them(objects: dict[str, Path], file: str) -> None:
    code = {key: size for key, size in _code_of(objects[file]).items() if "multiply_cores" in key[1]}
    assert code
    assert {key: size for key, size in code.items() if (size <= 128) != (key[0] < HAVE_MMA)} == {}


@pytest.mark.parametrize(("file", "kernel", "instruction", "why"), INSTRUCTIONS, ids=lambda x: x if len(str(x)) < 30 else None)
def test_kernels_are_made_of_the_instructions_that_they_were_written_for(
    objects: dict[str, Path], file: str, kernel: str, instruction: str, why: str
) -> None:
    missing = instruction.startswith("mma.") and int(ARCHITECTURES[-1]) < HAVE_MMA
    for name, body in bodies_of(objects[file], kernel):
        assert ("trap" if missing else instruction) in body, f"{name} has no {instruction}: {why}"


def test_the_module_loads_without_a_driver_and_says_so(objects: dict[str, Path]) -> None:
    (module,) = BUILD.glob("_cuda.*.so")
    script = f"""
import importlib.machinery, importlib.util
import pullback
loader = importlib.machinery.ExtensionFileLoader("pullback._cuda", {str(module)!r})
cuda = importlib.util.module_from_spec(importlib.util.spec_from_loader("pullback._cuda", loader))
loader.exec_module(cuda)
assert cuda.simulated is False
assert cuda.versions()[1] >= 13000
why = cuda.why_not()
assert (why is None) == (cuda.device_count() > 0)
if cuda.versions()[0] == 0:
    assert why == "no NVIDIA driver was found", why
    assert cuda.memory() == (0, 0, 0, 0, 0, (0, 0, 0, 0))
    calls = [lambda: cuda.stream(0), lambda: cuda.wait_for(0, 1), lambda: cuda.synchronize(0), lambda: cuda.use_device(1)]
    for call in [*calls, cuda.trim]:
        try:
            call()
        except (RuntimeError, pullback.DeviceError):
            continue
        raise SystemExit("a call without a driver did not fail")
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
