"""Compares the ledger of a network's training step with the GPU's hardware counters: `python counters.py 0` (network 0, 1 or 2).

Each kernel of the eager step is compared separately. A launch without special operations must have the FLOPs that the GPU counted,
within 1 %. For a launch with exponentials or square roots the GPU counts more, because it also counts the operations inside these.
"""

from __future__ import annotations

import sys
from typing import Any

import device
from workloads import nets

TOLERANCE = 0.01


def judged(row: Any) -> dict[str, Any]:
    """Returns a compared row with its verdict `right`, which is None if the ledger has no FLOPs.

    With special operations the GPU may count more.
    """
    ratio = row.ratio
    right = None if not row.executed_flops else abs(ratio - 1) <= TOLERANCE if not row.special_ops else ratio >= 1 - TOLERANCE
    return {**row._asdict(), "ratio": ratio, "right": right}


def main() -> None:
    options = device.arguments(__doc__, "net")
    device.require_native(options.simulated)
    from ours import network

    import pullback as pb
    from pullback.profiling.ncu import NoCountersError
    from pullback.profiling.verify import verify

    net = nets(options.simulated)[int(options.net)]
    with pb.use_device("cuda"):
        _, _, step, x, y = network(net)
        step(x, y)  # the first call allocates the optimizer's slots and is not compared
        try:
            rows = [judged(row) for row in verify(lambda: step(x, y)).rows]
        except NoCountersError as error:
            device.put(name=net.name, why_not=str(error))
            return
    for row in rows:
        device.put(name=net.name, **row)
    ledger, counted = sum([row["executed_flops"] for row in rows]), sum([row["counted_flops"] for row in rows])
    device.put(name=f"{net.name}, whole step", executed_flops=ledger, counted_flops=counted, ratio=counted / max(ledger, 1))
    if wrong := [row["kernels"] for row in rows if row["right"] is False]:
        sys.exit(f"{net.name}: the ledger's FLOPs are not what the GPU counted: {wrong}")


if __name__ == "__main__":
    main()
