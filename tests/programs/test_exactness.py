"""Accuracy in ulps of float32 against float64, and equal bits from run to run and on every SIMD level with fused multiply-adds."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import ROOT, environment, spacing
from pullback.backends import native

pytestmark = pytest.mark.usefixtures("native")


def worst(got: Any, exact: Any) -> float:
    """Returns the largest error in ulps of float32, over the elements whose exact result is a normal number."""
    rounded = exact.astype(np.float32)
    normal = np.isfinite(rounded) & (np.abs(rounded) >= np.finfo(np.float32).tiny)
    return float((np.abs(got.astype(np.float64) - exact)[normal] / spacing(np.float32, exact[normal])).max())


def everywhere(low: float, high: float, n: int = 400_000) -> Any:
    """Returns numbers between the limits: random bit patterns, which cover all magnitudes, and evenly distributed numbers."""
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    even = rng.uniform(low, high, n).astype(np.float32)
    x = np.concatenate([bits[np.isfinite(bits)], even])
    x = x[(np.abs(x) >= 1e-36) | (x == 0)]  # the kernels flush float32 denormals to zero, in intermediate results too
    return x[(x >= low) & (x <= high)]


def erf(x: Any) -> Any:
    from scipy.special import erf as exact

    return exact(x)


@pytest.mark.parametrize(
    ("name", "exact", "low", "high", "ulp"),
    [
        ("exp", np.exp, -87, 88.7, 2), ("log", np.log, 1e-37, 3e38, 1), ("tanh", np.tanh, -20, 20, 2), ("erf", erf, -6, 6, 1.5),
        ("sin", np.sin, -1e4, 1e4, 2), ("cos", np.cos, -1e4, 1e4, 2), ("expm1", np.expm1, -20, 88, 2),
        ("log1p", np.log1p, -0.999, 1e30, 1),
        ("sqrt", np.sqrt, 0, 3e38, 0.51), ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), -80, 80, 4),
        ("atan", np.arctan, -1e6, 1e6, 3),
        ("exp2", np.exp2, -120, 127, 2), ("sinh", np.sinh, -80, 80, 4), ("cosh", np.cosh, -80, 80, 4),
    ],
)
def test_float32_functions_are_within_ulps_of_float64(name: str, exact: Any, low: float, high: float, ulp: float) -> None:
    pytest.importorskip("scipy", reason="scipy is not installed")
    x = everywhere(low, high)
    got = getattr(pb, name)(pb.tensor(x)).numpy()
    with np.errstate(all="ignore"):
        assert worst(got, exact(x.astype(np.float64))) <= ulp


def test_float32_pow_is_within_4_ulp() -> None:
    rng = np.random.default_rng(8)
    a, b = np.exp(rng.uniform(-20, 20, 500_000)).astype(np.float32), rng.uniform(-4, 4, 500_000).astype(np.float32)
    assert worst(pb.pow(pb.tensor(a), pb.tensor(b)).numpy(), a.astype(np.float64) ** b) <= 4


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sin", "erf", "log1p", "expm1", "atan"])
def test_float64_functions_are_within_4_ulp_of_mpmath(name: str) -> None:
    mpmath = pytest.importorskip("mpmath", reason="mpmath is not installed")
    rng = np.random.default_rng(9)
    x = rng.uniform(0.01, 5, 300) if name == "log" else rng.uniform(-0.9 if name == "log1p" else -5, 5, 300)
    got = getattr(pb, name)(pb.tensor(x)).numpy()
    with mpmath.workprec(120):
        error = [abs(mpmath.mpf(float(y)) - getattr(mpmath, name)(mpmath.mpf(float(v)))) for v, y in zip(x, got)]
    assert max([float(e) / s for e, s in zip(error, spacing(np.float64, got))]) <= 4


def test_float32_flushes_denormal_numbers_and_float64_keeps_them() -> None:
    assert (pb.tensor(np.float32(1e-40)) * 1.0).item() == 0.0
    assert pb.tensor(np.float32(1e-40)).astype("float64").item() == 0.0
    tiny = pb.tensor(np.float64(1e-310))
    assert (tiny * 1.0).item() == 1e-310
    assert (tiny > 0).item()
    assert tiny.astype(pb.bool).item()
    assert np.float32(1e-40) * np.float32(1) != 0  # NumPy's arithmetic is not affected


# ---- equal bits

PROGRAM = """
import hashlib, sys, zlib, numpy as np, pullback as pb
rng = np.random.default_rng(0)
digest = hashlib.sha256()
for dtype in ("float32", "float64", "float16", "bfloat16"):
    for n in (7, 1000, 70_001):
        x = pb.tensor(rng.standard_normal((3, n))).astype(dtype)
        w = pb.tensor(rng.standard_normal((n, 5))).astype(dtype)
        with pb.GradientTape() as tape:
            tape.watch([x, w])
            h = pb.tanh(x) * pb.exp(-pb.abs(x)) + pb.sin(x) / (2 + pb.cos(x)) - pb.log1p(x * x)
            parts = [pb.mean(h, axis=1), pb.max(h, axis=1), pb.var(h, axis=1), pb.sum(h.T, axis=0), pb.logsumexp(h, axis=1)]
            y = pb.sum(pb.stack(parts)) + pb.sum(pb.softmax(h) * h) + pb.sum(pb.cumulative_sum(h, axis=1)) * 1e-3
        for result in (y, *tape.gradient(y, [x], unconnected="zero")):
            digest.update(result.numpy().tobytes())
wild = pb.tensor([float("nan"), float("inf"), -float("inf"), -1.5, 1e20, 2.0**63, 2.0**63 + 4096, 3e9, -70_000.0, 300.0] * 40)
for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
    for x in (wild, wild.astype("float64")):
        digest.update(x.astype(dtype).numpy().tobytes())
print(digest.hexdigest())
sys.path.append(sys.argv[1])
from elementwise_bits import results
for name, result in results("cpu"):
    print(name, zlib.crc32(result.tobytes()))
"""


def run(**variables: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(ROOT / "tests")]
    done = subprocess.run(command, env=environment(**variables), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("threads", ["1", "2"])
def test_two_runs_give_the_same_bits(threads: str) -> None:
    assert run(PULLBACK_NUM_THREADS=threads) == run(PULLBACK_NUM_THREADS=threads)


def test_every_simd_level_with_fused_multiply_adds_gives_the_same_bits() -> None:
    """Level v2 is left out. It has no fused multiply-add, so it rounds the formulas of csrc/math more often than the others."""
    folder = os.path.dirname(pb.__file__)
    built = sorted({name[len("_cpu_v")] for name in os.listdir(folder) if name.startswith("_cpu_v")})
    best = int(native.simd_level()[-1]) if native.simd_level().startswith("x86-64") else 0
    levels = [level for level in built if 3 <= int(level) <= best]
    if len(levels) < 2:
        pytest.skip(f"only these levels of x86-64 are built and run here: {levels}")
    first, *others = [run(PULLBACK_SIMD=level, PULLBACK_NUM_THREADS="1").splitlines() for level in levels]
    for other in others:
        assert other == first


def test_two_runs_in_one_process_give_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((64, 300)).astype(np.float32), rng.standard_normal((300, 50)).astype(np.float32)
    results = []
    for _ in range(3):
        p = pb.Parameter(w)
        with pb.GradientTape() as tape:
            y = pb.sum(pb.softmax(pb.tensor(x) @ p) ** 2)
        results.append((y.numpy().tobytes(), tape.gradient(y, p).numpy().tobytes()))
    assert len(set(results)) == 1
