"""Times training steps of networks, one batch norm, and attention alone, against PyTorch's eager code, on this CPU.

pullback's eager step, its captured step and PyTorch take turns (turns.py), with one thread and with two. A ratio is the median of
the rounds, with the lowest and the highest one.

    python benchmarks/networks.py [--rounds 7] [--seconds 0.5] [--only ResNet] [--json results.json]
"""

import json
import statistics
from pathlib import Path

from turns import Library, options, rounds_of, spread
from workloads.networks import SHAPES

THREADS = (1, 2)


def main() -> None:
    asked = options(__doc__, rounds=7, seconds=0.5)
    results = {"facts": [], "rows": {}}
    for threads in THREADS:
        count = str(threads)
        variables = {"PULLBACK_NUM_THREADS": count, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}
        ours, theirs = [Library("networks", name, **variables) for name in ("pullback", "torch")]
        results["facts"] += [ours.facts, theirs.facts]
        print(ours.facts, theirs.facts, sep="\n")
        print(f"{'forward, backward and step (float32)':54} {'pullback':>11} {'torch':>11}   ratio (lowest-highest)")
        for name in SHAPES:
            if asked.only in name:
                row = compare(name, ours, theirs, asked.rounds, asked.seconds)
                results["rows"][f"{name}, {threads} thread{'s' * (threads > 1)}"] = row
                show(name, row)
        ours.close()
        theirs.close()
    if asked.json:
        Path(asked.json).write_text(json.dumps(results, indent=1) + "\n")


def compare(name: str, ours: Library, theirs: Library, rounds: int, budget: float) -> dict:
    """Returns the median microseconds of the three steps, and the spread of the ratios of pullback's two to PyTorch's."""
    runs = {"eager": (ours, name), "captured": (ours, f"{name}, captured"), "torch": (theirs, name)}
    taken = rounds_of(runs, rounds, budget)
    us = {run: statistics.median(times) * 1e6 for run, times in taken.items()}
    return {"us": us, "ratios": {run: spread(taken[run], taken["torch"]) for run in ("eager", "captured")}}


def show(name: str, row: dict) -> None:
    for run, ratio in row["ratios"].items():
        words = f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"
        print(f"{f'{name}, {run}':54} {row['us'][run]:9.0f}us {row['us']['torch']:9.0f}us   {words}", flush=True)


if __name__ == "__main__":
    main()
