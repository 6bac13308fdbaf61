"""The FLOPs of each op's example and of its gradient, as JSON: a program whose output on two backends is compared."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

import pullback as pb
from conftest import as_tensors, call, example, ops
from pullback.autodiff.primitive import Op
from pullback.profiling import Figures
from pullback.tensors import dtypes
from pullback.tensors.tensor import Tensor

NAMES = ("adds", "multiplies", "fmas", "matmul_flops", "special_ops", "integer_ops")


def figures(op: Op) -> dict[str, Any]:
    """Returns the figures of the forward and the backward pass of an op with a gradient."""
    inputs, params = example(op, np.float32)
    tensors = as_tensors(inputs)
    sources = [x for x in tensors if isinstance(x, Tensor) and dtypes.is_float(x.dtype)]
    with pb.profile() as prof:
        with pb.GradientTape() as tape:
            tape.watch(sources)
            y = call(op, tensors, params)
        if tape.knows(y):
            tape.gradient(y, sources, pb.full(y.shape, 0.5, dtype=y.dtype), unconnected="none")
    return {"forward": listed(prof.forward), "backward": listed(prof.backward)}


def listed(found: Figures) -> list[int]:
    return [getattr(found, name) for name in NAMES]


def differentiable() -> list[Op]:
    return [op for op in ops() if any(op.rules)]


if __name__ == "__main__":
    print(json.dumps({op.name: figures(op) for op in differentiable()}))
