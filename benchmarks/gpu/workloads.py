"""The workloads on which all libraries are timed: networks, precisions, ways to run a step, and single kernels.

Each library has a separate file for them: ours.py, rival_torch.py, rival_jax.py.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

STEPS: Final = 16  # the number of steps in one call, for the way that runs several

WAYS: Final = ("eager", "captured", f"{STEPS} steps a call")

# The precisions in which float32 tensors are multiplied. Each has separate rows, because the computations differ.
PRECISIONS: Final = {
    "float32": {
        "pullback": "float32 products, exact",
        "torch": 'float32 products: set_float32_matmul_precision("highest")',
        "jax": 'float32 products: default_matmul_precision("highest")',
    },
    "tf32": {
        "pullback": 'amp.autocast("tf32")',
        "torch": 'set_float32_matmul_precision("high")',
        "jax": 'default_matmul_precision("tensorfloat32")',
    },
    "bfloat16": {
        "pullback": 'amp.autocast("bfloat16"): factors are rounded to bfloat16 as they are read, results stay float32',
        "torch": "autocast(bfloat16): weights are cast once a step, results of layers are bfloat16, the loss is float32",
        "jax": "factors cast to bfloat16, float32 results (preferred_element_type), in the backward pass too",
    },
}


class Net(NamedTuple):
    """A network of dense layers with relu between them, and its batch."""

    sizes: tuple[int, ...]
    batch: int

    @property
    def name(self) -> str:
        return f"MLP {'-'.join(map(str, self.sizes))}, batch {self.batch}"

    def weights(self) -> dict[str, Any]:
        """Returns the weights as NumPy arrays of shapes (out, in) and (out,), named as in pullback's and torch's Sequential."""
        rng, out = np.random.default_rng(7), {}
        for place, (m, n) in enumerate(zip(self.sizes, self.sizes[1:])):
            bound = 1 / math.sqrt(m)
            out[f"{2 * place}.weight"] = rng.uniform(-bound, bound, (n, m)).astype(np.float32)
            out[f"{2 * place}.bias"] = rng.uniform(-bound, bound, n).astype(np.float32)
        return out

    def examples(self) -> tuple[Any, Any]:
        """Returns a batch and its labels as NumPy arrays."""
        rng = np.random.default_rng(8)
        x = rng.standard_normal((self.batch, self.sizes[0]), dtype=np.float32)
        return x, rng.integers(0, self.sizes[-1], self.batch)

    def error(self, logits: Any) -> float:
        """Returns ‖logits - exact‖ / ‖exact‖. The exact logits are computed in float64 from the same weights and batch."""
        exact, weights = self.examples()[0].astype(np.float64), self.weights()
        for place in range(len(self.sizes) - 1):
            exact = np.maximum(exact, 0) if place else exact
            exact = exact @ weights[f"{2 * place}.weight"].astype(np.float64).T + weights[f"{2 * place}.bias"]
        return relative_error(logits, exact)


def relative_error(got: Any, exact: Any) -> float:
    return float(np.linalg.norm(np.asarray(got, np.float64) - exact) / max(np.linalg.norm(exact), 1e-300))


def nets(simulated: bool) -> list[Net]:
    if simulated:
        return [Net((2, 16, 16, 2), 10), Net((20, 12, 10), 6), Net((20, 16, 16, 10), 8)]
    return [Net((2, 16, 16, 2), 100), Net((784, 128, 10), 64), Net((784, 1024, 1024, 10), 512)]


class Decoder(NamedTuple):
    """A character model: blocks of causal attention and of two linear layers, and its batch."""

    layers: int
    width: int
    context: int
    batch: int
    characters: int = 65
    heads: int = 4

    @property
    def name(self) -> str:
        return f"GPT, {self.layers} layers of width {self.width}, {self.context} characters, batch {self.batch}"

    def examples(self) -> tuple[Any, Any]:
        """Returns a batch of characters, and those that follow them, as NumPy arrays."""
        text = np.random.default_rng(8).integers(0, self.characters, (self.batch, self.context + 1))
        return text[:, :-1].copy(), text[:, 1:].copy()


def decoders(simulated: bool) -> list[Decoder]:
    return [Decoder(1, 8, 8, 2)] if simulated else [Decoder(4, 128, 128, 32)]


# ---- single kernels


class Single(NamedTuple):
    """One op, or an op and its gradient.

    Attributes:
        kind: the key of the op in the tables of all libraries' files.
        bytes: the least number of bytes that the op must move. flops: the number of FLOPs it must compute.
        precision: the dtype of the op, or the dtype that float32 factors are rounded to.
    """

    group: str
    kind: str
    words: str
    shape: tuple[int, ...]
    bytes: int = 0
    flops: int = 0
    precision: str = "float32"

    @property
    def name(self) -> str:
        return f"{self.words} {' x '.join([f'{n:,}' for n in self.shape])}"

    def figures(self, us: float) -> dict[str, float]:
        """Returns the bytes and FLOPs per second that a time in microseconds amounts to."""
        out = {"gb_per_s": self.bytes * 1e-3 / us} if self.bytes else {}
        return out | ({"tflop_per_s": self.flops * 1e-6 / us} if self.flops else {})


GROUPS: Final = ("products", "optimizer", "loss", "elementwise", "rows")


def singles(simulated: bool) -> list[Single]:
    """Returns all single kernels. Arrays of 10^8 elements are larger than the caches of any GPU."""
    n = 10_000 if simulated else 100_000_000
    out = [
        Single("products", "product", "product of squares of side", (side,), 0, 2 * side**3, precision)
        for side in ((24, 16) if simulated else (4096, 1024, 128))
        for precision in PRECISIONS
    ]
    count, each = 100, 100 if simulated else 100_000
    out.append(Single("optimizer", "adam", "Adam, parameters", (count, each), 28 * count * each))
    m, k = (32, 64) if simulated else (8192, 1024)
    out.append(Single("loss", "cross_entropy", "cross entropy and its gradient,", (m, k), 8 * m * k))
    out.append(Single("loss", "layer_norm_gradient", "layer norm and its gradient,", (m, k), 20 * m * k))
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
