"""Runs one family of kernels on the device and compares it with the CPU: `python smoke.py radix_sort`.

run.py starts one process with a separate limit per family, so a kernel that hangs or damages the context costs one family.
`python smoke.py native` only checks that pullback's own kernels are loaded.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import device

LENGTH, SIMULATED_LENGTH = 40_000, 300


def native(simulated: bool) -> None:
    """Prints the modules and versions that run, after adding two arrays on the device."""
    found = device.require_native(simulated)
    from families import FAMILIES

    import pullback as pb
    from pullback.backends import native as cpu

    x = pb.ones(5, device="cuda")
    assert (x + x).numpy().tolist() == [2.0] * 5
    device.put(
        name="native kernels", module=Path(found.kernels.__file__).name, simulated=found.simulated,
        driver_runtime=found.kernels.versions(),
        cpu=cpu.simd_level(), memory=pb.cuda.memory(), families=list(FAMILIES),
    )  # fmt: skip


def on(place: str, name: str, length: int) -> list[Any]:
    """Returns the family's results on this device as NumPy arrays."""
    from families import FAMILIES

    import pullback as pb

    with pb.use_device(place):
        return [np.asarray(x.numpy()) for x in FAMILIES[name](length)]


def family(name: str, simulated: bool) -> None:
    from families import TOLERANCES, difference

    device.require_native(simulated)
    length = SIMULATED_LENGTH if simulated else LENGTH
    begin = time.perf_counter()
    got = on("cuda", name, length)
    seconds = time.perf_counter() - begin
    differences = [difference(a, b) for a, b in zip(got, on("cpu", name, length))]
    allowed = TOLERANCES.get(name, 2e-5)
    wrong = [place for place, x in enumerate(differences) if not x <= allowed]
    device.put(
        name=name,
        results=len(got),
        worst=max([x for x in differences if x < 1e30], default=0.0),
        allowed=allowed,
        wrong=wrong,
        seconds=round(seconds, 2),
    )
    if wrong:
        sys.exit(f"{name}: results {wrong} on the device differ from the CPU's: {[differences[place] for place in wrong]}")


def main() -> None:
    options = device.arguments(__doc__, "family")
    if options.family == "native":
        native(options.simulated)
    else:
        family(options.family, options.simulated)


if __name__ == "__main__":
    main()
