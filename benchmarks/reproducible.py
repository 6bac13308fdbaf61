"""Times Adam steps in the mode "everywhere" against the mode "machine", on this CPU.

Each mode has a process, and the processes take turns (turns.py). The table gives the median ratio of the rounds, with the lowest
and the highest one.

    python benchmarks/reproducible.py [--rounds 7] [--seconds 0.3] [--only captured] [--json results.json]
"""

import json
import statistics
from pathlib import Path

from turns import Library, options, rounds_of, spread

# Maps each network to the highest ratio that meets the target. A library may compute the products of the large one under "machine".
TARGETS = {"mlp 2-16-16-2": 1.05, "mlp 784-128-10": 1.05, "mlp 784-1024-1024-10": 1.25}
WAYS = {"captured": "{}, exact", "eager": "{}"}  # maps each folder of workloads to the names of its workloads
MODES = ("everywhere", "machine")


def main() -> None:
    asked = options(__doc__, rounds=7, seconds=0.3)
    results = {}
    print(f"{'Adam step (float32)':42} {'everywhere':>11} {'machine':>11}   {'ratio (lowest-highest)':22}   target")
    for way, workload in WAYS.items():
        modes = {mode: Library(way, "pullback", PULLBACK_REPRODUCIBLE=mode) for mode in MODES}
        for net, target in TARGETS.items():
            name = f"{net}, {way}"
            if asked.only not in name:
                continue
            runs = {mode: (library, workload.format(net)) for mode, library in modes.items()}
            taken = rounds_of(runs, asked.rounds, asked.seconds)
            ours, theirs = [statistics.median(taken[mode]) * 1e6 for mode in MODES]
            ratio = spread(taken["everywhere"], taken["machine"])
            results[name] = {"us": {"everywhere": ours, "machine": theirs}, "ratio": ratio}
            words = f"{ratio['median']:5.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"
            missed = " missed" if ratio["median"] > target else ""
            print(f"{name:42} {ours:9.1f}us {theirs:9.1f}us   {words:22}   <= {target:.2f}{missed}", flush=True)
    if asked.json:
        Path(asked.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
