"""Initial values of weights, written into a Parameter in place. Fans are counted for (out, in, …) weights, as in PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import PullbackError, ShapeError
from ..ops import random
from ..ops.random import Generator
from ..tensors.parameter import Parameter

GAINS = {"linear": 1.0, "sigmoid": 1.0, "conv": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2.0), "selu": 0.75}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """How much wider weights must be drawn to keep the variance through an activation: torch.nn.init.calculate_gain."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in GAINS:
        raise PullbackError(f"calculate_gain: {nonlinearity!r} is not known; use {', '.join([*GAINS, 'leaky_relu'])}.")
    return GAINS[nonlinearity]


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """(fan in, fan out) of an (out, in, …) weight: how many inputs an output has, and how many outputs an input."""
    if len(shape) < 2:
        raise ShapeError(f"init: a weight of shape {shape} has no fans; it must be (out, in, …). Use init.uniform or init.normal.")
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def _draw(p: Parameter, how: str, generator: Generator | None, *bounds: float) -> Parameter:
    source = generator or random.default
    dtype = p.dtype if p.dtype.itemsize > 2 else np.float32
    return p.assign(getattr(source, how)(p.shape, *bounds, dtype=dtype))


def constant(p: Parameter, value: float) -> Parameter:
    """Every element the same number."""
    return p.assign(np.full(p.shape, value))


def zeros(p: Parameter) -> Parameter:
    return constant(p, 0.0)


def ones(p: Parameter) -> Parameter:
    return constant(p, 1.0)


def uniform(p: Parameter, low: float = 0.0, high: float = 1.0, *, generator: Generator | None = None) -> Parameter:
    """Uniform in [low, high)."""
    return _draw(p, "uniform", generator, low, high)


def normal(p: Parameter, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Parameter:
    """Normal with this mean and standard deviation."""
    return _draw(p, "normal", generator, mean, std)


def truncated_normal(
    p: Parameter,
    mean: float = 0.0,
    std: float = 1.0,
    a: float | None = None,
    b: float | None = None,
    *,
    generator: Generator | None = None,
) -> Parameter:
    """Normal, cut off below a and above b (values, not standard deviations; two standard deviations where None)."""
    low = -2.0 if a is None else (a - mean) / std
    high = 2.0 if b is None else (b - mean) / std
    return _draw(p, "truncated_normal", generator, mean, std, low, high)


def xavier_uniform(p: Parameter, gain: float = 1.0, *, generator: Generator | None = None) -> Parameter:
    """U(±gain sqrt(6 / (fan_in + fan_out))). Source: Glorot & Bengio 2010, eq. 16."""
    bound = gain * math.sqrt(6 / max(1, sum(fans(p.shape))))
    return uniform(p, -bound, bound, generator=generator)


def xavier_normal(p: Parameter, gain: float = 1.0, *, generator: Generator | None = None) -> Parameter:
    """N(0, gain² 2 / (fan_in + fan_out)). Source: Glorot & Bengio 2010."""
    return normal(p, 0.0, gain * math.sqrt(2 / max(1, sum(fans(p.shape)))), generator=generator)


def _kaiming_std(p: Parameter, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise PullbackError(f'kaiming: mode={mode!r}; use "fan_in" (keeps the forward variance) or "fan_out" (the backward one).')
    fan = fans(p.shape)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(max(1, fan))


def kaiming_uniform(
    p: Parameter, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", *, generator: Generator | None = None
) -> Parameter:
    """U(±gain sqrt(3 / fan)); a is the slope of leaky_relu. Source: He et al. 2015."""
    bound = math.sqrt(3.0) * _kaiming_std(p, a, mode, nonlinearity)
    return uniform(p, -bound, bound, generator=generator)


def kaiming_normal(
    p: Parameter, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", *, generator: Generator | None = None
) -> Parameter:
    """N(0, gain² / fan); a is the slope of leaky_relu. Source: He et al. 2015."""
    return normal(p, 0.0, _kaiming_std(p, a, mode, nonlinearity), generator=generator)


def orthogonal(p: Parameter, gain: float = 1.0, *, generator: Generator | None = None) -> Parameter:
    """gain times a matrix with orthonormal rows or columns, whichever are fewer. Source: Saxe et al. 2014.

    Made on the host in float64, by a QR decomposition whose signs are fixed, so that the distribution is uniform.
    """
    if p.ndim < 2:
        raise ShapeError(f"orthogonal: shape {p.shape} has fewer than two axes.")
    rows, columns = p.shape[0], math.prod(p.shape[1:])
    z: Any = (generator or random.default).normal((max(rows, columns), min(rows, columns)), dtype="float64").numpy()
    q, r = np.linalg.qr(z)
    q *= np.sign(np.diag(r))
    return p.assign(gain * (q.T if rows < columns else q).reshape(p.shape))
