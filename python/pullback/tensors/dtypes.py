"""The supported dtypes, which are NumPy dtype objects, and the promotion between them."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from ..duck import has
from ..errors import DTypeError
from ..launch import door
from ..typing import ArrayLike, DTypeLike, SupportsArray
from . import gpu

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

DEFAULT: Final = float32
_SUPPORTED: Final = frozenset({
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
})


@cache
def bfloat16() -> np.dtype[Any]:
    """Returns the bfloat16 dtype. The first call imports ml_dtypes and registers the dtype with the native modules."""
    import ml_dtypes

    dtype = np.dtype(ml_dtypes.bfloat16)
    if door.host_kernels is not None:
        door.host_kernels.register_bfloat16(dtype)
        gpu.when_loaded(lambda kernels: kernels.register_bfloat16(dtype))
    return dtype


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """Returns the supported dtype for a dtype, a NumPy type, a name, or Python's float, int or bool.

    Raises DTypeError for anything else (complex, strings, objects).
    """
    if dtype is float:
        return DEFAULT
    if isinstance(dtype, str) and dtype in ("bfloat16", "float"):
        return bfloat16() if dtype == "bfloat16" else DEFAULT
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise DTypeError(
            f"dtype {dtype!r} is not known. Use pb.float32, pb.int64, pb.bool, ... or their names.{_meant(dtype)}"
        ) from error
    if found.kind in "fiu" and not found.isnative:
        found = found.newbyteorder("=")  # tensors are in the machine's byte order
    if not is_supported(found):
        brain = found.kind == "V" and found.itemsize == 2 and found.names is None
        raise DTypeError(
            f"dtype {found} is not supported. pullback has float16, bfloat16, float32, float64, the integers of 8 to "
            f"64 bits and bool; convert first."
            + (" NumPy saves bfloat16 as V2: give array.view(ml_dtypes.bfloat16) if it is that." if brain else "")
        )
    return bfloat16() if found.kind == "V" else found


def _meant(given: Any) -> str:
    """Returns what was probably meant by something that is not a dtype, in parentheses: arguments may be in another order here."""
    if isinstance(given, str):
        return ' (A device is "cpu", "cuda", "cuda:1", ...)'
    if isinstance(given, bool):
        return f" (A flag is given by its name: keepdims={given}.)"
    if isinstance(given, (int, float)):
        return " (Several lengths, or several axes, are one argument: (2, 3).)"
    name = str(given).rpartition(".")[2]
    return f" ({given} is pb.{name} here.)" if name == "bfloat16" or name in _SUPPORTED else ""


def is_supported(dtype: np.dtype[Any]) -> bool:
    return (dtype.kind in "fiub" and dtype.itemsize <= 8 and dtype.isnative) or (dtype.kind == "V" and dtype.name == "bfloat16")


def is_float(dtype: np.dtype[Any]) -> bool:
    """True for the four floating-point dtypes. bfloat16 is the only supported dtype of kind "V"."""
    return dtype.kind in "fV"


@cache
def promote(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype that two dtypes promote to: the wider of one kind; for an integer and a float, the float unchanged.

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


def result_type(*operands: ArrayLike | DTypeLike) -> np.dtype[Any]:
    """Returns the dtype of an op on these tensors, dtypes and Python numbers.

    A Python number does not widen the dtype, but may change its kind. Raises DTypeError if two dtypes have no common dtype.
    """
    strong: list[np.dtype[Any]] = []
    weak: list[Any] = []
    for x in operands:
        if isinstance(x, (bool, int, float)):
            weak.append(x)
        else:
            strong.append(_dtype_of(x))
    if not strong:
        return default_of(max(weak, key=lambda x: (isinstance(x, float), not isinstance(x, bool))))
    dtype = strong[0]
    for other in strong[1:]:
        dtype = promote(dtype, other)
    for x in weak:
        dtype = with_number(dtype, x)
    return dtype


def _dtype_of(x: Any) -> np.dtype[Any]:
    """Returns the dtype of a tensor or an array, and a dtype itself."""
    return x.dtype if has(x, "dtype") and not isinstance(x, type) else as_dtype(x)


def with_number(dtype: np.dtype[Any], number: float) -> np.dtype[Any]:
    """Returns the dtype of `tensor op number`: the tensor's, unless the number is of a higher kind (bool < int < float)."""
    if isinstance(number, float) and not is_float(dtype):
        return DEFAULT
    if isinstance(number, int) and not isinstance(number, bool) and dtype == bool_:
        return int64
    return dtype


