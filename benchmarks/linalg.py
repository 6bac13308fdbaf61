"""Times batches of small matrices, forward and backward, against PyTorch, and one large Cholesky factorisation against SciPy.

The libraries take turns (turns.py). A ratio is the median of the rounds, with the lowest and the highest one.

    python benchmarks/linalg.py [--rounds 7] [--seconds 0.3] [--only cholesky] [--json results.json]
"""

import json
import statistics
from pathlib import Path

from turns import Library, options, rounds_of, spread
from workloads.linalg import BATCHED, LARGE

TARGETS = {"torch": 0.5, "scipy": 1.1}  # the highest ratios that meet the targets


def main() -> None:
    asked = options(__doc__, rounds=7, seconds=0.3)
    ours, torch, scipy = [Library("linalg", name) for name in ("pullback", "torch", "scipy")]
    print(ours.facts, torch.facts, scipy.facts, sep="\n")
    results = {"facts": [ours.facts, torch.facts, scipy.facts], "rows": {}}
    print(f"\n{'':50} {'pullback':>11} {'rival':>11}   {'ratio (lowest-highest)':22}   target")
    for name in (*BATCHED, *LARGE):
        if asked.only not in name:
            continue
        runs = {"eager": (ours, name), "captured": (ours, f"{name}, captured"), "torch": (torch, name), "scipy": (scipy, name)}
        taken = rounds_of(runs, asked.rounds, asked.seconds)
        us = {run: statistics.median(times) * 1e6 for run, times in taken.items()}
        rival = "torch" if name in BATCHED else "scipy"
        ratios = {run: spread(taken[run], taken[rival]) for run in ("eager", "captured") if run in taken}
        results["rows"][name] = {"us": us, "ratios": ratios}
        for run, ratio in ratios.items():
            words = f"{ratio['median']:5.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"
            missed = " missed" if ratio["median"] > TARGETS[rival] else ""
            target = f"<= {TARGETS[rival]:.2f} x {rival}"
            print(f"{name + ', ' + run:50} {us[run]:9.0f}us {us[rival]:9.0f}us   {words:22}   {target}{missed}", flush=True)
    if asked.json:
        Path(asked.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
