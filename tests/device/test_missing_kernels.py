"""A backend may lack kernels of a table: their ops run in the library of its arrays, or say that they cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import close, host
from pullback.autodiff.primitive import OPS
from pullback.backends import native
from pullback.tensors import gpu

pytestmark = [
    pytest.mark.skipif(not pb.cuda.is_available(), reason=f"no device cuda: {pb.cuda.why_not()}"),
    pytest.mark.skipif(native.module is None, reason=f"no native kernels: {native.reason}"),
]
L = pb.linalg
X, B = np.array([[4.0, 1, 2], [1, 5, 3], [2, 3, 6]]), np.array([[1.0], [2], [3]])
# A function of each kernel that a backend may lack, and its value by NumPy.
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "cholesky": (L.cholesky, np.linalg.cholesky(X)),
    "solve": (lambda x: L.solve(x, pb.asarray(B)), np.linalg.solve(X, B)),
    "solve_triangular": (lambda x: L.solve_triangular(x, pb.asarray(B), upper=True), np.linalg.solve(np.triu(X), B)),
    "det": (L.det, np.linalg.det(X)),
    "slogdet": (lambda x: L.slogdet(x).logabsdet, np.log(np.linalg.det(X))),
    "qr": (lambda x: pb.abs(L.qr(x)[1]), np.abs(np.linalg.qr(X).R)),
    "eigh": (lambda x: L.eigh(x)[0], np.linalg.eigvalsh(X)),
    "eigvalsh": (L.eigvalsh, np.linalg.eigvalsh(X)),
    "svd": (lambda x: L.svd(x)[1], np.linalg.svd(X)[1]),
    "svdvals": (L.svdvals, np.linalg.svd(X)[1]),
    "pinv": (L.pinv, np.linalg.pinv(X)),
}
BESIDE = {"cofactors", "solve_pullback"}  # run for derivatives of those


def lacks(name: str) -> bool:
    return hasattr(native.module, name) and not hasattr(gpu.need().kernels, name)


def test_a_gpu_lacks_kernels_of_these_functions_only() -> None:
    assert {op.facts.shown for op in OPS.values() if lacks(op.facts.shown)} <= {*FUNCTIONS, *BESIDE}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_without_a_kernel_runs_in_the_library(name: str) -> None:
    f, wanted = FUNCTIONS[name]
    with pb.use_device("cuda"):
        x = pb.tensor(X, dtype="float64")
        y = f(x)
        assert y.device == "cuda"
        close(host(y), wanted, 1e-9)
        if lacks(name):
            with pytest.raises(pb.CaptureError, match=f"^{name}, which has no native kernel here"):
                pb.capture(f)(x)
