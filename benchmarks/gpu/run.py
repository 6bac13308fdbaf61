"""The commands of run.sh: the stages of each command, their order, and the time that each stage may take.

`figures` first tries the kernels, with and without compute-sanitizer, and then measures all libraries in turns. `tests` runs the
tests. `rest` runs what the other two did not reach, and what takes long to compile. A command ends by itself before --seconds are
over. Every result is printed and written at once; results.py describes the file, stages.py the limits. `plan` only prints the
stages, with the seconds that they took when they last ran.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import install
import machine
import suite
from machine import ROOT, Gpu
from stages import Run, Stage, StageError, expect, say
from table import FOLDER, newest_first, stages_of, summary

import kernels
from results import Results, archive, slug, today

HERE = Path(__file__).resolve().parent
PARALLEL = 8  # families that run at the same time
AT_ONCE = 6  # families in one process of compute-sanitizer: an error that ends the process costs no more than these
WORKERS = 16
SECONDS = 570.0  # for everything, so that a command with its begin and end fits into ten minutes


class Place:
    """The folders in which a run builds and writes, and the kind of machine that it builds for."""

    def __init__(self, options: argparse.Namespace, gpu: Gpu | None) -> None:
        self.simulated: bool = options.simulated
        self.architecture = gpu.architecture if gpu else None
        self.work = ROOT / "build" / "gpu" / ("simulated" if options.simulated else "")
        self.given = options.site is not None
        self.site: Path = options.site.resolve() if options.site else self.work / "site"
        self.logs = self.work / "logs" / options.command
        self.workers: int = options.workers
        self.only_missing: bool = options.only_missing

    def environment(self) -> dict[str, str]:
        """Returns the variables of all processes.

        The built package comes first on the path, and no variable of pullback is inherited.
        """
        out = {name: value for name, value in os.environ.items() if not name.startswith(("PULLBACK_", "PYTEST_"))}
        paths = [str(self.site), *filter(None, [os.environ.get("PYTHONPATH")])]
        out.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 2))
        python, *compiler = [str(Path(tool).parent) for tool in (sys.executable, machine.nvcc()) if tool]
        return out | {
            "PYTHONPATH": os.pathsep.join(paths), "PATH": os.pathsep.join([python, out.get("PATH", ""), *compiler]),
            "PYTHONUNBUFFERED": "1", "CUDA_MODULE_LOADING": "LAZY", "PULLBACK_CACHE_DIR": str(self.work / "cache"),
        }

    def script(self, name: str, *arguments: str) -> list[str]:
        """Returns the command that runs one of the scripts in this folder."""
        return [sys.executable, str(HERE / f"{name}.py"), *arguments, *(["--simulated"] if self.simulated else [])]


# ---- stages


def measured(run: Run, place: Place, script: str, *arguments: str) -> str:
    """Runs a script whose rows are the results. Raises StageError if the script or one of its rows failed."""
    # A script that can leave work out gets less time than its stage has.
    seconds = ["--seconds", f"{run.stage_left() - 5:.0f}"] if script == "turns" else []
    ended = run.process(place.script(script, *arguments, *seconds), "-".join([script, *arguments]))
    rows = run.results.rows(run.stage)
    expect(ended, f"{script}.py, after {len(rows)} rows,")
    # Without a GPU the rivals run on the CPU, which has no CUDA graphs. A rival that is missing is a row, not a failure.
    sides = (None, "pullback") if place.simulated else (None, "pullback", "torch", "jax")
    failed = [row for row in rows if row.get("side") in sides and row.get("failed", "not installed") != "not installed"]
    if failed:
        raise StageError(f"{len(failed)} of {len(rows)} rows failed; the first: {failed[0]['name']}: {failed[0]['failed'][:500]}")
    return f"{len(rows)} rows"


def smoke(run: Run, place: Place) -> str:
    """Tries every family of kernels in a process with a short limit.

    The first family could hang, so it runs before all others and alone.
    """
    families = next(row["families"] for row in run.results.rows("native") if "families" in row)
    first, *others = families
    limit = 60 if place.simulated else 30  # the first imports and contexts on a machine are slow

    def one(name: str) -> str | None:
        ended = run.process(place.script("smoke", name), f"smoke-{name}", limit, environment={"PULLBACK_CUDA_SYNC": "1"})
        if ended.status == 0:
            return None
        run.row({"name": name, "failed": ended.tail[-700:], "status": ended.status})
        return name

    failed = [one(first)]
    with ThreadPoolExecutor(1 if place.simulated else PARALLEL) as pool:
        failed += pool.map(one, others)
    if names := [name for name in failed if name]:
        raise StageError(f"{len(names)} of {len(families)} families failed: {', '.join(names)}")
    return f"{len(families)} families"


def trained_weights(run: Run, place: Place) -> str:
    """Compares the hashes of what the device and every built SIMD level with fused multiply-add have trained.

    Raises StageError if they differ.
    """
    levels = [path.name.split(".")[0].removeprefix("_cpu_") for path in sorted((place.site / "pullback").glob("_cpu_v[34].*so"))]
    for level in levels or [""]:
        expect(run.process(place.script("weights", "cpu"), "weights", environment={"PULLBACK_SIMD": level}), f"training on {level}")
    expect(run.process(place.script("weights", "cuda"), "weights"), "training on the device")
    hashes: dict[str, dict[str, str]] = {}
    for row in run.results.rows(run.stage):
        hashes.setdefault(row["network"], {})[row["level"] if row["device"] == "cpu" else "cuda"] = row["sha256"]
    different = [network for network, found in hashes.items() if len({*found.values()}) > 1]
    where = list(next(iter(hashes.values())))
    run.row({"name": "weights are equal", "equal": not different, "on": where, "different": different})
    if different:
        raise StageError(f"different bits in {'; '.join(different)} on {', '.join(where)}")
    return f"equal bits on {', '.join(where)}"


def counted_kernels(run: Run, place: Place, metrics: Mapping[str, str]) -> str:
    """Counts every CUDA kernel of the captured steps with ncu."""
    if place.simulated:
        return "not run: simulated"
    ncu = machine.ncu()
    if ncu is None:
        raise StageError("ncu was not found; stage kernels has the times between events")
    table = place.work / "ncu.csv"
    table.unlink(missing_ok=True)
    ended = run.process(kernels.command(ncu, place.script("kernels", "replay"), str(table), metrics), "ncu")
    text = table.read_text(errors="replace") if table.exists() else ""
    (run.logs / "ncu-table.log").write_text(text)
    expect(ended, f"ncu ({text[:300]})")
    try:
        rows = list(kernels.rows_of(text, metrics))
    except (ValueError, KeyError) as error:
        raise StageError(f"ncu's table cannot be read: {type(error).__name__}: {error}. It begins: {text[:400]}") from error
    for row in rows:
        run.row(row)
    return f"{len(rows)} steps"


def sanitized(run: Run, place: Place, tool: str) -> str:
    """Runs a call of every family under compute-sanitizer, a few families in each process, with no other process on the GPU."""
    found = machine.sanitizer()
    if found is None and not place.simulated:
        raise StageError("compute-sanitizer was not found")
    prefix = [] if place.simulated else [str(found), "--tool", tool, "--error-exitcode", "9", "--print-limit", "40"]
    if prefix and tool == "memcheck":
        prefix += ["--report-api-errors", "no"]  # libraries make API calls that are allowed to fail
    families = next(row["sanitized"] for row in run.results.rows("native") if "sanitized" in row)
    parts = [families[k : k + AT_ONCE] for k in range(0, len(families), AT_ONCE)]
    failed = []
    for number, part in enumerate(parts):
        reports: list[str] = []

        def on_line(line: str, reports: list[str] = reports) -> None:
            if line.startswith("========="):
                reports.append(line.rstrip())
            run.take(line)

        limit = run.stage_left() / min(2, len(parts) - number)  # at most half of what is left, so that a hang costs no more
        ended = run.process([*prefix, *place.script("sanitize", "--families", ",".join(part))], tool, limit, on_line)
        found_in = [line.strip("= ") for line in reports if "SUMMARY" in line]
        run.row({"name": tool, "families": part, "summary": found_in, "first_reports": reports[:40], "status": ended.status})
        if ended.status != 0:
            how = f"status {ended.status}" if ended.status is not None else f"stopped after {ended.seconds:.0f} s"
            failed.append(f"{', '.join(part)}: {how}, {found_in[-1] if found_in else ended.tail[-300:]}")
    if failed:
        raise StageError(f"{len(failed)} of {len(parts)} processes failed: {'; '.join(failed)}")
    return f"nothing was found in {len(families)} families"


def verified(run: Run, place: Place) -> str:
    """Compares the ledger's FLOPs with the hardware counters for each network."""
    failed = []
    for number in range(3):
        ended = run.process(place.script("counters", str(number)), "counters", run.stage_left() / (3 - number))
        if ended.status != 0:
            failed.append(f"network {number}: {ended.tail[-700:] if ended.status is not None else 'was stopped at its limit'}")
    if failed:
        raise StageError("; ".join(failed))
    steps = [row for row in run.results.rows(run.stage) if "whole step" in row["name"]]
    reasons = [row["why_not"] for row in run.results.rows(run.stage) if "why_not" in row]
    return f"not run: {reasons[0]}" if reasons else f"counted / ledger: {', '.join([format(row['ratio'], '.4f') for row in steps])}"


