"""The training steps on which all libraries are timed: networks with their weights and batches, precisions, and ways to run a step.

Each library has a file that builds them: ours.py, rival_torch.py, rival_jax.py. All begin with the same weights and take the same
batches, so that their losses can be compared.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

STEPS: Final = 16  # the number of steps in one call, for the way that runs several

WAYS: Final = ("eager", "captured", f"{STEPS} steps a call")
EAGER, CAPTURED, SEVERAL = WAYS

# The precisions in which float32 tensors are multiplied. Each has separate rows, because the computations differ.
PRECISIONS: Final = {
    "float32": {
        "pullback": "float32 products, exact",
        "torch": 'float32 products: set_float32_matmul_precision("highest"), no tf32 in cuDNN',
        "jax": 'float32 products: default_matmul_precision("highest")',
    },
    "tf32": {
        "pullback": 'amp.autocast("tf32")',
        "torch": 'set_float32_matmul_precision("high"), tf32 in cuDNN',
        "jax": 'default_matmul_precision("tensorfloat32")',
    },
    "bfloat16": {
        "pullback": 'amp.autocast("bfloat16"): factors are rounded to bfloat16 as they are read, results stay float32',
        "torch": "autocast(bfloat16): weights are cast once a step, results of layers are bfloat16, the loss is float32",
        "jax": "factors cast to bfloat16, float32 results (preferred_element_type), in the backward pass too",
    },
}

# The batches that a step is called with in turns. If there were only one, the network would fit it exactly: the loss would be 0,
# gradients would be zeros, and Adam's moments would decay to denormal numbers. With this learning rate the loss falls slowly.
BATCHES: Final = 2 * STEPS
LEARNING_RATE: Final = 1e-6

Arrays = dict[str, Any]


class Workload(Protocol):
    """A network, its loss (a mean cross entropy) and its batches.

    Attributes:
        precisions: those in which the step is timed.
    """

    batch: int
    precisions: tuple[str, ...]

    @property
    def name(self) -> str: ...

    def weights(self) -> Arrays:
        """Returns the weights as NumPy arrays by pullback's names."""
        ...

    def batches(self, count: int) -> tuple[Any, Any]:
        """Returns `count` batches and their labels as NumPy arrays of shapes (count, batch, ...)."""
        ...


def uniform(shapes: dict[str, tuple[int, ...]], bound: dict[str, float]) -> Arrays:
    """Returns arrays of these shapes, drawn from U(-bound, bound) of the same name."""
    rng = np.random.default_rng(7)
    return {name: rng.uniform(-bound[name], bound[name], shape).astype(np.float32) for name, shape in shapes.items()}


def drawn(count: int, example: tuple[int, ...], labels: tuple[int, ...], classes: int) -> tuple[Any, Any]:
    """Returns normal examples of shape (count, *example), and labels of shape (count, *labels) below `classes`."""
    # Two generators: the first examples and the first labels are the same for every count.
    x = np.random.default_rng(8).standard_normal((count, *example), dtype=np.float32)
    return x, np.random.default_rng(9).integers(0, classes, (count, *labels))


class Net(NamedTuple):
    """A network of dense layers with relu between them."""

    sizes: tuple[int, ...]
    batch: int
    precisions: tuple[str, ...] = tuple(PRECISIONS)

    @property
    def name(self) -> str:
        return f"MLP {'-'.join(map(str, self.sizes))}, batch {self.batch}"

    def weights(self) -> Arrays:
        shapes, bounds = {}, {}
        for place, (m, n) in enumerate(zip(self.sizes, self.sizes[1:])):
            for name, shape in ((f"{2 * place}.weight", (n, m)), (f"{2 * place}.bias", (n,))):
                shapes[name], bounds[name] = shape, 1 / math.sqrt(m)
        return uniform(shapes, bounds)

    def batches(self, count: int) -> tuple[Any, Any]:
        return drawn(count, (self.batch, self.sizes[0]), (self.batch,), self.sizes[-1])

    def error(self, logits: Any) -> float:
        """Returns ‖logits - exact‖ / ‖exact‖ for the first batch. The exact logits are computed in float64 from these weights."""
        exact, weights = self.batches(1)[0][0].astype(np.float64), self.weights()
        for place in range(len(self.sizes) - 1):
            exact = np.maximum(exact, 0) if place else exact
            exact = exact @ weights[f"{2 * place}.weight"].astype(np.float64).T + weights[f"{2 * place}.bias"]
        return relative_error(logits, exact)


def relative_error(got: Any, exact: Any) -> float:
    return float(np.linalg.norm(np.asarray(got, np.float64) - exact) / max(np.linalg.norm(exact), 1e-300))


