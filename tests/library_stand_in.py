"""A stand-in for cuBLASLt on a simulated device. It computes the products in NumPy, and checks the arguments of the calls.

It runs as a script, because the kernels look for the library only once per process.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import ml_dtypes
import numpy as np

import pullback as pb
from pullback.nn.functional import linear
from pullback.tensors import gpu

TYPES = {0: np.dtype(np.float32), 1: np.dtype(np.float64), 2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}
SIZES = {"product": {3: 4, 4: 4, 7: 4, 8: 8}, "layout": {5: 4, 6: 8}, "preference": {1: 8, 3: 4, 5: 4, 6: 4, 7: 4, 8: 4}}
P, I, U = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64
objects: dict[int, dict[Any, Any]] = {}
calls: list[dict[Any, Any]] = []
numbers = itertools.count(1)


def new(out: int, **facts: Any) -> int:
    number = next(numbers)
    objects[number] = facts
    ctypes.c_uint64.from_address(out).value = number
    return 0


def put(number: int, attribute: int, value: int, size: int) -> int:
    thing = objects[number]
    if SIZES[thing["kind"]].get(attribute) != size:
        return 7
    thing[attribute] = int.from_bytes(ctypes.string_at(value, size), "little")
    return 0


def delete(number: int) -> int:
    del objects[number]
    return 0


def choose(_h: int, product: int, a: int, b: int, c: int, d: int, preference: int, wanted: int, found: int, count: int) -> int:
    assert wanted == 1
    assert objects[preference][3] == 2
    assert objects[product]["kind"] == "product"
    assert c == d
    ctypes.memset(found, 0, 8 * 8 + 8 + 4 + 4 + 16)
    I.from_address(count).value = 1
    return 0


def matrix(data: int, layout: dict[Any, Any], transposed: int) -> Any:
    """Returns a column-major matrix as a view of shape (batch, rows, columns)."""
    dtype, rows, columns, ld = layout["type"], layout["rows"], layout["columns"], layout["ld"]
    count, step = layout.get(5, 1), layout.get(6, 0)
    assert ld >= rows
    length = (count - 1) * step + (columns - 1) * ld + rows
    memory = np.frombuffer((ctypes.c_char * (length * dtype.itemsize)).from_address(data), dtype)
    size = dtype.itemsize
    view = np.lib.stride_tricks.as_strided(memory, (count, rows, columns), (step * size, size, ld * size))
    return view.swapaxes(1, 2) if transposed else view


def multiply(
    _h: int, product: int, alpha: int, a: int, la: int, b: int, lb: int, beta: int, c: int, lc: int, d: int, ld: int,
    algorithm: int, workspace: int, bytes_: int, stream: int,
) -> int:
    what = objects[product]
    wide = np.float64 if what["compute"] == 70 else np.float32
    scalar = ctypes.c_double if wide is np.float64 else ctypes.c_float
    assert (scalar.from_address(alpha).value, scalar.from_address(beta).value, c, lc) == (1, 0, d, ld)
    assert workspace
    assert bytes_ == 32 << 20
    assert algorithm
    y = np.matmul(matrix(a, objects[la], what[3]).astype(wide), matrix(b, objects[lb], what[4]).astype(wide))
    to = matrix(d, objects[ld], 0)
    if what[7] == 4:
        bias = np.frombuffer((ctypes.c_char * (to.shape[1] * to.itemsize)).from_address(what[8]), to.dtype)
        y = y + bias.astype(wide)[:, None]
    to[...] = y.astype(to.dtype)
    calls.append(dict(what))
    return 0


def new_product(out: int, compute: int, scale: int) -> int:
    return new(out, kind="product", compute=compute, scale=scale)


def new_layout(out: int, kind: int, rows: int, columns: int, ld: int) -> int:
    return new(out, kind="layout", type=TYPES[kind], rows=rows, columns=columns, ld=ld)


FUNCTIONS = {
    "cublasLtCreate": (lambda out: new(out, kind="handle"), (P,)),
    "cublasLtMatmulDescCreate": (new_product, (P, I, I)),
    "cublasLtMatmulDescDestroy": (delete, (U,)),
    "cublasLtMatmulDescSetAttribute": (put, (U, I, P, U)),
    "cublasLtMatrixLayoutCreate": (new_layout, (P, I, U, U, U)),
    "cublasLtMatrixLayoutDestroy": (delete, (U,)),
    "cublasLtMatrixLayoutSetAttribute": (put, (U, I, P, U)),
    "cublasLtMatmulPreferenceCreate": (lambda out: new(out, kind="preference"), (P,)),
    "cublasLtMatmulPreferenceDestroy": (delete, (U,)),
    "cublasLtMatmulPreferenceSetAttribute": (put, (U, I, P, U)),
    "cublasLtMatmulAlgoGetHeuristic": (choose, (U, U, U, U, U, U, U, I, P, P)),
    "cublasLtMatmul": (multiply, (U, U, P, P, U, P, U, P, P, U, P, U, P, P, U, P)),
}
callbacks = {name: ctypes.CFUNCTYPE(I, *types)(function) for name, (function, types) in FUNCTIONS.items()}


def find(names: list[str]) -> list[int]:
    return [int(ctypes.cast(callbacks[name], P).value or 0) for name in names]


def near(y: Any, wanted: Any, tolerance: float) -> None:
    assert np.linalg.norm(pb.asarray(y).numpy().astype(np.float64) - wanted) <= tolerance * np.linalg.norm(wanted)


def main() -> None:
    gpu.need().kernels.find_cublaslt(find)
    rng = np.random.default_rng(0)
    m, k, n = 768, 1030, 1040

    def on_device(x: Any, transposed: bool) -> Any:
        return pb.asarray(np.ascontiguousarray(x.T)).mT if transposed else pb.asarray(x)

    computes = {np.float32: 68, np.float64: 70, np.float16: 68, ml_dtypes.bfloat16: 68}
    for dtype, tolerance in ((np.float32, 1e-6), (np.float64, 1e-14), (np.float16, 1e-3), (ml_dtypes.bfloat16, 1e-2)):
        a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
        wanted = a.astype(np.float64) @ b.astype(np.float64)
        for left, right in itertools.product((False, True), repeat=2):
            near(on_device(a, left) @ on_device(b, right), wanted, tolerance)
            assert calls[-1]["compute"] == computes[dtype]
            assert (calls[-1][3], calls[-1][4]) == (right, left)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    wanted = a.astype(np.float64) @ b
    done = len(calls)
    near(pb.asarray(np.repeat(a, 2, 1))[:, ::2] @ pb.asarray(b), wanted, 1e-6)  # The kernels copy the strided operand first.
    near(pb.asarray(a[:, ::-1].copy())[:, ::-1] @ pb.asarray(b), wanted, 1e-6)
    batched = np.stack([a[:, :512], a[:, 512:1024]])
    near(pb.asarray(batched) @ pb.asarray(b[:512]), batched.astype(np.float64) @ b[:512], 1e-6)  # as rows of one matrix
    near(pb.asarray(b[:512].T.copy()) @ pb.asarray(batched).mT, b[:512].T.astype(np.float64) @ batched.swapaxes(1, 2), 1e-6)
    assert len(calls) == done + 4
    for precision, compute, tolerance in (("tf32", 77, 1e-6), ("bfloat16", 68, 1e-2), ("float16", 68, 1e-3)):
        with pb.amp.autocast(precision):
            near(pb.asarray(a) @ pb.asarray(b), wanted, tolerance)
        assert calls[-1]["compute"] == compute

    w, bias = np.ascontiguousarray(b.T), b[0].copy()
    for activation, apply in ((None, lambda z: z), ("relu", lambda z: np.maximum(z, 0)), ("tanh", np.tanh)):
        x, weight, c = pb.asarray(a / 32), pb.asarray(w), pb.asarray(bias)
        before = len(calls)
        with pb.GradientTape() as tape:
            for t in (x, weight, c):
                tape.watch(t)
            y = linear(x, weight, c, activation=activation)
            loss = (y * y).sum()
        gradients = tape.gradient(loss, [x, weight, c])
        z = (a / 32).astype(np.float64) @ b + bias
        out = apply(z)
        g = 2 * out * {"relu": (out > 0), "tanh": 1 - out * out}.get(activation or "", 1.0)
        for have, want in zip((y, *gradients), (out, g @ w, g.T @ (a / 32), g.sum(0))):
            near(have, want, 1e-5)
        assert len(calls) == before + 3  # one forward product and two backward products
        assert calls[before][7] == 4  # The forward product adds the bias.

    before = len(calls)
    pb.config.reproducible = "everywhere"
    near(pb.asarray(a) @ pb.asarray(b), wanted, 1e-6)
    assert len(calls) == before
    print("library_stand_in.py:", len(calls), "products")


if __name__ == "__main__":
    with pb.use_device("cuda"):
        main()
