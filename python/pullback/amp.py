"""Products of float32 in less: `with pb.amp.autocast("bfloat16"):`.

Tensors, gradients and optimizers stay float32, and so do the sums inside a product: only the factors are rounded, as they are
read. float64, float16 and bfloat16 tensors are multiplied as ever.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np

from .backends import native
from .tensors import gpu

__all__ = ["autocast"]

PRECISIONS: Final = ("float32", "tf32", "bfloat16", "float16")  # a precision's number is its place here, as in the kernels


class _Current(threading.local):
    number: int = 0


_current: Final = _Current()


class autocast:
    """Products (matmul, linear, and what is made of them) of float32 tensors round their factors to `precision`, in this thread.

    Args:
        precision: "bfloat16" or "float16": to that dtype, on every device; "tf32": to 10 bits of mantissa, on GPUs that have
            tensor cores for it, and not at all elsewhere; "float32": not at all, for a part of the program inside another autocast.

    It holds for what runs while it is entered, so the backward pass belongs inside, too. It nests, and ends with what was before.
    float16 has a small range: gradients below 6e-8 become 0, which bfloat16 does not do to them.

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
    """The precision that the factors of products are rounded to now, in this thread."""
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
    """The factor of a product as the definitions of ops multiply it."""
    if _current.number < 2 or x.dtype != np.float32:
        return x
    if PRECISIONS[_current.number] == "float16":
        return x.astype(np.float16).astype(np.float32)
    bits = xp.ascontiguousarray(x).view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return xp.where(xp.isnan(x), x, nearest.view(np.float32).reshape(x.shape))
