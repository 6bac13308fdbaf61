"""What needs other libraries: matrices through CuPy, and memory that is exchanged with CuPy, PyTorch and JAX."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import pullback as pb
from pullback import linalg, optim

from .layers import linear_layer
from .values import Case, floats, integers, with_gradients, with_tangents

ABSENT: set[str] = set()  # what could not run on the device, in words


class NotHere(Exception):
    """A library is not installed, or does not see a GPU. The message says which."""


def on_a_gpu(module: str) -> Any:
    """Returns a library that runs on the GPU. Raises NotHere, and notes the reason in ABSENT, if there is none."""
    if pb.tensor([0.0]).device == "cpu":
        raise NotHere("this is the CPU")
    if why := _why_not(module):
        ABSENT.add(f"{module}: {why}")
        raise NotHere(why)
    return importlib.import_module(module)


def _why_not(module: str) -> str | None:
    """Returns the reason why a library cannot use the GPU, or None."""
    from pullback.tensors import gpu

    if importlib.util.find_spec(module) is None:
        return "not installed"
    if gpu.need().simulated:
        return "the device is simulated"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the memory
    library = importlib.import_module(module)
    if module == "jax":
        return None if library.default_backend() == "gpu" else "it sees no GPU"
    return "it sees no GPU" if module == "torch" and not library.cuda.is_available() else None


# ---- matrices


def _regular(*batch: int, size: int = 8, dtype: str = "float32") -> Any:
    return floats(*batch, size, size, dtype=dtype) / size + pb.eye(size, dtype=dtype)


def _positive(*batch: int, size: int = 8, dtype: str = "float32") -> Any:
    a = floats(*batch, size, size, dtype=dtype)
    return a @ pb.matrix_transpose(a) / size + pb.eye(size, dtype=dtype)


def matrices(n: int) -> Iterator[Case]:
    """Factorises and solves by CuPy on pullback's stream, with gradients, while pullback's kernels are still running."""
    for dtype in ("float32", "float64"):
        for batch, size in (((), 40), ((5,), 7), ((2, 3), 4)):
            a, p = partial(_regular, *batch, size=size, dtype=dtype), partial(_positive, *batch, size=size, dtype=dtype)
            b = partial(floats, *batch, size, 3, seed=4, dtype=dtype)
            words = f"{dtype} {(*batch, size, size)}"
            yield f"cholesky {words}", lambda p=p: with_gradients(linalg.cholesky, p())
            yield f"solve {words}", lambda a=a, b=b: with_gradients(linalg.solve, a(), b())
            yield (
                f"solve_triangular {words}",
                lambda a=a, b=b: with_gradients(partial(linalg.solve_triangular, upper=True), a(), b()),
            )
            yield f"inv {words}", lambda a=a: with_gradients(linalg.inv, a())
            yield f"det {words}", lambda a=a: with_gradients(linalg.det, a())
            yield f"slogdet {words}", lambda p=p: with_gradients(lambda x: linalg.slogdet(x)[1], p())
            yield f"qr {words}", lambda a=a: with_gradients(lambda x: _abs_of(linalg.qr(x)[1]), a())
            s = partial(_separate, *batch, size=size, dtype=dtype)
            yield f"eigh {words}", lambda p=s: with_gradients(lambda x: linalg.eigh(x)[0], p())
            yield f"eigvalsh {words}", lambda p=s: with_gradients(linalg.eigvalsh, p())
            yield f"svd {words}", lambda a=s: with_gradients(lambda x: linalg.svd(x, full_matrices=False)[1], a())
            yield f"svdvals {words}", lambda a=s: with_gradients(linalg.svdvals, a())
            yield f"pinv {words}", lambda a=a: with_gradients(linalg.pinv, a())
            yield f"lstsq {words}", lambda a=a, b=b: linalg.lstsq(a(), b())[0]
    yield "solve, tangent", lambda: with_tangents(linalg.solve, _regular(5), floats(5, 8, 2))
    yield "matrix_power and norms", lambda: [
        linalg.matrix_power(_regular(size=5), -2), linalg.matrix_norm(_regular(5), ord=2), linalg.matrix_rank(_regular(5)),
    ]
    yield "a singular matrix is an error", _singular
    yield "half precision", lambda: [linalg.solve(_regular(dtype=d), floats(8, 2, dtype=d)) for d in ("float16", "bfloat16")]
    yield "a captured function refuses, or gives the same", _captured_solve


def _abs_of(x: Any) -> Any:
    return pb.abs(x)  # the sign of a row of r is the library's choice


def _singular() -> Any:
    try:
        y = linalg.solve(pb.zeros((3, 3)), pb.ones((3, 1))).numpy()
    except pb.LinAlgError:
        return pb.ones(())
    raise RuntimeError(f"a singular system was solved: {y}")


def _captured_solve() -> Any:
    a, b = _regular(), floats(8, 2)
    try:
        return pb.capture(linalg.solve)(a, b)
    except pb.CaptureError:
        return linalg.solve(a, b)


def _separate(*batch: int, size: int = 8, dtype: str = "float32") -> Any:
    """Returns symmetric matrices whose eigenvalues differ clearly, because their derivatives depend on the differences."""
    noise = floats(*batch, size, size, dtype=dtype) / (20 * size)
    return noise + pb.matrix_transpose(noise) + pb.diag(pb.linspace(1.0, 4.0, size, dtype=dtype))


# ---- ops that CuPy computes


def by_cupy(n: int) -> Iterator[Case]:
    """Calls what has no kernel on a GPU, so that CuPy compiles or runs it on pullback's stream."""

    def pruned(scope: str, make: Any) -> list[Any]:
        parameters = [pb.Parameter(floats(*shape, seed=7)) for shape in ((n // 4, 4), (30, 4), (7,))]
        opt = make(parameters, lr=0.1)
        optim.Pruning(opt, 0.5, scope=scope)
        for seed in (1, 2):
            opt.step([floats(*p.shape, seed=seed) for p in parameters])
        return [pb.copy(p) for p in parameters]

    def scanned(a: Any, b: Any) -> Any:
        return pb.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, b))[1]

    for scope in ("tensor", "global"):
        yield f"pruning, {scope}", partial(pruned, scope, optim.Adam)
    yield "pruning, lamb", partial(pruned, "tensor", optim.LAMB)
    yield "unique values", lambda: list(pb.unique_all(integers(40, n)))
    yield "positions that are not zero", lambda: list(pb.nonzero(floats(5, n // 5) > 0.5))
    yield "a mask as an index", lambda: floats(5, n // 5)[floats(5, n // 5, seed=1) > 0]
    yield "an associative scan", lambda: with_gradients(scanned, 0.5 * floats(37, 5), floats(37, 5, seed=1))
    yield "LRU", partial(linear_layer, "LRU", 30, 4, 6, 10)
    yield "the gradient of a part", lambda: with_gradients(lambda x: x[2:9, ::2] * 3, floats(20, 9))
    yield "whole numbers are finite", lambda: [pb.isfinite(integers(9, n)), pb.isnan(integers(9, n))]
    yield "neighbouring numbers", lambda: pb.nextafter(floats(n), floats(n, seed=1))


# ---- exchange: each library works on two streams, its own default and another one


def _pending(n: int) -> Any:
    """Returns a tensor that pullback's kernels are still computing."""
    x = floats(n) / 9
    for _ in range(30):
        x = x * 0.5 + 1
    return x


def _there_and_back(n: int, name: str, work: Callable[[Any], Any], wanted: Callable[[Any], Any]) -> Any:
    """Returns pending numbers after the other library's work on them, read again by pullback, whose kernels go on at once.

    The numbers on the CPU are the ones wanted. Memory that is dropped is handed out again while the other library may read it.
    """
    x = _pending(n)
    try:
        on_a_gpu(name)
    except NotHere:
        return wanted(x)
    y = work(x)  # a tensor over the other library's memory
    del x
    gc.collect()
    others = [pb.zeros(n) - 1 for _ in range(3)]
    result = y * 2
    del y, others
    gc.collect()
    return result


def exchange_cupy(n: int) -> Iterator[Case]:
    def by(read: str, separate: bool, x: Any) -> Any:
        cupy = on_a_gpu("cupy")
        stream = cupy.cuda.Stream(non_blocking=True) if separate else cupy.cuda.Stream.null
        with stream:
            a = cupy.from_dlpack(x) if read == "dlpack" else cupy.asarray(x)
            # inside, because CuPy and PyTorch order an array that they export after the work of their current stream
            return pb.asarray(_times(a, 1.25, 20))

    def many(x: Any) -> Any:
        return _times(x, 1.25, 20) * 2

    for read in ("dlpack", "interface"):
        for separate in (False, True):
            where = "another stream" if separate else "the default stream"
            yield f"{read}, {where}", partial(_there_and_back, n, "cupy", partial(by, read, separate), many)
    yield "a transposed array", lambda: _turned("cupy", lambda m: m.arange(12.0, dtype="float32").reshape(3, 4).T)
    yield "work on pullback's stream", lambda: _on_our_stream(n)


def _times(x: Any, factor: float, count: int) -> Any:
    for _ in range(count):
        x = x * factor
    return x


def _turned(name: str, make: Callable[[Any], Any]) -> Any:
    try:
        return pb.asarray(make(on_a_gpu(name))) * 2
    except NotHere:
        return pb.tensor(np.arange(12, dtype=np.float32).reshape(3, 4).T) * 2


def _on_our_stream(n: int) -> Any:
    x = _pending(n)
    try:
        cupy = on_a_gpu("cupy")
    except NotHere:
        return x * 3 + 1
    with pb.cuda.stream:
        y = x.array * cupy.float32(3)
    return pb.asarray(y) + 1


def exchange_torch(n: int) -> Iterator[Case]:
    def work(separate: bool, x: Any) -> Any:
        torch = on_a_gpu("torch")
        with torch.cuda.stream(torch.cuda.Stream() if separate else torch.cuda.default_stream()):
            a = torch.from_dlpack(x)
            # inside, because CuPy and PyTorch order an array that they export after the work of their current stream
            return pb.asarray(_times(a, 1.25, 20))

    def many(x: Any) -> Any:
        return _times(x, 1.25, 20) * 2

    for separate in (False, True):
        where = "another stream" if separate else "the default stream"
        yield f"dlpack, {where}", partial(_there_and_back, n, "torch", partial(work, separate), many)
    yield "a transposed tensor", lambda: _turned("torch", lambda m: m.arange(12.0, device="cuda").reshape(3, 4).T)
    for dtype in ("float32", "float64", "float16", "bfloat16", "int32", "uint8"):
        yield f"dtype {dtype}", partial(_same_dtype_in_torch, dtype)


def _same_dtype_in_torch(dtype: str) -> Any:
    x = pb.arange(7).astype(dtype)
    try:
        torch = on_a_gpu("torch")
    except NotHere:
        return x + x
    a = torch.from_dlpack(x)
    return pb.from_dlpack(a + a)


def exchange_jax(n: int) -> Iterator[Case]:
    def work(x: Any) -> Any:
        jax = on_a_gpu("jax")
        return pb.asarray(_times(jax.dlpack.from_dlpack(x), 1.25, 20))

    yield "dlpack", partial(_there_and_back, n, "jax", work, lambda x: _times(x, 1.25, 20) * 2)