def fits(number: Any, dtype: np.dtype[Any]) -> bool:
    """True if a number is in the range of an integer dtype; for other dtypes, if it is no integer that is larger than any float."""
    if dtype.kind not in "iu":
        return not isinstance(number, int) or abs(number) <= _LARGEST
    info = iinfo(dtype)
    return bool(info.min <= number <= info.max)


_LARGEST: Final = int(np.finfo(np.float64).max)


def out_of_range(what: str, dtype: np.dtype[Any], remedy: str) -> DTypeError:
    """Returns the error for a number that is out of the dtype's range. remedy: the sentence that ends the message."""
    info = finfo(dtype) if is_float(dtype) else iinfo(dtype)
    return DTypeError(f"{what} does not fit {dtype} (from {info.min} to {info.max}). {remedy}")


def accumulated(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype of a sum or product of elements: 64 bits for integers and bool, the dtype itself for floats."""
    if is_float(dtype):
        return dtype
    return uint64 if dtype.kind == "u" else int64


def default_of(number: float) -> np.dtype[Any]:
    """Returns the dtype of a tensor made from a Python number."""
    if isinstance(number, bool):
        return bool_
    return int64 if isinstance(number, int) else DEFAULT


# ---- dtype functions of the array API


def isdtype(dtype: DTypeLike, kind: DTypeLike | tuple[DTypeLike, ...]) -> bool:
    """Returns True if the dtype is of the kind.

    A kind is a dtype, "bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric",
    or a tuple of kinds. Raises DTypeError if the dtype or the kind is not known.
    """
    if isinstance(kind, tuple):
        return any([isdtype(dtype, k) for k in kind])
    dtype = as_dtype(dtype)
    kinds: dict[Any, bool] = {
        "bool": dtype == bool_,
        "signed integer": dtype.kind == "i",
        "unsigned integer": dtype.kind == "u",
        "integral": dtype.kind in "iu",
        "real floating": is_float(dtype),
        "complex floating": False,
        "numeric": dtype != bool_,
    }
    return kinds[kind] if isinstance(kind, str) and kind in kinds else dtype == as_dtype(kind)


def can_cast(from_: SupportsArray | DTypeLike, to: DTypeLike, /) -> bool:
    """Returns True if promotion may convert a tensor or a dtype `from_` to the dtype `to`."""
    source = _dtype_of(from_)
    try:
        return promote(source, as_dtype(to)) == as_dtype(to)
    except DTypeError:
        return False


class FloatInfo(NamedTuple):
    """The limits of a floating-point dtype, as Python numbers."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype[Any]


def finfo(dtype: SupportsArray | DTypeLike, /) -> FloatInfo:
    """Returns the limits of a floating-point dtype: bits, eps, max, min, smallest_normal, dtype.

    Raises DTypeError if the dtype is not a floating-point dtype.
    """
    wanted = _dtype_of(dtype)
    if not is_float(wanted):
        raise DTypeError(f"finfo: {wanted} is not a floating-point dtype. Use pb.iinfo for integers.")
    if wanted.kind == "V":
        import ml_dtypes

        found: Any = ml_dtypes.finfo(wanted)
    else:
        found = np.finfo(wanted)
    limits = (float(found.eps), float(found.max), float(found.min), float(found.smallest_normal))
    return FloatInfo(wanted.itemsize * 8, *limits, wanted)


def iinfo(dtype: SupportsArray | DTypeLike, /) -> np.iinfo[Any]:
    """Returns the limits of an integer dtype: bits, max, min. Raises DTypeError if the dtype is not an integer dtype."""
    wanted = _dtype_of(dtype)
    if wanted.kind not in "iu":
        raise DTypeError(f"iinfo: {wanted} is not an integer dtype. Use pb.finfo for floating-point ones.")
    return np.iinfo(wanted)


def check_trainable(dtype: Any, trainable: bool) -> None:
    """Raises DTypeError for a trainable Parameter whose dtype has no gradients."""
    if trainable and not is_float(dtype):
        raise DTypeError(
            f"Parameter: the value has dtype {dtype}, and only floating-point numbers have gradients and can be trained. Write the "
            f"numbers with a point, or pass dtype=pb.float32; trainable=False allows any dtype."
        )
