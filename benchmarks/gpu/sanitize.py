"""Runs one small call of every family of kernels for compute-sanitizer, without pytest, CuPy's kernels or comparisons.

It prints a row after each family, which shows how far a run came before it was stopped.
"""

from __future__ import annotations

import time

import device

LENGTH, SIMULATED_LENGTH = 700, 100


def main() -> None:
    options = device.arguments(__doc__)
    found = device.require_native(options.simulated)
    from families import FAMILIES

    import pullback as pb

    with pb.use_device("cuda"):
        for name, program in FAMILIES.items():
            begin = time.perf_counter()
            results = program(SIMULATED_LENGTH if options.simulated else LENGTH)
            found.synchronize(0)
            device.put(name=name, results=len(results), seconds=round(time.perf_counter() - begin, 2))


if __name__ == "__main__":
    main()
