"""Turns nested lists of numbers and arrays into one NumPy array. Lists with tensors in them are joined by ops/assembled.py."""

from __future__ import annotations

from array import array as TypedArray
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final

import numpy as np

from ..duck import attribute
from ..errors import DTypeError, ShapeError, shown
from ..function_wrapper import FunctionWrapper
from . import dtypes
from .capsules import not_exported
from .tensor import Tensor

MOST_AXES: Final = 64  # of a NumPy array


def has_tensor(obj: Any, depth: int = 1, kinds: type | tuple[type, ...] = Tensor) -> bool:
    """True if nested lists or tuples hold a tensor. Raises ShapeError if they are deeper than arrays have axes.

    kinds: the classes that are looked for.
    """
    if isinstance(obj, (list, tuple)):
        if depth > MOST_AXES:
            raise ShapeError(f"nested lists are more than {MOST_AXES} deep, the most axes of an array, or contain themselves.")
        for x in obj:
            if x.__class__ is not float and (isinstance(x, kinds) or has_tensor(x, depth + 1, kinds)):
                return True
    return False


def kinds_of_numbers(lists: Any, depth: int = 1) -> set[type] | None:
    """Returns which of bool, int and float nested lists of Python and NumPy numbers hold, None if they hold anything else."""
    kinds: set[type] = set()
    for of_item in set(map(type, lists)):
        if not issubclass(of_item, (list, tuple)):
            kind = _kind_of_number(of_item)
            if kind is None:
                return None
            kinds.add(kind)
    for inner in lists:
        if isinstance(inner, (list, tuple)):
            more = kinds_of_numbers(inner, depth + 1) if depth < MOST_AXES else None
            if more is None:
                return None
            kinds |= more
    return kinds


def _kind_of_number(of_item: type) -> type | None:
    if issubclass(of_item, np.generic):
        return {"b": bool, "i": int, "u": int, "f": float}.get(np.dtype(of_item).kind)
    return next((kind for kind in (bool, int, float) if issubclass(of_item, kind)), None)


_GIVE = "give a tensor, an array, a real number, or nested lists of these."


def as_array(obj: Any, dtype: Any) -> Any:
    """Returns an array made from nested lists of numbers and arrays."""
    plain = _as_lists(obj)
    try:
        array = np.array(plain)
    except (ValueError, TypeError, LookupError) as error:  # LookupError: from a `__getattr__` that NumPy calls
        if isinstance(error, LookupError) or any([isinstance(x, dict) for x in _flat(plain)]):
            raise DTypeError(f"{_not_numbers(obj, plain)}: {_GIVE}") from None
        raise ShapeError(f"the nested lists do not have equal lengths{_unequal(obj) or f' ({error})'}.") from error
    except RuntimeError as error:
        refused = [x for x in _flat(plain) if attribute(x, "requires_grad", False)]
        raise not_exported(refused[0], error) if refused else error from None
    if array.size and (array.dtype.hasobject or (array.dtype == dtypes.float64 and abs(array).max() >= 2.0**63)):
        leaves = _flat(plain)  # NumPy makes objects of large integers, and floats of a mix of large and small ones
        if all([isinstance(x, (int, np.integer, *((float,) if array.dtype.hasobject else ()))) for x in leaves]):
            return _of_large(plain, leaves, dtype)
    if array.dtype.hasobject or array.dtype.kind not in "fiub":
        raise DTypeError(f"{_not_numbers(obj, plain)}: {_GIVE}")
    if dtype is not None:
        return _fitting(array, dtype)
    if array.dtype != dtypes.float64 or isinstance(obj, (TypedArray, memoryview)):  # these have a dtype, as arrays have
        return array
    with np.errstate(over="ignore"):  # numbers that are too large become infinite, as in an op
        return array.astype(dtypes.result_type(*_leaves(plain)) if _has_arrays(plain) else dtypes.DEFAULT)


