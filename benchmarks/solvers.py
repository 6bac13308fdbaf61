"""Times pullback's solvers of least squares against scipy.optimize.least_squares, on this CPU.

The libraries take turns (turns.py). A ratio is the median of the rounds, with the lowest and the highest one.

- sine: a network 1-16-16-1 (float64, tanh) learns 256 points of the sine to a mean squared error of 1e-6, by LevenbergMarquardt and
  by SciPy's "trf" with a Jacobian of pullback, captured: that of all residuals, or of each example.
- fits: 100,000 fits of a Gaussian (3 parameters, 30 points) in one call, and a loop of SciPy with a Jacobian in NumPy, which is
  timed on 200 of them.

    python benchmarks/solvers.py [--rounds 5] [--only fits] [--json results.json]
"""

import json
import statistics
from pathlib import Path

from turns import Library, options, spread

# Maps each row to the workload of pullback, that of SciPy, and the least ratio that meets the target.
ROWS = {
    "sine net to MSE 1e-6": ("sine", "sine", 5),
    "the same, per example": ("sine, per example", "sine, per example", 5),
    "100,000 fits of a Gaussian": ("fits", "fits", 20),
}


def main() -> None:
    asked = options(__doc__, rounds=5, seconds=0)
    ours, theirs = [Library("solvers", name) for name in ("pullback", "scipy")]
    print(ours.facts, theirs.facts, sep="\n")
    results = {"facts": [ours.facts, theirs.facts], "rows": {}}
    print(f"\n{'solve (float64)':38} {'pullback':>11} {'scipy':>11}   {'scipy / pullback':22}   target")
    for name, (mine, other, target) in ROWS.items():
        if asked.only not in name:
            continue
        ours.call(mine), theirs.call(other)  # a warm-up
        times = [(theirs.call(other), ours.call(mine)) for _ in range(asked.rounds)]
        slow, fast = [list(column) for column in zip(*times)]
        ratio = spread(slow, fast)
        results["rows"][name] = {"seconds": {"pullback": statistics.median(fast), "scipy": statistics.median(slow)}, "ratio": ratio}
        words = f"{ratio['median']:5.1f} ({ratio['low']:.1f}-{ratio['high']:.1f})"
        missed = " missed" if ratio["median"] < target else ""
        print(
            f"{name:38} {statistics.median(fast):10.3f}s {statistics.median(slow):10.3f}s   {words:22}   >= {target}{missed}",
            flush=True,
        )
    if asked.json:
        Path(asked.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
