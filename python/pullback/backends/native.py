"""Loads the module of CPU kernels for this processor, and keeps the reason if no module can be loaded."""

from __future__ import annotations

import importlib
import platform
from typing import Any

from .. import variables
from ..launch import door
from ..tensors import gpu, gpu_libraries

LEVELS = (4, 3, 2)  # x86-64 microarchitecture levels, best first


def _load(name: str) -> tuple[Any, str | None]:
    try:
        return importlib.import_module(f"pullback.{name}"), None
    except ModuleNotFoundError:
        return None, "this installation has no native kernels" if name == "_level" else f"there is no module {name}"
    except ImportError as error:  # a library that it needs is missing
        return None, f"{name}: {error}"


def _choose() -> tuple[Any, str | None]:
    """Returns the module of the highest level that is built and supported here, or (None, the reason). Raises ImportError."""
    wanted = variables.simd_level()  # read first, so that an invalid level raises even if no module was built
    module, reason = _find(wanted)
    if module is None and wanted is not None:
        raise variables.invalid(
            f"PULLBACK_SIMD asks for kernels of x86-64-v{wanted}, but {reason}. Compile them (README, Installation) or unset it."
        )
    return module, reason


def _find(wanted: int | None) -> tuple[Any, str | None]:
    """Returns what `_choose` does. wanted: the level, or None for the highest one."""
    detector, reason = _load("_level")
    if detector is None:
        return None, reason
    supported = detector.level()
    if wanted is not None and wanted > supported:
        here = f"v{supported}" if supported else "no such level"
        raise variables.invalid(f"PULLBACK_SIMD asks for x86-64-v{wanted}, but this processor has {here}. Unset it.")
    if not supported:
        module, reason = _load("_cpu_generic")
        return module, reason
    reasons: list[str] = []
    for level in LEVELS if wanted is None else (wanted,):
        if level <= supported:
            module, reason = _load(f"_cpu_v{level}")
            if module is not None:
                return module, None
            reasons.append(str(reason))
    return None, "; ".join(reasons)


variables.check()
module, reason = _choose() if variables.backend() == "native" else (None, "PULLBACK_BACKEND=reference")


if module is None and variables.must_be_native():
    raise variables.invalid(
        f"PULLBACK_BACKEND=native, but {reason}. Install a wheel that has them, or compile them (README, Installation), or unset "
        f"the variable to run in NumPy."
    )


def connect_gpu(kernels: Any) -> None:
    """Makes each CPU kernel forward calls with GPU arrays to the GPU kernel of the same name."""
    door.connect(kernels)
    for name in dir(kernels):
        if module is not None and hasattr(module, name):
            module.forward(name, getattr(kernels, name), kernels.array_type)
    gpu_libraries.offer(kernels)


if module is not None:
    door.connect(module, host=True)
    gpu.when_loaded(connect_gpu)


def simd_level() -> str:
    """Returns the level of the loaded kernels, such as "x86-64-v4", or "none" and the reason."""
    if module is None:
        return f"none ({reason})"
    suffix = module.__name__.rpartition("_")[2]
    return f"x86-64-{suffix}" if suffix != "generic" else platform.machine()


def trim() -> int:
    """Gives the operating system back the CPU memory that pullback holds but does not use, and returns its size in bytes.

    Blocks of at least 64 KiB stay in a cache when their tensor dies, because fresh memory costs a page fault every 4 KiB. The
    cache holds at most 1 GiB or a quarter of the memory that the process may use (`pullback info` prints which);
    PULLBACK_CACHE_BYTES sets another limit. Call `trim` when other programs need the memory, for example after a large model
    or `captured.clear()`. Live tensors stay valid. The next steps run slower until the cache is filled again.

    Returns: the bytes of the blocks that left the cache; 0 without native kernels. Free pages of the C library are released
    too, but not counted. GPU memory is not affected.
    """
    return module.trim_cache() if module is not None else 0


def cache_limit() -> str:
    """Returns the size limit of the CPU memory cache and the source of this limit, or the reason why there is no cache."""
    if module is None:
        return f"none ({reason})"
    _, limit, source = module.cache_use()
    return f"at most {limit / 2**20:,.0f} MiB ({source})"
