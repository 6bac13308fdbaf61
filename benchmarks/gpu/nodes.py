"""The time of one launch in a captured step: `python nodes.py` prints microseconds for each kind of kernel in a small step.

Each kind is captured once with FEW and once with MANY consecutive launches. The difference of the two times, divided by
MANY - FEW, is the time of one launch in a graph, including the gap to the next launch but not the fixed cost of a replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import timing

import device
import pullback as pb
from pullback import nn
from pullback.nn import functional as F

FEW, MANY = 10, 60


def floats(*shape: int) -> Any:
    return pb.tensor(np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32))


def kinds(simulated: bool) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Returns ops of the 784-128-10 step with their operands."""
    batch, wide, hidden = (4, 20, 12) if simulated else (64, 784, 128)
    x, h, z = floats(batch, wide), floats(batch, hidden), floats(batch, 10)
    w, b, v = floats(hidden, wide), floats(hidden), floats(10, hidden)
    labels = pb.tensor(np.arange(batch) % 10)
    return {
        "add of 64 numbers": (pb.add, (floats(64), floats(64))),
        "sum of 64 numbers": (pb.sum, (floats(64),)),
        f"sum of the columns of {batch} x {hidden}": (lambda t: pb.sum(t, axis=0), (h,)),
        f"sum of {1000 if simulated else 1_000_000:,} numbers": (pb.sum, (floats(1000 if simulated else 1_000_000),)),
        f"relu({batch} x {wide} @ {wide} x {hidden} + bias)": (lambda t, u, c: F.linear(t, u, c, activation="relu"), (x, w, b)),
        f"{batch} x {hidden} @ {hidden} x 10": (lambda t, u: t @ u.mT, (h, v)),
        f"cross entropy of {batch} x 10": (nn.cross_entropy, (z, labels)),
        f"gelu of {batch} x {hidden}": (F.gelu, (h,)),
    }


def launches(op: Callable[..., Any], count: int) -> Any:
    """Returns a captured function of `count` independent launches, which its stream runs one after the other."""
    # fusion="none" keeps the launches whose results are not used.
    return pb.capture(lambda *xs: [op(*xs) for _ in range(count)][-1], fusion="none")


def row(name: str, op: Callable[..., Any], operands: tuple[Any, ...], effort: timing.Effort) -> dict[str, Any]:
    times, nodes = [], []
    for count in (FEW, MANY):
        captured = launches(op, count)
        captured(*operands)
        times.append(timing.measure(lambda captured=captured: captured(*operands), pb.cuda.synchronize, effort)["us"])
        nodes.append(captured.stats().graph_nodes)
    between = nodes[1] - nodes[0]
    return {
        "name": name, "nodes": between / (MANY - FEW), "us_a_launch": (times[1]["median"] - times[0]["median"]) / (MANY - FEW),
        "us_of_few": times[0], "us_of_many": times[1],
    }


def main() -> None:
    options = device.arguments(__doc__)
    device.require_native(options.simulated)
    with pb.use_device("cuda"):
        for name, (op, operands) in kinds(options.simulated).items():
            try:
                found = row(name, op, operands, timing.DRY if options.simulated else timing.FULL)
            except Exception as error:
                found = {"name": name, "failed": f"{type(error).__name__}: {error}"[:1500]}
            device.put(**found)


if __name__ == "__main__":
    main()
