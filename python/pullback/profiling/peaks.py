"""Peaks: what this device reaches at best through pullback's own kernels, measured once and kept in the user's cache folder."""

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

from .. import amp, config
from ..backends import native
from ..errors import PullbackError
from ..replays.capture import capture
from ..tensors import devices, gpu
from ..tensors.creation import ones, zeros
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor

ROUNDS: Final = 5  # of which the median counts
SECONDS: Final = 0.02  # of a round
CHAIN: Final = 32  # multiplies and adds, one after the other
LARGE: Final = 2**26  # float32 numbers of a copy, 256 MiB: beyond the last cache
PRODUCTS: Final = {"cpu": ("float32", "float64"), "cuda": ("float32", "float64", "tf32", "bfloat16", "float16")}


@dataclass(frozen=True)
class Peaks:
    """What a device reaches at best.

    Attributes:
        device: its name. version: of pullback. kernels: "x86-64-v4", "CUDA", … threads: of the CPU, 0 where NumPy computes.
        products: FLOP/s of a large product by dtype, a multiply-add being two.
        elementwise: FLOP/s of multiplies and adds that are no product, on numbers in the cache. On the CPU those of a captured
            chain; on a GPU, where no such chain is one kernel, half of float32 products: the same cores, without fusing.
        bytes_per_second: read and written by a copy beyond the last cache.
        launch_seconds: from the smallest call of an op in Python to the next.
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
        """FLOP/s of products of that dtype; those of float32 for one that was not measured."""
        return self.products.get(dtype, self.products["float32"])


def peaks(device: str | None = None, *, again: bool = False) -> Peaks:
    """The peaks of a device ("cpu", "cuda", …; where new tensors are made unless given), from the cache or measured in a second.

    `again` measures anew. The folder is PULLBACK_CACHE_DIR, else $XDG_CACHE_HOME/pullback, else ~/.cache/pullback; without a
    place to write to they are measured each time. Raises DeviceError, and PullbackError for a simulated GPU.
    """
    place = devices.check_device(device or devices.default_device())
    if place != "cpu" and gpu.need().simulated:
        raise PullbackError(f'peaks: "{place}" is simulated here, and its times mean nothing. Use a real GPU, or "cpu".')
    key = _key(place)
    path = Path(config.cache_dir()) / f"peaks-{re.sub('[^a-z0-9.]+', '-', ' '.join(map(str, key.values())).lower())}.json"
    found = None if again else _read(path, key)
    if found is None:
        # Not in this thread, where a profile, a tape or a recording may be listening.
        with ThreadPoolExecutor(1) as other:
            found = other.submit(_measure, place, key).result()
        with suppress(OSError):
            _write(path, found)
    return found


def _key(device: str) -> dict[str, Any]:
    """What the peaks depend on."""
    from .. import __version__

    if device == "cpu":
        kernels, threads = ("NumPy", 0) if native.module is None else (native.simd_level(), native.module.thread_count())
        return {"device": processor(), "version": __version__, "kernels": kernels, "threads": threads}
    found = gpu.need()
    properties = found.xp.cuda.runtime.getDeviceProperties(devices.number_of(device))
    kernels = "CUDA" if found.kernels is not None else "CuPy"
    return {"device": properties["name"].decode(), "version": __version__, "kernels": kernels, "threads": 0}


def processor() -> str:
    """The name of this machine's processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), platform.machine())
    except OSError:
        return platform.processor() or platform.machine()


# ---- the file


def _read(path: Path, key: dict[str, Any]) -> Peaks | None:
    """None where there is no such file, or it is damaged or another device's."""
    try:
        found = Peaks(**json.loads(path.read_text(encoding="utf-8")))
        numbers = [found.elementwise, found.bytes_per_second, found.launch_seconds, found.rate("float32"), *found.products.values()]
        right = all([type(x) in (int, float) and 0 < float(x) < math.inf for x in numbers])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    return found if right and {name: getattr(found, name) for name in key} == key else None


def _write(path: Path, found: Peaks) -> None:
    """Whole or not at all: another process may read it now."""
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
        products = {dtype: _product(dtype, 1024 if kind == "cpu" else 4096, finish) for dtype in PRODUCTS[kind]}
        elementwise = _chain(finish) if kind == "cpu" else products["float32"] / 2
        return Peaks(
            **key, products=products, elementwise=elementwise, bytes_per_second=_copy(finish), launch_seconds=_launch(finish)
        )


def _product(dtype: str, n: int, finish: Callable[[], None]) -> float:
    """FLOP/s of n × n by n × n."""
    a = ones((n, n), dtype="float32" if dtype == "tf32" else dtype)
    with amp.autocast("tf32" if dtype == "tf32" else "float32"):
        return 2 * n**3 / _median_seconds(lambda: a @ a, finish)


def _chain(finish: Callable[[], None]) -> float:
    """FLOP/s of y * x + y again and again, on blocks that stay in the first cache."""
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
    """Bytes per second, read and written."""
    source, target = ones(LARGE), Parameter(zeros(LARGE))
    return 2 * source.nbytes / _median_seconds(lambda: target.assign(source), finish)


def _launch(finish: Callable[[], None]) -> float:
    x = ones(1)
    return _median_seconds(lambda: x + x, finish)


def _median_seconds(run: Callable[[], Any], finish: Callable[[], None]) -> float:
    """Of one run among many, from an idle device until the last is done."""

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
