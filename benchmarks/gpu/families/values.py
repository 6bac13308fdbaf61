"""Numbers that a family computes with, and the gradients of what it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import pullback as pb

# What a family yields: the name of a call, and the call, which returns a tensor or a list of tensors. Every call stands alone, so
# that one which fails does not cost the others.
Case = tuple[str, Callable[[], Any]]
Family = Callable[[int], Iterator[Case]]

SHORTEST = 500  # of the lengths on a GPU. Families leave out what is slow to simulate if they are given a shorter one.
FLOATS = ("float32", "float64", "float16", "bfloat16")


def floats(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    x = pb.tensor(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))
    return x if dtype == "float32" else x.astype(dtype)


def between(low: float, high: float, *shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    x = pb.tensor(np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32))
    return x if dtype == "float32" else x.astype(dtype)


def integers(high: int, *shape: int, seed: int = 0, dtype: str = "int64") -> Any:
    return pb.tensor(np.random.default_rng(seed).integers(0, high, shape).astype(dtype))


def with_gradients(f: Callable[..., Any], *inputs: Any) -> list[Any]:
    """Returns f's value and the gradients of a weighted sum of this value, in the order of the inputs."""
    with pb.GradientTape() as tape:
        tape.watch(inputs)
        y = f(*inputs)
        loss = pb.sum(y * floats(*y.shape, seed=9, dtype=str(y.dtype)))
    return [y, *tape.gradient(loss, list(inputs), unconnected="zero")]


def with_tangents(f: Callable[..., Any], *inputs: Any) -> list[Any]:
    """Returns f's value and its tangent, of tangents that are random."""
    tangents = [floats(*x.shape, seed=20 + i, dtype=str(x.dtype)) for i, x in enumerate(inputs)]
    return list(pb.jvp(f, inputs, tangents))


def given(model: Any, scale: float = 0.3) -> Any:
    """Returns the model with weights that do not depend on the device."""
    for i, p in enumerate(model.parameters()):
        p.assign((scale * floats(*p.shape, seed=100 + i)).astype(str(p.dtype)))
    return model
