"""NVIDIA's own libraries, which pullback uses where they are installed, and never needs."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from typing import Any

why_no_cublaslt: str | None = "no product was large enough to look for it"  # None once it was found


def find_cublaslt(names: Sequence[str]) -> list[int] | None:
    """The addresses of these functions of cuBLASLt, None where the library is not installed: `why_no_cublaslt` then tells why.

    cuda-pathfinder knows where it can be: loaded by another package, in NVIDIA's wheels, in conda's environment, in the system.
    """
    global why_no_cublaslt
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        library = ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("cublasLt").abs_path)
        addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names]
    except Exception as error:  # pathfinder's own classes differ between versions; whatever is wrong, there is another way
        why_no_cublaslt = f"{type(error).__name__}: {error}"
        return None
    why_no_cublaslt = None
    return addresses


def offer(kernels: Any) -> None:
    """Tells the CUDA kernels whom to ask. A simulated device has no libraries."""
    if not kernels.simulated:
        kernels.find_cublaslt(find_cublaslt)
