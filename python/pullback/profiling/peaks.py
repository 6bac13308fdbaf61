"""Peaks: the highest rates that pullback's kernels reach on this device, measured once and kept in the user's cache folder."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import secrets
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from .. import variables
from ..backends import modes, native
from ..backends.autocast import autocast
from ..errors import PullbackError
from ..regular_files import read_regular
from ..replays.capture import capture
from ..tensors import devices, gpu
from ..tensors.creation import ones, zeros
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor

ROUNDS: Final = 5  # timing rounds; the result is their median
SECONDS: Final = 0.02  # duration of a round
CHAIN: Final = 32  # multiply-and-add pairs, each of which needs the result of the previous one
LARGE: Final = 2**26  # float32 numbers of a copy, 256 MiB: beyond the last cache
MOST: Final = 2**20  # bytes of a file of peaks
PRODUCTS: Final = {"cpu": ("float32", "float64"), "cuda": ("float32", "float64", "tf32", "bfloat16", "float16")}


@dataclass(frozen=True)
class Peaks:
    """The highest rates that a device reaches.

    Attributes:
        device: the name of the device.
        version: the version of pullback.
        kernels: the kernels that were measured: "x86-64-v4", "CUDA", …, with " everywhere" appended in that mode.
        threads: the number of CPU threads; 0 on a GPU, or if NumPy computes.
        products: FLOP/s of a large matrix product by dtype. A multiply-add counts as two.
        elementwise: FLOP/s of multiplications and additions outside matrix products, on data in the cache. On the CPU it is
            measured on a captured chain. On a GPU, where capture does not fuse such a chain into one kernel, it is half of the
            rate of float32 products: the same cores, but a multiplication and an addition instead of a multiply-add.
        bytes_per_second: bytes read and written per second by a copy that is larger than the last cache.
        launch_seconds: seconds from one call of the smallest op in Python to the next.
    """

    device: str
    version: str
    kernels: str
    threads: int
    products: dict[str, float]
    elementwise: float
    bytes_per_second: float
    launch_seconds: float

    @property
    def flops_per_second(self) -> float:
        """The highest of all rates."""
        return max(self.elementwise, *self.products.values())

    def rate(self, dtype: str) -> float:
        """Returns the FLOP/s of matrix products in this dtype, or in float32 if this dtype was not measured."""
        return self.products.get(dtype, self.products["float32"])


def peaks(device: str | None = None, *, again: bool = False) -> Peaks:
    """Returns the peaks of a device, read from the cache folder or measured, which takes a few seconds.

    The folder is PULLBACK_CACHE_DIR, else $XDG_CACHE_HOME/pullback, else ~/.cache/pullback. If it cannot be written, every call
    measures. Raises DeviceError, and PullbackError for a simulated GPU.

    Args:
        device: "cpu", "cuda", …; the default device if it is None.
        again: measure even if the cache has the peaks.
    """
    place = devices.check_device(device or devices.default_device())
    if place != "cpu" and gpu.need().simulated:
        raise PullbackError(f'peaks: "{place}" is simulated here, and its times mean nothing. Use a real GPU, or "cpu".')
    key = _key(place)
    path = Path(variables.cache_dir()) / f"peaks-{re.sub('[^a-z0-9.]+', '-', ' '.join(map(str, key.values())).lower())}.json"
    found = None if again else _read(path, key)
    if found is None:
        # A new thread measures, because a profile, a tape or a recording of this thread would receive the launches.
        with ThreadPoolExecutor(1) as other:
            found = other.submit(_measure, place, key).result()
        with suppress(OSError):
            _write(path, found)
    return found


def _key(device: str) -> dict[str, Any]:
    """Returns the facts that the peaks depend on, by the names of the fields of Peaks."""
    from .. import __version__

    mode = "" if modes.mode() == "machine" else f" {modes.mode()}"  # Other kernels compute products then.
    if device == "cpu":
        kernels, threads = ("NumPy", 0) if native.module is None else (native.simd_level() + mode, native.module.thread_count())
        return {"device": processor(), "version": __version__, "kernels": kernels, "threads": threads}
    found = gpu.need()
    properties = found.xp.cuda.runtime.getDeviceProperties(devices.number_of(device))
    kernels = "CUDA" + mode if found.kernels is not None else "CuPy"
    return {"device": properties["name"].decode(), "version": __version__, "kernels": kernels, "threads": 0}


def processor() -> str:
    """Returns the name of this machine's processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), platform.machine())
    except OSError:
        return platform.processor() or platform.machine()


