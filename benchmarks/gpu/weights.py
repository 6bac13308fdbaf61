"""Trains a small network for 200 steps in exact float32, and prints the SHA-256 of its weights: `python weights.py cuda` or `cpu`.

All numbers come from fixed seeds. Equal hashes on two devices or SIMD levels mean equal bits.
"""

from __future__ import annotations

import hashlib

import numpy as np

import device

STEPS, SIZES, BATCH = 200, (64, 32, 10), 64


def hash_of(arrays: dict[str, np.ndarray]) -> str:
    """Returns the SHA-256 of names, dtypes, shapes and values, in the order of the names."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
    return total.hexdigest()


def trained(steps: int) -> dict[str, np.ndarray]:
    """Returns the weights after `steps` captured steps on the digits, on the default device."""
    from training import training_step

    import pullback as pb
    from pullback import nn, optim
    from workloads import Net

    digits = pb.data.digits()
    x, y = np.asarray(digits.x_train.numpy()).reshape(-1, SIZES[0]), np.asarray(digits.y_train.numpy())
    model = nn.Sequential(nn.Linear(*SIZES[:2]), nn.ReLU(), nn.Linear(*SIZES[1:]))
    model.load_state_dict({name: pb.tensor(value) for name, value in Net(SIZES, BATCH).weights().items()})
    opt = optim.Adam(model.parameters(), lr=1e-3)
    step = pb.capture(training_step(model, opt))
    order = np.random.default_rng(1)
    for _ in range(steps):
        rows = order.integers(0, len(x), BATCH)
        step(pb.tensor(x[rows]), pb.tensor(y[rows]))
    return {name: np.asarray(p.numpy()) for name, p in model.named_parameters()}


def main() -> None:
    options = device.arguments(__doc__, "device")
    if options.device == "cuda":
        device.require_native(options.simulated)
    import pullback as pb
    from pullback.backends import native

    if native.module is None:
        raise SystemExit(f"pullback's CPU kernels are not loaded: {native.reason}")
    with pb.use_device(options.device):
        found = hash_of(trained(20 if options.simulated else STEPS))
    device.put(name="trained weights", device=options.device, level=native.simd_level(), sha256=found)


if __name__ == "__main__":
    main()
