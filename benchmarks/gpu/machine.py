"""Looks up what the benchmark needs and what this machine has, before any stage that takes long."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent

# Maps the package name of each wheel to the module that the wheel provides.
BUILDS = {"pybind11": "pybind11", "scikit-build-core": "scikit_build_core", "pathspec": "pathspec", "packaging": "packaging",
          "scipy-openblas32": "scipy_openblas32"}
RUNS = {"ml_dtypes": "ml_dtypes", "optree": "optree", "safetensors": "safetensors", "tqdm": "tqdm", "rich": "rich",
        "markdown-it-py": "markdown_it", "mdurl": "mdurl", "pygments": "pygments",
        "typing-extensions": "typing_extensions"}
TESTS = {"pytest": "pytest", "iniconfig": "iniconfig", "pluggy": "pluggy", "pytest-xdist": "xdist", "execnet": "execnet",
         "hypothesis": "hypothesis", "sortedcontainers": "sortedcontainers", "mpmath": "mpmath"}
WHEELS = BUILDS | RUNS | TESTS

DOWNLOAD = (
    "python3 -m pip download --no-deps --only-binary=:all: --python-version {version} --implementation cp "
    "--platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 "
    "--platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d .whl {names}"
)


class Gpu(NamedTuple):
    """A GPU as its driver describes it."""

    name: str
    capability: str
    memory: int
    driver: str

    @property
    def architecture(self) -> str:
        """Returns the architecture for which CMake generates machine code, and no code for any other GPU."""
        return self.capability.replace(".", "") + "-real"


class Need(NamedTuple):
    """One thing that the benchmark uses.

    Attributes:
        found: the name and the location of this thing; None if it is missing.
        purpose: the purpose that it serves.
        fatal: True if nothing can be measured without it.
    """

    name: str
    found: str | None
    purpose: str
    fatal: bool


# ---- the GPU


def find_gpu() -> Gpu | str:
    """Returns the first GPU, or the reason why there is none, as a sentence. Does not create a context on the GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver was found ({error})"
    if status := driver.cuInit(0):
        return f"the NVIDIA driver cannot be used (cuInit: {_error(driver, status)})"
    count, version, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "the NVIDIA driver found no GPU"
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGet(ctypes.byref(device), 0)
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    driver.cuDeviceGetName(name, 256, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    major, minor = _attribute(driver, 75, device), _attribute(driver, 76, device)  # the compute capability
    driver_version = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    return Gpu(name.value.decode(errors="replace"), f"{major}.{minor}", memory.value, driver_version)


def _attribute(driver: Any, number: int, device: Any) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value


def _error(driver: Any, status: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorString(status, ctypes.byref(text))
    return (text.value or b"unknown error").decode()


# ---- tools and packages


def output_of(*command: str) -> str | None:
    """Returns what a command prints, or None if it cannot run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def version(package: str) -> str | None:
    """Returns the version of an installed package, or None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def tool(name: str, *patterns: str) -> str | None:
    """Returns the path of a program from the folder of this Python, from PATH, or from one of the patterns relative to /."""
    installed = Path(sys.executable).parent / name
    if installed.exists():
        return str(installed)
    places = [str(path) for pattern in patterns for path in Path("/").glob(pattern)]
    return shutil.which(name) or max(places, default=None)


def compiler() -> str | None:
    return next((found for name in (os.environ.get("CXX", "c++"), "g++", "clang++") if (found := shutil.which(name))), None)


def nvcc() -> str | None:
    return tool("nvcc", "usr/local/cuda*/bin/nvcc")


def ncu() -> str | None:
    return tool("ncu", "usr/local/cuda*/bin/ncu", "opt/nvidia/nsight-compute/*/ncu")


def sanitizer() -> str | None:
    return tool("compute-sanitizer", "usr/local/cuda*/bin/compute-sanitizer", "usr/local/cuda*/compute-sanitizer/compute-sanitizer")


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def wheels(folder: Path) -> dict[str, Path]:
    """Returns the wheels of a folder by the normalized names of their packages."""
    return {normalized(path.name.split("-")[0]): path for path in sorted(folder.glob("*.whl"))}


def to_install(folder: Path) -> list[Path]:
    """Returns the wheels of the packages that cannot be imported here.

    A wheel never hides an installed package, because torch or JAX may depend on the installed version.
    """
    there = wheels(folder)
    return [there[normalized(name)] for name, module in WHEELS.items() if not has(module) and normalized(name) in there]


# ---- the table of needs


def needs(simulated: bool, command: str) -> list[Need]:
    """Looks up everything that the command uses. A simulated run needs nothing that belongs to a GPU."""
    real = not simulated
    gpu = find_gpu() if real else "simulated"
    out = [Need("GPU and driver", gpu.name if isinstance(gpu, Gpu) else None, "everything", real)] if real else []
    found = nvcc() if real else None
    out += [Need("nvcc 13 or newer", _nvcc_version(found), "the build", True)] if real else []
    out += [
        Need("C++ compiler", compiler(), "the build", True),
        Need("CMake", tool("cmake") or ("the package" if has("cmake") else None), "the build", True),
        Need("Ninja", tool("ninja") or ("the package" if has("ninja") else None), "the build", False),
        _package("numpy", "numpy", "everything", True),
        *[_package(name, module, "the build", True) for name, module in BUILDS.items()],
        *[_package(name, module, "pullback", True) for name, module in RUNS.items()],
        *[_package(name, module, "the tests", False) for name, module in TESTS.items()],
    ]
    if real:
        out.append(_package("cupy-cuda13x", "cupy", "memory on the GPU", True))
        out.append(Need("compute-sanitizer", sanitizer(), "memcheck and racecheck", False))
        out.append(Need("ncu", ncu(), "time and registers of each kernel, counted FLOPs", False))
    if command != "tests":
        out += [_package("torch", "torch", "the rival", False), _package("jax", "jax", "the rival", False)]
    return out


def _nvcc_version(path: str | None) -> str | None:
    number = re.findall(r"release (\d+)\.(\d+)", output_of(path, "--version") or "") if path else []
    return f"{'.'.join(number[0])}, {path}" if number and int(number[0][0]) >= 13 else None


def _package(name: str, module: str, purpose: str, fatal: bool) -> Need:
    if has(module):
        return Need(name, f"installed {version(name) or ''}".strip(), purpose, fatal)
    wheel = wheels(ROOT / ".whl").get(normalized(name))
    return Need(name, f".whl/{wheel.name}" if wheel else None, purpose, fatal)


def table(found: Sequence[Need]) -> str:
    """Returns the things that were found, then the missing ones, then the command that downloads the wheels of missing packages."""
    missing = [need for need in found if need.found is None]
    lines = [f"   {need.name:18} {need.found}" for need in found if need.found is not None]
    lines += [f"   {need.name:18} MISSING, for {need.purpose}{' (FATAL)' if need.fatal else ''}" for need in missing]
    if names := [need.name for need in missing if need.name in WHEELS]:
        lines.append("   Where there is a network, fetch the missing wheels into .whl/, next to README.md, with:")
        lines.append("   " + DOWNLOAD.format(version=".".join(map(str, sys.version_info[:2])), names=" ".join(names)))
    return "\n".join(lines)


def state() -> str | None:
    """Returns the GPU's current clocks and temperature."""
    names = "name,driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,clocks_event_reasons.active"
    return output_of("nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader")


def processor() -> str:
    """Returns the model of the host's processor, on which eager code and every single call depend."""
    try:
        names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def facts(gpu: Gpu | None) -> Mapping[str, Any]:
    """Returns what the figures depend on: the GPU, the versions of compilers and packages, and the revision of the tree."""
    packages = ("numpy", "torch", "triton", "jax", "jaxlib", "cupy-cuda13x", "nvidia-cublas", "ml_dtypes", "pybind11", "pytest")
    return {
        "gpu": gpu._asdict() if gpu else None,
        "nvidia_smi": state() if gpu else None,
        "nvcc": _nvcc_version(nvcc()),
        "compiler": (output_of(compiler() or "c++", "--version") or "").partition("\n")[0],
        "python": platform.python_version(),
        "processor": processor(),
        "processors": os.cpu_count(),
        "system": platform.platform(),
        "packages": {name: version(name) for name in packages},
        "revision": output_of("git", "rev-parse", "HEAD"),
        "changed_files": (output_of("git", "status", "--porcelain") or "").splitlines()[:20],
    }
