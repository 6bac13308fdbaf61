"""Integers to negative integer powers, which are refused where the exponent is known without a wait for the device."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..duck import has
from ..errors import ArgumentError, PullbackError
from ..tensors import devices
from ..tensors.nested import as_array, has_tensor
from ..tensors.tensor import Tensor

POWER: Final = """Returns a to the power of b, element by element, with broadcasting.

An integer to a negative integer power is no integer: ArgumentError refuses a negative number as the exponent of integers, and a
list or a NumPy array with one. The values of a tensor of exponents are not checked, because a program would wait for the device:
the kernels then round the power toward zero, and 0 to a negative power is 0.
"""


def refuse_negative_exponents(a: Any, b: Any) -> None:
    """Raises ArgumentError if a holds integers and b is a negative integer, or a list or a NumPy array with one."""
    if isinstance(b, (float, Tensor)) or (isinstance(b, int) and b >= 0) or _kind(a) not in ("i", "u", "b"):
        return
    exponents = _known(b)
    if exponents.size and exponents.dtype.kind == "i" and (least := exponents.min()) < 0:
        raise ArgumentError(
            f"pow: the exponent {least} is negative, and an integer to a negative integer power is no integer. Convert the base to "
            f"floats: x.astype(pb.float32) ** {least}."
        )


def _kind(x: Any) -> Any:
    dtype = x.dtype if has(x, "dtype") else _known(x).dtype
    return getattr(dtype, "kind", None)


def _known(x: Any) -> Any:
    """Returns a number, a NumPy array or a list without tensors as an array, and an empty array of floats for all else."""
    if isinstance(x, np.generic) or devices.on_host(x):
        return x
    try:
        return np.empty(0) if has_tensor(x) or not isinstance(x, (int, float, list, tuple)) else as_array(x, None)
    except PullbackError:  # The op raises it again, with the name of the argument.
        return np.empty(0)
