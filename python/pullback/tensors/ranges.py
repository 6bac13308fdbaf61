"""Creates tensors of evenly spaced numbers, and the identity matrix."""

from __future__ import annotations

import builtins
import math
from operator import index
from typing import Any

import numpy as np

from ..errors import DTypeError, ShapeError, check_room, shown
from ..interop.wrong_calls import flag
from ..typing import DTypeLike
from . import dtypes
from .attached import attached
from .creation import as_shape, asarray, marked, no_room
from .tensor import Tensor


def arange(
    start: float, stop: float | None = None, step: float = 1, dtype: DTypeLike | None = None, *, device: str | None = None
) -> Tensor:
    """Returns the numbers start, start + step, … that lie before `stop`. The default dtype is int64 for ints, otherwise float32.

    Gradients pass to `start` and `step`. The number of elements has no derivative.
    Raises DTypeError if an argument is not a real number, ShapeError if the number of elements is not finite, and
    OutOfMemoryError.
    """
    if stop is None:
        start, stop = 0, start
    end: Any = stop
    given: list[Any] = [start, stop, step]
    if not all([isinstance(x, (int, float, np.number, Tensor)) for x in given]):
        raise DTypeError(f"arange: start={start!r}, stop={stop!r} and step={step!r} must be real numbers.")
    wanted = dtypes.result_type(start, stop, step) if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(end, Tensor):  # only the number of elements depends on it
        end = end.item()
    if step == 0:
        raise ShapeError("arange: step=0 never arrives. Use a positive or a negative step.")
    try:
        count = builtins.max(math.ceil((end - start) / step), 0)
        check_room("arange", (count,), 8)
    except (OverflowError, ValueError):  # an argument or the count is infinite, or does not fit float64
        raise ShapeError(f"arange: from {start} to {end} by {step} there is no finite number of elements.") from None
    if isinstance(start, Tensor) or isinstance(step, Tensor):
        return attached.progression(start, step, count, wanted, device)
    first, apart = [x.item() if isinstance(x, np.number) else x for x in (start, step)]
    for x in (first, first + (count - 1) * apart) if count and wanted.kind in "iu" else ():
        if not dtypes.fits(math.trunc(x), wanted):
            raise dtypes.out_of_range(f"arange: {x}", wanted, "Use a wider dtype.")
    try:
        with np.errstate(over="ignore"):
            return marked((start, step), asarray(_numbers(start, end, step, count, wanted).astype(wanted), device=device))
    except MemoryError as error:
        raise no_room(f"arange from {start} to {end} by {step}", error) from error


def _numbers(start: Any, stop: Any, step: Any, count: int, wanted: Any) -> Any:
    if not all([isinstance(x, int) for x in (start, stop, step)]) or max(-start, -stop, -step, start, stop, step) < 2**63:
        return np.arange(start, stop, step)
    if wanted.kind in "iu":  # The numbers fit, and 64 bits hold them modulo 2^64.
        return np.arange(count, dtype=np.uint64) * np.uint64(step % 2**64) + np.uint64(start % 2**64)
    try:
        return np.arange(count) * float(step) + float(start)
    except OverflowError:
        raise ShapeError("arange: numbers beyond float64 were asked for: start, step or stop exceeds it.") from None


def linspace(
    start: float, stop: float, num: int, *, dtype: DTypeLike | None = None, device: str | None = None, endpoint: bool = True
) -> Tensor:
    """Returns `num` evenly spaced numbers from `start` to `stop`; float32 unless a dtype or a tensor argument implies another.

    endpoint=False leaves out `stop`. Gradients pass to `start` and `stop`.

    Raises ShapeError if `num` is not a non-negative integer, DTypeError, and OutOfMemoryError.
    """
    wanted = dtypes.result_type(start, stop, 1.0) if dtype is None else dtypes.as_dtype(dtype)
    if np.iterable(num):
        raise ShapeError(f"linspace: num={num!r} is not an integer.")
    (count,), endpoint = as_shape(num), flag("linspace", "endpoint", endpoint)
    check_room("linspace", (count,), 8)
    if isinstance(start, Tensor) or isinstance(stop, Tensor):
        weights = np.linspace(0.0, 1.0, count, endpoint=endpoint)
        return attached.lerp(start, stop, weights, wanted, device)
    try:
        with np.errstate(invalid="ignore", over="ignore"):  # start or stop may be infinite
            numbers = np.linspace(float(start), float(stop), count, endpoint=endpoint, dtype=wanted)
        return marked((start, stop), asarray(numbers, device=device))
    except OverflowError:
        end = start if not dtypes.fits(start, wanted) else stop
        raise dtypes.out_of_range(f"linspace: {shown(end)}", dtypes.float64, "Give an end that is in this range.") from None
    except MemoryError as error:
        raise no_room(f"linspace of {count} numbers", error) from error


def eye(n_rows: int, n_cols: int | None = None, k: int = 0, dtype: DTypeLike | None = None, *, device: str | None = None) -> Tensor:
    """Returns a matrix of shape (n_rows, n_cols) with ones on the k-th diagonal and zeros elsewhere, float32 by default.

    `n_cols` is `n_rows` by default. Raises ShapeError, DTypeError, DeviceError, OutOfMemoryError.
    """
    wanted = dtypes.DEFAULT if dtype is None else dtypes.as_dtype(dtype)
    rows, columns = shape = as_shape((n_rows, n_rows if n_cols is None else n_cols))
    check_room("eye", shape, wanted.itemsize)
    try:
        return asarray(np.eye(rows, columns, k=index(k), dtype=wanted), device=device)
    except TypeError:
        raise ShapeError(f"eye: k={k!r} is not an integer.") from None
    except MemoryError as error:
        raise no_room(f"eye of shape {shape}", error) from error
