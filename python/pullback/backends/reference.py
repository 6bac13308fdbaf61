"""Runs an op by its NumPy/CuPy definition: the fallback of every op, and the reference result in tests."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ..autodiff.stand_in import StandIn
from ..errors import OutOfMemoryError, PullbackError
from ..launch import capturing, door
from ..launch.refusal import Refused
from ..tensors import gpu
from . import kernel_for

_BOOL: Final = np.dtype(bool)
_INT8: Final = np.dtype("int8")
MOST_AXES: Final = 8  # of an array that a kernel takes; kMaxDims of csrc/launch/shape.h
TOO_LARGE: Final = ("too big", "too large", "Maximum allowed")  # parts of NumPy's messages for arrays that exceed the address space


def device_number(arrays: Sequence[Any]) -> int | None:
    """Returns the number of the GPU that holds the arrays, or None if they are on the host."""
    for array in arrays:
        if type(array) is not np.ndarray and not isinstance(array, (np.generic, int, float)) and hasattr(array, "strides"):
            return int(array.device.id)
    return None


def runner(op: Any) -> Callable[..., Any]:
    """Returns a kernel for `op` that runs its reference. It refuses the inputs that a native kernel refuses, so that both promote
    in the same way.
    """
    count = -op.params if op.variadic else len(op.names) - op.params

    def run_reference(*arguments: Any) -> Any:
        arrays = arguments[:count]
        for array in arrays:
            if isinstance(array, StandIn):
                raise Refused("a tensor without elements of its own")
        found = {x.dtype for x in arrays if hasattr(x, "dtype")}
        if len(found) > 1 or any([dtype.kind not in "fV" for dtype in found]):
            raise Refused("dtypes that may need promotion")
        try:
            return run(op, arrays, arguments[count:])
        except (TypeError, ValueError) as error:
            raise Refused(str(error)) from error

    return run_reference


def run(op: Any, arrays: Sequence[Any], params: Sequence[Any]) -> Any:
    """Returns the result of the op's reference on these arrays (and weak Python numbers), run as a launch that a profile counts.

    In a captured function and on a GPU the op's kernel computes it, with the same bits, if it takes the converted arguments.
    """
    number = device_number(arrays)
    if capturing.thread.recording is not None or number is not None:  # elsewhere NumPy is faster than kernels with conversions
        y = by_kernel(op, arrays)
        if y is not None:
            return y
    if capturing.thread.recording is not None:
        why = f"whose kernel does not take {_unusual(arrays)}" if has_kernel(op, arrays) else "which has no native kernel here"
        capturing.refuse_opaque(f"{op.name}, {why},", "Do it outside, or with other ops.")
    xp = np if number is None else gpu.need().xp

    def call() -> Any:
        half = half_of(arrays) if op.kind.widens else None
        wide = [a.astype(np.float32) if half and getattr(a, "dtype", None) == half else a for a in arrays]
        try:
            with np.errstate(all="ignore"):
                y = xp.asarray(op.reference(xp, *_as_taken(op, wide), *params))
                return y.astype(half) if half and y.dtype == np.float32 else y
        except (MemoryError, ValueError) as error:
            if isinstance(error, MemoryError) or any([words in str(error) for words in TOO_LARGE]):
                raise OutOfMemoryError(f"{op.name}: not enough memory ({error}).") from error
            raise

    if number is not None:
        with gpu.need().working(number):
            return door.run_counted(op.facts.shown, call, lambda y: cost_of(op, arrays, params, y))
    if door.state.ledger is None and not door.profiling:  # a profile of another thread counts this launch too
        return call()
    return door.run_counted(op.facts.shown, call, lambda y: cost_of(op, arrays, params, y))


def by_kernel(op: Any, arrays: Sequence[Any]) -> Any:
    """Returns the result of an elementwise op on integers or bools by its kernel on converted arguments, None if it takes none.

    A kernel reads neither a Python number among unsigned integers nor a bool among integers, but takes an array instead. It takes
    integers instead of bools: NumPy's arithmetic on bools is that on 0 and 1, where every result that is not 0 is True.
    """
    dtype = next((a.dtype for a in reversed(arrays) if hasattr(a, "dtype")), _BOOL)
    if not (op.kind.broadcasts and dtype.kind in "iub" and has_kernel(op, arrays)):
        return None
    number = device_number(arrays)
    there = lambda x: x if number is None else gpu.need().uploaded(x, number)
    taken = [a if hasattr(a, "dtype") else there(np.asarray(a, dtype)) for a in arrays]
    try:
        return op.kernel(*taken)
    except Refused:
        if dtype != _BOOL:
            return None
    cast: Any = kernel_for("cast")[0]
    try:
        return cast(op.kernel(*[cast(a, _INT8) if a.dtype == _BOOL else a for a in taken]), _BOOL)
    except Refused:
        return None


def has_kernel(op: Any, arrays: Sequence[Any]) -> bool:
    """True if the op has a native kernel on the device of the arrays. Some ops have one on the CPU only."""
    return op.native and (device_number(arrays) is None or hasattr(gpu.need().kernels, op.facts.shown))


def refuse_floats(op: Any, arrays: Sequence[Any]) -> None:
    """Raises PullbackError if any of the arguments and results that the op's kernel refused are floats: a library rounds them."""
    if any([a.dtype.kind in "fV" for a in arrays if hasattr(a, "dtype")]):
        library = "NumPy" if device_number(arrays) is None else "CuPy"
        raise PullbackError(
            f"{op.facts.shown}: its kernel does not take {_unusual(arrays)}, and {library}, which computes it instead, rounds in "
            f'an order that depends on the machine. pb.config.reproducible = "everywhere" therefore refuses it. Reshape the '
            f'arguments to fewer axes, convert them to another dtype, or use "machine".'
        )


