"""Times the workloads of several libraries in turns, with each library in a separate process.

In separate processes the idle threads of one library cannot slow the next. Turns make both runs of a ratio adjacent in time.

    python benchmarks/turns.py eager torch    serves workloads/eager/torch.py to the process that started it
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time


def options(description: str, rounds: int, seconds: float) -> argparse.Namespace:
    """Parses the command line of a benchmark whose libraries take turns."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    parser.add_argument("--rivals", default="torch,jax")
    return parser.parse_args()


class Library:
    """A process that runs one library's workloads, from one folder of `workloads`, on request.

    Keyword arguments are environment variables of the process.
    """

    def __init__(self, folder: str, name: str, **variables: str) -> None:
        self.name = name
        environment = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")} | variables
        command = [sys.executable, __file__, folder, name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.facts = self._read()

    def _read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self.name} ended")
        return json.loads(line)

    def seconds(self, workload: str, budget: float):
        """Returns the median seconds of one run of the workload, or None if the library does not have this workload."""
        self.process.stdin.write(json.dumps([workload, budget]) + "\n")
        self.process.stdin.flush()
        return self._read()

    def call(self, workload: str):
        """Returns the number that one run of the workload returns."""
        return self.seconds(workload, 0)

    def close(self) -> None:
        """Ends the process, and so frees its memory."""
        self.process.stdin.close()
        self.process.wait()


def serve(folder: str, name: str) -> None:
    """Runs in the process that Library starts: answers each request, a line of standard input, with a line of JSON."""
    out = sys.stdout
    sys.stdout = sys.stderr
    module = __import__(f"workloads.{folder}.{name}", fromlist=["WORKLOADS"])
    made = {}
    print(json.dumps(module.facts()), file=out, flush=True)
    for line in sys.stdin:
        workload, budget = json.loads(line)
        if workload not in module.WORKLOADS:
            print("null", file=out, flush=True)
            continue
        run = made.setdefault(workload, None) or module.WORKLOADS[workload]()
        made[workload] = run
        print(json.dumps(measure(run, budget) if budget else run()), file=out, flush=True)


def measure(run, budget: float) -> float:
    """Returns the median seconds of a run. After a warm-up the run is repeated for about `budget` seconds."""
    for _ in range(3):
        run()
    times = []
    end = time.perf_counter() + budget
    while time.perf_counter() < end or len(times) < 5:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def rounds_of(runs: dict[str, tuple[Library, str]], rounds: int, budget: float) -> dict[str, list[float]]:
    """Times each run (a library and its workload) once per round, in turns.

    Leaves out the runs whose library lacks the workload.
    """
    taken = {key: [] for key in runs}
    for _ in range(rounds):
        for key, (library, workload) in runs.items():
            taken[key].append(library.seconds(workload, budget))
    return {key: times for key, times in taken.items() if times[0] is not None}


def spread(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Returns the median, the lowest and the highest ratio of the two runs of each round."""
    ratios = sorted(a / b for a, b in zip(ours, theirs))
    return {"median": statistics.median(ratios), "low": ratios[0], "high": ratios[-1]}


if __name__ == "__main__":
    serve(*sys.argv[1:])
