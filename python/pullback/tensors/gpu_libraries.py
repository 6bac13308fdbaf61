"""Finds NVIDIA's libraries, which pullback uses if they are installed but does not need."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from typing import Any

why_no_cublaslt: str | None = "no product was large enough to look for it"  # None once cuBLASLt has been found


def find_cublaslt(names: Sequence[str]) -> list[int] | None:
    """Returns the addresses of these cuBLASLt functions, or None if the library cannot be loaded.

    `why_no_cublaslt` then holds the reason. cuda-pathfinder searches for the library among those already loaded, in NVIDIA's
    wheels, in the conda environment, and in the system.
    """
    global why_no_cublaslt
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        library = ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("cublasLt").abs_path)
        addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names]
    except Exception as error:  # pathfinder's exceptions differ between versions; products run without cuBLASLt too
        why_no_cublaslt = f"{type(error).__name__}: {error}"
        return None
    why_no_cublaslt = None
    return addresses


def offer(kernels: Any) -> None:
    """Passes `find_cublaslt` to the CUDA kernels. A simulated device has no libraries."""
    if not kernels.simulated:
        kernels.find_cublaslt(find_cublaslt)
