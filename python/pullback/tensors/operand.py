"""Converts the arguments of ops: tensors, Python numbers, and everything that `asarray` accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ..autodiff.listeners import listeners
from ..backends import native
from ..duck import has
from ..errors import ArgumentError, DTypeError, PullbackError
from ..interop.wrong_calls import with_title
from ..launch import capturing
from . import devices, gpu, nested
from .attached import attached
from .creation import asarray, can_change, kept, snapshot
from .parameter import Parameter
from .storage import Storage
from .tensor import Tensor

T = TypeVar("T")


class Number:
    """A Python number among an op's inputs. It takes the dtype of the tensors, and no tape watches it."""

    __slots__ = ("array", "serial", "storage")
    shape = ()

    def __init__(self, value: float) -> None:
        self.array = value
        self.serial = 0
        self.storage: Storage | None = None


class Listed:
    """Nested lists of Python numbers among an op's inputs. They take the dtype of the tensors, as a Number does."""

    __slots__ = ("given", "kinds")

    def __init__(self, given: Any, kinds: set[type]) -> None:
        self.given = given
        self.kinds = kinds  # those of bool, int and float that the lists hold


def operand(x: Any, *, op: str = "this op") -> Any:
    """Returns an op's argument as a Tensor, a Number if it is a Python number, or as Listed if it is nested lists of numbers.

    Arguments of other types are converted by `as_tensor`. `op`: the op's name, for messages. Raises DTypeError.
    """
    kind = x.__class__
    if kind is Tensor or kind is Parameter or isinstance(x, (Tensor, Number)):
        return x
    if kind is float or kind is int or kind is bool:
        return Number(x)
    if isinstance(x, np.generic):
        if x.dtype.kind not in "fiub":
            raise DTypeError(f"{op}: a value of dtype {x.dtype} is not supported.")
        return Number(x.item())
    if isinstance(x, (list, tuple)) and (kinds := nested.kinds_of_numbers(x)) is not None:
        return Listed(x, kinds)
    try:
        return as_tensor(x)
    except (ArgumentError, DTypeError) as error:
        raise type(error)(with_title(op, error, x)) from None


def as_tensor(x: Any, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Returns an op's argument, also a Python number, as a Tensor that the op reads while it runs.

    If there are listeners, an array that other code can write to is copied, because tapes and transforms keep the inputs that
    they record. A captured function does not copy it, because each replay reads it during the call. An op whose result shares the
    memory of its argument converts the argument by `own` instead.
    """
    if isinstance(x, Tensor) and dtype is None and device is None:
        return x
    if capturing.thread.recording is not None:
        return _read_in_place(x, dtype, device)
    take = kept if listeners.stack else asarray
    return take(x, dtype=dtype, device=device)


def converted(function: str, name: str, x: Any, convert: Callable[[Any], T]) -> T:
    """Returns convert(x), with errors that name the function and the argument."""
    try:
        return convert(x)
    except PullbackError as error:
        raise type(error)(with_title(f"{function}: {name}", error, x)) from None


def steady(x: Any) -> Any:
    """Returns an argument that a pullback reads later: a copy if there are listeners and other code can write to the argument.

    A copy of an array is an array.
    """
    if isinstance(x, Tensor) or not listeners.stack or capturing.thread.recording is not None:
        return x
    if devices.on_host(x) or devices.on_device(x):
        return snapshot(x) if can_change(x, x) else x
    if isinstance(x, np.ndarray):  # a subclass of ndarray
        return x.copy()
    return kept(x) if has(x, "__dlpack__") else x


def own(x: Any, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Like `as_tensor`, but in memory that no other code can write to: for a function that returns its argument or a view of it.

    A captured function does not copy here: it copies a result that shares memory with other arrays when it returns.
    """
    if isinstance(x, Tensor) and dtype is None and device is None:
        return x
    if capturing.thread.recording is not None:
        return _read_in_place(x, dtype, device)
    return kept(x, dtype=dtype, device=device)


def _read_in_place(x: Any, dtype: Any, device: str | None) -> Tensor:
    """Returns the argument of an op in a captured function. Each replay copies an array that a pullback outside may read later."""
    t = asarray(x, dtype=dtype, device=device)
    if capturing.thread.recording is not None and capturing.thread.recording.keeps and can_change(x, t.array):
        return attached.converted(t, None, None, True)
    return t


def over(given: Any, array: Any) -> Tensor:
    """Returns a tensor over the array: `given` itself if it holds this array, so that a tape notices if its memory changes."""
    return given if isinstance(given, Tensor) and given.array is array else Tensor(array)


def _register(module: Any) -> None:
    """Registers the tensor classes with a module of kernels, whose elementwise kernels take and return tensors."""
    module.register_tensors(Tensor, (Tensor, Parameter, Number))


if native.module is not None:
    _register(native.module)
    gpu.when_loaded(_register)
