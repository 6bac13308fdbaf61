"""Random programs on tensors of any shape: views, empty tensors, indices, products, random numbers, several results, gradients.

`Program(seed)` is one program. Its steps depend only on shapes, so every backend, capture and transform runs the same steps.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

import pullback as pb

COUNT: Final = int(os.environ.get("PULLBACK_PROGRAMS", "60"))
SIDES: Final = (0, 1, 2, 3, 5)
MOST: Final = 400  # the most elements of a value
Shape = tuple[int, ...]
Step = tuple[Callable[..., Any], list[int]]  # a function, and the indices of the values that it takes


def choose(rng: Any, things: Any) -> Any:
    return things[rng.integers(len(things))]


# ---- steps: each maker returns a step that fits the shapes, or None

UNARY: Final[tuple[Callable[[Any], Any], ...]] = (
    pb.tanh, pb.sin, pb.relu, pb.abs, pb.sigmoid, pb.nn.functional.gelu, pb.sign, pb.ones_like,
    lambda u: -u, lambda u: u * 0.5 + 1, lambda u: pb.exp(-u * u), lambda u: pb.log1p(u * u),
    lambda u: pb.sqrt(1 + u * u), lambda u: pb.clip(u, -0.5, 0.75), lambda u: 2.0 - u,
    lambda u: pb.astype(pb.astype(u, pb.float32), u.dtype), lambda u: pb.stop_gradient(u) * u,
)
BINARY: Final[tuple[Callable[[Any, Any], Any], ...]] = (
    lambda u, v: u + v, lambda u, v: u - v, lambda u, v: pb.tanh(u * v), lambda u, v: u / (1.5 + v * v), pb.maximum, pb.minimum,
    lambda u, v: pb.where(u > v, u, v * 2), lambda u, v: pb.where(v >= 0, u, 0.5), lambda u, v: pb.hypot(u, 1 + v),
    lambda u, v: pb.logaddexp(u, v), lambda u, v: pb.tanh(u * u * 0.5 + v),
)


def unary(rng: Any, shapes: list[Shape]) -> Step:
    return choose(rng, UNARY), [int(rng.integers(len(shapes)))]


def binary(rng: Any, shapes: list[Shape]) -> Step | None:
    i, j = rng.integers(len(shapes), size=2).tolist()
    try:
        np.broadcast_shapes(shapes[i], shapes[j])
    except ValueError:
        return None
    return choose(rng, BINARY), [i, j]


def slice_of(rng: Any, n: int) -> slice:
    step = choose(rng, (1, 1, 2, -1, -2))
    a, b = sorted(rng.integers(0, n + 1, 2).tolist())
    return slice(a, b, step) if step > 0 else slice(b - 1 if b else 0, a - 1 if a else None, step)


def view(rng: Any, shapes: list[Shape]) -> Step | None:
    i = int(rng.integers(len(shapes)))
    shape = shapes[i]
    if not shape:
        return choose(rng, (lambda u: u[None], lambda u: pb.broadcast_to(u, (3, 2)), lambda u: pb.reshape(u, (1, 1)))), [i]
    axis = int(rng.integers(len(shape)))
    order = rng.permutation(len(shape)).tolist()
    index = tuple([slice_of(rng, n) if rng.random() < 0.6 else slice(None) for n in shape])
    lead = () if shape[0] == 0 else (int(rng.integers(-shape[0], shape[0])),)
    return choose(rng, (
        lambda u: pb.permute_dims(u, order), lambda u: pb.flip(u, axis=axis), lambda u: u[index], lambda u: u[index],
        lambda u: u[lead], lambda u: pb.expand_dims(u, axis=axis), lambda u: pb.reshape(u, (-1,) if u.size else (0, 2)),
        lambda u: pb.broadcast_to(u, (2, *shape)), lambda u: pb.roll(u, 1, axis=axis), lambda u: pb.squeeze(u[None], axis=0),
        lambda u: u[(slice(None),) * axis + (slice(0),)],
    )), [i]


def along(rng: Any, shapes: list[Shape]) -> Step | None:
    """Makes a reduction, scan, row op or index along one axis; only sums and products if that axis is empty or missing."""
    i = int(rng.integers(len(shapes)))
    axis = int(rng.integers(len(shapes[i]))) if shapes[i] else None
    keep = bool(rng.random() < 0.5)
    sums = (
        lambda u: pb.tanh(pb.sum(u, axis=axis, keepdims=keep)), lambda u: pb.tanh(pb.sum(u)),
        lambda u: pb.prod(pb.tanh(u), axis=axis),
    )
    if axis is None or not shapes[i][axis]:
        return choose(rng, sums), [i]
    at = rng.integers(-shapes[i][axis], shapes[i][axis], int(rng.integers(0, 4)))
    first = rng.integers(-shapes[i][0], shapes[i][0], at.size) if shapes[i][0] else at[:0]  # Capture takes no index after a slice.
    return choose(rng, (
        *sums, lambda u: pb.mean(u, axis=axis, keepdims=keep), lambda u: pb.max(u, axis=axis, keepdims=keep),
        lambda u: pb.min(u, axis=axis), lambda u: pb.var(u, axis=axis), lambda u: pb.logsumexp(u, axis=axis, keepdims=keep),
        lambda u: pb.softmax(u, axis=axis), lambda u: pb.tanh(pb.cumulative_sum(u, axis=axis)), lambda u: pb.sort(u, axis=axis),
        lambda u: pb.take(u, at, axis=axis), lambda u: u[first], lambda u: u.at[first].set(0.25),
        lambda u: u.at[first].multiply(2.0), lambda u: pb.tanh(u.at[first].add(u[first])), lambda u: pb.repeat(u, 2, axis=axis),
        lambda u: pb.take_along_axis(u, pb.argsort(u, axis=axis), axis=axis),
    )), [i]


def product(rng: Any, shapes: list[Shape]) -> Step | None:
    i, j = rng.integers(len(shapes), size=2).tolist()
    a, b = shapes[i], shapes[j]
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-1] or len(a) + len(b) > 5:
        return None
    layer = [lambda u, v: pb.nn.functional.linear(u, v, activation="tanh")] if len(b) == 2 else []
    return choose(rng, [lambda u, v: pb.tanh(u @ v.mT), lambda u, v: pb.relu(u @ v.mT + 1.0) * 0.25, *layer]), [i, j]


def join(rng: Any, shapes: list[Shape]) -> Step | None:
    i, j = rng.integers(len(shapes), size=2).tolist()
    if shapes[i] != shapes[j]:
        return None
    axis = int(rng.integers(len(shapes[i]))) if shapes[i] else None
    if axis is None or rng.random() < 0.3:
        return lambda u, v: pb.stack([u, v]), [i, j]
    return lambda u, v: pb.concat([u, v, u], axis=axis), [i, j]


def draw(rng: Any, shapes: list[Shape]) -> Step:
    i = int(rng.integers(len(shapes)))
    return choose(rng, (
        lambda u: pb.nn.functional.dropout(u, 0.3), lambda u: u + pb.random.normal(u.shape, dtype=u.dtype),
        lambda u: u * pb.random.uniform(u.shape, dtype=u.dtype), lambda u: pb.where(pb.random.bernoulli(u.shape, 0.5), u, -u),
    )), [i]


class Program:
    """A function of a tensor and Parameters that returns some of its values, a loss of them, and the gradients of the loss."""

    def __init__(self, seed: int, draws: bool = True) -> None:
        rng = np.random.default_rng(seed)
        self.shape: Shape = tuple([choose(rng, SIDES) for _ in range(rng.integers(0, 4))])
        self.weights: list[Shape] = [tuple([choose(rng, SIDES[1:]) for _ in range(n)]) for n in (1, 2)]
        if self.shape:
            self.weights.append(self.shape[-1:] * 2)
        values = [pb.zeros(s, dtype="float64") for s in (self.shape, *self.weights)]
        self.steps: list[Step] = []
        makers = [unary, binary, binary, view, view, along, along, product, join, *([draw] if draws else [])]
        wanted, tries = int(rng.integers(3, 18)), 0
        while len(self.steps) < wanted and (tries := tries + 1) < 400:
            step = choose(rng, makers)(rng, [v.shape for v in values])
            if step is None:
                continue
            value = step[0](*[values[i] for i in step[1]])
            if value.size <= MOST and value.ndim <= 4:
                self.steps.append(step)
                values.append(value)
        last = [len(values) - 1, int(rng.integers(len(values)))]
        self.returned = last + rng.integers(len(values), size=int(rng.integers(0, 3))).tolist()

    def parameters(self, seed: int, dtype: Any = "float64") -> list[Any]:
        rng = np.random.default_rng(seed)
        return [pb.Parameter(rng.standard_normal(s), dtype=dtype) for s in self.weights]

    def __call__(self, x: Any, parameters: list[Any]) -> list[Any]:
        with pb.GradientTape() as tape:
            tape.watch([x, *parameters])
            values = [x, *parameters]
            for f, taken in self.steps:
                values.append(f(*[values[i] for i in taken]))
            # A view of a Parameter cannot be read after an optimizer has changed the Parameter.
            results = [values[i] if values[i].storage is None else pb.copy(values[i]) for i in self.returned]
            loss = sum([pb.sum(pb.tanh(y) * y) for y in results[1:]], pb.sum(results[0]))
        return [*results, loss, *tape.gradient(loss, [x, *parameters], unconnected="zero")]


def input_of(program: Program, seed: int, dtype: Any = "float64", batch: Shape = ()) -> Any:
    return pb.tensor(np.random.default_rng(seed).standard_normal((*batch, *program.shape)), dtype=dtype)


def results(seeds: Any) -> list[list[Any]]:
    """Returns the results of each program as NumPy arrays."""
    found = []
    for seed in seeds:
        program = Program(seed)
        pb.random.seed(seed)
        found.append([y.numpy() for y in program(input_of(program, seed), program.parameters(seed))])
    return found


if __name__ == "__main__":  # `random_programs.py first last file` lets a test run programs on another backend.
    Path(sys.argv[3]).write_bytes(pickle.dumps(results(range(int(sys.argv[1]), int(sys.argv[2])))))
