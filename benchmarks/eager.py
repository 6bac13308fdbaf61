"""Times plain eager code in pullback against torch eager, and against JAX's compiled code, on this CPU.

The libraries take turns (turns.py). The table gives the median ratio of the rounds, with the lowest and the highest one.

    python benchmarks/eager.py [--rounds 5] [--seconds 0.4] [--only gelu] [--json results.json]
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

from turns import Library, options, rounds_of, spread

TARGETS = {  # the highest ratio pullback / torch that meets the target; None: the ratio is only reported
    "chain": 0.45,
    "mlp 2-16-16-2": 0.7,
    "mlp 784-128-10": 0.55,
    "mlp 784-1024-1024-10": 0.55,
    "mlp 2-16-16-2, fused": None,
    "mlp 784-128-10, fused": None,
    "mlp 784-1024-1024-10, fused": None,
    "adam": 1.0,
    "adafactor": 1.0,
    "adafactor, foreach": 1.0,
    "adafactor, vectors": 1.0,
    "adafactor, vectors, foreach": 1.0,
    "muon": 0.5,
    "gelu": 0.4,
    "softmax": 0.7,
    "layer norm": 0.7,
}
WORDS = {
    "chain": "50 x (tanh, add) on 8 numbers, forward + backward",
    "mlp 2-16-16-2": "MLP 2-16-16-2, batch 100, Adam step",
    "mlp 784-128-10": "MLP 784-128-10, batch 64, Adam step",
    "mlp 784-1024-1024-10": "MLP 784-1024-1024-10, batch 512, Adam step",
    "mlp 2-16-16-2, fused": "    the same, torch with Adam(fused=True)",
    "mlp 784-128-10, fused": "    the same, 784-128-10",
    "mlp 784-1024-1024-10, fused": "    the same, 784-1024-1024-10",
    "adam": "fused Adam, 100 x 100,000 parameters",
    "adafactor": "Adafactor, 100 matrices 250 x 400",
    "adafactor, foreach": "    the same, torch with Adafactor(foreach=True)",
    "adafactor, vectors": "Adafactor, 100 vectors of 100,000 parameters",
    "adafactor, vectors, foreach": "    the same, torch with Adafactor(foreach=True)",
    "muon": "Muon, the 126 matrices of YOLO26n (torch: bfloat16)",
    "gelu": "gelu(x).sum, 10 million, forward + backward",
    "softmax": "softmax 4096 x 1024, forward + backward",
    "layer norm": "layer norm 4096 x 1024, forward + backward",
}
ADAM_BYTES = 28 * 10_000_000  # bytes: Adam reads p, g, m and v, and writes p, m and v


def copy_bandwidth() -> float:
    """Returns the bandwidth of a large copy by pullback's kernel with all threads: bytes read and bytes written, per second."""
    code = (
        "import numpy as np, time, pullback as pb\n"
        "x = pb.tensor(np.zeros(25_000_000, np.float32)); times = []\n"
        "for _ in range(15):\n"
        "    begin = time.perf_counter(); y = pb.copy(x); times.append(time.perf_counter() - begin)\n"
        "print(2 * x.nbytes / sorted(times)[3])"
    )
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def import_seconds() -> tuple[float, float]:
    """Returns the seconds that `import pullback` takes after `import numpy`: the median and the maximum of 9 new processes."""
    code = "import time, numpy; t = time.perf_counter(); import pullback; print(time.perf_counter() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(9)
    ]
    return statistics.median(times), max(times)


def compare(workload: str, libraries: list, rounds: int, budget: float) -> dict:
    """Runs the libraries in turns. Returns the median seconds of each, and the ratios of pullback's time to the others' times."""
    taken = rounds_of({library.name: (library, workload) for library in libraries}, rounds, budget)
    ratios = {name: spread(taken["pullback"], times) for name, times in taken.items() if name != "pullback"}
    return {"seconds": {name: statistics.median(times) for name, times in taken.items()}, "ratios": ratios}


def main() -> None:
    asked = options(__doc__, rounds=5, seconds=0.4)
    libraries = [Library("eager", name) for name in ["pullback", *asked.rivals.split(",")]]
    for library in libraries:
        print(library.facts)
    results = {"facts": [library.facts for library in libraries], "rows": {}}
    print(
        f"\n{'workload (float32)':52} {'pullback':>10} {'torch':>10} {'jax jit':>10}   {'/ torch':>19} {'target':>7} {'/ jax':>6}"
    )
    for workload in TARGETS:
        if asked.only in workload:
            row = results["rows"][workload] = compare(workload, libraries, asked.rounds, asked.seconds)
            show(workload, row)
    if not asked.only:
        bandwidth, adam = copy_bandwidth(), ADAM_BYTES / results["rows"]["adam"]["seconds"]["pullback"]
        share = f"{adam / 1e9:7.1f} GB/s of {bandwidth / 1e9:.1f} = {adam / bandwidth:.0%} (target 85%)"
        print(f"{'fused Adam: share of copy bandwidth':52} {share}")
        median, worst = import_seconds()
        print(f"{'import pullback beyond import numpy':52} {median * 1e3:7.1f} ms, at most {worst * 1e3:.1f} (target 60 ms)")
        results |= {"copy_bytes_per_second": bandwidth, "adam_bytes_per_second": adam, "import_seconds": median}
    if asked.json:
        Path(asked.json).write_text(json.dumps(results, indent=1) + "\n")


def show(workload: str, row: dict) -> None:
    def time_of(name):
        return f"{row['seconds'][name] * 1e6:8.0f}us" if name in row["seconds"] else " " * 10

    def ratio(name):
        r = row["ratios"].get(name)
        return f"{r['median']:.2f}" if r else ""

    torch = row["ratios"].get("torch")
    spread = f"{torch['median']:.2f} ({torch['low']:.2f}-{torch['high']:.2f})" if torch else ""
    target = TARGETS[workload]
    missed = " missed" if torch and target is not None and torch["median"] > target else ""
    print(
        f"{WORDS[workload]:52} {time_of('pullback')} {time_of('torch')} {time_of('jax')}   {spread:>19} "
        f"{'' if target is None else f'<={target:5.2f}':7} {ratio('jax'):>6}{missed}",
        flush=True,
    )


if __name__ == "__main__":
    main()
