"""How pickle, and with it multiprocessing, takes a tensor: as bytes, dtype and shape. Loading calls nothing but `rebuilt`.

What is loaded is recorded by no tape, and lies where new tensors are made.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import dtypes
from .creation import asarray
from .parameter import Parameter
from .tensor import Tensor


def reduced(x: Tensor) -> tuple[Any, ...]:
    """What `__reduce__` returns; of a Parameter with its name, whether it is trainable, and its constraint."""
    array = x.numpy()
    facts = (x.name, x.trainable, x.constraint) if isinstance(x, Parameter) else ()
    return rebuilt, (type(x), array.tobytes(), str(array.dtype), array.shape, *facts)


def rebuilt(kind: Any, data: bytes, dtype: str, shape: tuple[int, ...], *facts: Any) -> Tensor:
    """The tensor or Parameter that was pickled."""
    value = asarray(np.frombuffer(data, dtypes.as_dtype(dtype)).reshape(shape).copy())
    if not facts:
        return value
    found = Parameter(value, *facts)
    found.__class__ = kind  # a Buffer is one
    found.storage.kind = kind.__name__
    return found
