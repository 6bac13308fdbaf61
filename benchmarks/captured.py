"""Times a captured step in pullback against the step that JAX compiles, on this CPU.

The libraries take turns (turns.py). The table gives the median ratio of the rounds, with the lowest and the highest one.

    python benchmarks/captured.py [--rounds 7] [--seconds 0.3] [--only chain] [--json results.json]
"""

import json
import statistics
from pathlib import Path
from typing import NamedTuple

from turns import Library, options, rounds_of, spread
from workloads.captured import STEPS


class Row(NamedTuple):
    """A workload of pullback, and the workload that its time is compared with.

    Attributes:
        words: the workload in the printed table.
        peer: the name of the other workload: JAX's if JAX has one of this name, otherwise pullback's.
        target: the highest ratio pullback / peer that meets the target; None if there is no target.
        steps: the number of steps in one call. The printed seconds are those of one step.
        workload: the name of the workload of pullback, if it is not that of the row.
    """

    words: str
    peer: str
    target: float | None
    steps: int = 1
    workload: str = ""


ROWS: dict[str, Row] = {}
for fusion in ("exact", "fast"):
    with_it = "" if fusion == "exact" else f", {fusion}"
    ROWS |= {
        f"chain, {fusion}": Row(f"chain of 50 x (tanh, add) on 8 numbers, gradient{with_it}", "chain", 0.3),
        f"mlp 2-16-16-2, {fusion}": Row(f"MLP 2-16-16-2, batch 100, Adam step{with_it}", "mlp 2-16-16-2", 0.3),
        f"mlp 2-16-16-2, 100 steps, {fusion}": Row(
            f"    {STEPS} steps in one call, next to lax.scan{with_it}", "mlp 2-16-16-2, 100 steps", 1.0, STEPS
        ),
        f"mlp 784-128-10, {fusion}": Row(f"MLP 784-128-10, batch 64, Adam step{with_it}", "mlp 784-128-10", 0.6),
        f"mlp 784-1024-1024-10, {fusion}": Row(f"MLP 784-1024-1024-10, batch 512, Adam step{with_it}", "mlp 784-1024-1024-10", 0.8),
    }
for name in ("mlp 2-16-16-2", "mlp 784-128-10", "mlp 784-1024-1024-10"):
    ROWS |= {
        f"{name}, tape": Row(f"MLP {name[4:]}, tape, captured loss, / captured step", f"{name}, exact", 1.4),
        f"{name}, tape and jit": Row("    next to jax.grad(jax.jit(f))", f"{name}, grad of jit", 1.0, workload=f"{name}, tape"),
    }
ROWS |= {
    "jacobian": Row("Jacobian 64 -> 64, two tanh layers", "jacobian", 1.0),
    "hessian": Row("Hessian 64 x 64, sum of squares of the same", "hessian", 1.0),
    "norms": Row("squared norms of gradients, next to a captured step", "step of the same net", 1.5),
    "8 targets": Row("8 targets by tape.gradients, next to their sum, captured", "their sum", 3.0),
}


def compare(name: str, libraries: dict[str, Library], rounds: int, budget: float) -> dict | None:
    """Returns the median seconds of a step of the workload and of its peer, and the spread of their ratio; None without a peer."""
    row, ours = ROWS[name], libraries["pullback"]
    name = row.workload or name
    peers = [(libraries["jax"], row.peer)] if "jax" in libraries else []
    taken = rounds_of({"pullback": (ours, name), "peer": peers[0]}, rounds, budget) if peers else {}
    if "peer" not in taken:
        taken = rounds_of({"pullback": (ours, name), "peer": (ours, row.peer)}, rounds, budget)
    if "peer" not in taken:
        return None
    seconds = {key: statistics.median(times) / row.steps for key, times in taken.items()}
    return {"seconds": seconds, "ratio": spread(taken["pullback"], taken["peer"])}


def show(name: str, found: dict) -> None:
    words, _, target, *_ = ROWS[name]
    ours, theirs, ratio = found["seconds"]["pullback"], found["seconds"]["peer"], found["ratio"]
    spread = f"{ratio['median']:5.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"
    aim = "" if target is None else f"<= {target:.2f}{' missed' if ratio['median'] > target else ''}"
    print(f"{words:58} {ours * 1e6:9.1f}us {theirs * 1e6:9.1f}us   {spread:22}   {aim}", flush=True)


def main() -> None:
    asked = options(__doc__, rounds=7, seconds=0.3)
    libraries = {"pullback": Library("captured", "pullback")}
    if "jax" in asked.rivals:
        libraries["jax"] = Library("captured", "jax")
    for library in libraries.values():
        print(library.facts)
    results = {"facts": [library.facts for library in libraries.values()], "rows": {}}
    print(f"\n{'workload (float32), of one step':58} {'pullback':>11} {'JAX jit':>11}   {'ratio (lowest-highest)':22}   target")
    for name in ROWS:
        if asked.only in name:
            found = compare(name, libraries, asked.rounds, asked.seconds)
            if found is not None:
                results["rows"][name] = found
                show(name, found)
    if not asked.only:
        times = [libraries["pullback"].call("first call") for _ in range(7)]
        results["first_call_seconds"] = statistics.median(times)
        words = "recording MLP 784-128-10: the first captured step"
        print(f"{words:58} {statistics.median(times) * 1e6:9.1f}us, at most {max(times) * 1e6:.1f}us")
    if asked.json:
        Path(asked.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
