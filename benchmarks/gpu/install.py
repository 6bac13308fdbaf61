"""Installs the wheels that the machine lacks, builds pullback for its GPU, and checks that its native kernels run."""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
import threading
from pathlib import Path
from typing import Any

from machine import ROOT, to_install
from stages import Run, StageError, expect

HERE = Path(__file__).resolve().parent
RIVALS = ("torch", "cupy", "jax")
BUILT_FROM = ("csrc", "python", "tools/keep_report.py", "CMakeLists.txt", "pyproject.toml", "README.md")

ENTRY = re.compile(
    r"Compiling entry function '(\w+)' for 'sm_\w+'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers",
    re.DOTALL,
)


def install_wheels(run: Run, site: Path) -> str:
    """Installs from .whl/, without the network, the packages that cannot be imported."""
    chosen = to_install(ROOT / ".whl")
    if chosen:
        pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile", "--upgrade"]
        expect(run.process([*pip, "--target", str(site), *map(str, chosen)], "wheels"), "pip install of the wheels")
        importlib.invalidate_caches()
    return f"installed {', '.join([path.name.split('-')[0] for path in chosen]) or 'none'}"


# ---- the build


def sources() -> str:
    """Returns a hash of every file that the package is built from."""
    total = hashlib.sha256()
    for name in BUILT_FROM:
        top = ROOT / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and path.suffix not in (".pyc", ".so") and ".libs" not in path.parts:
                total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def build(run: Run, site: Path, work: Path, architecture: str | None) -> str:
    """Installs pullback for this GPU, or for the simulator if `architecture` is None. Skips the build if nothing has changed.

    The first imports of torch, CuPy and JAX read gigabytes from the disk. They run while the compilers run.
    """
    settings = {"CUDA": "ON", "CUDA_ARCHITECTURES": architecture, "CUDA_REPORT": "ON"} if architecture else {"CUDA": "SIM"}
    options = [f"-Ccmake.define.PULLBACK_{name}={value}" for name, value in {**settings, "SIMD_LEVELS": "native-best"}.items()]
    stamp, wanted = work / "built.txt", "\n".join([sources(), sys.version, *options])
    if stamp.exists() and stamp.read_text() == wanted and (site / "pullback").is_dir():
        return "built before from the same sources"
    stamp.unlink(missing_ok=True)
    imports = [threading.Thread(target=_first_import, args=(run, name), daemon=True) for name in RIVALS if architecture]
    for thread in imports:
        thread.start()
    pip = [sys.executable, "-m", "pip", "install", "-v", "--no-index", "--no-deps", "--no-build-isolation", "--upgrade"]
    ended = run.process([*pip, "--target", str(site), f"-Cbuild-dir={work / 'cmake'}", *options, "."], "build")
    expect(ended, "the build")
    for thread in imports:
        thread.join(max(0, min(30, run.stage_left())))
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(wanted)
    return f"compiled and installed in {ended.seconds:.0f} s"


def _first_import(run: Run, name: str) -> None:
    ended = run.process([sys.executable, "-c", f"import {name}"], f"import-{name}", 150)
    run.results.add("build", {"name": f"first import of {name}", "seconds": round(ended.seconds, 1), "status": ended.status})


# ---- what was built


def check_native(run: Run, work: Path, simulated: bool) -> str:
    """Checks that pullback's own kernels run on the device. Without them CuPy would run everything and be timed as pullback."""
    expect(run.process([sys.executable, str(HERE / "smoke.py"), "native", *_flag(simulated)], "native", 90), "loading the kernels")
    if simulated or not (work / "cmake").is_dir():
        return "native kernels run"
    summary = registers(work / "cmake")
    run.row(summary)
    return f"native kernels run; {summary['kernels']} kernels, {len(summary['spilling'])} of them spill or have a stack frame"


def registers(folder: Path) -> dict[str, Any]:
    """Returns a summary of the compiler's reports: the number of kernels, the most registers per file, and what spills."""
    most: dict[str, int] = {}
    spilling, kernels = [], 0
    for path in sorted(folder.rglob("*.cu.o.report")):
        file = path.name.removesuffix(".o.report")
        for kernel, *numbers in ENTRY.findall(path.read_text(errors="replace")):
            stack, stores, loads, used = map(int, numbers)
            kernels += 1
            most[file] = max(most.get(file, 0), used)
            if stack or stores or loads:
                spilling.append(f"{file} {kernel}: {stack} bytes of stack, {stores + loads} spilled")
    return {"name": "compiled kernels", "kernels": kernels, "spilling": spilling[:40], "most_registers": most}


def _flag(simulated: bool) -> list[str]:
    return ["--simulated"] if simulated else []


# ---- the program of latencies


def micro(run: Run, work: Path, architecture: str | None) -> str:
    """Builds and runs micro.cu, which uses only the device code of pullback."""
    program = work / "micro"
    compiler = _micro_compiler(program, architecture)
    sources = [HERE / "micro.cu", *(ROOT / "csrc" / "cuda").glob("*.h*"), *(ROOT / "csrc" / "cudasim").glob("*.*")]
    if not program.exists() or any([path.stat().st_mtime > program.stat().st_mtime for path in sources]):
        expect(run.process(compiler, "micro-build"), "compiling micro.cu")
    expect(run.process([str(program)], "micro", 60), "micro")
    rows = run.results.rows("micro")
    if bad := [row for row in rows if "error" in row or row.get("right") is False]:
        raise StageError(f"wrong results: {bad}")
    return f"{len(rows)} figures"


def _micro_compiler(program: Path, architecture: str | None) -> list[str]:
    include = f"-I{ROOT / 'csrc'}"
    if architecture:
        number = architecture.partition("-")[0]
        return ["nvcc", "-std=c++17", "-O3", f"-arch=sm_{number}", include, str(HERE / "micro.cu"), "-o", str(program)]
    simulator = sorted(map(str, (ROOT / "csrc" / "cudasim").glob("*.cpp")))
    flags = ["-std=c++17", "-O1", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-lpthread"]
    return ["g++", "-x", "c++", *flags, include, str(HERE / "micro.cu"), *simulator, "-o", str(program)]
