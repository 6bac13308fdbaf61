"""Shared by the tests: backends, example arguments of every op, and comparisons in ulps. Every skip gives its reason."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback import backends
from pullback.autodiff.primitive import OPS, Op, apply
from pullback.backends import reference
from pullback.tensors import devices, dtypes, gpu
from pullback.tensors.tensor import Tensor
from short import pytest_addoption, pytest_configure, pytest_ignore_collect  # noqa: F401  (pytest finds its hooks here)

ROOT = Path(__file__).resolve().parents[1]  # the root of the repository or of the source archive
ELEMENTWISE = ("unary", "binary", "select")
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the tests that wait for other programs first, so that the other tests run meanwhile, and then the longest file, which
    would keep one process busy at the end.

    `make simulate` leaves out the tests that always run on the CPU, because `make test-all` has the same kernels for them.
    PULLBACK_PART=1/4 runs the second quarter of the tests, drawn by their names.
    """
    items.sort(key=lambda item: (item.path.parent.name != "tools", item.path.name != "test_capture_changes.py"))
    part, parts = map(int, os.environ.get("PULLBACK_PART", "0/1").split("/"))
    left_out = {item for item in items if zlib.crc32(item.nodeid.encode()) % parts != part}
    if devices.default_device() != "cpu" and simulated():
        left_out |= {item for item in items if "on_cpu" in getattr(item, "fixturenames", ())}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


# ---- backends


@dataclass(frozen=True)
class Backend:
    name: str

    def why_not(self) -> str | None:
        if self.name == "native":
            return backends.why_not("cpu")
        if devices.default_device() != "cpu" and not simulated():
            return "the definitions would run on CuPy, which lacks dtypes that NumPy has; the CPU runs them"
        return None

    def run(self, op: Op, inputs: Any, params: Any) -> Any:
        """Returns the op's result as a NumPy array. Inputs are promoted as in users' calls."""
        tensors, params = as_tensors(inputs), on_device(params)
        if self.name == "native":
            return apply(op, tensors, params).numpy()
        promoted = op.kind.prepare(op, tensors, params) or tensors
        return host(reference.run(op, [t.array for t in promoted], params))


BACKENDS = (Backend("native"), Backend("reference"))


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    if reason := request.param.why_not():
        pytest.skip(reason)
    return request.param


@pytest.fixture
def on_cpu() -> Any:
    """Runs a test on the CPU, whatever the default device is, because it needs arrays in the host's memory."""
    with pb.use_device("cpu"):
        yield


@pytest.fixture
def interruptible() -> Any:
    """Restores SIGINT's default handler.

    A background job may have been started with SIGINT ignored, and its children inherit this.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def native() -> None:
    """Skips a test of native kernels if they cannot be used."""
    if reason := backends.why_not("cpu"):
        pytest.skip(reason)


@pytest.fixture
def one_torch_thread() -> Any:
    """Keeps torch from waking threads for work that takes microseconds. Skips a test if torch is not installed."""
    torch = pytest.importorskip("torch", reason="torch is not installed: there is no other library to compare with")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def simulated() -> bool:
    """True if the device "cuda" is simulated."""
    return pb.cuda.is_available() and gpu.need().simulated


def find_nvcc() -> str | None:
    """Returns the path of CUDA's compiler, or None."""
    usual = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which(os.environ.get("CUDACXX", "nvcc")) or (str(usual) if usual.exists() else None)


def environment(**variables: str) -> dict[str, str]:
    """Returns the environment of a subprocess that imports the same pullback, with these variables added.

    The mode of this run is not inherited, because a subprocess on the reference backend would refuse "everywhere".
    """
    path = os.path.dirname(os.path.dirname(pb.__file__))
    return {**os.environ, "PULLBACK_REPRODUCIBLE": "", "PYTHONPATH": path, **variables}


# ---- the arguments of an op


