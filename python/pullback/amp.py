"""Products of float32 tensors with factors in lower precision: `with pb.amp.autocast("bfloat16"):`.

Tensors, gradients, optimizers and the sums inside a product stay float32. Only the factors are rounded, when a product reads
them. Products of float64, float16 and bfloat16 tensors do not change.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np

from .backends import native
from .tensors import gpu

__all__ = ["autocast"]

PRECISIONS: Final = ("float32", "tf32", "bfloat16", "float16")  # The kernels receive a precision as its index here.


class _Current(threading.local):
    number: int = 0


_current: Final = _Current()


class autocast:
    """Makes products of float32 tensors (matmul, linear, and ops built on them) round their factors to `precision` in this thread.

    Args:
        precision: "bfloat16" and "float16" round to that dtype on every device. "tf32" rounds to 10 bits of mantissa on GPUs that
            have tensor cores for it, and does not round elsewhere. "float32" does not round, for a part of the program inside
            another autocast.

    It applies to products that run inside the `with` block, so the backward pass belongs inside, too. Blocks nest, and the end of
    a block restores the previous precision. float16 has a small range: it turns gradients below 6e-8 into 0, which bfloat16 does
    not.

    Example:
        >>> with pb.amp.autocast("bfloat16"), pb.GradientTape() as tape:
        ...     loss = nn.functional.cross_entropy(model(x), labels)
        ...     gradients = tape.gradient(loss, model.parameters())
    """

    def __init__(self, precision: str) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"autocast: precision={precision!r}; use {', '.join(map(repr, PRECISIONS))}.")
        self.precision = precision
        self._before: list[int] = []

    def __enter__(self) -> autocast:
        self._before.append(_current.number)
        _switch(PRECISIONS.index(self.precision))
        return self

    def __exit__(self, *_: object) -> None:
        _switch(self._before.pop())


def precision() -> str:
    """Returns the precision to which products in this thread round their factors now."""
    return PRECISIONS[_current.number]


def _switch(number: int) -> None:
    _current.number = number
    for kernels in (native.module, *_of_gpu):
        if kernels is not None:
            kernels.set_matmul_precision(number)


_of_gpu: Final[list[Any]] = []


def _connect(kernels: Any) -> None:
    _of_gpu.append(kernels)
    kernels.set_matmul_precision(_current.number)


gpu.when_loaded(_connect)


def rounded(xp: Any, x: Any) -> Any:
    """Returns a factor of a product rounded to the current precision, for the reference backend."""
    if _current.number < 2 or x.dtype != np.float32:
        return x
    if PRECISIONS[_current.number] == "float16":
        return x.astype(np.float16).astype(np.float32)
    bits = xp.ascontiguousarray(x).view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return xp.where(xp.isnan(x), x, nearest.view(np.float32).reshape(x.shape))