# ---- commands


def built(place: Place) -> list[Stage]:
    """Returns the stages that every command begins with."""
    native = Stage("native", partial(install.check_native, work=place.work, simulated=place.simulated), 90, 10, essential=True)
    if place.given:
        return [native]
    limit = 1800 if place.simulated else 300
    return [
        Stage("wheels", partial(install.install_wheels, site=place.site), 60, 5, essential=True),
        Stage("build", lambda run: install.build(run, place.site, place.work, place.architecture), limit, 60, essential=True),
        native,
    ]


def figures(place: Place) -> list[Stage]:
    of = partial(_of, place)
    return [
        *built(place),
        Stage("smoke", partial(smoke, place=place), 120, 30),
        Stage("memcheck", partial(sanitized, place=place, tool="memcheck"), 120, 30),
        Stage("racecheck", partial(sanitized, place=place, tool="racecheck"), 120, 30),
        Stage("weights", partial(trained_weights, place=place), 60, 10),
        Stage("steps", of("turns", "steps"), 290, 190),
        Stage("single kernels", of("turns", "singles"), 75, 25),
        Stage("everywhere", of("everywhere"), 30, 5),
        Stage("kernels", of("kernels"), 45, 10),
        Stage("nodes", of("nodes"), 30, 8),
        Stage("ncu", partial(counted_kernels, place=place, metrics=kernels.METRICS), 75, 20),
    ]


