"""Remembers the tensors that a transform, a captured function or a Loader made from float64 NumPy arrays.

A Module warns of float64 arrays as its input. With this record it also warns if one of these has converted the array.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, Final

import numpy as np

FLOAT64: Final = np.dtype(np.float64).num
made: Final[dict[int, weakref.ref[Any]]] = {}  # by the id() of a live tensor


def made_of(given: Any, t: Any) -> Any:
    """Returns t, the tensor made from the user's argument `given`, and remembers t if the argument was a float64 array."""
    if was_float64_array(given):
        remember(t)
    return t


def remember(t: Any) -> None:
    """Remembers t as a tensor that was made from a float64 array."""
    key = id(t)
    made[key] = weakref.ref(t, partial(made.pop, key))  # not a Python function, in which Ctrl-C would be lost


def was_float64_array(x: Any) -> bool:
    """True if x is a float64 NumPy array, or a tensor that was made from one by `made_of`."""
    return x.dtype.num == FLOAT64 if x.__class__ is np.ndarray else id(x) in made
