"""The choice of the backend, and the reason why a different one cannot run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pullback as pb
from conftest import environment, simulated
from pullback import backends, variables
from pullback.backends import native


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env=environment(**variables), capture_output=True, text=True, check=False)


def test_a_backend_that_does_not_exist_is_an_error_that_names_those_that_do() -> None:
    done = run("import pullback", PULLBACK_BACKEND="fast")
    assert done.returncode != 0
    assert "'fast'" in done.stderr
    assert "'native' and 'reference'" in done.stderr


def test_kernels_that_were_built_load() -> None:
    """If kernels do not load, the package falls back and thousands of tests skip. Only this test would fail."""
    built = {path.name.split(".")[0] for path in Path(pb.__file__).parent.glob("_*.so")}
    detector, reason = native._load("_level")
    assert (detector is not None) == ("_level" in built), reason
    wanted = variables.simd_level() or 4
    levels = [name for name in built if name[:6] == "_cpu_v" and int(name[6:]) <= min(detector.level(), wanted)] if detector else []
    if levels or (detector is not None and not detector.level() and "_cpu_generic" in built):
        module, reason = native._choose()
        assert module is not None, f"{sorted(built)} lie beside the package, and do not load: {reason}"
        assert native.module is module or variables.backend() == "reference"
        assert backends.why_not("cpu") is None or variables.backend() == "reference"


def test_the_reference_backend_is_the_reason_why_no_kernels_run() -> None:
    code = "from pullback import backends; print(backends.why_not('cpu'))"
    assert run(code, PULLBACK_BACKEND="reference").stdout.strip() == "PULLBACK_BACKEND=reference"


def test_native_kernels_that_are_asked_for_by_name_and_missing_are_an_error() -> None:
    without = "import sys; sys.modules['pullback._level'] = None; import pullback as pb; print(pb.sin(pb.zeros(1)).item())"
    done = run(without, PULLBACK_BACKEND="native")
    assert done.returncode != 0
    assert "PULLBACK_BACKEND=native, but this installation has no native kernels. Install a wheel" in done.stderr
    assert "No module named" not in done.stderr
    assert run(without, PULLBACK_BACKEND="").stdout == "0.0\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PULLBACK_NUM_THREADS", "abc"), ("PULLBACK_NUM_THREADS", "-3"), ("PULLBACK_NUM_THREADS", "0"),
        ("PULLBACK_NUM_THREADS", "2.5"), ("PULLBACK_CACHE_BYTES", "1G"), ("PULLBACK_CACHE_BYTES", "-1"),
        ("PULLBACK_CUDA_CACHE_BYTES", "1e9"), ("PULLBACK_CUDA_SYNC", "yes"), ("PULLBACK_CUDA_GRAPHS", "off"),
        ("PULLBACK_SIMD", "avx"), ("PULLBACK_BACKEND", "fast"),
    ],
)
def test_a_variable_that_says_nothing_is_an_error_that_names_it(name: str, value: str) -> None:
    done = run("import pullback", **{name: value})
    assert done.returncode != 0
    assert f"ImportError: {name} is {value!r}" in done.stderr


def test_empty_variables_are_as_unset_ones() -> None:
    names = ("NUM_THREADS", "CACHE_BYTES", "CUDA_CACHE_BYTES", "CUDA_SYNC", "CUDA_GRAPHS", "SIMD", "BACKEND", "DEVICE")
    assert run("import pullback", **{f"PULLBACK_{name}": "" for name in names}).returncode == 0


def test_every_op_that_is_not_native_says_why() -> None:
    code = "import pullback; from pullback.autodiff.primitive import OPS; print([o.name for o in OPS.values() if o.native])"
    assert run(code, PULLBACK_BACKEND="reference").stdout.strip() == "[]"
    from pullback.autodiff.primitive import OPS

    for op in OPS.values():
        assert op.native or op.facts.why_reference, op


def test_the_reason_is_a_sentence_or_nothing() -> None:
    for device in ("cpu", "cuda"):
        reason = backends.why_not(device)
        assert reason is None or " " in reason


def test_a_simd_level_above_the_machines_is_refused() -> None:
    done = run("import pullback", PULLBACK_SIMD="9", PULLBACK_BACKEND="native")
    assert "PULLBACK_SIMD" in done.stderr


@pytest.mark.parametrize("missing", ["_cpu_v2", "_level"])
def test_a_simd_level_that_is_not_installed_is_an_error(missing: str) -> None:
    """Without the error, every op would run in NumPy, and nothing would be recorded."""
    if not native.simd_level().startswith("x86-64-v"):
        pytest.skip(f"no level of x86-64 runs here: {native.simd_level()}")
    without = f"import sys; sys.modules['pullback.{missing}'] = None; import pullback"
    done = run(without, PULLBACK_SIMD="v2", PULLBACK_BACKEND="")
    reason = "there is no module _cpu_v2" if missing == "_cpu_v2" else "this installation has no native kernels"
    assert f"ImportError: PULLBACK_SIMD asks for kernels of x86-64-v2, but {reason}. Compile them" in done.stderr
    assert run(without, PULLBACK_SIMD="v2", PULLBACK_BACKEND="reference").returncode == 0


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
