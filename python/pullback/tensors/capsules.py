"""DLPack capsules, including bfloat16 ones: NumPy and CuPy get 16-bit integers, and the capsule gets the code of bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..duck import attribute
from ..errors import ArgumentError, DTypeError
from . import dtypes

# The byte offset of the type code in a capsule's structure (dlpack.h, on a 64-bit machine).
_CODE_AT: Final = {b"dltensor": 20, b"dltensor_versioned": 52}
_UNSIGNED: Final = 1  # DLPack's type codes
_BFLOAT: Final = 4


def exported(array: Any, **options: Any) -> Any:
    """Returns the DLPack capsule of an array. Options that are None are not passed on."""
    options = {name: value for name, value in options.items() if value is not None}
    if array.dtype.kind != "V":
        return array.__dlpack__(**options)
    capsule = array.view(np.uint16).__dlpack__(**options)
    _set_code(capsule, _UNSIGNED, _BFLOAT)
    return capsule


def device_type(obj: Any) -> int:
    """Returns DLPack's number of the device type of an object.

    Raises ArgumentError if its own library does not export it, and for a tensor of torch whose numbers are those of its memory,
    negated, such as the imaginary part of a conjugate: torch exports the memory only.
    """
    if (is_negated := attribute(obj, "is_neg", None)) is not None and is_negated():
        raise ArgumentError(
            f"a {type(obj).__name__} of torch is a view of its numbers' negatives, which torch does not export. Call "
            f".resolve_neg() on it, and give the result."
        )
    try:
        return int(obj.__dlpack_device__()[0])
    except (RuntimeError, BufferError, ValueError) as error:
        raise not_exported(obj, error) from error


def taken(obj: Any, take: Callable[[Any], Any]) -> Any:
    """Returns take(obj), an array over the memory of a DLPack object. Handles bfloat16, which `take` itself may not support.

    Raises DTypeError if `take` does not have the dtype, ArgumentError if the object's own library refuses to export it.
    """
    shown = _Shown(obj)
    try:
        array = take(shown)
    except (RuntimeError, BufferError, ValueError) as error:
        if "dtype" in str(error):
            raise DTypeError(f"a {type(obj).__name__} cannot be taken ({error.args[0]}) Convert it first.") from error
        raise not_exported(obj, error) from error
    return array.view(dtypes.bfloat16()) if shown.is_bfloat16 else array


def not_exported(obj: Any, error: Exception) -> ArgumentError:
    """Returns the error for an object that its own library refuses to export."""
    kind = f"a {type(obj).__name__} of {type(obj).__module__.partition('.')[0]}"
    if attribute(obj, "requires_grad", False):
        return ArgumentError(
            f"{kind} requires grad, and gradients do not pass from one library to the other. Call .detach() on it, and give the "
            f"result. A tape of pullback, or pb.grad, differentiates what is computed from it here."
        )
    return ArgumentError(f"{kind} cannot be taken, because its library does not export it ({error}). Convert it first.")


class _Shown:
    """A wrapper of a DLPack object that NumPy and CuPy accept: bfloat16 appears as 16-bit unsigned integers.

    Attributes:
        is_bfloat16: True if the last capsule held bfloat16 before its type code was replaced.
    """

    def __init__(self, obj: Any) -> None:
        self._obj, self.is_bfloat16 = obj, False

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._obj.__dlpack__(**options)
        self.is_bfloat16 = _set_code(capsule, _BFLOAT, _UNSIGNED)
        return capsule

    def __dlpack_device__(self) -> Any:
        return self._obj.__dlpack_device__()


def _set_code(capsule: Any, before: int, after: int) -> bool:
    """Changes the type code of 16-bit elements from `before` to `after`, in a capsule that has not been consumed.

    Returns True if the capsule had the code `before`.
    """
    import ctypes

    is_valid, pointer = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
    is_valid.argtypes = pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    is_valid.restype, pointer.restype = ctypes.c_int, ctypes.c_void_p
    for name, place in _CODE_AT.items():
        if is_valid(capsule, name):
            dtype = (ctypes.c_uint8 * 2).from_address(pointer(capsule, name) + place)
            if tuple(dtype) == (before, 16):
                dtype[0] = after
                return True
    return False
