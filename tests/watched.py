"""What the door of the counting build saw of each launch, beside what the kernel's formula says."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pullback import devices, gpu
from pullback.backends import native

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
    _fields_ = [(n, ctypes.c_int64) for n in (*COUNTS, "executed_flops", "integer_ops", *BYTES)]


class _Seen(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in (*COUNTS, *BYTES)]


class _Operand(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in ("dtype", "offset", "ndim")] + [(n, ctypes.c_int64 * 8) for n in ("shape", "stride")]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_char_p), ("arithmetic", ctypes.c_int64), ("outputs", ctypes.c_int64), ("operands", ctypes.c_int64),
        ("ints", ctypes.c_int64 * 8), ("formula", _Formula), ("seen", _Seen), ("operand", _Operand * 6),
    ]  # fmt: skip


def counts() -> bool:
    """Whether the kernels were built to count (PULLBACK_COUNT=ON)."""
    return LIBRARY is not None and hasattr(LIBRARY, "pullback_launches")


def elementwise() -> list[str]:
    """The names of the kernels of elements."""
    return sorted(native.module.counts) if native.module is not None else []


class Operand(NamedTuple):
    """One of the first six. Strides are in elements, offset in bytes beyond a multiple of 16. None there: no dtype."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def by_value(self) -> bool:
        return self.offset < 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def lanes(dtype: str) -> int:
    """Numbers of a vector in which kernels of this dtype compute."""
    return max(1, LIBRARY.pullback_lanes() // (2 if dtype == "float64" else 1))


@dataclass(frozen=True)
class Launch:
    """One launch: `counted` and `formula` by name of the figure, bytes too; flops are those that were really done."""

    kernel: str
    arithmetic: str
    counted: dict[str, int]
    formula: dict[str, int]
    outputs: list[Operand]
    inputs: list[Operand]
    ints: list[int]


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
        seen, formula = [{n: getattr(s, n) for n, _ in s._fields_} for s in (raw.seen, raw.formula)]
        seen["flops"] = seen["adds"] + seen["multiplies"] + 2 * seen["fmas"]
        formula["flops"] = formula["adds"] + formula["multiplies"] + 2 * formula["fmas"]
        operands = [
            Operand(DTYPES[o.dtype], tuple(o.shape[: o.ndim]), tuple(o.stride[: o.ndim]), o.offset)
            for o in raw.operand[: raw.operands]
        ]
        outputs, inputs = operands[: raw.outputs], operands[raw.outputs :]
        launches.append(Launch(raw.kernel.decode(), DTYPES[raw.arithmetic], seen, formula, outputs, inputs, list(raw.ints)))
    LIBRARY.pullback_forget()
    return launches