def _of_large(plain: Any, leaves: list[Any], dtype: Any) -> Any:
    """Returns nested lists of numbers, some of which are large integers, as an array. Raises DTypeError if one is too large."""
    whole = [int(x) for x in leaves if isinstance(x, (int, np.integer))]
    extremes = (min(whole, default=0), max(whole, default=0))
    for x in extremes:
        if not dtypes.fits(x, dtypes.float64):
            raise dtypes.out_of_range(shown(x), dtypes.float64, NO_DTYPE)
    if dtype is None and len(whole) < len(leaves):
        dtype = dtypes.result_type(*_leaves(plain)) if _has_arrays(plain) else dtypes.DEFAULT
    if dtype is None:
        dtype = next((d for d in (dtypes.int64, dtypes.uint64) if all([dtypes.fits(x, d) for x in extremes])), None)
    if dtype is None:
        one = next(x for x in extremes if not dtypes.fits(x, dtypes.int64))
        raise dtypes.out_of_range(shown(one), dtypes.int64, "Write it as a float, or pass dtype=pb.float64, which rounds it.")
    array = np.array(plain, object)
    return _fitting(array.astype(np.float64) if dtypes.is_float(dtype) else array, dtype)


NO_DTYPE: Final = "No dtype holds it: write math.inf if that is meant."


def as_indices(obj: Any) -> Any:
    """Returns an array made from an array or nested lists of indices. Raises ShapeError if the lists are ragged."""
    try:
        return np.asarray(unmasked(obj))
    except ValueError as error:
        raise ShapeError(f"the nested lists of an index do not have equal lengths{_unequal(obj) or f' ({error})'}.") from error


def unmasked(obj: Any) -> Any:
    """Returns obj. Raises DTypeError for an array with a mask, which would be lost."""
    if isinstance(obj, np.ma.MaskedArray):
        raise DTypeError("a tensor cannot hold the mask of a masked array. Give obj.filled(value), and the mask as a tensor.")
    return obj


def _unequal(obj: Any) -> str:
    """Returns the first two different lengths in nested lists, for a message, or nothing if something else differs."""
    lists = [obj]
    while lists and all([isinstance(x, (list, tuple)) for x in lists]):
        if len(lengths := [*dict.fromkeys([len(x) for x in lists])]) > 1:
            return f": one of them has {lengths[0]} items, and another one {lengths[1]}"
        lists = [inner for x in lists for inner in x]
    return ""


def _not_numbers(obj: Any, plain: Any) -> str:
    if obj is None:
        return "None is not made of numbers (a function without a return gives None)"
    if callable(attribute(obj, "parameters", None)):
        return f"a {type(obj).__name__} is not made of numbers, but its Parameters are, module.parameters()"
    if isinstance(obj, (FunctionType, BuiltinFunctionType, MethodType, FunctionWrapper)):
        return "a function is not made of numbers, but what it returns may be, so call it"
    inside = [type(x).__name__ for x in _flat(plain) if not isinstance(x, (bool, int, float, np.ndarray, np.generic))]
    named = f"a {type(obj).__name__} with a {inside[0]} in it" if inside and isinstance(plain, list) else f"a {type(obj).__name__}"
    return f"{named} is not made of numbers"


def _flat(plain: Any) -> list[Any]:
    return [leaf for x in plain for leaf in _flat(x)] if isinstance(plain, list) else [plain]


def _fitting(array: Any, dtype: Any) -> Any:
    """Returns the user's numbers in the dtype. Raises DTypeError for an integer that would wrap around."""
    for extreme in (array.min(), array.max()) if array.size else ():
        number = np.asarray(extreme).item()  # NumPy cannot compare a bool with the largest uint64
        if not dtypes.fits(number, dtype):
            raise dtypes.out_of_range(shown(number), dtype, "Use a wider dtype.")
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def _as_lists(obj: Any) -> Any:
    """Returns nested lists and tuples as lists. Raises DTypeError for an array with a mask."""
    if isinstance(obj, (list, tuple)):
        return [_as_lists(x) for x in obj]
    return unmasked(obj) if isinstance(obj, np.ndarray) else obj


def _leaves(obj: Any) -> list[Any]:
    """Returns the Python numbers in the nested lists, and the dtypes of the arrays in them."""
    if isinstance(obj, list):
        return [leaf for x in obj for leaf in _leaves(x)]
    return [obj.dtype if isinstance(obj, (np.ndarray, np.generic)) else obj]


def _has_arrays(obj: Any) -> bool:
    return isinstance(obj, (np.ndarray, np.generic)) or (isinstance(obj, list) and any([_has_arrays(x) for x in obj]))
