"""Products of float32 tensors with factors in lower precision: `with pb.amp.autocast("bfloat16"):`.

Tensors, gradients, optimizers and the sums inside a product stay float32. Only the factors are rounded, when a product reads
them. Products of float64, float16 and bfloat16 tensors do not change.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ArgumentError, PullbackError
from . import modes


class autocast:
    """Makes products of float32 tensors (matmul, linear, and ops built on them) round their factors to `precision` in this thread.

    Args:
        precision: "bfloat16" and "float16" round to that dtype on every device. "tf32" rounds to 10 bits of mantissa on GPUs that
            have tensor cores for it, in products of at least 2^25 multiply-adds, and does not round elsewhere: smaller products are
            as fast without. "float32" does not round, for a part of the program inside
            another autocast.

    It applies to products that run inside the `with` block and to the products of their gradients, of every order, wherever the
    backward pass runs. Gradients of what ran outside do not change if the backward pass runs inside. Blocks nest, and the end of a
    block restores the previous precision. float16 has a small range: it turns gradients below 3e-8 into 0 unless a
    `pb.amp.LossScaler` scales the loss, which bfloat16 does not need. "tf32" raises a PullbackError while
    `pb.config.reproducible` is "everywhere".

    Example:
        >>> with pb.amp.autocast("bfloat16"), pb.GradientTape() as tape:
        ...     loss = nn.functional.cross_entropy(model(x), labels)
        >>> gradients = tape.gradient(loss, model.parameters())
    """

    def __init__(self, precision: modes.Precision) -> None:
        if precision not in modes.PRECISIONS:
            raise ArgumentError(
                f"autocast: precision={precision!r} is none in which products are computed; use "
                f"{', '.join(map(repr, modes.PRECISIONS))}. To compute in float64, convert the network and its inputs: "
                f"net.to(pb.float64). Weights of integers cannot be trained."
            )
        self.precision: modes.Precision = precision
        self._before: list[modes.Precision] = []

    def __enter__(self) -> autocast:
        if not modes.allows(self.precision):
            raise PullbackError(
                'autocast("tf32") while pb.config.reproducible is "everywhere": only tensor cores of a GPU round to tf32, and they '
                'add in an order that is not documented. Use "bfloat16", "float16" or "float32", or set pb.config.reproducible = '
                '"machine".'
            )
        self._before.append(modes.precision())
        modes.set_precision(self.precision)
        return self

    def __exit__(self, *_: object) -> None:
        modes.set_precision(self._before.pop())


def rounded(xp: Any, x: Any) -> Any:
    """Returns a factor of a product rounded to the current precision, for the reference backend."""
    precision = modes.precision()
    if precision in ("float32", "tf32") or x.dtype != np.float32:
        return x
    if precision == "float16":
        return x.astype(np.float16).astype(np.float32)
    bits = xp.ascontiguousarray(x).view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return xp.where(xp.isnan(x), x, nearest.view(np.float32).reshape(x.shape))
