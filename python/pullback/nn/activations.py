"""Activations as Modules. Those without options are classes made from one table."""

from __future__ import annotations

from typing import Any

from ..errors import PullbackError
from ..ops import elementwise, rows
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from .module import Module


class ReLU(Module):
    """max(x, 0), element by element; derivative 0 at 0."""

    def forward(self, x: Any) -> Tensor:
        return elementwise.relu(x)


class Tanh(Module):
    """tanh, element by element."""

    def forward(self, x: Any) -> Tensor:
        return elementwise.tanh(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x)), element by element."""

    def forward(self, x: Any) -> Tensor:
        return elementwise.sigmoid(x)


class SiLU(Module):
    """x times its sigmoid, element by element."""

    def forward(self, x: Any) -> Tensor:
        return elementwise.silu(x)


class LeakyReLU(Module):
    """x where positive, negative_slope * x elsewhere."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope

    def forward(self, x: Any) -> Tensor:
        return elementwise.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class ELU(Module):
    """x where positive, alpha * (exp(x) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Any) -> Tensor:
        return elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class GELU(Module):
    """x times the normal distribution's cumulative probability of x; approximate="tanh" for the approximation."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate
        _gelu_kind(approximate)

    def forward(self, x: Any) -> Tensor:
        return gelu(x, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class Softplus(Module):
    """log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold, as in PyTorch."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta, self.threshold = beta, threshold

    def forward(self, x: Any) -> Tensor:
        return softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class Softmax(Module):
    """exp(x) / sum(exp(x)) along an axis."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Any) -> Tensor:
        return rows.softmax(x, axis=self.axis)

    def extra_repr(self) -> str:
        return f"axis={self.axis}"


class LogSoftmax(Module):
    """log(softmax(x)) along an axis."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Any) -> Tensor:
        return rows.log_softmax(x, axis=self.axis)

    def extra_repr(self) -> str:
        return f"axis={self.axis}"


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