def checks(place: Place) -> list[Stage]:
    return [
        *built(place),
        Stage("tests", partial(tested, place=place, only_missing=place.only_missing), 480, 170),
        Stage("verify", partial(verified, place=place), 120, 30),
        Stage("soak", _of(place, "soak", "--seconds", "4" if place.simulated else "25"), 60, 20),
    ]


def rest(place: Place) -> list[Stage]:
    return [
        *built(place),
        Stage("waits", _of(place, "waits"), 45, 10),
        Stage("micro", lambda run: install.micro(run, place.work, place.architecture), 60, 10),
        Stage("missing tests", partial(tested, place=place, only_missing=True), 240, 40),
        Stage("compiled steps", _of(place, "turns", "compiled"), 300, 220),
        Stage("ncu: more counters", partial(counted_kernels, place=place, metrics=kernels.METRICS | kernels.MORE), 90, 20),
    ]


def tested(run: Run, place: Place, only_missing: bool) -> str:
    """Runs the tests, or those that no earlier run of the day has passed. A simulated run has one test of each file."""
    earlier = [*run.results.earlier_rows("tests", "tests"), *run.results.earlier_rows("rest", "missing tests")]
    return suite.run_tests(
        run, place.workers, sources=install.sources(), earlier=earlier, only_missing=only_missing, one_test_per_file=place.simulated
    )


def _of(place: Place, script: str, *arguments: str) -> Callable[[Run], str]:
    return lambda run: measured(run, place, script, *arguments)


COMMANDS = {"figures": figures, "tests": checks, "rest": rest}


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__)
    parser.add_argument("command", choices=[*COMMANDS, "plan"])
    parser.add_argument("--out", type=Path, help="a folder that gets a copy of the results and of the logs, as logs-COMMAND.tar.gz")
    parser.add_argument("--only", help="stages to run, by name, with commas between; wheels, build and native run anyway")
    parser.add_argument("--skip", default="", help="stages to leave out, by name, with commas between")
    parser.add_argument("--only-missing", action="store_true", help="leave out the tests that an earlier run of the day has passed")
    parser.add_argument("--seconds", type=float, help=f"for everything: {SECONDS:.0f}, or as long as a simulated build may take")
    parser.add_argument("--workers", type=int, help=f"processes that run the tests: {WORKERS}, or one for each core")
    parser.add_argument("--site", type=Path, help="a folder with a built package, which is then not built")
    parser.add_argument("--simulated", action="store_true", help="without a GPU: small sizes, and numbers that mean nothing")
    options = parser.parse_args(words)
    if options.out:
        # relative to the caller's folder, since run.sh changes to another one
        options.out = Path(os.environ.get("CALLED_FROM", ""), options.out).resolve()
    if options.command != "plan":
        options.workers = options.workers or min(WORKERS, os.cpu_count() or 1)
    options.seconds = options.seconds or (7200 if options.simulated else SECONDS)
    return options


