"""`pullback info`: what runs on this machine, and why something falls back."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from typing import Any

import numpy as np

from . import backends, config, variables
from .autodiff.primitive import OPS
from .backends import native
from .profiling.peaks import processor
from .profiling.table import plain_table
from .tensors import devices, gpu


def show(*, ops: bool) -> None:
    """Prints the facts about this installation, or with `ops` a table of all ops; warnings go to stderr."""
    importlib.import_module("pullback.ops.random")  # Importing the module declares its ops.
    if ops:
        print(plain_table(("op", "kind", "cpu", "cuda", "same bits everywhere"), _op_rows()))
        return
    rows = _facts()
    width = max([len(name) for name, _ in rows])
    for name, fact in rows:
        print(f"{name.ljust(width)}  {fact}")
    for warning in _warnings():
        print(f"warning: {warning}", file=sys.stderr)


def _facts() -> list[tuple[str, str]]:
    from . import __version__

    module = native.module
    native_count = len([op for op in OPS.values() if op.native])
    views = len([op for op in OPS.values() if _is_view(op)])
    others = len(OPS) - native_count - views
    return [
        ("pullback", __version__),
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("NumPy", np.__version__),
        ("cpu", f"{processor()}, {os.cpu_count()} logical processors"),
        ("cuda", _gpus() if devices.cuda.is_available() else f"no: {devices.cuda.why_not()}"),
        ("CUDA kernels", "yes" if backends.why_not("cuda") is None else f"no: {backends.why_not('cuda')}"),
        ("CUDA libraries", _cuda_libraries()),
        ("CPU kernels", "yes" if backends.why_not("cpu") is None else f"no: {backends.why_not('cpu')}"),
        ("SIMD", native.simd_level()),
        ("BLAS", "NumPy's" if module is None else f"{module.blas_config()}, running its {module.blas_core()} kernels"),
        ("reproducible", _reproducible()),
        ("CPU cache", native.cache_limit()),
        ("threads", str(module.thread_count()) if module is not None else "NumPy's"),
        ("ops", f"{native_count} native, {views} views without a kernel, {others} by reference (pullback info --ops)"),
    ]


def _reproducible() -> str:
    """Returns the mode with what set it, or with what can."""
    if variables.is_set("PULLBACK_REPRODUCIBLE"):
        return f"{config.reproducible} (PULLBACK_REPRODUCIBLE={variables.reproducible()})"
    why_not = config.why_not()
    other = f"is not possible: {why_not}" if why_not else "is possible: PULLBACK_REPRODUCIBLE, pb.config.reproducible"
    return f'{config.reproducible} ("everywhere" {other})'


def _gpus() -> str:
    found = gpu.need()
    if found.simulated:
        return "simulated on the CPU: kernels are tested here, not timed"
    properties = [found.xp.cuda.runtime.getDeviceProperties(i) for i in range(found.count())]
    return ", ".join([f"{p['name'].decode()} (sm_{p['major']}{p['minor']})" for p in properties])


def _cuda_libraries() -> str:
    """Returns the CUDA libraries that the dynamic loader finds, and the installed wheels of NVIDIA and CuPy, as text."""
    from ctypes.util import find_library
    from importlib import metadata

    wheels = {
        str(d.metadata["Name"]): d.version
        for d in metadata.distributions()
        if str(d.metadata["Name"]).startswith(("nvidia-", "cupy"))
    }
    system = [name for name in ("cuda", "cudart", "nvrtc", "cublas") if find_library(name)]
    found = [f"lib{name}" for name in system] + [f"{name} {version}" for name, version in sorted(wheels.items())]
    return ", ".join(found) or "none found"


def _warnings() -> list[str]:
    """Returns warnings about environment variables that silently make products slower or change their rounding."""
    told = {
        "OPENBLAS_CORETYPE": "overrides the kernels that OpenBLAS would choose for this processor",
        "OPENBLAS_L2_SIZE": "overrides the cache size by which OpenBLAS cuts its blocks",
    }
    return [
        f"{name}={os.environ[name]} {what}: products may be slow, and their rounding differs. Unset it unless you mean it."
        for name, what in told.items()
        if os.environ.get(name)
    ]


def _is_view(op: Any) -> bool:
    """True for ops that only view or move memory, so that no backend needs a kernel for them."""
    return not op.native and op.facts.same_bits is True


def _op_rows() -> list[tuple[str, ...]]:
    kernels = None if backends.why_not("cuda") else gpu.need().kernels
    rows: list[tuple[str, ...]] = []
    for op in sorted(OPS.values(), key=lambda op: op.name):
        on_cpu = "native" if op.native else f"NumPy: {op.facts.why_reference}"
        on_cuda = "native" if hasattr(kernels, getattr(op.kernel, "__name__", op.name)) else "CuPy"
        if _is_view(op):
            on_cpu = on_cuda = "view: no kernel runs"
        rows.append((op.name, op.kind.name, on_cpu, on_cuda, "yes" if op.facts.same_bits is True else f"no: {op.facts.same_bits}"))
    return rows
