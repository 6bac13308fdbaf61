"""dtypes, which are NumPy's own, and the promotion between them."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np

from .errors import DTypeError

float16: Final = np.dtype("float16")
float32: Final = np.dtype("float32")
float64: Final = np.dtype("float64")
int8: Final = np.dtype("int8")
int16: Final = np.dtype("int16")
int32: Final = np.dtype("int32")
int64: Final = np.dtype("int64")
uint8: Final = np.dtype("uint8")
uint16: Final = np.dtype("uint16")
uint32: Final = np.dtype("uint32")
uint64: Final = np.dtype("uint64")
bool_: Final = np.dtype("bool")

SIGNED: Final = (int8, int16, int32, int64)
UNSIGNED: Final = (uint8, uint16, uint32, uint64)
DEFAULT: Final = float32


@cache
def bfloat16() -> np.dtype[Any]:
    """The bfloat16 dtype. ml_dtypes is imported, and the native module told of it, on the first use."""
    import ml_dtypes

    dtype = np.dtype(ml_dtypes.bfloat16)
    from .backends import native

    if native.module is not None:
        native.module.register_bfloat16(dtype)
    return dtype


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """The supported dtype that `dtype` names: a dtype, a NumPy type, a string, or Python's float, int, bool.

    Raises DTypeError for anything else (complex, strings, objects).
    """
    if dtype is float:
        return DEFAULT
    if isinstance(dtype, str) and dtype == "bfloat16":
        return bfloat16()
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise DTypeError(f"dtype {dtype!r} is not known. Use pb.float32, pb.int64, pb.bool, … or their names.") from error
    if not is_supported(found):
        raise DTypeError(
            f"dtype {found} is not supported. pullback has float16, bfloat16, float32, float64, the integers of 8 to "
            f"64 bits and bool, in the machine's byte order; convert first."
        )
    return found


def is_supported(dtype: np.dtype[Any]) -> bool:
    return (dtype.kind in "fiub" and dtype.itemsize <= 8 and dtype.isnative) or (dtype.kind == "V" and dtype.name == "bfloat16")


def is_float(dtype: np.dtype[Any]) -> bool:
    """True for the four floating-point dtypes; bfloat16 is of kind "V", the only supported one of that kind."""
    return dtype.kind in "fV"


@cache
def promote(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that holds both: the wider of one kind; a float for an integer with a float, and it stays that float.

    Raises DTypeError for uint64 with a signed integer, which no integer dtype holds.
    """
    if a == b:
        return a
    float_a, float_b = is_float(a), is_float(b)
    if float_a and float_b:
        if a.itemsize == b.itemsize:  # float16 with bfloat16
            return float32
        return a if a.itemsize > b.itemsize else b
    if float_a or float_b:
        return a if float_a else b
    if bool_ in (a, b):
        return b if a == bool_ else a
    if uint64 in (a, b) and "i" in (a.kind, b.kind):
        raise DTypeError(f"{a} and {b} have no common integer dtype. Convert one with .astype(pb.int64) or pb.float64.")
    return np.promote_types(a, b)


def result_type(*operands: Any) -> np.dtype[Any]:
    """The dtype of an op on these tensors, dtypes and Python numbers; a number does not widen, but may change the kind."""
    strong: list[np.dtype[Any]] = []
    weak: list[Any] = []
    for x in operands:
        if isinstance(x, (bool, int, float)):
            weak.append(x)
        else:
            strong.append(x.dtype if hasattr(x, "dtype") and not isinstance(x, type) else as_dtype(x))
    if not strong:
        return default_of(max(weak, key=lambda x: (isinstance(x, float), not isinstance(x, bool))))
    dtype = strong[0]
    for other in strong[1:]:
        dtype = promote(dtype, other)
    for x in weak:
        dtype = with_number(dtype, x)
    return dtype


def with_number(dtype: np.dtype[Any], number: float) -> np.dtype[Any]:
    """The dtype of `tensor op number`: the tensor's, unless the number is of a higher kind (bool < int < float)."""
    if isinstance(number, float) and not is_float(dtype):
        return DEFAULT
    if isinstance(number, int) and not isinstance(number, bool) and dtype == bool_:
        return int64
    return dtype


def accumulated(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of a sum or product of elements: 64 bits for integers and bool, the same for floats."""
    if is_float(dtype):
        return dtype
    return uint64 if dtype.kind == "u" else int64


def default_of(number: float) -> np.dtype[Any]:
    """The dtype of a tensor made from a Python number."""
    if isinstance(number, bool):
        return bool_
    return int64 if isinstance(number, int) else DEFAULT
