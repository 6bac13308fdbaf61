"""Initializers, which write values into a Parameter in place. A weight's fans assume the layout (out, in, …), as in PyTorch."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final, Literal, TypeVar

import numpy as np

from ..autodiff.listeners import listeners
from ..errors import PullbackError, ShapeError
from ..exports import exported as _exported
from ..launch import capturing
from ..ops import random
from ..ops.linalg import matmul
from ..ops.random import Generator
from ..tensors import dtypes
from ..tensors.creation import asarray
from ..tensors.parameter import Parameter
from .module import Module

__all__ = [
    "calculate_gain", "constant", "fans", "kaiming_normal", "kaiming_uniform", "lsuv", "normal", "ones", "orthogonal",
    "truncated_normal", "uniform", "xavier_normal", "xavier_uniform", "zeros",
]

GAINS = {"linear": 1.0, "sigmoid": 1.0, "conv": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2.0), "selu": 0.75}
BLOCK: Final = 32  # the columns of an orthogonal matrix that are computed together
M = TypeVar("M", bound=Module)
Mode = Literal["fan_in", "fan_out"]
Nonlinearity = Literal["linear", "sigmoid", "conv", "tanh", "relu", "selu", "leaky_relu"]


def calculate_gain(nonlinearity: Nonlinearity, param: float | None = None) -> float:
    """Returns the factor on the standard deviation of weights that makes up for an activation's effect on the variance.

    The factors are those of torch.nn.init.calculate_gain.
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in GAINS:
        raise PullbackError(f"calculate_gain: {nonlinearity!r} is not known; use {', '.join([*GAINS, 'leaky_relu'])}.")
    return GAINS[nonlinearity]


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns (fan in, fan out) of an (out, in, …) weight: the number of inputs per output, and of outputs per input."""
    if len(shape) < 2:
        raise ShapeError(
            f"init: a weight of shape {shape} has no fans; it must be (out, in, ...). Use init.uniform or init.normal."
        )
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def _check(p: Any) -> Parameter:
    if not isinstance(p, Parameter):
        raise PullbackError(
            f"init: a {type(p).__name__} was given, and not a Parameter to set in place. Write nn.init.normal(net.weight), or "
            f"p = nn.init.normal(pb.Parameter(pb.zeros((3, 2))))."
        )
    return p


def _draw(p: Parameter, how: str, generator: Generator | None, *bounds: float) -> Parameter:
    _check(p)
    source = generator or random.default
    dtype = p.dtype if p.dtype.itemsize > 2 else np.float32
    return p.assign(getattr(source, how)(p.shape, *bounds, dtype=dtype))


def constant(p: Parameter, value: float) -> Parameter:
    """Sets every element to `value`."""
    return p.assign(np.full(_check(p).shape, value))


def zeros(p: Parameter) -> Parameter:
    """Sets every element to 0."""
    return constant(p, 0.0)


def ones(p: Parameter) -> Parameter:
    """Sets every element to 1."""
    return constant(p, 1.0)


def uniform(p: Parameter, low: float = 0.0, high: float = 1.0, *, generator: Generator | None = None) -> Parameter:
    """Draws every element uniformly from [low, high)."""
    return _draw(p, "uniform", generator, low, high)


def normal(p: Parameter, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Parameter:
    """Draws every element from the normal distribution with this mean and standard deviation."""
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
    """Draws from a normal distribution that is cut off below a and above b.

    a and b are values, not numbers of standard deviations. None cuts off at two standard deviations from the mean.
    """
    low = -2.0 if a is None else (a - mean) / std
    high = 2.0 if b is None else (b - mean) / std
    return _draw(p, "truncated_normal", generator, mean, std, low, high)


def xavier_uniform(p: Parameter, gain: float = 1.0, *, generator: Generator | None = None) -> Parameter:
    """Draws from U(±gain sqrt(6 / (fan_in + fan_out))). Source: Glorot & Bengio 2010, eq. 16."""
    bound = gain * math.sqrt(6 / max(1, sum(fans(_check(p).shape))))
    return uniform(p, -bound, bound, generator=generator)


def xavier_normal(p: Parameter, gain: float = 1.0, *, generator: Generator | None = None) -> Parameter:
    """Draws from N(0, variance gain² 2 / (fan_in + fan_out)). Source: Glorot & Bengio 2010."""
    return normal(p, 0.0, gain * math.sqrt(2 / max(1, sum(fans(_check(p).shape)))), generator=generator)


def _kaiming_std(p: Parameter, a: float, mode: Mode, nonlinearity: Nonlinearity) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise PullbackError(f'kaiming: mode={mode!r}; use "fan_in" (keeps the forward variance) or "fan_out" (the backward one).')
    fan = fans(_check(p).shape)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(max(1, fan))


def kaiming_uniform(
    p: Parameter,
    a: float = 0.0,
    mode: Mode = "fan_in",
    nonlinearity: Nonlinearity = "leaky_relu",
    *,
    generator: Generator | None = None,
) -> Parameter:
    """Draws from U(±gain sqrt(3 / fan)). a is the negative slope of leaky_relu. Source: He et al. 2015."""
    bound = math.sqrt(3.0) * _kaiming_std(p, a, mode, nonlinearity)
    return uniform(p, -bound, bound, generator=generator)


def kaiming_normal(
    p: Parameter,
    a: float = 0.0,
    mode: Mode = "fan_in",
    nonlinearity: Nonlinearity = "leaky_relu",
    *,
    generator: Generator | None = None,
) -> Parameter:
    """Draws from N(0, variance gain² / fan). a is the negative slope of leaky_relu. Source: He et al. 2015."""
    return normal(p, 0.0, _kaiming_std(p, a, mode, nonlinearity), generator=generator)


def orthogonal(p: Parameter, gain: float = 1.0, *, generator: Generator | None = None) -> Parameter:
    """Sets p to gain times a matrix with orthonormal rows or columns, whichever are fewer. Source: Saxe et al. 2014.

    The host computes the matrix in float64, from normal numbers. Its distribution is uniform.
    """
    if _check(p).ndim < 2:
        raise ShapeError(f"orthogonal: shape {p.shape} has fewer than two axes.")
    capturing.refuse("orthogonal, which computes on the host,", "Make the weights outside.")
    rows, columns = p.shape[0], math.prod(p.shape[1:])
    z: Any = (generator or random.default).normal((max(rows, columns), min(rows, columns)), dtype="float64").numpy()
    before = listeners.truncate(0)  # The products are hidden from tapes.
    try:
        _orthogonalize(z)
    finally:
        listeners.restore(before)
    return p.assign(gain * (z.T if rows < columns else z).reshape(p.shape))


def _orthogonalize(z: Any) -> None:
    """Replaces z (m, n), with m >= n, by q of z = q r, where q has orthonormal columns and r a positive diagonal.

    The method is Gram and Schmidt's for blocks of columns, in two passes, after which rounding errors are small (Giraud et al.
    2005). The products follow `pb.config.reproducible`. The bits of LAPACK would depend on the machine.
    """
    for begin in range(0, z.shape[1], BLOCK):
        before, block = z[:, :begin], z[:, begin : begin + BLOCK]
        for _ in range(2):
            block -= _product(before, _product(before.T, block))
            for j in range(block.shape[1]):
                left, column = block[:, :j], block[:, j : j + 1]
                column -= _product(left, _product(left.T, column))
                column /= np.sqrt(_product(column.T, column))


def _product(a: Any, b: Any) -> Any:
    return matmul(asarray(a, device="cpu"), asarray(b, device="cpu")).numpy()


# ---- from data


def lsuv(
    module: M, *args: Any, std: float = 1.0, tolerance: float = 0.01, max_iterations: int = 10, generator: Generator | None = None
) -> M:
    """Sets the weights of a network so that the output of each layer has the standard deviation `std` on a batch of data.

    Args:
        module: the network. Its layers are the Modules inside with a Parameter `weight` of two or more axes that take floats.
        args: the batch, as the network is called with it.
        tolerance: the relative deviation from std that is accepted.
        max_iterations: the number of corrections for each layer.

    The weights become orthogonal and the biases 0. Then the network runs once, in evaluation mode, and each layer divides its
    weight by the standard deviation of its output before the output goes on. Returns the network. Raises PullbackError for a
    layer whose output does not vary. Source: Mishkin & Matas 2016, "All you need is a good init", algorithm 1.
    """
    capturing.refuse("lsuv", "Call it before.")
    modes = [(part, part.training) for part in module.modules()]
    layers = [part for part, _ in modes if isinstance(w := vars(part).get("weight"), Parameter) and w.ndim > 1]
    own = [vars(layer).get("forward") for layer in layers]
    how = (std, tolerance, max_iterations, generator)
    before = listeners.truncate(0)
    try:
        for part, _ in modes:
            part.training = False
        for layer in layers:
            vars(layer)["forward"] = partial(_scaled, layer, layer.forward, set[int](), how)
        module(*args)
    finally:
        for layer, forward in zip(layers, own):
            if forward is None:
                vars(layer).pop("forward", None)
            else:
                vars(layer)["forward"] = forward
        for part, mode in modes:
            part.training = mode
        listeners.restore(before)
    return module


def _scaled(layer: Any, forward: Any, done: set[int], how: Any, *args: Any, **options: Any) -> Any:
    """Runs the forward pass of a layer. Its first call sets the weight, by the layer's output before an activation."""
    std, tolerance, max_iterations, generator = how
    if done or not (args and dtypes.is_float(asarray(args[0]).dtype)):
        return forward(*args, **options)
    done.add(1)
    orthogonal(layer.weight, generator=generator)
    if isinstance(vars(layer).get("bias"), Parameter):
        zeros(layer.bias)
    inputs = [x for x in args if not isinstance(x, str)]  # without the name of an activation
    for _ in range(max_iterations):
        found = float(np.std(np.asarray(forward(*inputs).astype("float64").numpy())))
        if not 0 < found < math.inf:
            raise PullbackError(
                f"lsuv: the output of {type(layer).__name__} has the standard deviation {found} on this batch, which no factor "
                f"makes {std}. Give a batch of several different examples."
            )
        if abs(found - std) <= tolerance * std:
            break
        layer.weight.assign(layer.weight * (std / found))
    return forward(*args, **options)


_exported(globals())
