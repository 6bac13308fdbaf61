"""Builds pullback on a machine with a GPU, tests it there, checks its ledger against the GPU's counters, and times it against
PyTorch and JAX: see run.sh.

Every stage is a process of its own with a limit of its own. What one of them says, or that it failed, is written into the one JSON
file as soon as it has ended, and the next begins.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "build" / "gpu"
SITE = WORK / "site"
NEEDED = ("numpy", "pybind11", "scikit_build_core", "scipy_openblas32", "ml_dtypes", "optree", "safetensors", "tqdm", "rich")
GROUPS = ("steps", "captured", "optimizer", "loss", "products", "elementwise", "rows")
STAGES = ("build", "tests", "sanitizer", "micro", "counters", "timings", "rivals")
# Tests of the package's build, its text and the simulator: what a GPU has no part in.
NOT_HERE = ("test_cudasim", "test_simulated", "test_layers", "test_readme", "test_nvcc", "test_cupy_storage", "test_workflows")
CHECKED = "(softmax or layer_norm or cross_entropy or matmul or sum or cumsum or sort or take or scatter or tanh) and float32"


class Run:
    """The one file of results, and the time that is left."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.begin, self.lock = options, time.monotonic(), threading.Lock()
        self.results: dict[str, Any] = {"simulated": options.simulated, "stages": {}, "timings": [], "micro": [], "counters": []}
        self.environment = dict(os.environ, PYTHONUNBUFFERED="1", CUDA_MODULE_LOADING="LAZY")
        paths = [str(ROOT / "python")] if options.simulated else [str(SITE)]
        self.environment["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])

    def left(self) -> float:
        return self.options.seconds - (time.monotonic() - self.begin)

    def write(self) -> None:
        with self.lock:
            self.results["seconds"] = round(time.monotonic() - self.begin, 1)
            self.options.out.write_text(json.dumps(self.results, indent=1))

    def command(
        self, name: str, command: list[str], limit: float, environment: dict[str, str] | None = None, cwd: Path = ROOT
    ) -> str:
        """Runs it, with its output in a log, and returns that. A failure, also of time, is a RuntimeError with the last lines."""
        limit = min(limit, self.left())
        if limit < 2:
            raise RuntimeError("no time was left")
        log = WORK / f"{name}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, cwd=cwd, env=environment or self.environment, start_new_session=True
            )
            try:
                status: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)  # of the session made for it
                process.wait()
                status = None
        text = log.read_text(errors="replace")
        if status != 0:
            ended = f"status {status}" if status is not None else f"stopped after {limit:.0f} s"
            error = RuntimeError(f"{' '.join(command)[:300]}: {ended}\n{text[-3000:]}")
            error.text = text  # type: ignore[attr-defined]
            raise error
        return text

    def stage(self, name: str, work: Callable[[], Any]) -> bool:
        """Does one stage; whatever goes wrong is recorded."""
        begin = time.monotonic()
        record: dict[str, Any] = {}
        try:
            record["result"] = work()
            record["ok"] = True
        except Exception as error:
            record["ok"], record["error"] = False, f"{type(error).__name__}: {error}"[:4000]
        record["seconds"] = round(time.monotonic() - begin, 1)
        with self.lock:
            self.results["stages"][name] = record
        self.write()
        state, said = "ok" if record["ok"] else "FAILED", str(record.get("result", ""))[:100]
        print(f"{name:22} {state:6} {record['seconds']:7.1f} s  {said}", flush=True)
        return bool(record["ok"])


# ---- what there is