def _unusual(arrays: Sequence[Any]) -> str:
    """Says what about the arguments a kernel refused."""
    axes = max([a.ndim for a in arrays if hasattr(a, "ndim")], default=0)
    if axes > MOST_AXES:
        return f"{axes} axes (at most {MOST_AXES})"
    found = dict.fromkeys([str(getattr(a, "dtype", type(a).__name__)) for a in arrays])
    return "arguments of dtype " + " with ".join(found)


def _as_taken(op: Any, arrays: Sequence[Any]) -> Sequence[Any]:
    """Returns the arrays as the arguments of the op's reference: as one list if the op takes any number of inputs."""
    return [arrays] if op.variadic else arrays


def half_of(arrays: Sequence[Any]) -> Any:
    """Returns the half-precision dtype of the arrays, or None. Ops on it compute in float32 and round once, on the store."""
    return next((a.dtype for a in arrays if hasattr(a, "dtype") and a.dtype.itemsize == 2 and a.dtype.kind in "fV"), None)


def cost_of(op: Any, arrays: Sequence[Any], params: Sequence[Any], y: Any) -> dict[str, Any] | None:
    """Returns the cost of one run, or None if the op declares none.

    The op's declaration gives the FLOPs. Each distinct input is read once, and the result is written once. "dtype" is the dtype
    that the op computes in.
    """
    cost = op.facts.cost
    figures = cost(*_as_taken(op, arrays), *params, y) if cost is not None else None
    if figures is None:
        return None
    read = sum(distinct_bytes(a) for i, a in enumerate(arrays) if not any(a is b for b in arrays[:i]))
    read += sum(distinct_bytes(p) for p in params if hasattr(p, "strides"))  # arrays among the params are indices
    found = [a.dtype for a in (y, *arrays) if hasattr(a, "dtype")]
    dtype = next((dtype for dtype in found if dtype.kind in "fV"), y.dtype)
    return {"bytes_read": read, "bytes_written": y.nbytes, "dtype": dtype, **figures}


def distinct_bytes(array: Any) -> int:
    """Returns the bytes of the array's elements in memory; a broadcast axis counts once, a Python number 8 bytes."""
    if not hasattr(array, "strides"):
        return 0 if array is None else 8
    return math.prod(n if s or not n else 1 for n, s in zip(array.shape, array.strides)) * array.itemsize


def special(xp: Any, name: str) -> Callable[..., Any]:
    """Returns a function that NumPy lacks (erf, erfc, erfinv): CuPy's, or for NumPy a slow one that computes in float64."""
    if xp.__name__ == "cupy":
        return getattr(importlib.import_module("cupyx.scipy.special"), name)
    wide = np.frompyfunc(_erfinv if name == "erfinv" else getattr(math, name), 1, 1)
    return lambda x: xp.asarray(wide(xp.asarray(x, xp.float64))).astype(xp.asarray(x).dtype)


def _erfinv(z: float) -> float:
    """Returns the inverse of erf: Newton's method on erf, started from Winitzki's approximation."""
    if z != z or abs(z) >= 1 or z == 0:  # returns z itself for 0, which keeps its sign
        return math.copysign(math.inf, z) if abs(z) == 1 else z if z == 0 else math.nan
    w = math.log1p(-z * z)
    t = 2 / (math.pi * 0.147) + w / 2
    y = math.copysign(math.sqrt(max(math.sqrt(t * t - w / 0.147) - t, 0)), z)
    for _ in range(4):
        y -= (math.erf(y) - z) / (2 / math.sqrt(math.pi) * math.exp(-y * y))
    return y
