"""The PULLBACK_ environment variables. Python code reads them only here.

The native modules read five variables directly, because they need them before Python code could pass them on:
PULLBACK_NUM_THREADS; PULLBACK_CACHE_BYTES and PULLBACK_CUDA_CACHE_BYTES (the most released memory, in bytes, that is kept for new
tensors on the CPU and on a GPU); PULLBACK_CUDA_SYNC (1 waits for every kernel); PULLBACK_CUDA_GRAPHS (0 launches captured functions
kernel by kernel).
"""

from __future__ import annotations

import os
import sys
from typing import Final, Literal, get_args

BACKENDS: Final = ("native", "reference")
Mode = Literal["machine", "everywhere"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
NUMBERS: Final = {"PULLBACK_NUM_THREADS": 1, "PULLBACK_CACHE_BYTES": 0, "PULLBACK_CUDA_CACHE_BYTES": 0}  # smallest allowed values
SWITCHES: Final = ("PULLBACK_CUDA_SYNC", "PULLBACK_CUDA_GRAPHS")


def invalid(message: str) -> Exception | SystemExit:
    """Returns the error for variables that cannot be used. `import pullback` raises it.

    It is an ImportError. The command `pullback` imports the package too, and ends with the message alone, without a traceback.
    """
    command = os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))[0] == "pullback"
    if command or sys.orig_argv[1:3] == ["-m", "pullback"]:
        return SystemExit(f"pullback: {message}")
    return ImportError(message)


def check() -> None:
    """Raises ImportError for a value that a native module would ignore, even if no native module is loaded."""
    for name, least in NUMBERS.items():
        value = os.environ.get(name, "")
        if value and not (value.isascii() and value.isdigit() and int(value) >= least):
            raise invalid(f"{name} is {value!r}, which is not an integer from {least} up. Set a number, or unset it.")
    for name in SWITCHES:
        value = os.environ.get(name, "")
        if value not in ("", "0", "1"):
            raise invalid(f"{name} is {value!r}, which is neither 0 nor 1. Set one of them, or unset it.")
    simd_level()
    reproducible()


def backend() -> str:
    """Returns PULLBACK_BACKEND: "native" (the default) or "reference", which forces the NumPy/CuPy definitions."""
    return _one_of("PULLBACK_BACKEND", BACKENDS)


def is_set(name: str) -> bool:
    """True if the variable has a value. An empty one counts as unset."""
    return bool(os.environ.get(name))


def reproducible() -> str:
    """Returns PULLBACK_REPRODUCIBLE, the initial value of `pb.config.reproducible`: "machine" (the default) or "everywhere"."""
    return _one_of("PULLBACK_REPRODUCIBLE", MODES)


def _one_of(name: str, words: tuple[str, ...]) -> str:
    """Returns the variable's value, or the first of the words if it is not set. Raises ImportError for any other value."""
    value = os.environ.get(name) or words[0]
    if value not in words:
        raise invalid(f"{name} is {value!r}, but only {' and '.join(map(repr, words))} exist. Set one of them, or none.")
    return value


def must_be_native() -> bool:
    """True if PULLBACK_BACKEND names the native kernels explicitly, so that falling back to the reference is an error."""
    return os.environ.get("PULLBACK_BACKEND") == "native"


def device() -> str:
    """Returns PULLBACK_DEVICE, the device of new tensors: "cpu" (the default), "cuda", "cuda:1"."""
    return os.environ.get("PULLBACK_DEVICE") or "cpu"


def simd_level() -> int | None:
    """Returns PULLBACK_SIMD as 2, 3 or 4 (for v2, v3, v4), which forces that x86-64 level. None uses the processor's best level."""
    value = os.environ.get("PULLBACK_SIMD")
    if not value:
        return None
    if value.lstrip("v") not in ("2", "3", "4"):
        raise invalid(f"PULLBACK_SIMD is {value!r}, but the levels are v2, v3 and v4. Set one of them, or none.")
    return int(value.lstrip("v"))


def cache_dir() -> str:
    """Returns the folder that stores measurements for later runs.

    It is PULLBACK_CACHE_DIR if set, else $XDG_CACHE_HOME/pullback, else ~/.cache/pullback.
    """
    if chosen := os.environ.get("PULLBACK_CACHE_DIR"):
        return chosen
    base = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "pullback")


def counting() -> tuple[int, str] | None:
    """Returns PULLBACK_COUNTING, which pullback sets for a run under ncu, as (number, path) for a value like "1:/tmp/ledger.json".

    The number says which call of `verify` is counted; 0 means the whole command `pullback profile`. The ledger is written to path.
    """
    number, _, path = os.environ.get("PULLBACK_COUNTING", "").partition(":")
    return (int(number), path) if path else None
