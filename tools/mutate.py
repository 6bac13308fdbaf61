"""Mutation test: changes the sources at random, one place at a time, and lists the changes that no test notices.

    python tools/mutate.py trace                            records which tests call which function (twice the suite's time)
    python tools/mutate.py python --seed 1 --count 150      tests mutants of python/pullback
    python tools/mutate.py cpp --seed 1 --count 30          tests mutants of csrc/{cpu,families,launch,math}, compiled in one build

It works in a copy of the checkout, build/mutate or the folder named by MUTATE, so the checkout itself does not change. Each mutant
first runs against the tests that call its function (at most 25 seconds of them, or for C++ the files in QUICK). Then all survivors
run together against the whole suite, once, and each test that fails there runs against each survivor alone. The remaining survivors
are printed and written to report.json in that folder. Each needs a test, or a reason why it changes nothing that a user or profile
sees.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mutants import PACKAGE, ROOT, SWITCH, Mutant, cpp_mutants, python_mutants

WORK = Path(os.environ.get("MUTATE") or ROOT / "build" / "mutate")
# These tests check other programs.
NEVER = [f"--ignore=tests/{name}" for name in ("benchmarks", "tools/test_nvcc.py", "tools/test_cudasim.py")]
QUICK = [
    *[f"tests/native/test_{name}.py" for name in (
        "corners", "sizes", "ops", "exactness", "capture", "capture_ops", "capture_programs", "cpu_memory", "threads", "products",
        "scatters", "flop_counts", "ranges",
    )],
    *[f"tests/any_backend/{name}.py" for name in (
        "autodiff/test_slopes", "nn/test_nn", "nn/test_losses", "optim/test_optim", "ops/test_segments",
    )],
]
SECONDS = 25.0  # seconds of tests per mutant
LIMIT = 600.0  # seconds after which a mutant counts as hanging


def build(mutants: list[Mutant]) -> list[Mutant]:
    """Compiles all mutants into one build, each behind its switch. Leaves out those that do not compile."""
    (WORK / "mutants.h").write_text(SWITCH)
    tools = Path(sys.executable).parent
    program, options = f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", ["-DPULLBACK_SIMD_LEVELS=native-best", "-DPULLBACK_CUDA=OFF"]
    configure = ["-S", ".", "-B", "build/dev", "-G", "Ninja", program, f"-DPython_EXECUTABLE={sys.executable}", *options]
    while True:
        write([replace(m, text=m.text.replace("{on}", f"(pullback_mutants >> {i} & 1)")) for i, m in enumerate(mutants)])
        for file in {m.file for m in mutants}:
            (WORK / file).write_text(f'#include "{WORK}/mutants.h"\n{(WORK / file).read_text()}')
        subprocess.run([tools / "cmake", *configure], cwd=WORK, check=True, capture_output=True)
        done = subprocess.run([tools / "cmake", "--build", "build/dev", "--", "-k", "0"], cwd=WORK, capture_output=True, text=True)
        if done.returncode == 0:
            install = [tools / "cmake", "--install", "build/dev", "--prefix", "python"]
            subprocess.run(install, cwd=WORK, check=True, capture_output=True)
            return mutants
        wrong = {(file, int(line) - 1) for file, line in re.findall(r"(csrc/\S+?):(\d+):", done.stdout)}
        left = [m for m in mutants if (m.file, m.line) not in wrong]
        print(f"{len(mutants) - len(left)} do not compile", flush=True)
        restore(mutants)
        if len(left) == len(mutants):
            raise SystemExit(done.stdout[-4000:])
        mutants = left


# ---- running tests


def write(mutants: list[Mutant]) -> None:
    """Writes the copy's files with these mutants applied. Where two mutants of a file overlap, only the later one is applied."""
    for file, group in itertools.groupby(sorted(mutants, key=lambda m: (m.file, m.start)), key=lambda m: m.file):
        source, taken = (ROOT / file).read_bytes(), len((ROOT / file).read_bytes())
        for m in reversed(list(group)):
            if m.end <= taken:
                source, taken = source[: m.start] + m.text.encode() + source[m.end :], m.start
        (WORK / file).write_bytes(source)


def restore(mutants: list[Mutant]) -> None:
    for file in {m.file for m in mutants}:
        shutil.copyfile(ROOT / file, WORK / file)


