"""Trains small networks in the mode "everywhere" and prints a hash of each: `python weights.py cuda` or `cpu`.

Weights, batches and dropped elements come from fixed seeds. Equal hashes on two devices or SIMD levels mean equal bits.
"""

from __future__ import annotations

from typing import Any

import device

STEPS, SIMULATED_STEPS = 200, 20
# The layers and the batch of each network. The second has 300 inputs and a batch of 300, which cross the blocks of sums.
NETS = {"64-32-10": 64, "300-64-10": 300}
DTYPES = ("float32", "bfloat16")


def trained(sizes: str, batch: int, dtype: str, steps: int) -> dict[str, Any]:
    """Returns a network and its optimizer after captured steps on random examples, on the default device."""
    from training import training_step

    import pullback as pb
    from pullback import nn, optim

    pb.random.seed(3)
    inputs, hidden, classes = map(int, sizes.split("-"))
    layers = [nn.Linear(inputs, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, classes)]
    model = nn.Sequential(*layers).to(dtype)
    opt = optim.AdamW(model.parameters(), lr=1e-3, clip_norm=1.0)
    step = pb.capture(training_step(model, opt))
    for _ in range(steps):
        step(pb.random.normal((batch, inputs), dtype=dtype), pb.random.randint(0, classes, (batch,)))
    return {"model": model, "optimizer": opt}


def main() -> None:
    options = device.arguments(__doc__, "device")
    if options.device == "cuda":
        device.require_native(options.simulated)
    import pullback as pb
    from pullback.backends import native

    pb.config.reproducible = "everywhere"
    with pb.use_device(options.device):
        for sizes, batch in NETS.items():
            for dtype in DTYPES:
                found = pb.hash(trained(sizes, batch, dtype, SIMULATED_STEPS if options.simulated else STEPS))
                network = f"MLP {sizes}, {dtype}"
                device.put(name="trained weights", network=network, device=options.device, level=native.simd_level(), sha256=found)


if __name__ == "__main__":
    main()
