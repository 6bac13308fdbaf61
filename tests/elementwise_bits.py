"""Results of all elementwise ops and of their pullbacks on random bit patterns. Their bits must not depend on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import pullback as pb
from conftest import FLOATS, call, dtype_of, host, ops, rng_for, takes
from pullback.autodiff.primitive import ZERO
from pullback.backends import native

COUNT = 3000  # elements per op and dtype


def numbers(rng: Any, dtype: Any) -> Any:
    """Returns numbers of which one third are random bit patterns, which cover all magnitudes, infinities and NaNs.

    All NaNs have one sign, because a GPU drops the sign when it converts a float16 NaN (docs/reproducibility.md).
    """
    wild = rng.integers(0, 256, COUNT // 3 * dtype.itemsize, np.uint8).view(dtype)
    with np.errstate(invalid="ignore"):
        wild = np.where(wild != wild, dtype.type(np.nan), wild)
    return rng.permutation(np.concatenate([wild, rng.normal(0, 4, COUNT - wild.size).astype(dtype)]))


def results(device: str) -> Iterator[tuple[str, Any]]:
    """Yields a name and a NumPy array for the value and for each gradient of every op with a kernel. All NaNs have equal bits."""
    for op in ops("unary", "binary"):
        for dtype in [dtype_of(name) for name in FLOATS if name in takes(op) and hasattr(native.module, op.name)]:
            rng = rng_for(op)
            xs = [pb.tensor(numbers(rng, dtype), device=device) for _ in op.names]
            cotangent = pb.tensor(rng.standard_normal(COUNT).astype(dtype), device=device)
            with pb.GradientTape() as tape:
                tape.watch(xs)
                found = [call(op, xs, ())]
            if op.pullback is not None and op.pullback is not ZERO:
                found += tape.gradient(found[0], xs, cotangent, unconnected="zero")
            for k, tensor in enumerate(found):
                array = host(tensor)
                yield f"{op.name} {dtype} {k}", np.where(array != array, array.dtype.type(np.nan), array)
