"""The launches that the counting build recorded: the counted work of each, next to its kernel's cost formula."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pullback.backends import native
from pullback.tensors import devices, gpu

COUNTS = ("adds", "multiplies", "fmas", "special")
DTYPES = (
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64", "bool", "",
)
BYTES = ("bytes_read", "bytes_written")
ON_GPU = devices.default_device() == "cuda"
MODULE: Any = gpu.need().kernels if ON_GPU else native.module
LIBRARY: Any = ctypes.CDLL(MODULE.__file__) if MODULE is not None else None


class _Formula(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in (*COUNTS, "integer_ops", *BYTES)]


class _Work(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in COUNTS]


class _Seen(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in (*COUNTS, *BYTES)]


class _Operand(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int64), ("ndim", ctypes.c_int64), ("shape", ctypes.c_int64 * 8)]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_char_p), ("arithmetic", ctypes.c_int64), ("outputs", ctypes.c_int64), ("operands", ctypes.c_int64),
        ("formula", _Formula), ("executed", _Work), ("seen", _Seen), ("operand", _Operand * 6),
    ]


def counts() -> bool:
    """True if the kernels were built to count (PULLBACK_COUNT=ON)."""
    return LIBRARY is not None and hasattr(LIBRARY, "pullback_launches")


def elementwise() -> list[str]:
    """Returns the names of the elementwise kernels."""
    return sorted(native.module.counts) if native.module is not None else []


class Operand(NamedTuple):
    """One of the first six operands of a launch. A missing operand has the dtype ""."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Launch:
    """One launch: the counted figures by name, including bytes; the figures of the cost formula; and the stated executed work."""

    kernel: str
    arithmetic: str
    counted: dict[str, int]
    formula: dict[str, int]
    executed: dict[str, int]
    outputs: list[Operand]
    inputs: list[Operand]


def work_of(run: Callable[[], Any]) -> dict[str, int]:
    """Returns the work that run() does, in whichever launches."""
    LIBRARY.pullback_work_end.restype = ctypes.POINTER(_Seen)
    LIBRARY.pullback_work_begin()
    run()
    seen = LIBRARY.pullback_work_end().contents
    return {n: getattr(seen, n) for n in COUNTS}


def take() -> list[Launch]:
    """Returns the launches since the last call, in order."""
    LIBRARY.pullback_launch.restype = ctypes.POINTER(_Launch)
    launches = []
    for k in range(LIBRARY.pullback_launches()):
        raw = LIBRARY.pullback_launch(ctypes.c_int64(k)).contents
        seen, formula, executed = [{n: getattr(s, n) for n, _ in s._fields_} for s in (raw.seen, raw.formula, raw.executed)]
        for figures in (seen, formula, executed):
            figures["flops"] = figures["adds"] + figures["multiplies"] + 2 * figures["fmas"]
        operands = [Operand(DTYPES[o.dtype], tuple(o.shape[: o.ndim])) for o in raw.operand[: raw.operands]]
        outputs, inputs = operands[: raw.outputs], operands[raw.outputs :]
        kernel, arithmetic = raw.kernel.decode(), DTYPES[raw.arithmetic]
        launches.append(Launch(kernel, arithmetic, seen, formula, executed, outputs, inputs))
    LIBRARY.pullback_forget()
    return launches
