"""Mutation test: changes the sources at random, one place at a time, and finds which files of tests notice each change.

    python tools/mutate.py draw --seed 1 --python 120 --cpp 60    puts the mutants into one copy of the checkout and compiles it
    python tools/mutate.py trace     runs all tests once, with all mutants switched off (somewhat more than the suite's time)
    python tools/mutate.py matrix    runs each mutant against the files of tests that reach it; goes on where it was stopped
    python tools/mutate.py choose --minutes 10    writes tests/matrix.json, and in it which files `make test` leaves out

The copy is build/mutate or the folder named by MUTATE, so the checkout itself does not change. The trace notes for each test how
long it takes and which mutants it reaches. The matrix starts with the file whose tests are through first, and takes the tests that
reach the fewest mutants first: at most SECONDS of each file, MOST of a mutant, and none that takes LONG. It ends with a mutant as
soon as ENOUGH files have noticed it. A mutant that no file notices needs a test, or a reason why it changes nothing that a user or
profile sees.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mutants import CPP_SWITCH, PACKAGE, PYTHON_SWITCH, ROOT, Mutant, cpp_mutants, python_mutants, without_errors

WORK = Path(os.environ.get("MUTATE") or ROOT / "build" / "mutate")
SECONDS, MOST, LONG, ENOUGH = 6.0, 90.0, 20.0, 2
SHOWN = ("file", "line", "kind", "was", "change")  # what the matrix says of a mutant


# ---- draw: one copy of the checkout with all mutants in it


def copy_checkout() -> None:
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")[:-1]:
        if (ROOT / name).is_file():
            (WORK / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, WORK / name)


def write(mutants: list[Mutant]) -> None:
    """Writes the copy's files with these mutants. Where two mutants of a file overlap, it has only the later one."""
    files: dict[str, list[tuple[int, Mutant]]] = defaultdict(list)
    for number, m in enumerate(mutants):
        files[m.file].append((number, m))
    for file, group in files.items():
        source, taken = (ROOT / file).read_bytes(), len((ROOT / file).read_bytes())
        switch = "_mutant({})" if file.endswith(".py") else "pullback_mutant({})"
        for number, m in sorted(group, key=lambda pair: pair[1].start, reverse=True):
            if m.end <= taken:
                text = m.text.replace("{on}", switch.format(number))
                source, taken = source[: m.start] + text.encode() + source[m.end :], m.start
        (WORK / file).write_bytes(with_switch(file, source))


def with_switch(file: str, source: bytes) -> bytes:
    if not file.endswith(".py"):
        return f'#include "{WORK}/mutants.h"\n'.encode() + source
    future = b"from __future__ import annotations\n"
    return source.replace(future, future + b"from pullback._mutants import on as _mutant\n", 1)


