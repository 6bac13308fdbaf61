"""Runs one family of kernels on the device and compares it with the CPU: `python smoke.py radix_sort`.

run.py starts one process with a separate limit per family, so a kernel that hangs or damages the context costs one family.
The name of each call is printed before the call, so the log of such a family names it. All results are compared, whatever fails.
`python smoke.py native` only checks that pullback's own kernels are loaded.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import device

LENGTH, SIMULATED_LENGTH = 40_000, 300
# Families that check what happens while kernels are still to run, so that they must not be waited for one by one.
PENDING = ("loader", "matrices", "by_cupy", "exchange_cupy", "exchange_torch", "exchange_jax")
MOST_TOLD = 12  # results of a family that are told one by one if they are wrong

Results = dict[str, list[Any] | str]  # maps each call to its results as NumPy arrays, or to the error that it raised


def native(simulated: bool) -> None:
    """Prints the modules and versions that run, after adding two arrays on the device."""
    found = device.require_native(simulated)
    from families import FAMILIES, order_for_sanitizer

    import pullback as pb
    from pullback.backends import native as cpu

    x = pb.ones(5, device="cuda")
    assert (x + x).numpy().tolist() == [2.0] * 5
    device.put(
        name="native kernels", module=Path(found.kernels.__file__).name, simulated=found.simulated,
        driver_runtime=found.kernels.versions(),
        cpu=cpu.simd_level(), memory=pb.cuda.memory(), families=list(FAMILIES), sanitized=order_for_sanitizer(),
    )


def results_on(place: str, name: str, length: int, told: bool = False) -> Results:
    """Returns the results of a family's calls on this device. A device that is lost ends the calls.

    told: print the name of each call before it.
    """
    from families import FAMILIES

    import pullback as pb

    out: Results = {}
    with pb.use_device(place):
        calls, case = FAMILIES[name](length), "its first call"
        while True:
            try:
                case, call = next(calls)
            except StopIteration:
                return out
            except Exception as error:
                out[f"the arguments after {case}"] = f"{type(error).__name__}: {error}"[:600]
                return out
            if told:
                print(f"{name}: {case}", flush=True)
            try:
                found = call()
                out[case] = [np.asarray(x.numpy()) for x in (found if isinstance(found, (list, tuple)) else [found])]
            except Exception as error:
                out[case] = f"{type(error).__name__}: {error}"[:600]
                if not works():
                    return out


def works() -> bool:
    """True if the default device still adds. After some errors of a kernel, every later call in the process fails."""
    import pullback as pb

    try:
        return bool((pb.ones(3) + 1).numpy()[0] == 2)
    except Exception:
        return False


def wrong_results(got: Results, wanted: Results, factor: float) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yields (call, number of the result, what is wrong with it) for everything that differs.

    factor: as in comparison.allowed_for.
    """
    from families.comparison import allowed_for, compared

    for case, found in got.items():
        if isinstance(found, str) and case not in wanted:
            yield case, 0, {"error": found}
    for case, right in wanted.items():
        there = got.get(case, "it was not reached")
        if isinstance(there, str) or isinstance(right, str):
            words = there if isinstance(there, str) else f"the device computed it, but the CPU raised {right}"
            yield case, 0, {"error": words}
            continue
        if len(there) != len(right):
            yield case, 0, {"error": f"{len(there)} results, not {len(right)}"}
        for place, (a, b) in enumerate(zip(there, right)):
            if wrong := compared(a, b, allowed_for(b.dtype, factor)):
                yield case, place, wrong


def worst_difference(got: Results, wanted: Results) -> float:
    """Returns the largest difference of results that have the wanted shapes, dtypes and infinities."""
    from families.comparison import difference

    pairs = [(got[case], right) for case, right in wanted.items() if isinstance(got.get(case), list) and isinstance(right, list)]
    found = [difference(a, b) for there, right in pairs for a, b in zip(there, right)]
    return max([x for x in found if x < 1e30], default=0.0)


def family(name: str, simulated: bool) -> None:
    from families import tolerance
    from families.comparison import as_line
    from families.libraries import ABSENT

    device.require_native(simulated)
    length = SIMULATED_LENGTH if simulated else LENGTH
    begin = time.perf_counter()
    got = results_on("cuda", name, length, told=True)
    seconds = time.perf_counter() - begin
    wanted = results_on("cpu", name, length)
    wrong = list(wrong_results(got, wanted, tolerance(name)))
    lines = [as_line(*one) for one in wrong]
    device.put(
        name=name, calls=len(wanted), results=sum([len(found) for found in got.values() if isinstance(found, list)]),
        worst=worst_difference(got, wanted), wrong=lines[:MOST_TOLD], seconds=round(seconds, 2),
        cpu_seconds=round(time.perf_counter() - begin - seconds, 2), **({"not_run": sorted(ABSENT)} if ABSENT else {}),
    )
    for line in lines:
        print(f"WRONG {line}", flush=True)
    if wrong:
        sys.exit(
            f"{name}: {len(wrong)} results in {len({case for case, *_ in wrong})} of {len(wanted)} calls are wrong: {lines[0]}"
        )


def main() -> None:
    options = device.arguments(__doc__, "family")
    if options.family in PENDING:  # pullback, which is not imported yet, reads the variable
        os.environ.pop("PULLBACK_CUDA_SYNC", None)
    if options.family == "native":
        native(options.simulated)
    else:
        family(options.family, options.simulated)


if __name__ == "__main__":
    main()
