"""The beginning and the end of every measuring process: check which kernels run, and print the rows."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any


def arguments(description: str | None, *names: str) -> argparse.Namespace:
    """Parses the command line of a measuring process: positional arguments, and --simulated for small sizes."""
    parser = argparse.ArgumentParser(description=description)
    for name in names:
        parser.add_argument(name)
    parser.add_argument("--simulated", action="store_true", help="small sizes, on the simulated device")
    parser.add_argument("--seconds", type=float, default=20)
    return parser.parse_args()


def put(**row: Any) -> None:
    """Prints one result as a line of JSON. Numbers that are not finite become null."""
    sys.stdout.write(json.dumps(finite(row)) + "\n")  # at once, so that no line of another process comes in between
    sys.stdout.flush()


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def require_native(simulated: bool) -> Any:
    """Returns pullback's object for the GPU.

    Ends the process with an error message if pullback's kernels do not run on device "cuda".
    """
    import pullback as pb
    from pullback.tensors import gpu

    if reason := pb.cuda.why_not():
        sys.exit(f"device cuda cannot be used: {reason}")
    found = gpu.need()
    if found.kernels is None:
        sys.exit(f"pullback's CUDA kernels are not loaded, so CuPy would be measured in their place: {found.why_no_kernels}")
    if found.simulated != simulated:
        what = "is the simulator" if found.simulated else "is a real GPU"
        sys.exit(f"device cuda {what}, but the run is {'' if simulated else 'not '}--simulated")
    return found
