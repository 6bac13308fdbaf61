"""Random calls of the kernels of convolutions."""

from __future__ import annotations

from typing import Any

from conftest import FLOATS
from pullback.nn import functional
from random_calls import tensor, with_gradients


def convolution(rng: Any) -> None:
    """Draws geometries in which every element of x meets a tap, because kernels need not read any other."""
    groups = int(rng.choice([1, 1, 2, 5]))
    inside, out, images = [int(rng.integers(1, rng.choice([3, 8, 30]))) for _ in range(3)]
    stride, dilation, padding, kernel, x = [], [], [], [], []
    for _ in range(2):
        k, y = int(rng.integers(1, 5)), int(rng.integers(3, rng.choice([5, 12, 40])))
        s, d = (int(rng.integers(1, k + 1)), 1) if rng.random() < 0.5 else (1, int(rng.integers(1, 4)))
        p = int(rng.integers(0, d * (k - 1) + 1))
        p = p if (y - 1) * s + d * (k - 1) + 1 - 2 * p >= max(s, d) else 0
        stride.append(s), dilation.append(d), padding.append(p), kernel.append(k)
        x.append((y - 1) * s + d * (k - 1) + 1 - 2 * p)
    dtype = str(rng.choice(FLOATS, p=[0.15, 0.15, 0.4, 0.3]))
    given = [tensor(rng, (images, inside * groups, *x), dtype), tensor(rng, (out * groups, inside, *kernel), dtype)]
    given += [tensor(rng, (out * groups,), dtype)] if rng.random() < 0.5 else []
    how = {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation), "groups": groups}
    with_gradients(rng, lambda *xs: functional.conv2d(*xs, **how), *given)


CONVOLUTIONS = dict.fromkeys(("convolution", "convolution_input", "convolution_weight"), convolution)
