"""The exceptions that a kernel raises for its callers inside pullback. Users never see them."""

from __future__ import annotations

from typing import Final

from ..errors import LinAlgError


class Refused(TypeError):
    """The kernel does not support these arguments, so the caller must compute the result in a different way."""


class BadIndex(IndexError):
    """An index is out of range. args: (position in the flattened index, the index, the axis's length, the kernel's name)."""

    def __str__(self) -> str:
        where, index, length, name = (*self.args, "an op")[:4]
        return f"{name}: index {index} is out of range for an axis of length {length} (position {where}, flattened)."


# Of the faults of csrc/launch/failure.h, in their order: the words after the name of the matrix.
FAULTS: Final = (
    "has an element that is NaN or infinite, so it has no result. `with pb.debug_nans():` finds the op that made it.",
    "is not positive definite: its leading {0} x {0} block is not. Add a small multiple of the identity to it, or use "
    "pb.linalg.eigh.",
    "is singular: its diagonal element {0} is 0. pb.linalg.lstsq solves a singular system in the sense of least squares.",
    "is singular: elimination ends at a pivot of 0. pb.linalg.lstsq and pb.linalg.pinv take singular matrices.",
    "has no result, because LAPACK's iteration did not converge.",
)
NOT_FINITE, NOT_POSITIVE, ZERO_ON_DIAGONAL, SINGULAR, NOT_CONVERGED = range(len(FAULTS))


# Functions that run the ops of other ones, and are named in errors instead of the ops.
CALLERS: Final = ("inv", "matrix_power", "lstsq", "matrix_rank", "matrix_norm", "norm")


def bad_matrix(op: str, fault: int, place: tuple[int, ...], number: int = 0, caller: int = 0) -> LinAlgError:
    """Returns the exception for a matrix that has no result.

    place: the index of the matrix in the batch. number: the size or the index that the words of the fault take. caller: from 2 on,
    the number of one of CALLERS.
    """
    name = CALLERS[caller - 2] if caller >= 2 else op
    matrix = "the matrix" if not place else f"matrix {place[0] if len(place) == 1 else place} of the batch"
    return LinAlgError(f"{name}: {matrix} {FAULTS[fault].format(number)}")
