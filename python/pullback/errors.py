"""All error classes. Every message states the request, what is wrong with it, and what to do."""

from __future__ import annotations

import math
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np

from .duck import attribute

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

MOST_SHOWN: Final = 200  # characters of a value in a message


class PullbackError(Exception):
    """Base class of all errors that pullback raises on purpose."""


class ArgumentError(PullbackError, ValueError):
    """A value that an argument cannot have, such as an option that does not exist."""


class ShapeError(PullbackError, ValueError):
    """Shapes that do not fit together or do not fit the op."""


class AxisError(ShapeError, IndexError):
    """An axis that a tensor does not have. As in NumPy it is an IndexError, too, which the array API asks for."""


class DTypeError(PullbackError, TypeError):
    """A dtype that the op does not accept, or dtypes that have no common dtype."""


class DeviceError(PullbackError):
    """Tensors on two devices, or a device that does not exist."""


class TapeError(PullbackError):
    """Use of a tape that cannot yield a gradient."""


class UnconnectedError(TapeError):
    """A source that the target does not depend on."""


class StaleValueError(TapeError):
    """A Parameter changed between the forward and the backward pass, or before a view of it was read."""


class NonFiniteError(PullbackError, ArithmeticError):
    """The first NaN or infinity that an op produced under `debug_nans`."""


class GradientCheckError(PullbackError, AssertionError):
    """A derivative that differs from finite differences, found by `check_gradients` or `tape.check`."""


class LinAlgError(PullbackError, np.linalg.LinAlgError):
    """A matrix that a function of `pb.linalg` cannot factorise: singular, not positive definite, or not finite."""


class CaptureError(PullbackError):
    """Code in a captured function that a replay could not repeat."""


class VmapError(PullbackError):
    """Code in a function under `vmap` that cannot run for all examples at once."""


class FileFormatError(PullbackError, ValueError):
    """A file that is truncated, of another format, or has unexpected contents."""


class OutOfMemoryError(PullbackError, MemoryError):
    """The device has no room for a tensor."""


class PrecisionWarning(UserWarning):
    """A float64 NumPy array made a network of narrower Parameters compute in float64."""


class ZeroGradientWarning(UserWarning):
    """A source affects the target only through ops whose derivative is zero everywhere, or through values read out of pullback."""


class ConvergenceWarning(UserWarning):
    """A derivative was asked for at a point that is no solution, because the solver did not converge."""


@contextmanager
def room_for(what: str) -> Generator[None]:
    """Raises OutOfMemoryError where NumPy raises MemoryError."""
    try:
        yield
    except MemoryError as error:
        if isinstance(error, OutOfMemoryError):
            raise
        raise OutOfMemoryError(f"{what} do not fit in memory ({error}).") from error


def an(value: object) -> str:
    """Returns the name of the value's type after its article: "a dict", "an Adam"."""
    name = type(value).__name__
    spelled = name[:2].isupper() and name[0] in "FHLMNRSX"  # such as LSTM
    return f"{'an' if name[0] in 'AEIOUaeio' or spelled or name == 'ndarray' else 'a'} {name}"


def shown(value: object) -> str:
    """Returns the value for a message: its repr, but the type and the shape of an array, because the repr may be pages long."""
    shape = attribute(value, "shape", ())
    if isinstance(shape, tuple) and shape:
        return f"{an(value)} of shape {shape}"
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to write thousands of digits
        return f"an integer of {int(value.bit_length() * math.log10(2)) + 1} digits"
    text = " ".join(repr(value).split())
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def check_room(what: str, shape: Sequence[int], itemsize: int = 1) -> None:
    """Raises OutOfMemoryError if a shape needs more bytes than can be addressed. NumPy raises various errors for it, or none.

    As in NumPy, the other axes must be small enough even if one axis is empty.
    """
    if math.prod([n for n in shape if n]) * itemsize > sys.maxsize:
        raise OutOfMemoryError(f"{what}: shape {tuple(shape)} is more than any memory holds. Ask for fewer elements.")
