"""Which backend runs, why another cannot, and that the reference passes the tests that the native kernels pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pullback as pb
from conftest import environment, simulated
from pullback import backends, config

HERE = Path(__file__).parent
SHARED = [
    "test_tape", "test_slopes", "test_backward", "test_tensor", "test_dispatch", "test_errors", "test_properties", "test_nn",
    "test_vmap", "test_forward", "test_jacobian", "test_per_example", "test_calls_nest",
]  # fmt: skip


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env=environment(**variables), capture_output=True, text=True, check=False)


@pytest.mark.skipif(config.backend() == "reference", reason="this run is on the reference backend already")
def test_the_reference_backend_passes_the_same_tests() -> None:
    files = [str(HERE / f"{name}.py") for name in SHARED if (HERE / f"{name}.py").exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        command, env=environment(PULLBACK_BACKEND="reference"), cwd=HERE.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_a_backend_that_does_not_exist_is_an_error_that_names_those_that_do() -> None:
    done = run("import pullback", PULLBACK_BACKEND="fast")
    assert done.returncode != 0
    assert "'fast'" in done.stderr
    assert "'native' and 'reference'" in done.stderr


def test_every_op_that_is_not_native_says_why() -> None:
    code = "import pullback as pb; from pullback.primitive import OPS; pb.sin; print([o.name for o in OPS.values() if o.native])"
    assert run(code, PULLBACK_BACKEND="reference").stdout.strip() == "[]"
    from pullback.primitive import OPS

    for op in OPS.values():
        assert op.native or op.why_reference, op


def test_the_reason_is_a_sentence_or_nothing() -> None:
    for device in ("cpu", "cuda"):
        reason = backends.why_not(device)
        assert reason is None or " " in reason


def test_a_simd_level_above_the_machines_is_refused() -> None:
    done = run("import pullback", PULLBACK_SIMD="9", PULLBACK_BACKEND="native")
    assert "PULLBACK_SIMD" in done.stderr


def test_import_never_needs_a_gpu() -> None:
    code = "import pullback as pb; why = pb.cuda.why_not(); print(pb.cuda.is_available(), why is None or ' ' in why)"
    done = run(code, CUDA_VISIBLE_DEVICES="", PULLBACK_DEVICE="")
    assert done.stdout.strip() == ("True True" if simulated() else "False True"), done.stderr


def test_the_version_is_that_of_the_distribution() -> None:
    assert pb.__array_api_version__ == "2024.12"
    assert pb.__version__[0].isdigit()


def test_a_captured_function_runs_as_it_is_without_kernels() -> None:
    code = """
import numpy as np, pullback as pb
calls = []
f = pb.capture(lambda x: (calls.append(1), pb.sum(x * x, axis=-1))[1])
g = pb.capture(lambda x: pb.sum(x * x), steps=3)
x = pb.tensor(np.arange(6.0).reshape(3, 2))
for _ in range(2):
    assert np.array_equal(f(x).numpy(), [1.0, 13.0, 41.0]) and np.array_equal(g(x).numpy(), [1.0, 13.0, 41.0])
assert len(calls) == 2 and f.stats().captures == 0
try:
    f.explain()
except pb.CaptureError as error:
    print(error)
"""
    done = run(code, PULLBACK_BACKEND="reference", PULLBACK_DEVICE="cpu")
    assert done.returncode == 0, done.stderr
    assert "PULLBACK_BACKEND=reference" in done.stdout