def run(options: list[str], tests: Any = None, limit: float | None = None, **variables: str) -> tuple[int, list[str]]:
    """Runs these tests in the copy, or all tests if None.

    Returns pytest's status (124 if it reached the limit) and the failed tests.
    """
    (WORK / "tests.json").write_text(json.dumps(tests))
    (WORK / "failed.txt").write_text("")
    files = sorted({test.partition("::")[0] for test in tests or ["tests"]})
    paths = os.pathsep.join([str(WORK / "python"), str(WORK / "tools")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutate", "-p", "no:cacheprovider", "-rN", "--tb=line", *options, *files]
    # Python takes bytecode for current if the source's time and size match, and a mutant may share both with the original file.
    own = {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "MUTATE": str(WORK)}
    with (WORK / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command, cwd=WORK, env={**os.environ, **own, **variables}, stdout=log, stderr=log, start_new_session=True
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            status = 124
    return status, (WORK / "failed.txt").read_text().split("\n")[:-1]


def related(m: Mutant, calls: dict[str, Any]) -> list[str]:
    """Returns tests that call the mutant's function (outside functions: anything in its file), alternating between the test files.

    In each file the tests that call the fewest functions come first, because they are the most specific ones.
    """
    wanted = f"{m.file}:{m.function}"
    files: dict[str, list[str]] = defaultdict(list)
    for test in sorted(calls, key=lambda test: len(calls[test][1])):
        if any([f == wanted or (not m.function and f.startswith(wanted)) for f in calls[test][1]]):
            files[test.partition("::")[0]].append(test)
    taken, seconds = list[str](), 0.0
    for test in [test for turn in itertools.zip_longest(*files.values()) for test in turn if test]:
        if seconds < SECONDS:
            taken, seconds = [*taken, test], seconds + calls[test][0]
    return taken


def copy_checkout() -> None:
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")[:-1]
    libraries = [str(p.relative_to(ROOT)) for p in (ROOT / PACKAGE).rglob("*.so*")]
    for name in [name for name in [*files, *libraries] if (ROOT / name).is_file()]:
        (WORK / name).parent.mkdir(parents=True, exist_ok=True)
        if not (WORK / name).exists() or (WORK / name).read_bytes() != (ROOT / name).read_bytes():
            shutil.copy(ROOT / name, WORK / name)


def known_calls() -> dict[str, Any]:
    calls: dict[str, Any] = {}
    for path in sorted(WORK.glob("calls-*.json"), key=lambda path: path.stat().st_mtime):
        calls.update(json.loads(path.read_text()))
    return calls


def draw(options: argparse.Namespace) -> int:
    """Draws mutants, runs them, and writes the outcome of each. Returns 1 if one survives."""
    python, calls = options.what == "python", known_calls()
    mutants = python_mutants(options.seed, options.count) if python else build(cpp_mutants(options.seed, options.count)[:64])

    def attempt(some: list[Mutant], arguments: list[str], tests: Any, limit: float | None = LIMIT) -> tuple[int, list[str]]:
        if python:
            write(some)
        result = run(arguments, tests, limit, PULLBACK_MUTANTS=str(sum([1 << mutants.index(m) for m in some])))
        if python:
            restore(some)
        return result

    def keep(m: Mutant, status: int) -> None:
        m.state = "survives" if status in (0, 5) else "hangs" if status == 124 else "noticed"
        (WORK / "report.json").write_text(json.dumps([asdict(m) for m in mutants], indent=1))
        print(f"{m.state:10} {m.file}:{m.line} {m.kind}: {' '.join(m.was.split())} -> {' '.join(m.text.split())}", flush=True)

    if not python and (failed := run([], QUICK)[1]):
        raise SystemExit(f"These tests fail without a mutant: {failed}")
    for m in mutants:
        tests = related(m, calls) if python else QUICK
        keep(m, attempt([m], ["-x"], tests)[0] if tests else 0)
    left = [m for m in mutants if m.state == "survives"]
    if left and not options.fast:
        _, failed = attempt(left, [*NEVER, "-n", options.jobs, "--maxfail=300"], None, limit=None)
        tests = sorted(set(failed) - set(attempt([], [], failed)[1])) if failed else []  # tests that pass without a mutant
        for m in left if tests else []:
            keep(m, attempt([m], ["-x"], tests)[0])
    left = [m for m in left if m.state == "survives"]
    print(f"{len(mutants)} mutants, {len(mutants) - len(left)} noticed, {len(left)} survive")
    return bool(left)


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutation test of pullback's sources.")
    parser.add_argument("what", choices=["trace", "python", "cpp"])
    parser.add_argument("tests", nargs="*", help="for trace: only these files of tests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--jobs", default="1", help="processes of the runs of the whole suite")
    parser.add_argument("--fast", action="store_true", help="no run of the whole suite")
    options = parser.parse_args()
    copy_checkout()
    if options.what != "trace":
        return draw(options)
    _, failed = run([*NEVER, "-n", options.jobs, "--dist", "loadfile"], options.tests or None, MUTATE_TRACE="1")
    print(f"{len(known_calls())} tests are traced. These fail, and are left out: {failed}")
    return 0


# ---- inside pytest: -p mutate

if "MUTATE" in os.environ:
    import pytest

    _calls: dict[str, Any] = {}
    _failed = set[str]()
    _folder = Path(os.environ["MUTATE"])

    def pytest_collection_modifyitems(items: list[Any]) -> None:
        """Keeps only the requested tests."""
        tests = json.loads((_folder / "tests.json").read_text())
        if tests is not None:
            kept = set(tests)
            items[:] = [item for item in items if item.nodeid in kept or item.nodeid.partition("::")[0] in kept]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item: Any) -> Any:
        if "MUTATE_TRACE" not in os.environ:
            return (yield)
        codes, start = set[Any](), time.perf_counter()

        def listen(frame: Any, event: str, _: Any) -> None:
            if event == "call":
                codes.add(frame.f_code)

        sys.setprofile(listen)
        result = yield
        sys.setprofile(None)
        prefix = str(_folder / "python/")
        ours = {(c.co_filename, c.co_qualname) for c in codes if c.co_filename.startswith(prefix)}
        _calls[item.nodeid] = [time.perf_counter() - start, sorted([f"{os.path.relpath(f, _folder)}:{name}" for f, name in ours])]
        return result

    def pytest_runtest_logreport(report: Any) -> None:
        if report.failed:
            _failed.add(report.nodeid)
        if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
            with (_folder / "failed.txt").open("a") as file:
                file.write(report.nodeid + "\n")

    def pytest_sessionfinish() -> None:
        if "MUTATE_TRACE" in os.environ and _calls:
            passed = {test: calls for test, calls in _calls.items() if test not in _failed}
            (_folder / f"calls-{os.getpid()}.json").write_text(json.dumps(passed))


if __name__ == "__main__":
    sys.exit(main())