def plan(options: argparse.Namespace) -> str:
    """Returns the stages of every command, with the seconds that they last took on a GPU, and their limits."""
    found, lines = newest_first(FOLDER), []
    for command, make in COMMANDS.items():
        known = stages_of(found[0], command) if found else {}
        stages = make(Place(options, None))
        total = 0.0
        for stage in stages:
            seconds, words = known.get(stage.name, {}).get("seconds"), "as it last took"
            if stage.name == "tests":
                durations = json.loads(suite.DURATIONS.read_text())
                seconds, words = suite.estimate(durations, options.workers or WORKERS)["seconds"], "by the durations of the files"
            total += max(seconds or 0.0, stage.reserve)
            shown = f"{seconds:.0f} s, {words}" if seconds is not None else f"it never ran; {stage.reserve:.0f} s are reserved"
            lines.append(f"{command:8} {stage.name:20} at most {stage.limit:4.0f} s   {shown}")
        lines.append(f"{command:8} {'together':20} about {total:.0f} s of {options.seconds:.0f}\n")
    return "\n".join(lines)


def chosen_stages(stages: list[Stage], options: argparse.Namespace) -> list[Stage]:
    """Returns the requested stages. Ends the program if there is no stage of a requested name."""
    only = options.only.split(",") if options.only else [stage.name for stage in stages]
    skipped = [name for name in options.skip.split(",") if name]
    names = [stage.name for stage in stages]
    if unknown := [name for name in [*only, *skipped] if name not in names]:
        sys.exit(f"run.sh {options.command}: no stage is called {', '.join(unknown)}. There are: {', '.join(names)}.")
    return [stage for stage in stages if (stage.name in only or stage.essential) and stage.name not in skipped]


def results_of(options: argparse.Namespace, place: Place, gpu: Gpu | None) -> Results:
    """Opens the results file of this GPU and this day. Results of runs without a GPU go to the build folder, outside the tree."""
    name = f"{slug(gpu.name) if gpu else 'simulated' if options.simulated else 'no-gpu'}-{today()}.json"
    folder = ROOT / "benchmarks" / "results" if gpu and not options.simulated else place.work
    copies = [options.out / name] if options.out else []

    def conditions() -> dict[str, Any]:
        return {"sources": install.sources(), "processor": machine.processor(), "clocks": machine.state() if gpu else None}

    return Results(folder / name, gpu.name if gpu else "simulated", options.command, options.simulated, copies, conditions)


def main() -> int:
    begin = time.monotonic()
    # a shell's background jobs ignore SIGINT, and the tests would inherit this
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = arguments()
    if options.command == "plan":
        say(plan(options))
        return 0
    gpu = None if options.simulated else machine.find_gpu()
    found = gpu if isinstance(gpu, Gpu) else None
    place = Place(options, found)
    sys.path.append(str(place.site))
    stages = chosen_stages(COMMANDS[options.command](place), options)
    if options.simulated:  # on processors that other programs use too
        stages = [stage._replace(limit=10 * stage.limit) for stage in stages]
    needs = machine.needs(options.simulated, options.command)
    say(f"== what {options.command} needs\n{machine.table(needs)}")
    results = results_of(options, place, found)
    missing = [need.name for need in needs if need.found is None]
    chosen = {"only": options.only, "skip": options.skip}
    results.facts(machine=machine.facts(found), sources=install.sources(), arguments=chosen, missing=missing)
    if isinstance(gpu, str):
        say(f"run.sh {options.command}: nothing can be measured: {gpu}.")
        return 2
    if fatal := [need.name for need in needs if need.found is None and need.fatal and not place.given]:
        say(f"run.sh {options.command}: nothing can be measured without {', '.join(fatal)}.")
        return 2
    shutil.rmtree(place.logs, ignore_errors=True)
    run = Run(results, options.seconds - (time.monotonic() - begin), place.logs, place.environment(), ROOT)
    try:
        fine = run.perform(stages)
    finally:
        results.facts(nvidia_smi_after=machine.state() if found else None)
        if place.logs.exists():
            packed = f"logs-{options.command}.tar.gz"
            archive(place.logs, [place.work / packed, *([options.out / packed] if options.out else [])])
    say(f"== what was found, in short\n{summary(results.data, options.command, [stage.name for stage in stages])}")
    say(f"== {options.command}: {'all is well' if fine else 'something failed'}; {results.path}, {results.command['seconds']} s")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
