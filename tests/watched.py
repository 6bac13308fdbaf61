"""What the door of the counting build saw of each launch, beside what the kernel's formula says."""

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
)  # fmt: skip
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
    ]  # fmt: skip


def counts() -> bool:
    """Whether the kernels were built to count (PULLBACK_COUNT=ON)."""
    return LIBRARY is not None and hasattr(LIBRARY, "pullback_launches")


def elementwise() -> list[str]:
    """The names of the kernels of elements."""
    return sorted(native.module.counts) if native.module is not None else []


class Operand(NamedTuple):
    """One of the first six. None there: no dtype."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Launch:
    """One launch: what was counted, by name of the figure, bytes too; what the textbook says, and what the kernel says it does."""

    kernel: str
    arithmetic: str
    counted: dict[str, int]
    formula: dict[str, int]
    executed: dict[str, int]
    outputs: list[Operand]
    inputs: list[Operand]


def work_of(run: Callable[[], Any]) -> dict[str, int]:
    """What run() does, whoever launches it."""
    LIBRARY.pullback_work_end.restype = ctypes.POINTER(_Seen)
    LIBRARY.pullback_work_begin()
    run()
    seen = LIBRARY.pullback_work_end().contents
    return {n: getattr(seen, n) for n in COUNTS}


def take() -> list[Launch]:
    """The launches since the last time, in order."""
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
