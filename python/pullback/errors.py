"""Every error class. A message says what was asked, what is wrong, and what to do."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class PullbackError(Exception):
    """All errors that pullback raises on purpose."""


class ShapeError(PullbackError, ValueError):
    """Shapes that do not fit together or do not fit the op."""


class DTypeError(PullbackError, TypeError):
    """A dtype that the op does not take, or dtypes with no common one."""


class DeviceError(PullbackError):
    """Tensors of two devices, or a device that is not there."""


class TapeError(PullbackError):
    """A tape used in a way that cannot give a gradient."""


class UnconnectedError(TapeError):
    """A source that the target does not depend on."""


class StaleValueError(TapeError):
    """A Parameter changed between the forward and the backward pass, or before a view of it was read."""


class NonFiniteError(PullbackError, ArithmeticError):
    """The first NaN or infinity, under `debug_nans`."""


class GradientCheckError(PullbackError, AssertionError):
    """A derivative that finite differences contradict, found by `check_gradients`."""


class CaptureError(PullbackError):
    """Something inside a captured function that a replay could not repeat."""


class VmapError(PullbackError):
    """Something inside a function under `vmap` that cannot be done for all examples at once."""


class FileFormatError(PullbackError, ValueError):
    """A file that is not what it should be: truncated, of another format, or with other contents."""


class OutOfMemoryError(PullbackError, MemoryError):
    """The device has no room for a tensor."""


class PrecisionWarning(UserWarning):
    """A float64 NumPy array made a network of narrower Parameters compute in float64."""


class ZeroGradientWarning(UserWarning):
    """A source reaches the target only through ops whose derivative is zero everywhere, or through numbers that left pullback."""


def check_room(what: str, shape: Sequence[int], itemsize: int = 1) -> None:
    """Raises OutOfMemoryError for a shape of more bytes than an address reaches, which NumPy refuses in many ways, or not at all.

    As in NumPy, an empty axis makes no room for the others.
    """
    if math.prod([n for n in shape if n]) * itemsize > sys.maxsize:
        raise OutOfMemoryError(f"{what}: shape {tuple(shape)} is more than any memory holds. Ask for fewer elements.")
