"""What an op may be given: tensors, Python numbers, and whatever `asarray` understands."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autodiff.listeners import listeners
from ..backends import native
from ..errors import DTypeError
from ..launch import capturing
from . import devices, gpu
from .creation import asarray, can_change, kept, snapshot
from .parameter import Parameter
from .storage import Storage
from .tensor import Tensor


class Number:
    """A Python number among an op's inputs: it takes the dtype of the tensors, and no tape watches it."""

    __slots__ = ("array", "serial", "storage")
    shape = ()

    def __init__(self, value: float) -> None:
        self.array = value
        self.serial = 0
        self.storage: Storage | None = None


def operand(x: Any, *, op: str = "this op") -> Any:
    """An op's argument as a Tensor or Number: tensors as they are, Python numbers weak, the rest as `as_tensor` does."""
    kind = x.__class__
    if kind is Tensor or kind is Parameter or isinstance(x, (Tensor, Number)):
        return x
    if kind is float or kind is int or kind is bool:
        return Number(x)
    if isinstance(x, np.generic):
        if x.dtype.kind not in "fiub":
            raise DTypeError(f"{op}: a value of dtype {x.dtype} is not supported.")
        return Number(x.item())
    try:
        return as_tensor(x)
    except DTypeError as error:
        raise DTypeError(f"{op}: {error}") from None


def as_tensor(x: Any, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """An op's argument as a Tensor, a Python number too; the op reads it while it runs.

    An array that somebody else can write to is copied if anybody listens, because tapes and transforms keep what they are
    told of. In a captured function it is not: each replay reads it during the call. An op whose result shares the memory of
    its argument takes the argument by `own` instead.
    """
    if isinstance(x, Tensor) and dtype is None and device is None:
        return x
    take = kept if listeners.stack and capturing.thread.recording is None else asarray
    return take(x, dtype=dtype, device=device)


def steady(x: Any) -> Any:
    """An argument that a pullback reads again: a copy if anybody listens and somebody else can write to it. Arrays stay arrays."""
    if isinstance(x, Tensor) or not listeners.stack or capturing.thread.recording is not None:
        return x
    if devices.on_host(x) or devices.on_device(x):
        return snapshot(x) if can_change(x, x) else x
    if isinstance(x, np.ndarray):  # of a class of its own
        return x.copy()
    return kept(x) if hasattr(x, "__dlpack__") else x


def own(x: Any, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """As `as_tensor`, in memory that nobody else can write to: for a function that returns its argument or a view of it.

    A captured function copies on its way out what its result shares with others.
    """
    if isinstance(x, Tensor) and dtype is None and device is None:
        return x
    take = kept if capturing.thread.recording is None else asarray
    return take(x, dtype=dtype, device=device)


def over(given: Any, array: Any) -> Tensor:
    """A tensor of the array: `given` itself if that is its tensor, so that a tape sees whether its memory changes."""
    return given if isinstance(given, Tensor) and given.array is array else Tensor(array)


def _register(module: Any) -> None:
    """Elementwise kernels take and give tensors."""
    module.register_tensors(Tensor, (Tensor, Parameter, Number))


if native.module is not None:
    _register(native.module)
    gpu.when_loaded(_register)
