"""Trains small networks in the mode "everywhere" and prints a hash of each: `python weights.py cuda` or `cpu`.

Weights, batches and dropped elements come from fixed seeds. Equal hashes on two devices or SIMD levels mean equal bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import device

STEPS, SIMULATED_STEPS = 200, 20
SLOW_STEPS, SLOW_SIMULATED_STEPS = 50, 3  # of networks whose step takes longer
# The layers and the batch of each MLP. The second has 300 inputs and a batch of 300, which cross the blocks of sums.
NETS = {"64-32-10": 64, "300-64-10": 300}
DTYPES = ("float32", "bfloat16")


def trained(sizes: str, batch: int, dtype: str, steps: int) -> dict[str, Any]:
    """Returns an MLP and its optimizer after captured steps on random examples, on the default device."""
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


def convolutions(dtype: str, steps: int) -> dict[str, Any]:
    """Trains convolutions with batch norm and pools, on images of one channel."""
    import pullback as pb
    from pullback import optim
    from pullback.examples import cnn

    pb.random.seed(3)
    model = cnn.network(8).to(dtype)
    opt = optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    return _by_classes(model, opt, lambda: pb.random.normal((24, 1, 8, 8), dtype=dtype), steps)


def gru(dtype: str, steps: int) -> dict[str, Any]:
    """Trains a GRU whose batch and hidden size are not multiples of a block, and reads its last state."""
    import pullback as pb
    from pullback import nn, optim

    class Reader(nn.Module):
        def __init__(self) -> None:
            self.gru, self.head = nn.GRU(5, 33), nn.Linear(33, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.gru(x)[1][0])

    pb.random.seed(3)
    model = Reader().to(dtype)
    opt = optim.Adam(model.parameters(), lr=1e-2, clip_norm=1.0)
    return _by_classes(model, opt, lambda: pb.random.normal((12, 24, 5), dtype=dtype), steps)


def gpt(dtype: str, steps: int) -> dict[str, Any]:
    """Trains two blocks of a decoder with causal attention."""
    import pullback as pb
    from pullback import optim
    from pullback.examples.gpt import GPT, loss_of

    pb.random.seed(3)
    model = GPT(17, context=20, layers=2, heads=2, width=24).to(dtype)
    opt = optim.AdamW(model.parameters(), lr=1e-3, clip_norm=1.0)
    step = pb.capture(lambda sequences: opt.minimize(lambda: loss_of(model, sequences)))
    for _ in range(steps):
        step(pb.random.randint(0, 17, (4, 21)))
    return {"model": model, "optimizer": opt}


def _by_classes(model: Any, opt: Any, draw: Callable[[], Any], steps: int) -> dict[str, Any]:
    """Returns a network and its optimizer after captured steps on random examples of ten classes."""
    from training import training_step

    import pullback as pb

    step = pb.capture(training_step(model, opt))
    for _ in range(steps):
        x = draw()
        step(x, pb.random.randint(0, 10, (24,)))
    return {"model": model, "optimizer": opt}


OTHERS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "convolutions and batch norm": convolutions, "GRU 5-33": gru, "GPT of 2 blocks": gpt,
}


def main() -> None:
    options = device.arguments(__doc__, "device")
    if options.device == "cuda":
        device.require_native(options.simulated)
    import pullback as pb
    from pullback.backends import native

    def put(network: str, train: Callable[[int], dict[str, Any]], steps: int) -> None:
        """Prints the hash after all steps, and the one after the first step, which tells whether a single step differs."""
        place = {"device": options.device, "level": native.simd_level()}
        found, first = pb.hash(train(steps)), pb.hash(train(1))
        device.put(name="trained weights", network=network, **place, sha256=found, after_one_step=first[:16])

    pb.config.reproducible = "everywhere"
    with pb.use_device(options.device):
        for sizes, batch in NETS.items():
            for dtype in DTYPES:
                steps = SIMULATED_STEPS if options.simulated else STEPS
                put(f"MLP {sizes}, {dtype}", partial(trained, sizes, batch, dtype), steps)
        for name, train in OTHERS.items():
            for dtype in DTYPES:
                steps = SLOW_SIMULATED_STEPS if options.simulated else SLOW_STEPS
                put(f"{name}, {dtype}", partial(train, dtype), steps)


if __name__ == "__main__":
    main()
