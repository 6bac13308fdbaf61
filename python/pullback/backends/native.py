"""Loads the module of CPU kernels for this processor, and keeps the reason where it cannot."""

from __future__ import annotations

import importlib
import platform
from typing import Any

from .. import config
from ..launch import door
from ..tensors import gpu, gpu_libraries

LEVELS = (4, 3, 2)  # of x86-64


def _load(name: str) -> tuple[Any, str | None]:
    try:
        return importlib.import_module(f"pullback.{name}"), None
    except ImportError as error:  # built without it, or a library it needs is missing: keep the reason
        return None, f"{name}: {error}"


def _choose() -> tuple[Any, str | None]:
    """The best module that is both built and supported here."""
    wanted = config.simd_level()  # read first: a level that does not exist is refused wherever kernels are asked for
    detector, reason = _load("_level")
    if detector is None:
        return None, f"the native kernels were not built ({reason})"
    supported = detector.level()
    if not supported:
        module, reason = _load("_cpu_generic")
        return module, reason
    if wanted is not None and wanted > supported:
        raise ImportError(f"PULLBACK_SIMD asks for x86-64-v{wanted}, but this processor has v{supported}. Unset it.")
    reasons: list[str] = []
    for level in LEVELS if wanted is None else (wanted,):
        if level <= supported:
            module, reason = _load(f"_cpu_v{level}")
            if module is not None:
                return module, None
            reasons.append(str(reason))
    return None, "; ".join(reasons)


config.check()
module, reason = _choose() if config.backend() == "native" else (None, "PULLBACK_BACKEND=reference")


if module is None and config.must_be_native():
    raise ImportError(
        f"PULLBACK_BACKEND=native asks for the native kernels, but {reason}. Install pullback with its kernels (a wheel, or from "
        f"source with a C++ compiler and without PULLBACK_NATIVE=OFF), or unset it to run in NumPy."
    )


def connect_gpu(kernels: Any) -> None:
    """Sends calls with a GPU's arrays from the kernels of the CPU to those of the same name for the GPU."""
    door.connect(kernels)
    for name in dir(kernels):
        if module is not None and hasattr(module, name):
            module.forward(name, getattr(kernels, name), kernels.array_type)
    gpu_libraries.offer(kernels)


if module is not None:
    door.connect(module, host=True)
    gpu.when_loaded(connect_gpu)


def simd_level() -> str:
    """ "x86-64-v4", or why there is none."""
    if module is None:
        return f"none ({reason})"
    suffix = module.__name__.rpartition("_")[2]
    return f"x86-64-{suffix}" if suffix != "generic" else platform.machine()


def trim() -> int:
    """Gives the CPU memory that pullback holds but does not use back to the system, and returns its size in bytes.

    Blocks of at least 64 KiB stay in a cache when their tensor dies, because fresh memory costs a page fault every 4 KiB. The
    cache holds at most 1 GiB or a quarter of the memory that the process may use (`pullback info` prints which);
    PULLBACK_CACHE_BYTES sets another limit. Call `trim` when other programs need the memory, for example after a large model
    or `captured.clear()`. Live tensors stay valid. The next steps run slower until the cache is filled again.

    Returns: the bytes of the blocks that left the cache, 0 without native kernels. Free pages of the C library are given back
    too, but not counted. Memory of a GPU is not affected.
    """
    return module.trim_cache() if module is not None else 0


def cache_limit() -> str:
    """Returns the most that the cache of CPU memory holds, and what sets this limit; or why there is no cache."""
    if module is None:
        return f"none ({reason})"
    _, limit, source = module.cache_use()
    return f"at most {limit / 2**20:,.0f} MiB ({source})"
