"""Which tensors a transform or a captured function made of float64 NumPy arrays, so that a Module can warn as of the arrays."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, Final

import numpy as np

FLOAT64: Final = np.dtype(np.float64).num
made: Final[dict[int, weakref.ref[Any]]] = {}  # by the identity of a tensor that is alive


def made_of(given: Any, t: Any) -> Any:
    """Returns t, the tensor that a function gets for what the user gave, and remembers it if that was a float64 array."""
    if was_float64_array(given):
        key = id(t)
        made[key] = weakref.ref(t, partial(made.pop, key))  # no function in Python, which could lose Ctrl-C
    return t


def was_float64_array(x: Any) -> bool:
    """True if this is a float64 NumPy array, or the tensor that was made of one on the way into a function."""
    return x.dtype.num == FLOAT64 if x.__class__ is np.ndarray else id(x) in made