def rng_for(op: Op) -> Any:
    return np.random.default_rng(zlib.crc32(op.name.encode()))


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def draw(op: Op, dtype: np.dtype[Any], shape: tuple[int, ...], rng: Any) -> Any:
    """Returns random numbers in the op's domain."""
    low, high = op.facts.domain
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(int(np.ceil(max(low, 0) if dtype.kind == "u" else low)), int(high) + 1, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


def example(op: Op, dtype: Any, rng: Any = None) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns arguments for any op: the example of its declaration, otherwise arguments for its kind. Fails without either."""
    rng, dtype = rng or rng_for(op), np.dtype(dtype)
    if op.facts.example is not None:
        inputs, params = op.facts.example(rng, dtype)
        return tuple([x.array if isinstance(x, Tensor) else x for x in inputs]), tuple(params)
    if op.kind.name == "unary":
        return (draw(op, dtype, (3, 5), rng),), ()
    if op.kind.name == "binary":
        return (draw(op, dtype, (3, 5), rng), draw(op, dtype, (5,), rng)), ()
    if op.kind.name == "select":
        return (rng.random((3, 5)) < 0.5, draw(op, dtype, (3, 5), rng), draw(op, dtype, (5,), rng)), ()
    if op.kind.name == "reduce":
        x = rng.permutation(24).reshape(2, 3, 4) / 4.0 - (0 if dtype.kind in "ub" else 3)
        return (x.astype(dtype),), ((1,) if "axes" in op.names else 1, False)
    raise AssertionError(f"op {op.name}: its kind ({op.kind.name}) does not tell how to call it. Give its declaration example=.")


def takes(op: Op) -> tuple[str, ...]:
    """Returns the dtypes to test an op with."""
    kind, promotes = op.takes, op.kind.name in ("unary", "binary", "reduce")
    if kind == "float":
        return (*FLOATS, "int32", "bool") if promotes else FLOATS
    if kind == "number":
        return (*FLOATS, *INTEGERS)
    if kind == "integer":
        return INTEGERS
    return (*INTEGERS, "bool") if kind == "bits" else (*FLOATS, *INTEGERS, "bool")


def as_tensors(inputs: Any) -> tuple[Any, ...]:
    return tuple([x if isinstance(x, Tensor) else pb.asarray(np.asarray(x)) for x in inputs])


def on_device(params: Any) -> tuple[Any, ...]:
    """Moves the arrays among an op's parameters (indices, the state of a generator) to the default device."""
    return tuple([pb.asarray(p).array if isinstance(p, np.ndarray) else p for p in params])


def call(op: Op, inputs: Any, params: Any) -> Tensor:
    """Runs the op on tensors. Tapes record it as they record a user's call."""
    return op.issue(op, tuple(inputs), on_device(params))


def in_float64(x: Any) -> Any:
    return x.astype(np.float64) if hasattr(x, "dtype") and dtypes.is_float(x.dtype) else x


def exact(op: Op, inputs: Any, params: Any) -> Any:
    """Returns the definition's result in float64 on the same values. Integers stay integers unless the op is on real numbers."""
    wide = [in_float64(np.asarray(x)) for x in inputs]
    if op.takes == "float" and op.kind.name in ("unary", "binary", "reduce"):
        wide = [x.astype(np.float64) for x in wide]
    return np.asarray(reference.run(op, wide, params))


def condition(op: Op, inputs: Any, params: Any) -> Any:
    """Returns the sum of the absolute terms if an op sums, otherwise 0. The rounding error is relative to it at any length."""
    if op.name == "logaddexp":  # Its result crosses 0, where the exponentials sum to 1, so the error is relative to the inputs.
        return np.maximum(np.abs(in_float64(inputs[0])), np.abs(in_float64(inputs[1])))
    if op.kind.name in ELEMENTWISE or op.name in ("argmax", "argmin", "max", "min", "sort", "argsort", "topk_indices"):
        return 0.0
    if op.kind.name in ("own", "rows"):  # All elements of a row share the rounding error of the row's sums.
        return np.abs(exact(op, inputs, params)).max(initial=0.0)
    return np.abs(exact(op, [np.abs(x) if dtypes.is_float(np.asarray(x).dtype) else x for x in inputs], params))


def watched(value: Any, tape: Any, dtype: Any = None) -> Tensor:
    """Returns a new tensor that the tape watches."""
    t = pb.tensor(value, dtype=dtype)
    tape.watch(t)
    return t


# ---- distances


def host(x: Any) -> Any:
    """Returns a tensor, a GPU array or anything array-like as a NumPy array."""
    array = x.array if isinstance(x, Tensor) else x
    return devices.move(array, "cpu") if hasattr(array, "__cuda_array_interface__") else np.asarray(array)


def close(got: Any, wanted: Any, rtol: float = 1e-6) -> None:
    np.testing.assert_allclose(host(got), host(wanted), rtol=rtol, atol=1e-12)


def spacing(dtype: Any, size: Any) -> Any:
    """Returns one ulp of the dtype at numbers of this magnitude."""
    info = ml_dtypes.finfo(dtype)
    least = float(info.smallest_subnormal)
    with np.errstate(all="ignore"):
        size = np.abs(np.asarray(size, np.float64))
        return np.maximum(np.exp2(np.floor(np.log2(np.maximum(size, least)))) * float(info.eps), least)


def assert_ulps(got: Any, expected: Any, ulp: float, *, scale: Any = 0.0, signed_zeros: bool = False, what: str = "") -> None:
    """Asserts that `got` is within `ulp` units in its last place of float64 `expected`, with equal NaNs and infinities."""
    got, expected = host(got), host(expected)
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, not {expected.shape}"
    if not dtypes.is_float(got.dtype):
        np.testing.assert_array_equal(got, expected.astype(got.dtype), err_msg=what)
        return
    with np.errstate(all="ignore"):
        rounded = expected.astype(got.dtype).astype(np.float64)
        wide = got.astype(np.float64)
        np.testing.assert_array_equal(np.isnan(wide), np.isnan(rounded), err_msg=f"{what}: NaN where there should be none, or none")
        finite = np.isfinite(rounded) & np.isfinite(wide)
        overflow = np.isinf(rounded) != np.isinf(wide)  # allowed only if one ulp makes the difference
        largest = float(ml_dtypes.finfo(got.dtype).max)
        assert not np.any(overflow & ~np.isnan(wide) & (np.minimum(np.abs(wide), np.abs(expected)) < largest * (1 - 1e-2))), what
        assert np.array_equal(wide[np.isinf(wide) & ~overflow], rounded[np.isinf(wide) & ~overflow]), f"{what}: inf of another sign"
        error = np.where(finite, np.abs(wide - expected), 0.0) / spacing(got.dtype, np.maximum(np.abs(rounded), scale))
    if error.size and error.max() > ulp:
        worst = np.unravel_index(int(error.argmax()), error.shape)
        raise AssertionError(f"{what}: {error.max():.3g} ulp (allowed {ulp}) at {worst}: {got[worst]!r}, not {expected[worst]!r}")
    if signed_zeros:
        zeros = (rounded == 0) & (wide == 0)
        np.testing.assert_array_equal(np.signbit(wide[zeros]), np.signbit(rounded[zeros]), err_msg=f"{what}: sign of zero")


def ops(*kinds: str) -> list[Op]:
    """Returns every declared op, or the ops of these kinds, for parametrize."""
    import pullback.linalg
    import pullback.nn  # noqa: F401  (the imports declare their ops)

    return [op for op in OPS.values() if not kinds or op.kind.name in kinds]


# ---- PyTorch as the source of correct values


_RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return _RNG.standard_normal(shape)


@pytest.fixture(scope="session")
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch, the source of the right values, is not installed")


def agrees_with_torch(torch: Any, ours: Any, theirs: Any, *arrays: Any) -> None:
    """Asserts that values and gradients of a function agree with PyTorch's, in float64, for a random cotangent."""
    xs = [pb.tensor(a) for a in arrays]
    with pb.GradientTape() as tape:
        tape.watch(xs)
        y = ours(*xs)
    g = np.random.default_rng(1).standard_normal(y.shape)
    ts = [torch.tensor(a, requires_grad=True) for a in arrays]
    wanted = theirs(*ts)
    np.testing.assert_allclose(y.numpy(), wanted.detach().numpy(), rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(wanted, ts, torch.tensor(g), allow_unused=True)
    for got, gradient in zip(tape.gradient(y, xs, output_gradients=g, unconnected="zero"), gradients):
        right = np.zeros(got.shape) if gradient is None else gradient.numpy()
        np.testing.assert_allclose(got.numpy(), right, rtol=1e-10, atol=1e-12)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps stored measurements in a temporary folder, also for processes that tests start."""
    os.environ["PULLBACK_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def strict_device() -> None:
    """Makes the simulated device refuse uses by pullback's code that CuPy would refuse."""
    if simulated() and gpu.need().kernels is not None:
        import strict_device

        strict_device.install()


# ---- why tests were skipped


def reasons_of(skipped: list[Any]) -> list[str]:
    """Returns a line for each reason in the reports of skipped tests. A file that was skipped while it was imported counts as one
    file, because nobody knows how many tests it has."""
    tests, files = Counter[str](), Counter[str]()
    for report in skipped:
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if re.search(r"torch\b.* not installed|could not import 'torch\b", reason, re.IGNORECASE):
            (version,) = re.findall(r'"(torch==[^"]+)"', (ROOT / "pyproject.toml").read_text())
            python = sys.executable.removeprefix(f"{ROOT}{os.sep}")
            reason = f"torch, to compare with, is not installed. `{python} -m pip install {version}` installs it"
        (files if isinstance(report, pytest.CollectReport) else tests)[reason] += 1

    def line(reason: str) -> str:
        counts = [f"{n[reason]:,} {noun}{'s' * (n[reason] != 1)}" for n, noun in ((tests, "test"), (files, "file")) if n[reason]]
        return f"skipped {' and '.join(counts)}: {reason}"

    return [line(reason) for reason, _ in (tests + files).most_common()]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints a line for each reason. pytest's own list (-rs) has one for each place in the sources, which are dozens."""
    for line in reasons_of(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line)


# ---- a GPU that this process can no longer use

# After one of these errors every later CUDA call in the process fails with the same error, so further tests would mean nothing.
STICKY = (
    "cudaErrorIllegalAddress", "cudaErrorLaunchFailure", "cudaErrorMisalignedAddress", "cudaErrorInvalidAddressSpace",
    "cudaErrorIllegalInstruction", "cudaErrorInvalidPc", "cudaErrorHardwareStackError", "cudaErrorAssert",
    "cudaErrorLaunchTimeout", "cudaErrorECCUncorrectable", "cudaErrorContextIsDestroyed", "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_MISALIGNED_ADDRESS",
)
_lost: list[str] = []


def is_sticky(error: BaseException | None) -> bool:
    """True if the error or one of its causes is an error after which every CUDA call in this process fails.

    A failed assertion does not count, because it may quote the output of another process.
    """
    while error is not None:
        if not isinstance(error, AssertionError) and any([name in str(error) for name in STICKY]):
            return True
        error = error.__cause__ or error.__context__
    return False


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
    if call.excinfo is not None and is_sticky(call.excinfo.value):
        _lost.append(item.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Ends a worker of pytest-xdist whose GPU context is lost, after the test's reports are sent. xdist then starts another worker,
    and reports the test a second time as the one that crashed this worker."""
    if _lost and report.when == "teardown" and "PYTEST_XDIST_WORKER" in os.environ:
        os._exit(3)
