"""Ops that own a row have equal bits on the CPU and on a GPU, whether the row is alone or in a batch."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback.backends import kernel_for

pytestmark = pytest.mark.skipif(not pb.cuda.is_available(), reason=f"no device cuda: {pb.cuda.why_not()}")

DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
# Lengths around those at which a row gets more lanes, more warps, or no registers; and row counts around chains and their blocks.
LENGTHS = (*range(1, 41), 63, 64, 65, 255, 256, 257, 300, 1000, 1024, 2049, 4096, 5000, 20_000)
ROWS = (1, 2, 3, 5, 64, 257)
IGNORED, MOST = -100, 400_000


def kernel(name: str) -> Any:
    return kernel_for(name)[0]


def both(*results: Any) -> list[Any]:
    return [host(pb.asarray(result)) for result in results]


def outputs(x: Any, g: Any, column: Any, w: Any, b: Any, labels: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the results of all row kernels that have a row for each row of x, and the sums over rows."""
    y, z, size = kernel("softmax")(x), kernel("log_softmax")(x), kernel("logsumexp")(x)
    rows = {"softmax": y, "log_softmax": z, "logsumexp": size}
    rows["softmax_pullback"] = kernel("softmax_pullback")(g, y)
    rows["log_softmax_pullback"] = kernel("log_softmax_pullback")(g, z)
    rows["logsumexp_pullback"] = kernel("logsumexp_pullback")(column, x, size)
    sums = {}
    for affine, (weight, bias) in {"": (None, None), " affine": (w, b)}.items():
        rows["layer_norm" + affine] = kernel("layer_norm")(x, weight, bias, 1e-5)
        rows["rms_norm" + affine] = kernel("rms_norm")(x, weight, 1e-6)
        for name in ("layer_norm_pullback", "rms_norm_pullback"):
            rows[name + affine], *of_vectors = kernel(name)(g, x, weight, 1e-5)
            sums |= {f"{name}{affine} {k}": one for k, one in enumerate(of_vectors)}
    for smoothing in (0.0, 0.1):
        how = (labels, IGNORED, smoothing)
        rows[f"cross_entropy {smoothing}"] = kernel("cross_entropy")(x, *how)
        rows[f"cross_entropy_pullback {smoothing}"] = kernel("cross_entropy_pullback")(column, x, *how)
        for mean in (False, True):
            which = f"{smoothing}{' mean' * mean}"
            sums[f"cross_entropy_total {which}"] = kernel("cross_entropy_total")(x, *how, mean)
            g = column[:1].reshape(())
            sums[f"cross_entropy_total_pullback {which}"] = kernel("cross_entropy_total_pullback")(g, x, *how, mean)
    return tuple({name: host(pb.asarray(one)) for name, one in some.items()} for some in (rows, sums))


def operands(rng: Any, rows: int, n: int, dtype: Any) -> list[Any]:
    x, g = [(rng.standard_normal((rows, n)) * 3).astype(dtype) for _ in range(2)]
    column, w, b = [rng.standard_normal(shape).astype(dtype) for shape in ((rows, 1), (n,), (n,))]
    labels = rng.integers(0, n, rows)
    labels[rows // 2 + 1 :: 7] = IGNORED
    return [x, g, column, w, b, labels]


def layouts(arrays: list[Any]) -> dict[str, list[Any]]:
    x, g, *others = arrays
    apart = [np.repeat(one, 2, axis=1)[:, ::2] for one in (x, g)]
    across = [np.ascontiguousarray(one.T).T for one in (x, g)]
    return {"contiguous": arrays, "apart": [*apart, *others], "across": [*across, *others]}


def some(arrays: list[Any], rows: slice) -> list[Any]:
    x, g, column, w, b, labels = arrays
    return [x[rows], g[rows], column[rows], w, b, labels[rows]]


def run(device: str, arrays: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return outputs(*[pb.tensor(one, device=device).array for one in arrays])


def check(got: dict[str, Any], wanted: dict[str, Any], what: str) -> None:
    assert [name for name in wanted if got[name].tobytes() != wanted[name].tobytes()] == [], what


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_rows(dtype: Any, n: int) -> None:
    counts = [rows for rows in ROWS if rows * n <= MOST]
    arrays = operands(np.random.default_rng(n), counts[-1], n, dtype)
    wanted, _ = run("cpu", arrays)
    for rows in counts:
        for layout, laid_out in layouts(some(arrays, slice(rows))).items() if rows * n <= MOST / 4 else [("contiguous", arrays)]:
            (here, sums_here), (there, sums_there) = (run(device, laid_out) for device in ("cpu", "cuda"))
            check(there, here, f"{rows} rows, {layout}: devices")
            check(sums_there, sums_here, f"{rows} rows, {layout}: devices")
            check(here, {name: one[:rows] for name, one in wanted.items()}, f"{rows} rows, {layout}: batches")
