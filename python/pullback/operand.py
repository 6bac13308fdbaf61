"""What an op may be given: tensors, Python numbers, and whatever `asarray` understands."""

from __future__ import annotations

from typing import Any

from . import gpu
from .backends import native
from .errors import DTypeError
from .tensor import Parameter, Storage, Tensor


class Number:
    """A Python number among an op's inputs: it takes the dtype of the tensors, and no tape watches it."""

    __slots__ = ("array", "serial", "storage")
    shape = ()

    def __init__(self, value: float) -> None:
        self.array = value
        self.serial = 0
        self.storage: Storage | None = None


def operand(x: Any, *, op: str = "this op") -> Any:
    """An op's argument as a Tensor or Number: tensors as they are, Python numbers weak, the rest as `asarray` does."""
    kind = x.__class__
    if kind is Tensor or kind is Parameter or isinstance(x, (Tensor, Number)):
        return x
    if kind is float or kind is int or kind is bool:
        return Number(x)
    import numpy as np

    if isinstance(x, np.generic):
        if x.dtype.kind not in "fiub":
            raise DTypeError(f"{op}: a value of dtype {x.dtype} is not supported.")
        return Number(x.item())
    from .creation import asarray

    return asarray(x)


def as_tensor(x: Any) -> Tensor:
    """An op's argument as a Tensor: like `operand`, but a Python number becomes a 0-d tensor."""
    if isinstance(x, Tensor):
        return x
    from .creation import asarray

    return asarray(x)


def _register(module: Any) -> None:
    """Elementwise kernels take and give tensors."""
    module.register_tensors(Tensor, (Tensor, Parameter, Number))


if native.module is not None:
    _register(native.module)
    gpu.when_loaded(_register)
