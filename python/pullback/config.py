"""Every PULLBACK_ environment variable, read here and nowhere else.

The native modules read five by themselves, because they act before Python could: PULLBACK_NUM_THREADS; PULLBACK_CACHE_BYTES and
PULLBACK_CUDA_CACHE_BYTES (the most released memory that is kept for new tensors, of the CPU and of a GPU, in bytes);
PULLBACK_CUDA_SYNC (1: every kernel is waited for) and PULLBACK_CUDA_GRAPHS (0: captured functions are launched kernel by kernel).
"""

from __future__ import annotations

import os
from typing import Final

BACKENDS: Final = ("native", "reference")
NUMBERS: Final = {"PULLBACK_NUM_THREADS": 1, "PULLBACK_CACHE_BYTES": 0, "PULLBACK_CUDA_CACHE_BYTES": 0}  # the least of each
SWITCHES: Final = ("PULLBACK_CUDA_SYNC", "PULLBACK_CUDA_GRAPHS")


def check() -> None:
    """Raises ImportError for a value that a native module would ignore, also if no native module is loaded."""
    for name, least in NUMBERS.items():
        value = os.environ.get(name, "")
        if value and not (value.isascii() and value.isdigit() and int(value) >= least):
            raise ImportError(f"{name} is {value!r}, which is not an integer from {least} up. Set a number, or unset it.")
    for name in SWITCHES:
        value = os.environ.get(name, "")
        if value not in ("", "0", "1"):
            raise ImportError(f"{name} is {value!r}, which is neither 0 nor 1. Set one of them, or unset it.")
    simd_level()


def backend() -> str:
    """PULLBACK_BACKEND: "native" (the default) or "reference", which forces the NumPy/CuPy definitions."""
    value = os.environ.get("PULLBACK_BACKEND") or "native"
    if value not in BACKENDS:
        raise ImportError(
            f"PULLBACK_BACKEND is {value!r}, but only {' and '.join(map(repr, BACKENDS))} exist. Set one of them, or none."
        )
    return value


def must_be_native() -> bool:
    """True if PULLBACK_BACKEND asks for the native kernels by name, so that nothing else will do."""
    return os.environ.get("PULLBACK_BACKEND") == "native"


def device() -> str:
    """PULLBACK_DEVICE: where new tensors are made, "cpu" (the default), "cuda", "cuda:1"."""
    return os.environ.get("PULLBACK_DEVICE") or "cpu"


def simd_level() -> int | None:
    """PULLBACK_SIMD: 2, 3 or 4 (or v2, v3, v4) forces that level of x86-64; None lets the processor decide."""
    value = os.environ.get("PULLBACK_SIMD")
    if not value:
        return None
    if value.lstrip("v") not in ("2", "3", "4"):
        raise ImportError(f"PULLBACK_SIMD is {value!r}, but the levels are v2, v3 and v4. Set one of them, or none.")
    return int(value.lstrip("v"))


def cache_dir() -> str:
    """PULLBACK_CACHE_DIR: the folder of what was measured once, else $XDG_CACHE_HOME/pullback, else ~/.cache/pullback."""
    if chosen := os.environ.get("PULLBACK_CACHE_DIR"):
        return chosen
    base = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "pullback")


def counting() -> tuple[int, str] | None:
    """PULLBACK_COUNTING: set by pullback for a run under ncu: which call of `verify` is counted (0: the whole command `pullback
    profile`), and the file that its ledger is written to, as "1:/tmp/ledger.json".
    """
    number, _, path = os.environ.get("PULLBACK_COUNTING", "").partition(":")
    return (int(number), path) if path else None