# ---- the file


def _read(path: Path, key: dict[str, Any]) -> Peaks | None:
    """Returns the peaks in the file; None if the file does not exist, is damaged, or belongs to a different key."""
    try:
        found = Peaks(**json.loads(read_regular(path, MOST)))
        numbers = [found.elementwise, found.bytes_per_second, found.launch_seconds, found.rate("float32"), *found.products.values()]
        right = all([type(x) in (int, float) and 0 < float(x) < math.inf for x in numbers])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    return found if right and {name: getattr(found, name) for name in key} == key else None


def _write(path: Path, found: Peaks) -> None:
    """Replaces the file atomically, because another process may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        beside.write_text(json.dumps(asdict(found), indent=1), encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


# ---- measuring


def _measure(device: str, key: dict[str, Any]) -> Peaks:
    with devices.use_device(device):
        kind = device.partition(":")[0]
        finish = (lambda: None) if kind == "cpu" else lambda: devices.cuda.synchronize(device)
        size = 1024 if kind == "cpu" else 4096
        products = {dtype: _product(dtype, size, finish) for dtype in PRODUCTS[kind] if modes.allows(dtype)}
        elementwise = _chain(finish) if kind == "cpu" else products["float32"] / 2
        return Peaks(
            **key, products=products, elementwise=elementwise, bytes_per_second=_copy(finish), launch_seconds=_launch(finish)
        )


def _product(dtype: str, n: int, finish: Callable[[], None]) -> float:
    """Returns the FLOP/s of the product of two n × n matrices."""
    a = ones((n, n), dtype="float32" if dtype == "tf32" else dtype)
    with autocast("tf32" if dtype == "tf32" else "float32"):
        return 2 * n**3 / _median_seconds(lambda: a @ a, finish)


def _chain(finish: Callable[[], None]) -> float:
    """Returns the FLOP/s of a chain of z * x + y. Captured, it runs as one pass over blocks that stay in the L1 cache."""

    def multiply_and_add(x: Tensor, y: Tensor) -> Tensor:
        z = y
        for _ in range(CHAIN):
            z = z * x + y
        return z

    n = 2**18
    x, y = ones(n) * 0.5, ones(n)
    run = multiply_and_add if native.module is None else capture(multiply_and_add)
    return 2 * CHAIN * n / _median_seconds(lambda: run(x, y), finish)


def _copy(finish: Callable[[], None]) -> float:
    """Returns the bytes per second that a large copy reads and writes."""
    source, target = ones(LARGE), Parameter(zeros(LARGE))
    return 2 * source.nbytes / _median_seconds(lambda: target.assign(source), finish)


def _launch(finish: Callable[[], None]) -> float:
    x = ones(1)
    return _median_seconds(lambda: x + x, finish)


def _median_seconds(run: Callable[[], Any], finish: Callable[[], None]) -> float:
    """Returns the median time of one run. A round times many runs, from an idle device until the last run is done."""

    def seconds(count: int) -> float:
        finish()
        begin = time.perf_counter()
        for _ in range(count):
            run()
        finish()
        return (time.perf_counter() - begin) / count

    run()
    count = 1
    while (taken := seconds(count) * count) < SECONDS / 4:
        count *= 4
    count = max(1, round(count * SECONDS / taken))
    return statistics.median([seconds(count) for _ in range(ROUNDS)])