def build(mutants: list[Mutant]) -> list[Mutant]:
    """Compiles all mutants into one build. Returns those that compile."""
    tools = Path(sys.executable).parent
    options = ["-DPULLBACK_SIMD_LEVELS=native-best", "-DPULLBACK_CUDA=OFF", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"]
    configure = ["-S", ".", "-B", "build/dev", "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}", *options]
    subprocess.run([tools / "cmake", *configure], cwd=WORK, check=True, capture_output=True)
    while True:
        write(mutants)
        done = subprocess.run([tools / "cmake", "--build", "build/dev", "--", "-k", "0"], cwd=WORK, capture_output=True, text=True)
        if done.returncode == 0:
            install = [tools / "cmake", "--install", "build/dev", "--prefix", "python"]
            subprocess.run(install, cwd=WORK, check=True, capture_output=True)
            return mutants
        left = without_errors(mutants, done.stdout)
        print(f"{len(mutants) - len(left)} do not compile", flush=True)
        if len(left) == len(mutants):
            raise SystemExit(done.stdout[-4000:])
        for file in {m.file for m in mutants}:
            shutil.copy(ROOT / file, WORK / file)
        mutants = left


def draw(options: argparse.Namespace) -> None:
    copy_checkout()
    (WORK / "mutants.h").write_text(CPP_SWITCH)
    (WORK / PACKAGE / "_mutants.py").write_text(PYTHON_SWITCH)
    mutants = build([*python_mutants(options.seed, options.python), *cpp_mutants(options.seed, options.cpp)])
    (WORK / "mutants.json").write_text(json.dumps([asdict(replace(m, text="")) for m in mutants]))
    for old in [*WORK.glob("trace-*"), *WORK.glob("matrix-*")]:
        old.unlink()
    print(f"{len(mutants)} mutants")


# ---- trace, matrix: pytest with this file as a plugin


def start(*arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutate", "-p", "no:cacheprovider", "-rN", "--tb=no", *arguments]
    paths = os.pathsep.join([str(WORK / "python"), str(ROOT / "tools")])
    own = {"PYTHONPATH": paths, "MUTATE": str(WORK), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=WORK, env={**os.environ, **own, **variables})


def trace(options: argparse.Namespace) -> None:
    start("-n", str(options.jobs), "--dist", "loadfile", "--no-loadscope-reorder", MUTATE_STEP="trace").wait()


def matrix(options: argparse.Namespace) -> None:
    for process in [start("-s", "-p", "no:xdist", MUTATE_STEP=f"{k}/{options.jobs}") for k in range(options.jobs)]:
        process.wait()


def lines_of(pattern: str) -> list[Any]:
    return [json.loads(line) for path in sorted(WORK.glob(pattern)) for line in path.read_text().splitlines()]


# ---- choose


def cover(noticed: list[set[str]], seconds: dict[str, float], budget: float) -> set[str]:
    """Returns files that notice as many mutants as they can in this time, and then the shortest of the others."""
    kept, left = set[str](), budget
    while fits := [file for file in seconds if file not in kept and seconds[file] <= left]:
        open_ = [files for files in noticed if not files & kept]
        gain = {file: sum([file in files for files in open_]) / (seconds[file] + 1e-3) for file in fits}
        best = max(fits, key=lambda file: (gain[file], -seconds[file]))
        kept, left = kept | {best}, left - seconds[best]
    return kept


def count(noticed: list[set[str]], kept: set[str]) -> int:
    return sum([bool(files & kept) for files in noticed])


def choose(options: argparse.Namespace) -> None:
    mutants = json.loads((WORK / "mutants.json").read_text())
    files: dict[str, dict[str, Any]] = defaultdict(lambda: {"tests": 0, "seconds": 0.0})
    for test, took, _ in lines_of("trace-*"):
        entry = files[test.partition("::")[0]]
        entry["tests"], entry["seconds"] = entry["tests"] + 1, round(entry["seconds"] + took, 4)
    rows = sorted(lines_of("matrix-*"), key=lambda row: row["mutant"])
    noticed, seconds = [set(row["noticed"]) for row in rows if row["noticed"]], {file: x["seconds"] for file, x in files.items()}
    budget = options.minutes * 60 * options.jobs * 0.85  # the rest is for the start, and for the processor that is done first
    kept, blind = cover(noticed, seconds, budget), cover(noticed[::2], seconds, budget)
    print(f"{len(mutants)} mutants; tests reach {len(rows)} and notice {len(noticed)}, those kept {count(noticed, kept)}.")
    print(f"Files chosen by half of them notice {count(noticed[1::2], blind)} of the other {len(noticed[1::2])}.")
    table = [{**{key: mutants[row["mutant"]][key] for key in SHOWN}, "noticed": row["noticed"]} for row in rows]
    matrix = {"left_out": sorted(set(files) - kept), "files": dict(sorted(files.items())), "mutants": table}
    (ROOT / "tests" / "matrix.json").write_text(json.dumps(matrix, indent=1, ensure_ascii=False) + "\n")
    for row in [row for row in table if not row["noticed"]]:
        print(f"{row['file']}:{row['line']} {row['kind']}: {' '.join(row['was'].split())} -> {' '.join(row['change'].split())}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutation test of pullback's sources.")
    parser.add_argument("step", choices=["draw", "trace", "matrix", "choose"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--python", type=int, default=120, help="mutants of Python")
    parser.add_argument("--cpp", type=int, default=60, help="mutants of C++")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--minutes", type=float, default=10.0, help="time of the tests that `make test` runs")
    options = parser.parse_args()
    {"draw": draw, "trace": trace, "matrix": matrix, "choose": choose}[options.step](options)


# ---- inside pytest: -p mutate


def own_table(name: str) -> Any:
    """Returns the table of switches of this process and of those that it starts."""
    import mmap

    path = WORK / f"switches-{name}"
    path.write_bytes(bytes(4096))
    os.environ["PULLBACK_MUTANTS"] = str(path)
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


if "MUTATE_STEP" in os.environ:
    import pytest
    from _pytest.runner import runtestprotocol

    STEP = os.environ["MUTATE_STEP"]
    NAME = os.environ.get("PYTEST_XDIST_WORKER", STEP.replace("/", "-of-"))
    table = own_table(NAME)  # before pullback is imported

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item: Any) -> Any:
        table[:] = bytes(4096)
        begin = time.perf_counter()
        result = yield
        reached = [i for i, state in enumerate(table[:]) if state]
        with (WORK / f"trace-{NAME}").open("a") as file:
            file.write(json.dumps([item.nodeid, round(time.perf_counter() - begin, 4), reached]) + "\n")
        return result

    def attempt(items: list[Any], mutant: int | None, limit: float) -> str | None:
        """Runs tests in a child with a mutant switched on. Returns the first that fails or does not come to its end in time."""
        current = WORK / f"current-{NAME}"
        current.write_text("")
        table[:] = bytes(4096)
        if mutant is not None:
            table[mutant] = 2
        if (child := os.fork()) == 0:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            items[0].config.option.basetemp = WORK / f"temporary-{NAME}"
            for item, following in zip(items, [*items[1:], None]):
                current.write_text(item.nodeid)
                if any([report.failed for report in runtestprotocol(item, log=False, nextitem=following)]):
                    os._exit(1)
            os._exit(0)
        end = time.monotonic() + limit
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                status = os.waitpid(child, 0)[1]
                break
            time.sleep(0.003)
        return current.read_text() if status else None

    def row_of(mutant: int, reaching: dict[str, list[tuple[float, int, Any]]], broken: set[str]) -> dict[str, Any]:
        noticed, passed, spent = list[str](), list[str](), 0.0
        for file, entries in sorted(reaching.items(), key=lambda pair: sum([took for took, _, _ in pair[1]])):
            chosen, total = list[Any](), 0.0
            for took, _, item in sorted(entries, key=lambda entry: entry[1]):
                if item.nodeid not in broken and (not chosen or total + took < SECONDS):
                    chosen, total = [*chosen, item], total + took
            if len(noticed) == ENOUGH or spent > MOST:
                break
            while chosen and (name := attempt(chosen, mutant, 20 + 5 * total)):
                failed = [item for item in chosen if item.nodeid == name]
                if failed and attempt(failed, None, 60) is None:
                    noticed.append(file)
                    break
                broken.add(name)
                chosen = [item for item in chosen if item.nodeid != name] if failed else []
            else:
                passed.append(file)
            spent += total
        return {"mutant": mutant, "noticed": noticed, "passed": passed}

    def pytest_runtestloop(session: Any) -> Any:
        if STEP == "trace":
            return None
        import gc

        share, shares = map(int, STEP.split("/"))
        items = {item.nodeid: item for item in session.items}
        reaching: Any = defaultdict(lambda: defaultdict(list))
        for test, took, mutants in lines_of("trace-*"):
            for mutant in mutants if test in items and took < LONG else []:
                reaching[mutant][test.partition("::")[0]].append((took, len(mutants), items[test]))
        done, broken = {row["mutant"] for row in lines_of("matrix-*")}, set[str]()
        gc.collect()
        gc.freeze()
        for mutant in [m for m in sorted(reaching) if m % shares == share and m not in done]:
            row = row_of(mutant, reaching[mutant], broken)
            with (WORK / f"matrix-{share}").open("a") as file:
                file.write(json.dumps(row) + "\n")
        (WORK / f"broken-{share}.json").write_text(json.dumps(sorted(broken)))
        return True


if __name__ == "__main__":
    main()
