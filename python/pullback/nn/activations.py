"""Activations: one layer per function. A layer's options are the parameters of its __init__."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from ..errors import PullbackError
from ..ops import elementwise, rows
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from .module import Module


def elu(x: Any, alpha: float = 1.0) -> Tensor:
    """x where positive, alpha * (exp(x) - 1) elsewhere."""
    if alpha == 1:
        return elementwise.elu(x)
    x = as_tensor(x)
    return elementwise.where(x > 0, x, alpha * elementwise.expm1(elementwise.where(x > 0, 0.0, x)))


def _gelu_kind(approximate: Any) -> Any:
    kinds = {"none": elementwise.gelu, "tanh": elementwise.gelu_tanh}
    if not isinstance(approximate, str) or approximate not in kinds:
        raise PullbackError(f'gelu: approximate={approximate!r}; use "none" (exact, by erf) or "tanh".')
    return kinds[approximate]


def gelu(x: Any, approximate: str = "none") -> Tensor:
    """x times the normal distribution's cumulative probability of x, exactly or by its tanh approximation."""
    return _gelu_kind(approximate)(x)


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold."""
    if beta == 1 and threshold == 20:
        return elementwise.softplus(x)  # beyond 20 it rounds to x in float32, and is more exact in float64
    x = as_tensor(x)
    large = x * beta > threshold
    return elementwise.where(large, x, elementwise.softplus(elementwise.where(large, 0.0, x) * beta) / beta)


class Activation(Module):
    """Base class of the layers that apply one function: class ReLU(Activation, function=relu).

    The parameters of __init__ are options of the function. They are attributes of the layer, and each call passes them on by name.
    """

    _function: ClassVar[Callable[..., Tensor]]
    _options: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, function: Callable[..., Tensor] | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if function is None:  # a user's subclass, which keeps the function and the options of its base
            return
        cls._function = staticmethod(function)
        cls._options = tuple(inspect.signature(cls.__init__).parameters)[1:] if "__init__" in vars(cls) else ()

    def forward(self, x: Any) -> Tensor:
        return self._function(x, **{name: getattr(self, name) for name in self._options})

    def extra_repr(self) -> str:
        return ", ".join([f"{name}={getattr(self, name)!r}" for name in self._options])


class ReLU(Activation, function=elementwise.relu):
    """max(x, 0), element by element; derivative 0 at 0."""


class Tanh(Activation, function=elementwise.tanh):
    """tanh, element by element."""


class Sigmoid(Activation, function=elementwise.sigmoid):
    """1 / (1 + exp(-x)), element by element."""


class SiLU(Activation, function=elementwise.silu):
    """x times its sigmoid, element by element."""


class LeakyReLU(Activation, function=elementwise.leaky_relu):
    """x where positive, negative_slope * x elsewhere."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope


class ELU(Activation, function=elu):
    """x where positive, alpha * (exp(x) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha


class GELU(Activation, function=gelu):
    """x times the normal distribution's cumulative probability of x; approximate="tanh" for the approximation."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate
        _gelu_kind(approximate)


class Softplus(Activation, function=softplus):
    """log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold, as in PyTorch."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta, self.threshold = beta, threshold


class Softmax(Activation, function=rows.softmax):
    """exp(x) / sum(exp(x)) along an axis."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis


class LogSoftmax(Activation, function=rows.log_softmax):
    """log(softmax(x)) along an axis."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis
