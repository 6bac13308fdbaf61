"""Times captured steps in the mode "everywhere" against the mode "machine", in alternation: `python everywhere.py`."""

from __future__ import annotations

from typing import Any

import timing
from ours import batches_of, network, runner

import device
import pullback as pb
from workloads import BATCHES, CAPTURED, workloads

MODES = ("everywhere", "machine")


def compare(net: Any, effort: timing.Effort) -> dict[str, dict[str, float]]:
    """Returns the microseconds of a step in each mode, and the ratio of each round."""
    calls, counts = {}, {}
    for mode in MODES:
        pb.config.reproducible = mode
        _, _, step, _, _ = network(net)
        calls[mode], warm, _ = runner(step, *batches_of(net, BATCHES), CAPTURED)
        for _ in range(warm):
            calls[mode]()
        counts[mode] = timing.count_for(calls[mode], pb.cuda.synchronize, effort.seconds)
    taken: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(effort.rounds):
        for mode in MODES:
            pb.config.reproducible = mode  # a captured function has a recording for each mode
            taken[mode].append(timing.seconds(calls[mode], pb.cuda.synchronize, counts[mode]) * 1e6)
    ratios = [ours / theirs for ours, theirs in zip(*taken.values())]
    return {
        "us": timing.summary(taken["everywhere"]),
        "machine_us": timing.summary(taken["machine"]),
        "ratio": timing.summary(ratios),
    }


def main() -> None:
    options = device.arguments(__doc__)
    device.require_native(options.simulated)
    with pb.use_device("cuda"):
        for net in workloads(options.simulated):
            try:
                found = compare(net, timing.DRY if options.simulated else timing.FULL)
            except Exception as error:
                found = {"failed": f"{type(error).__name__}: {error}"[:1500]}
            device.put(side="pullback", name=net.name, precision="everywhere", way=CAPTURED, **found)


if __name__ == "__main__":
    main()
