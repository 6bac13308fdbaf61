"""The single kernels on which libraries are timed: each op's size, and the bytes and FLOPs that it must move and compute."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from workloads import PRECISIONS


class Single(NamedTuple):
    """One op, or an op and its gradient.

    Attributes:
        kind: the key of the op in the tables of all libraries' files.
        bytes: the least number of bytes that the op must move. flops: the number of FLOPs it must compute.
        precision: the dtype of the op, or the dtype that float32 factors are rounded to.
        launches: the number of launches in one captured call. 0 if the op is timed by eager calls, each so long that the time of
            the host does not count.
    """

    group: str
    kind: str
    words: str
    shape: tuple[int, ...]
    bytes: int = 0
    flops: int = 0
    precision: str = "float32"
    launches: int = 0

    @property
    def name(self) -> str:
        return f"{self.words} {' x '.join([f'{n:,}' for n in self.shape])}"

    def figures(self, us: float) -> dict[str, float]:
        """Returns the bytes and FLOPs per second that a time in microseconds amounts to."""
        out = {"gb_per_s": self.bytes * 1e-3 / us} if self.bytes else {}
        return out | ({"tflop_per_s": self.flops * 1e-6 / us} if self.flops else {})


GROUPS: Final = ("copy", "products", "optimizer", "loss", "elementwise", "rows")


def singles(simulated: bool) -> list[Single]:
    """Returns all single kernels. Arrays of 10^8 elements are larger than the caches of any GPU."""
    n = 10_000 if simulated else 100_000_000
    captured = 2 if simulated else 20
    out = [Single("copy", "copy", "copy,", (n,), 8 * n)]
    out += [] if simulated else [Single("copy", "memcpy", "copy by cudaMemcpyAsync,", (n,), 8 * n)]
    out += [
        Single("products", "product", "product of squares of side", (side,), 0, 2 * side**3, precision, captured)
        for side in ((24, 16) if simulated else (4096, 1024, 128))
        for precision in PRECISIONS
    ]
    count, each = 100, 100 if simulated else 100_000
    out.append(Single("optimizer", "adam", "Adam, parameters", (count, each), 28 * count * each, launches=1))
    m, k = (32, 64) if simulated else (8192, 1024)
    out.append(Single("loss", "cross_entropy", "cross entropy and its gradient,", (m, k), 8 * m * k, launches=captured))
    out.append(Single("loss", "layer_norm_gradient", "layer norm and its gradient,", (m, k), 20 * m * k, launches=captured))
    one_pass = {"negative": "negative", "exp": "exp", "tanh": "tanh", "gelu": "gelu", "scale": "multiply by a number", "add": "add"}
    out += [Single("elementwise", kind, f"{w},", (n,), (12 if kind == "add" else 8) * n) for kind, w in one_pass.items()]
    by_rows = {"softmax": 8, "log_softmax": 8, "layer_norm": 8, "sum_rows": 4, "sum_columns": 4}
    for length in (64, 256) if simulated else (1024, 8192):
        shape = (n // length, length)
        out += [Single("rows", kind, f"{kind.replace('_', ' ')},", shape, moved * n) for kind, moved in by_rows.items()]
    return out


def exact(kind: str, *inputs: Any) -> Any:
    """Returns the op's result from float64 arrays, or None if a part of the result depends on more than that part of the input."""
    x = inputs[0]
    if kind in ("softmax", "log_softmax"):
        shifted = x - x.max(-1, keepdims=True)
        logarithm = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return np.exp(logarithm) if kind == "softmax" else logarithm
    simple: dict[str, Any] = {
        "copy": lambda: x,
        "negative": lambda: -x,
        "exp": lambda: np.exp(x),
        "tanh": lambda: np.tanh(x),
        "gelu": lambda: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
        "scale": lambda: x * 1.5,
        "add": lambda: x + inputs[1],
        "product": lambda: x @ inputs[1],
        "layer_norm": lambda: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
        "sum_rows": lambda: x.sum(-1),
    }
    return simple[kind]() if kind in simple else None