def asked(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"? ({error})"


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    facts = "name,driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.mem"
    packages = ("numpy", "torch", "jax", "jaxlib", "cupy-cuda13x", "triton", "ml_dtypes", "pybind11", "nvidia-cublas")
    return {
        "gpu": asked("nvidia-smi", f"--query-gpu={facts}", "--format=csv,noheader"),
        "nvcc": (re.findall(r"release ([\d.]+)", asked("nvcc", "--version")) or ["?"])[0],
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "system": platform.platform(),
        "packages": {name: version(name) for name in packages},
        "revision": asked("git", "rev-parse", "HEAD"),
        "changed_files": len(asked("git", "status", "--porcelain").splitlines()),
    }


# ---- stages


def build(run: Run) -> Any:
    """Installs the package for this GPU into build/gpu/site, without the network."""
    wheels = sorted(ROOT.glob(".whl/*.whl"))
    if wheels:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--upgrade", "--target", str(SITE)]
        run.command("wheels", [*pip, *map(str, wheels)], 60)
    if run.options.simulated:
        return "the package in python/, as it was built there"
    sys.path.insert(0, str(SITE))
    importlib.invalidate_caches()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeError(f"missing: {', '.join(missing)}. Put their wheels into .whl/ (see run.sh).")
    options = {"CUDA": "ON", "CUDA_ARCHITECTURES": run.options.architecture, "SIMD_LEVELS": "native-best"}
    settings = [f"-Ccmake.define.PULLBACK_{name}={value}" for name, value in options.items()]
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation", "--upgrade"]
    pip += ["--target", str(SITE)]
    run.command("build", [*pip, f"-Cbuild-dir={WORK / 'cmake'}", *settings, "."], 300)
    script = "import pullback as pb; x = pb.ones(5, device='cuda'); print((x + x).numpy(), pb.cuda.why_not())"
    return run.command("loads", [sys.executable, "-c", script], 60, cwd=WORK).splitlines()[-1]


def tests(run: Run) -> Any:
    """All tests with PULLBACK_DEVICE=cuda."""
    report = WORK / "tests.xml"
    report.unlink(missing_ok=True)
    spread = ["-n", str(min(8, os.cpu_count() or 1))] if version("pytest-xdist") else []
    chosen = ["tests/test_ops.py", "-k", "add and float32"] if run.options.simulated else ["tests"]
    ignored = [f"--ignore=tests/{name}.py" for name in NOT_HERE]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", f"--junitxml={report}"]
    command += [*spread, *ignored, *chosen]
    try:
        run.command("tests", command, run.options.test_seconds, run.environment | {"PULLBACK_DEVICE": "cuda"})
        ended = ""
    except RuntimeError as error:
        ended = str(error)
    if not report.exists():
        raise RuntimeError(ended)
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    bad = [(case, child) for case in suite.iter("testcase") for child in case if child.tag in ("failure", "error")]
    failed = [{"test": f"{c.get('classname')}::{c.get('name')}", "why": (f.get("message") or "")[:400]} for c, f in bad]
    with run.lock:
        run.results["tests"] = {**counts, "failed": failed[:100]}
    if bad:
        raise RuntimeError(f"{counts}; the first: {failed[0]}")
    return counts


def sanitizer(run: Run) -> Any:
    """A few kernels of every family under compute-sanitizer: memory, and races on shared memory."""
    tool = shutil.which("compute-sanitizer") or next((str(p) for p in Path("/usr/local").glob("cuda*/bin/compute-sanitizer")), None)
    if tool is None or run.options.simulated:
        return "not run: " + ("simulated" if run.options.simulated else "compute-sanitizer was not found")
    found = {}
    for kind in ("memcheck", "racecheck"):
        command = [tool, "--tool", kind, "--target-processes", "all", "--error-exitcode", "9"]
        command += [sys.executable, "-m", "pytest", "-q", "-x"]
        command += ["-p", "no:cacheprovider", "-p", "no:xdist", "tests/test_ops.py", "-k", CHECKED]
        try:
            text = run.command(kind, command, run.options.test_seconds / 2, run.environment | {"PULLBACK_DEVICE": "cuda"})
        except RuntimeError as error:
            text = getattr(error, "text", str(error))
            found[kind + " ended"] = str(error)[-1500:]
        summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", text)
        passed = re.findall(r"\d+ passed[^\n]*", text)
        found[kind] = {"summary": summary[-1] if summary else None, "tests": passed[-1] if passed else None}
    with run.lock:
        run.results["sanitizer"] = found
    clean = [kind for kind in ("memcheck", "racecheck") if re.search(r"SUMMARY: 0 ", str(found[kind]["summary"]))]
    if len(clean) < 2:
        raise RuntimeError(f"clean: {clean}; {found}")
    return found


def lines_of(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def micro(run: Run) -> Any:
    """The small CUDA program of latencies."""
    program = WORK / "micro"
    if run.options.simulated:
        simulator = sorted(map(str, (ROOT / "csrc" / "cudasim").glob("*.cpp")))
        flags = ["-x", "c++", "-std=c++17", "-O1", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-lpthread"]
        compiler = ["g++", *flags, f"-I{ROOT / 'csrc'}", str(HERE / "micro.cu"), *simulator, "-o", str(program)]
    else:
        architecture = "sm_" + run.options.architecture.partition("-")[0]
        flags = ["-std=c++17", "-O3", f"-arch={architecture}", f"-I{ROOT / 'csrc'}"]
        compiler = ["nvcc", *flags, str(HERE / "micro.cu"), "-o", str(program)]
    run.command("micro-build", compiler, 120)
    found = lines_of(run.command("micro", [str(program)], 120))
    with run.lock:
        run.results["micro"] = found
    if bad := [line for line in found if "error" in line or line.get("right") is False]:
        raise RuntimeError(str(bad))
    return f"{len(found)} figures"


def counters(run: Run) -> Any:
    """The ledger of a training step beside the GPU's hardware counters, where ncu may read them."""
    if run.options.simulated:
        return "not run: simulated"
    found = lines_of(run.command("counters", [sys.executable, str(HERE / "counters.py")], 90))
    with run.lock:
        run.results["counters"] = found
    if why_not := found[0].get("why_not"):
        return f"not run: {why_not}"
    if bad := [row for row in found if row["is_product"] and not 0.95 < (row["ratio"] or 0) < 1.05]:
        raise RuntimeError(f"products whose ledger is not what the GPU counted: {bad}")
    return f"{len(found)} rows"


def timings(run: Run, group: str) -> Any:
    command = [sys.executable, str(HERE / "workloads.py"), group]
    command += ["--simulated", "--rounds", "1"] if run.options.simulated else []
    try:
        text = run.command(f"timings-{group}", command, run.options.group_seconds)
    except RuntimeError as error:
        with run.lock:
            run.results["timings"] += lines_of(getattr(error, "text", ""))
        raise
    found = lines_of(text)
    with run.lock:
        run.results["timings"] += found
    if bad := [f"{line['name']}: {line['error']}" for line in found if "error" in line]:
        raise RuntimeError("; ".join(bad))
    return f"{len(found)} workloads"


def rivals(run: Run) -> Any:
    found = lines_of(run.command("rivals", [sys.executable, str(HERE / "jax_step.py")], 90))
    with run.lock:
        run.results["timings"] += found
    return f"{len(found)} workloads"


def table(results: dict[str, Any]) -> str:
    """The results for the eye."""
    out = []
    for line in results["micro"]:
        out.append(f"{line.get('median', 0):12.3f} {line.get('unit', ''):5} {line['name']}  {line.get('error', '')}")
    for line in results["counters"]:
        if line.get("ratio"):
            out.append(f"{line['ratio']:12.3f} FLOPs counted / in the ledger  {' + '.join(line['kernels'])}")
    for line in results["timings"]:
        if "error" in line:
            out.append(f"{'failed':>12}       {line['name']}: {line['error'][:120]}")
            continue
        ratio = f"x {line['ratio']['median']:.3f}" if "ratio" in line else ""
        share = f"{100 * line['share']:.0f} % of a copy" if "share" in line else ""
        rate = f"{line['tflop_per_s']:.1f} TFLOP/s" if "tflop_per_s" in line else ""
        reached = "".join(f" {key}:{'reached' if ok else 'MISSED'}" for key, ok in line.get("reached", {}).items())
        out.append(f"{line['ours_us']['median']:12.2f} us    {line['name']}  {ratio} {share} {rate}{reached}")
    return "\n".join(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=WORK / "results.json")
    parser.add_argument("--only", default=",".join(STAGES), help="stages, as " + ",".join(STAGES))
    parser.add_argument("--architecture", default="90-real", help="of this machine's GPU, in CMake's words")
    parser.add_argument("--seconds", type=float, default=530, help="for everything")
    parser.add_argument("--test-seconds", type=float, default=150)
    parser.add_argument("--group-seconds", type=float, default=60)
    parser.add_argument("--simulated", action="store_true", help="a dry run without a GPU: small sizes, numbers that mean nothing")
    options = parser.parse_args()
    options.out = options.out.resolve()
    WORK.mkdir(parents=True, exist_ok=True)
    run = Run(options)
    run.results["machine"] = machine()
    run.results["command"] = sys.argv
    chosen = options.only.split(",")
    built = run.stage("build", lambda: build(run)) if "build" in chosen else True
    if built:
        # Correctness first, and both kinds of it at once; then nothing beside what is timed.
        checks = [(name, stage) for name, stage in (("tests", tests), ("sanitizer", sanitizer)) if name in chosen]
        threads = [threading.Thread(target=run.stage, args=(name, lambda stage=stage: stage(run))) for name, stage in checks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if "micro" in chosen:
        run.stage("micro", lambda: micro(run))
    if built and "counters" in chosen:
        run.stage("counters", lambda: counters(run))
    if built and "timings" in chosen:
        for group in GROUPS:
            run.stage(f"timings: {group}", lambda group=group: timings(run, group))
    if "rivals" in chosen:
        run.stage("rivals", lambda: rivals(run))
    run.write()
    print(table(run.results))
    print(f"{options.out}: {run.results['seconds']} s")
    return 0 if all(stage["ok"] for stage in run.results["stages"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