class Convolutions(NamedTuple):
    """Two convolutions of 5 x 5 with relu and pooling, and a dense layer, on square images of one channel."""

    channels: tuple[int, int]
    side: int
    batch: int
    precisions: tuple[str, ...] = ("float32", "tf32")

    @property
    def name(self) -> str:
        a, b = self.channels
        return f"CNN 1-{a}-{b} (5 x 5), {self.side} x {self.side}, batch {self.batch}"

    @property
    def flat(self) -> int:
        """The number of inputs of the dense layer."""
        return self.channels[1] * (self.side // 4) ** 2

    def weights(self) -> Arrays:
        a, b = self.channels
        shapes = {
            "0.weight": (a, 1, 5, 5), "0.bias": (a,), "3.weight": (b, a, 5, 5), "3.bias": (b,),
            "7.weight": (10, self.flat), "7.bias": (10,),
        }
        inputs = {"0": 25, "3": 25 * a, "7": self.flat}
        return uniform(shapes, {name: 1 / math.sqrt(inputs[name[0]]) for name in shapes})

    def batches(self, count: int) -> tuple[Any, Any]:
        return drawn(count, (self.batch, 1, self.side, self.side), (self.batch,), 10)


class Recurrent(NamedTuple):
    """A GRU and a dense layer that classifies a sequence by the last state."""

    inputs: int
    hidden: int
    length: int
    batch: int
    precisions: tuple[str, ...] = ("float32", "tf32")

    @property
    def name(self) -> str:
        return f"GRU {self.inputs}-{self.hidden}, {self.length} steps, batch {self.batch}"

    def weights(self) -> Arrays:
        h = self.hidden
        shapes = {
            "rows.weight_ih_l0": (3 * h, self.inputs), "rows.weight_hh_l0": (3 * h, h), "rows.bias_ih_l0": (3 * h,),
            "rows.bias_hh_l0": (3 * h,), "classes.weight": (10, h), "classes.bias": (10,),
        }
        return uniform(shapes, dict.fromkeys(shapes, 1 / math.sqrt(h)))

    def batches(self, count: int) -> tuple[Any, Any]:
        return drawn(count, (self.batch, self.length, self.inputs), (self.batch,), 10)


class Decoder(NamedTuple):
    """A character model: blocks of causal attention and of two dense layers; the last layer uses the weight of the embedding."""

    layers: int
    width: int
    context: int
    batch: int
    characters: int = 65
    heads: int = 4
    precisions: tuple[str, ...] = ("float32", "tf32")

    @property
    def name(self) -> str:
        return f"GPT, {self.layers} layers of width {self.width}, {self.context} characters, batch {self.batch}"

    def weights(self) -> Arrays:
        w, rng = self.width, np.random.default_rng(7)
        shapes: dict[str, tuple[int, ...]] = {"characters.weight": (self.characters, w), "positions.weight": (self.context, w)}
        for layer in range(self.layers):
            shapes |= {
                f"blocks.{layer}.{name}": shape
                for name, shape in {
                    "norm1.weight": (w,), "norm2.weight": (w,), "attention.in_proj_weight": (3 * w, w),
                    "attention.out_proj.weight": (w, w), "up.weight": (4 * w, w), "down.weight": (w, 4 * w),
                }.items()
            }
        shapes["norm.weight"] = (w,)
        draw = lambda shape: np.ones(shape, np.float32) if len(shape) == 1 else rng.normal(0, 0.02, shape).astype(np.float32)
        return {name: draw(shape) for name, shape in shapes.items()}

    def batches(self, count: int) -> tuple[Any, Any]:
        text = np.random.default_rng(8).integers(0, self.characters, (count, self.batch, self.context + 1))
        return text[..., :-1].copy(), text[..., 1:].copy()


def layers_of(net: Net | Convolutions, nn: Any) -> list[Any]:
    """Returns the layers of a network that is a Sequential, in `nn`: pullback's or torch's."""
    if isinstance(net, Convolutions):
        a, b = net.channels
        layers = [nn.Conv2d(1, a, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(a, b, 5, padding=2), nn.ReLU()]
        return [*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(net.flat, 10)]
    out: list[Any] = []
    for place, (m, n) in enumerate(zip(net.sizes, net.sizes[1:])):
        out += ([nn.ReLU()] if place else []) + [nn.Linear(m, n)]
    return out


def nets(simulated: bool) -> list[Net]:
    """Returns the networks of dense layers."""
    if simulated:
        return [Net((2, 16, 16, 2), 10), Net((20, 12, 10), 6), Net((20, 16, 16, 10), 8)]
    return [Net((2, 16, 16, 2), 100), Net((784, 128, 10), 64), Net((784, 1024, 1024, 10), 512)]


def others(simulated: bool) -> list[Any]:
    """Returns one network with convolutions, one recurrent network and one with attention."""
    if simulated:
        return [Convolutions((2, 3), 8, 3), Recurrent(4, 8, 5, 3), Decoder(1, 8, 8, 2)]
    return [Convolutions((16, 32), 28, 64), Recurrent(64, 64, 64, 32), Decoder(4, 128, 128, 32)]


def workloads(simulated: bool) -> list[Any]:
    """Returns all Workloads."""
    return [*nets(simulated), *others(simulated)]


def named(name: str, simulated: bool) -> Any:
    """Returns the Workload of this name."""
    return next(workload for workload in workloads(simulated) if workload.name == name)
