"""Times pullback's transforms against torch.func, JAX's compiled code and other ways to compute the same in pullback, on this CPU.

The libraries take turns (turns.py). A ratio is the median of the rounds, with the lowest and the highest one.

    python benchmarks/transforms.py [--rounds 7] [--seconds 0.3] [--only hessian] [--json results.json]
"""

import json
import statistics
from pathlib import Path
from typing import NamedTuple

from turns import Library, options, rounds_of, spread
from workloads.transforms import SHAPES


class Row(NamedTuple):
    """A workload of pullback, and the runs that its time is divided by, each with a target (None: the ratio is only reported)."""

    words: str
    peers: dict[str, float | None]  # a library that runs the same workload, or the name of another workload of pullback


ROWS = {
    "per-example gradients": Row("per-example gradients, MLP 784-128-10, batch 64", {"torch": 0.5, "jax": None}),
    "per-example norms": Row("squared norms of them, without forming them", {"step": 1.5}),
    "jacobian": Row("Jacobian 64 -> 64, two tanh layers", {"torch": 0.5, "jax": None}),
    "hessian": Row("Hessian 64 x 64, sum of squares of the same", {"torch": 0.5, "jax": None}),
    "segment_sum": Row("segment_sum 100k x 32 into 5k, forward + backward", {"jax": 0.8, "torch": None}),
    "linear recurrence": Row("linear recurrence, 1,024 steps, batch 32, 64 channels", {"scan": 0.2, "jax": 1.0}),
    "associative scan": Row("the same by associative_scan, captured", {"scan, captured": None, "jax": 1.0}),
    "8 targets": Row("8 targets by tape.gradients, MLP 64-64-64-8", {"one sweep": 3.0}),
}
PEERS = {
    "torch": "torch eager",
    "jax": "JAX jit",
    "step": "a training step",
    "one sweep": "their sum",
    "scan": "pb.scan",
    "scan, captured": "pb.scan, captured",
}
AUTO = 1.2  # the highest ratio of jacobian's mode "auto" to the faster of the other two modes that meets the target


def compare(workload: str, libraries: dict[str, Library], rounds: int, budget: float) -> dict:
    """Returns the median seconds of each run, and the ratios of pullback's workload to the other runs."""
    ours = libraries["pullback"]
    peers = {peer: (libraries[peer], workload) if peer in libraries else (ours, peer) for peer in ROWS[workload].peers}
    runs = {"pullback": (ours, workload)} | peers
    taken = rounds_of(runs, rounds, budget)
    ratios = {peer: spread(taken["pullback"], times) for peer, times in taken.items() if peer != "pullback"}
    return {"seconds": {key: statistics.median(times) for key, times in taken.items()}, "ratios": ratios}


def show(workload: str, row: dict) -> None:
    words, peers = ROWS[workload]
    for peer, ratio in row["ratios"].items():
        print_line(words, PEERS[peer], row["seconds"]["pullback"], row["seconds"][peer], ratio, peers[peer])
        words = ""


def print_line(words: str, peer: str, ours: float, theirs: float, ratio: dict, target: float | None) -> None:
    spread = f"{ratio['median']:5.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"
    aim = "" if target is None else f"<= {target:.2f}{' missed' if ratio['median'] > target else ''}"
    print(f"{words:50} {peer:15} {ours * 1e6:9.0f}us {theirs * 1e6:9.0f}us   {spread:22}   {aim}", flush=True)


def compare_modes(shape: tuple[int, int], ours: Library, rounds: int, budget: float) -> dict:
    """Times the Jacobian of a function of this shape in every mode, and compares "auto" with the faster of the other two modes."""
    m, n = shape
    taken = rounds_of({mode: (ours, f"{m} -> {n}, {mode}") for mode in ("auto", "forward", "reverse")}, rounds, budget)
    seconds = {mode: statistics.median(times) for mode, times in taken.items()}
    better = min(("forward", "reverse"), key=lambda mode: seconds[mode])
    return {"seconds": seconds, "better": better, "ratios": {better: spread(taken["auto"], taken[better])}}


def show_modes(shape: tuple[int, int], row: dict) -> None:
    seconds, better = row["seconds"], row["better"]
    words = f'Jacobian {shape[0]} -> {shape[1]}, mode "auto"'
    print_line(words, f'"{better}"', seconds["auto"], seconds[better], row["ratios"][better], AUTO)


def main() -> None:
    asked = options(__doc__, rounds=7, seconds=0.3)
    libraries = {name: Library("transforms", name) for name in ["pullback", *filter(None, asked.rivals.split(","))]}
    for library in libraries.values():
        print(library.facts)
    results = {"facts": [library.facts for library in libraries.values()], "rows": {}, "modes": {}}
    print(f"\n{'workload (float32)':50} {'next to':15} {'pullback':>11} {'peer':>11}   {'ratio (lowest-highest)':22}   target")
    for workload in ROWS:
        if asked.only in workload:
            row = results["rows"][workload] = compare(workload, libraries, asked.rounds, asked.seconds)
            show(workload, row)
    for shape in SHAPES:
        if asked.only in "modes":
            row = compare_modes(shape, libraries["pullback"], asked.rounds, asked.seconds)
            results["modes"][f"{shape[0]} -> {shape[1]}"] = row
            show_modes(shape, row)
    if asked.json:
        Path(asked.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
