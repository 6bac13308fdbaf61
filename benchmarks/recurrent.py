"""Times the forward and the backward pass of recurrent layers against PyTorch, on this CPU.

The libraries take turns (turns.py). A ratio is the median of the rounds, with the lowest and the highest one.

    python benchmarks/recurrent.py [--rounds 7] [--seconds 0.3] [--only GRU] [--json results.json]
"""

import json
import statistics
from pathlib import Path

from turns import Library, options, rounds_of, spread
from workloads.recurrent import SHAPES

TARGET = 0.8  # the highest ratio that meets the target


def main() -> None:
    asked = options(__doc__, rounds=7, seconds=0.3)
    ours, theirs = [Library("recurrent", name) for name in ("pullback", "torch")]
    print(ours.facts, theirs.facts, sep="\n")
    results = {"facts": [ours.facts, theirs.facts], "rows": {}}
    print(f"\n{'forward + backward (float32)':46} {'pullback':>11} {'torch':>11}   {'ratio (lowest-highest)':22}   target")
    for name in SHAPES:
        if asked.only not in name:
            continue
        runs = {"eager": (ours, name), "captured": (ours, f"{name}, captured"), "torch": (theirs, name)}
        taken = rounds_of(runs, asked.rounds, asked.seconds)
        us = {run: statistics.median(times) * 1e6 for run, times in taken.items()}
        ratios = {run: spread(taken[run], taken["torch"]) for run in ("eager", "captured")}
        results["rows"][name] = {"us": us, "ratios": ratios}
        for run, ratio in ratios.items():
            words = f"{ratio['median']:5.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"
            missed = " missed" if ratio["median"] > TARGET else ""
            print(
                f"{name + ', ' + run:46} {us[run]:9.0f}us {us['torch']:9.0f}us   {words:22}   <= {TARGET:.2f}{missed}", flush=True
            )
    if asked.json:
        Path(asked.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
