"""The ledger of the 784-128-10 step beside the GPU's hardware counters: `python counters.py` prints a JSON object for each row, or
one that says why there are none.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

import pullback as pb
from pullback import nn, optim
from pullback.profile.ncu import NoCountersError
from pullback.profile.verify import Verified, verify

BATCH = 64


def training_step() -> Any:
    """The step, eager, so that each kernel is compared alone; run once, so that what is made at first is there."""
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    opt = optim.Adam(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)
    x = pb.tensor(rng.standard_normal((BATCH, 784), dtype=np.float32))
    y = pb.tensor(rng.integers(0, 10, BATCH))

    def step() -> None:
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(model(x), y)
        opt.step(tape.gradient(loss, opt.parameters))

    step()
    return step


def told(row: Verified) -> dict[str, Any]:
    facts = {**row._asdict(), "ratio": row.ratio, "is_product": row.matmul_flops > 0.9 * row.flops}
    return {name: None if isinstance(x, float) and math.isnan(x) else x for name, x in facts.items()}


def main() -> None:
    try:
        pb.cuda.synchronize()
        with pb.use_device("cuda"):
            rows = verify(training_step()).rows
    except (NoCountersError, pb.DeviceError) as error:
        print(json.dumps({"why_not": str(error)}))
        return
    for row in rows:
        print(json.dumps(told(row)))


if __name__ == "__main__":
    main()
