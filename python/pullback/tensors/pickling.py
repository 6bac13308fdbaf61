"""Pickles tensors (also for multiprocessing) as bytes, dtype and shape. Loading calls only `rebuilt`.

No tape records a loaded tensor, and it is on the default device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import dtypes
from .creation import asarray
from .parameter import Parameter
from .tensor import Tensor


def reduced(x: Tensor) -> tuple[Any, ...]:
    """Returns the result of `__reduce__`. For a Parameter it includes the name, `trainable` and the constraint."""
    array = x.numpy()
    facts = (x.name, x.trainable, x.constraint) if isinstance(x, Parameter) else ()
    return rebuilt, (type(x), array.tobytes(), str(array.dtype), array.shape, *facts)


def rebuilt(kind: Any, data: bytes, dtype: str, shape: tuple[int, ...], *facts: Any) -> Tensor:
    """Returns the tensor or Parameter that was pickled."""
    value = asarray(np.frombuffer(data, dtypes.as_dtype(dtype)).reshape(shape).copy())
    if not facts:
        return value
    found = Parameter(value, *facts)
    found.__class__ = kind  # restores the class of a Buffer
    found.storage.kind = kind.__name__
    return found
