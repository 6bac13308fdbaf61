"""Runs one small call of every family of kernels for compute-sanitizer, without pytest, CuPy's kernels or comparisons.

`python sanitize.py --families conv,attention` runs these families in this order. It prints a row when a family begins, and one
after it, so that the last row of a run that was stopped names the family, and the line after it the call.
"""

from __future__ import annotations

import argparse
import sys
import time

from smoke import works

import device

LENGTH, SIMULATED_LENGTH = 700, 100


def chosen(words: list[str]) -> tuple[list[str] | None, list[str]]:
    """Returns the families of the option --families, or None without it, and the other words of the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--families")
    options, others = parser.parse_known_args(words)
    return options.families.split(",") if options.families else None, others


def main() -> None:
    names, others = chosen(sys.argv[1:])
    sys.argv[1:] = others
    options = device.arguments(__doc__)
    found = device.require_native(options.simulated)
    from families import FAMILIES, order_for_sanitizer

    import pullback as pb

    names = names or order_for_sanitizer()
    if unknown := [name for name in names if name not in FAMILIES]:
        sys.exit(f"sanitize.py: no family is called {', '.join(unknown)}. There are: {', '.join(FAMILIES)}.")
    failed: list[str] = []
    with pb.use_device("cuda"):
        for name in names:
            device.put(name=name, begins=True)
            begin, results = time.perf_counter(), 0
            for case, call in FAMILIES[name](SIMULATED_LENGTH if options.simulated else LENGTH):
                print(f"{name}: {case}", flush=True)
                try:
                    made = call()
                    found.synchronize(0)
                except Exception as error:
                    failed.append(f"{name}: {case}: {type(error).__name__}: {error}"[:600])
                    print(f"FAILED {failed[-1]}", flush=True)
                    if not works():
                        sys.exit(f"the device is lost. {failed[-1]}")
                    continue
                results += len(made) if isinstance(made, (list, tuple)) else 1
            device.put(name=name, results=results, seconds=round(time.perf_counter() - begin, 2))
    if failed:
        sys.exit(f"{len(failed)} calls failed; the first: {failed[0]}")


if __name__ == "__main__":
    main()
