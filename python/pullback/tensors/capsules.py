"""DLPack capsules, also of bfloat16: NumPy and CuPy see integers of 16 bits, and the capsule says what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from . import dtypes

# Where the code of the type stands in a capsule's structure, in bytes (dlpack.h, on a machine of 64 bits).
_CODE_AT: Final = {b"dltensor": 20, b"dltensor_versioned": 52}
_UNSIGNED: Final = 1  # codes of types
_BFLOAT: Final = 4


def exported(array: Any, **options: Any) -> Any:
    """The capsule of an array; options that are None are left out."""
    options = {name: value for name, value in options.items() if value is not None}
    if array.dtype.kind != "V":
        return array.__dlpack__(**options)
    capsule = array.view(np.uint16).__dlpack__(**options)
    _set_code(capsule, _UNSIGNED, _BFLOAT)
    return capsule


def taken(obj: Any, take: Callable[[Any], Any]) -> Any:
    """take(obj), which makes an array over the memory of a DLPack object."""
    shown = _Shown(obj)
    array = take(shown)
    return array.view(dtypes.bfloat16()) if shown.is_bfloat16 else array


class _Shown:
    """A DLPack object as NumPy and CuPy take it.

    Attributes:
        is_bfloat16: True if the last capsule held bfloat16, which it says no more.
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
    """Changes the code of elements of 16 bits, in a capsule that nobody has consumed; True if it was `before`."""
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
