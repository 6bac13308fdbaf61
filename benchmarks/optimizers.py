"""Times updates of 100 x 100,000 float32 weights against torch's, updates that do more than their rule against
plain ones, and rules by formula against rules with a kernel.

The libraries take turns (turns.py). A ratio is that of the shortest times of all rounds, because an update is bound by the memory,
which other programs use too; after it come the lowest and the highest ratio of a round.

    python benchmarks/optimizers.py [--rounds 9] [--seconds 0.3] [--only adam] [--json results.json]
"""

import json
from pathlib import Path

from turns import Library, options, rounds_of, spread
from workloads.optimizers import RULES

# The highest ratios to the plain update that meet the targets; None: the ratio is only reported.
FINISHES = {
    "again": {"sgd": None, "adam": None},
    "bounds": {"sgd": 1.02, "adam": 1.02},
    "mask": {"sgd": None, "adam": 1.05},
    "clipping": {"sgd": None, "adam": None},
    "delta": {"sgd": None, "adam": None},
    "average": {"sgd": None, "adam": None},
    "norm": {"sgd": None, "adam": None},
    "all four": {"sgd": 1.8, "adam": 1.4},
}


# Rules by formula, and the highest ratio to the rule with a kernel.
SIZES = {"large": "100 x 100,000 weights", "small": "1,002 weights", "captured": "training step, 1,002 weights"}
FORMULA = 1.3


def compare(runs: dict, rounds: int, budget: float) -> dict:
    """Returns the shortest seconds of the first run and of the fastest other one, their ratio, and the ratios of the rounds."""
    ours, *peers = rounds_of(runs, rounds, budget).values()
    best = [min(times) for times in zip(*peers)]
    seconds = [min(ours), min(best)] if best else [min(ours)]
    return {"seconds": seconds, "ratio": seconds[0] / seconds[1], **spread(ours, best)} if best else {"seconds": seconds}


def show(words: str, row: dict, target: float | None) -> None:
    times = "".join([f"{seconds * 1e6:10.0f}us" if seconds > 1e-4 else f"{seconds * 1e6:10.2f}us" for seconds in row["seconds"]])
    ratio = f"{row['ratio']:5.2f} ({row['low']:.2f}-{row['high']:.2f})" if "ratio" in row else ""
    missed = " missed" if target is not None and row.get("ratio", 0) > target else ""
    print(f"{words:40} {times:24}   {ratio:20} {'' if target is None else f'<= {target:.2f}{missed}'}", flush=True)


def against_torch(asked, results: dict) -> None:
    print(f"\n{'update of 100 x 100,000 weights':40} {'pullback':>12}{'torch':>12}   ratio of minima (rounds)")
    for name in [*RULES, "lion"]:
        if asked.only not in name:
            continue
        ours = Library("optimizers", "pullback")  # A process for each rule, because the weights and slots of all would fill memory.
        runs = {"pullback": (ours, name)}
        if "torch" in asked.rivals:
            torch = Library("optimizers", "torch")
            runs |= {kind: (torch, f"{name}, {kind}") for kind in ("fused", "foreach")}
        results[name] = compare(runs, asked.rounds, asked.seconds)
        show(name, results[name], 1.0)
        for library, _ in [*runs.values()][:2]:
            library.close()


def against_plain(asked, results: dict) -> None:
    print(f"\n{'update, and its peer':40} {'this':>12}{'plain':>12}   ratio of minima (rounds)")
    for finish, targets in FINISHES.items():
        for rule, target in targets.items():
            name = f"{rule} again" if finish == "again" else f"{rule}, {finish}"
            if asked.only in name:
                ours = Library("optimizers", "pullback")
                results[name] = compare({"this": (ours, name), "plain": (ours, rule)}, asked.rounds, asked.seconds)
                show(name, results[name], target)
                ours.close()


def by_formula(asked, results: dict) -> None:
    print(f"\n{'rule by formula against the rule with a kernel':40} {'formula':>5}{'kernel':>12}   ratio of minima (rounds)")
    for size, words in SIZES.items():
        for rule in ("adam", "lion", "momentum"):
            if asked.only not in f"{rule} by formula, {size}":
                continue
            formula, kernel = Library("optimizers", "pullback"), Library("optimizers", "pullback")
            runs = {"formula": (formula, f"{rule} by formula, {size}"), "kernel": (kernel, f"{rule} by kernel, {size}")}
            results[f"{rule} by formula, {size}"] = compare(runs, asked.rounds, asked.seconds)
            show(f"{rule}, {words}", results[f"{rule} by formula, {size}"], FORMULA)
            formula.close(), kernel.close()


def small_steps(asked, results: dict) -> None:
    if asked.only not in "step":
        return
    ours = Library("optimizers", "pullback")
    words = "MLP 784-128-64-10, batch 64: groups, clipping, a schedule, bounds"
    print(f"\n{words}\n{'':40} {'with them':>12}{'without':>12}   ratio of minima (rounds)")
    for kind in ("eager step", "captured step"):
        runs = {name: (ours, f"{kind}, {name}") for name in ("with everything", "plain")}
        results[kind] = compare(runs, asked.rounds, asked.seconds)
        show(kind, results[kind], None)
    counts = {name: ours.call(f"launches, {name}") for name in ("with everything", "plain")}
    results["launches"] = counts
    print("launches of the optimizer in a replay, one of them the joint norm:", counts["with everything"], "and", counts["plain"])
    ours.close()


def main() -> None:
    asked = options(__doc__, rounds=9, seconds=0.3)
    library = Library("optimizers", "pullback")
    print(library.facts)
    results = {"facts": library.facts, "rows": {}}
    library.close()
    for part in (against_torch, against_plain, by_formula, small_steps):
        part(asked, results["rows"])
    if asked.json:
        Path(asked.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
