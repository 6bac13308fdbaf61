"""Pickles tensors (also for multiprocessing) as bytes, dtype, shape and device. Loading calls only `rebuilt`.

A view is pickled with its own elements alone. No tape records a loaded tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autodiff.site import warn
from ..errors import DeviceError
from . import devices, dtypes
from .creation import asarray
from .escape import report_escape
from .parameter import Parameter, added, remade
from .tensor import Tensor


def reduced(x: Tensor) -> tuple[Any, ...]:
    """Returns the result of `__reduce__`. For a Parameter it includes the name, `trainable` and the constraint."""
    report_escape(x, "pickling")
    data = devices.move(x.array, "cpu").tobytes()
    facts = (x.name, x.trainable, x.constraint) if isinstance(x, Parameter) else ()
    if isinstance(x, Parameter) and (more := added(x)):
        facts = (*facts, more)
    return rebuilt, (type(x), data, str(x.dtype), x.shape, x.device, *facts)


def rebuilt(kind: Any, data: bytes, dtype: str, shape: tuple[int, ...], device: str, *facts: Any) -> Tensor:
    """Returns the tensor or Parameter that was pickled, on the device that it was on.

    If that device cannot be used, the tensor is on the CPU, and a UserWarning says why.
    """
    array = np.frombuffer(data, dtypes.as_dtype(dtype)).reshape(shape).copy()
    try:
        value = asarray(array, device=device)
    except DeviceError as error:
        warn(f'a tensor was pickled on device "{device}", and is on the CPU now: {error}', UserWarning)
        value = asarray(array, device="cpu")
    if not facts:
        return value
    name, trainable, constraint, *more = facts
    return remade(kind, value, name, trainable, constraint, more[0] if more else {})
