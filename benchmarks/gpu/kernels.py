"""The kernels of the captured training steps: `python kernels.py`, started directly or under ncu.

Started directly it prints each plan: the kernels, what they do, and the time of each launch between two events (detail="kernel").
It compares the sum of these times with the time of whole replays. Under ncu (`python kernels.py replay`) it replays each step once
and launches the empty kernel MARK before each replay; `rows_of` reads what ncu wrote.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import device
from workloads import PRECISIONS, nets, others

EVERYWHERE = "everywhere"

MARK = "pullback_next_step"
METRICS = {"us": "gpu__time_duration.sum", "registers": "launch__registers_per_thread", "blocks": "launch__grid_size",
           "threads": "launch__block_size"}
MORE = {"dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "sm_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "warps_percent": "sm__warps_active.avg.pct_of_peak_sustained_active"}
MICROSECONDS = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1.0, "us": 1.0, "second": 1e6, "s": 1e6}  # microseconds per unit of ncu
REPLAYS = 200


def cases(simulated: bool) -> list[tuple[str, Any]]:
    """Returns the steps as pairs of a precision, or "everywhere", and a network."""
    return [
        *[(precision, net) for precision in (*PRECISIONS, EVERYWHERE) for net in nets(simulated)],
        *[(precision, net) for precision in ("float32", EVERYWHERE) for net in others(simulated)],
    ]


# ---- plans, and times between events


def plan(precision: str, net: Any, simulated: bool) -> dict[str, Any]:
    """Captures the step and returns its kernels with their times, and the time of a whole replay, all in microseconds."""
    import timing
    from ours import network, precision_of

    import pullback as pb

    with precision_of(precision):
        _, _, step, x, y = network(net)
        captured = pb.capture(step)
        call = lambda: captured(x, y)
        replay = timing.measure(call, pb.cuda.synchronize, timing.DRY if simulated else timing.FULL)["us"]
        explained = captured.explain()
        count = 2 if simulated else REPLAYS
        call()
        with pb.profile(detail="kernel") as prof:
            for _ in range(count):
                call()
            pb.cuda.synchronize()
    launches = [
        {"kernel": row.name, "us": row.total.seconds * 1e6 / count, "launches": row.total.launches / count}
        for row in prof.by("kernel")
    ]
    total = sum([launch["us"] for launch in launches])
    plan = [{"does": " + ".join(kernel.launches), "phase": kernel.phase, "writes": kernel.result} for kernel in explained.kernels]
    return {
        "nodes": explained.graph_nodes or len(plan), "launches": explained.launches, "arena_bytes": explained.arena_bytes,
        "replay_us": replay, "sum_us": total, "sum_over_replay": total / replay["median"], "plan": plan, "by_kernel": launches,
    }


def plans(simulated: bool) -> None:
    for precision, net in cases(simulated):
        try:
            found = plan(precision, net, simulated)
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {error}"[:1500]}
        device.put(name=net.name, precision=precision, **found)


# ---- one replay of each step, for ncu


def replay(simulated: bool) -> None:
    from ours import network, precision_of

    import pullback as pb

    found = device.require_native(simulated)
    networks = [(precision, network(net)) for precision, net in cases(simulated)]  # a Module made later would invalidate recordings
    steps = []
    for precision, (_, _, step, x, y) in networks:
        captured = pb.capture(step)
        with precision_of(precision):
            for _ in range(3):
                captured(x, y)
        steps.append((precision, captured, x, y))
    pb.cuda.synchronize()
    cuda = found.xp.cuda
    mark = found.xp.RawKernel(f'extern "C" __global__ void {MARK}() {{}}', MARK)
    stream = found.stream(0)
    cuda.runtime.profilerStart()
    for precision, captured, x, y in steps:
        with stream:
            mark((1,), (1,), ())
        with precision_of(precision):
            captured(x, y)
        pb.cuda.synchronize()
    cuda.runtime.profilerStop()


def command(ncu: str, program: Sequence[str], log: str, metrics: Mapping[str, str]) -> list[str]:
    """Returns the command that counts these metrics for every replayed kernel. ncu leaves clocks and caches as they are."""
    options = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--cache-control", "none"]
    options += ["--target-processes", "all", "--profile-from-start", "off", "--graph-profiling", "node"]
    return [ncu, *options, "--log-file", log, "--metrics", ",".join(metrics.values()), *program]


def rows_of(text: str, metrics: Mapping[str, str], simulated: bool = False) -> Iterator[dict[str, Any]]:
    """Reads ncu's table and yields one row with the CUDA kernels of each captured step. Raises ValueError if steps are missing."""
    parts = between_marks(table_of(text, metrics))
    expected = cases(simulated)
    if len(parts) != len(expected):
        raise ValueError(f"ncu saw {len(parts)} steps of {len(expected)}")
    for (precision, net), kernels in zip(expected, parts):
        total = math.fsum([kernel["us"] or 0 for kernel in kernels])
        yield {"name": net.name, "precision": precision, "cuda_kernels": len(kernels), "sum_us": total, "by_ncu": kernels}


def table_of(text: str, metrics: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the kernels of ncu's table, which has a line of columns, a line of their units, and one line per kernel."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    begin = next((place for place, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    rows = list(csv.reader(lines[begin:]))
    if len(rows) < 2:
        return []
    columns, units = rows[0], dict(zip(rows[0], rows[1]))
    scale = MICROSECONDS.get(units.get(METRICS["us"], ""), 1e-3)
    out = []
    for row in [dict(zip(columns, row)) for row in rows[2:]]:
        kernel: dict[str, Any] = {"kernel": short(row["Kernel Name"])}
        kernel |= {name: number(row.get(metric, "")) for name, metric in metrics.items()}
        kernel["us"] = kernel["us"] * scale if kernel["us"] is not None else None
        out.append(kernel)
    return out


def number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def short(name: str) -> str:
    """Returns the name of a kernel with its template arguments but without its parameters and namespaces."""
    # Removes the type of a template argument, as in (int)4.
    name = re.sub(r"\((unsigned |signed )?[a-z:_ ]*[a-z]\)(?=-?\d)", "", name)
    return name.replace("(anonymous namespace)::", "").removeprefix("void ").partition("(")[0].replace("pb::cuda::", "")[:160]


def between_marks(kernels: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    parts: list[list[dict[str, Any]]] = []
    for kernel in kernels:
        if kernel["kernel"].startswith(MARK):
            parts.append([])
        elif parts:
            parts[-1].append(kernel)
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="plans", choices=("plans", "replay"))
    parser.add_argument("--simulated", action="store_true")
    options = parser.parse_args()
    device.require_native(options.simulated)
    import pullback as pb

    with pb.use_device("cuda"):
        (plans if options.what == "plans" else replay)(options.simulated)


if __name__ == "__main__":
    main()
