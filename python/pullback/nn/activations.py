"""Activation functions, and one layer per function. The parameters of a layer's __init__ are the options of its function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from ..errors import PullbackError, ShapeError
from ..ops import elementwise, rows, shape
from ..ops._shapes import normalize_axis, real
from ..ops.by_name import in_dtype, in_float, widened
from ..ops.elementwise import abs, copysign, expm1, greater, greater_equal, less, less_equal, sigmoid, tanh, where
from ..ops.operands import as_tensors
from ..tensors.creation import full
from ..tensors.operand import as_tensor
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from .module import Module

# ---- functions. Half precision is computed in float32 and rounded once.


def _wide(x: Any) -> tuple[Tensor, Any]:
    """Returns the argument as a floating-point tensor, half precision widened to float32, and the dtype of the result."""
    x = in_float(as_tensor(x))
    return widened(x), x.dtype


def elu(x: ArrayLike, alpha: float = 1.0) -> Tensor:
    """Returns x where x is positive, alpha * (exp(x) - 1) elsewhere."""
    if alpha == 1:
        return elementwise.elu(x)
    x, dtype = _wide(x)
    return in_dtype(where(x > 0, x, alpha * expm1(where(x > 0, 0.0, x))), dtype)


def _gelu_kind(approximate: Any) -> Any:
    kinds = {"none": elementwise.gelu, "tanh": elementwise.gelu_tanh}
    if not isinstance(approximate, str) or approximate not in kinds:
        raise PullbackError(f'gelu: approximate={approximate!r}; use "none" (exact, by erf) or "tanh".')
    return kinds[approximate]


def gelu(x: ArrayLike, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """Returns x * Φ(x), where Φ is the standard normal distribution function: exact, or approximated with tanh."""
    return _gelu_kind(approximate)(x)


def softplus(x: ArrayLike, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Returns log(1 + exp(beta x)) / beta, and x itself where beta x is above the threshold."""
    if beta == 1 and threshold == 20:
        return elementwise.softplus(x)  # Above 20 it rounds to x in float32; in float64 it is more accurate than x.
    x, dtype = _wide(x)
    large = x * beta > threshold
    return in_dtype(where(large, x, elementwise.softplus(where(large, 0.0, x) * beta) / beta), dtype)


def _limited(x: Tensor, low: float, high: float) -> Tensor:
    """Returns x limited to [low, high]. Its derivative at the limits and beyond is 0, as in PyTorch; NaN stays NaN."""
    return where(less_equal(x, low), low, where(greater_equal(x, high), high, x))


def hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Returns x limited to [min_val, max_val]. The derivative at the limits is 0. Raises PullbackError unless min_val < max_val."""
    if not real("hardtanh", "min_val", min_val) < real("hardtanh", "max_val", max_val):
        raise PullbackError(f"hardtanh: min_val={min_val} is not less than max_val={max_val}.")
    x, dtype = _wide(x)
    return in_dtype(_limited(x, min_val, max_val), dtype)


def relu6(x: Any) -> Tensor:
    """Returns x limited to [0, 6]. The derivative at 0 and at 6 is 0."""
    return _limited(in_float(as_tensor(x)), 0.0, 6.0)


def hardsigmoid(x: Any) -> Tensor:
    """Returns x / 6 + 1/2 between -3 and 3, 0 below and 1 above. The derivative at -3 and at 3 is 0."""
    x, dtype = _wide(x)
    return in_dtype(_limited(x, -3.0, 3.0) * (1 / 6) + 0.5, dtype)


def hardswish(x: Any) -> Tensor:
    """Returns x * hardsigmoid(x) (Howard et al. 2019): 0 up to -3, and x from 3 on. The derivatives there are 0 and 1."""
    x, dtype = _wide(x)
    inside = _limited(x, -3.0, 3.0)
    return in_dtype(where(greater_equal(x, 3.0), x, inside * (inside * (1 / 6) + 0.5)), dtype)


def mish(x: Any) -> Tensor:
    """Returns x * tanh(softplus(x)) (Misra 2019)."""
    x, dtype = _wide(x)
    bounded = where(greater(x, 40.0), 40.0, where(less(x, -1000.0), -1000.0, x))  # beyond, it is x or -0
    return in_dtype(where(greater(x, 40.0), x, bounded * tanh(elementwise.softplus(bounded))), dtype)


SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def selu(x: Any) -> Tensor:
    """Returns elu with the scale and the alpha that keep means at 0 and variances at 1 (Klambauer et al. 2017)."""
    x, dtype = _wide(x)
    return in_dtype(SELU_SCALE * elu(x, SELU_ALPHA), dtype)


def celu(x: Any, alpha: float = 1.0) -> Tensor:
    """Returns x where x is positive, alpha * (exp(x / alpha) - 1) elsewhere (Barron 2017). Raises PullbackError if alpha is 0."""
    if not real("celu", "alpha", alpha):
        raise PullbackError("celu: alpha must not be 0.")
    x, dtype = _wide(x)
    positive = greater(x, 0)
    return in_dtype(where(positive, x, alpha * expm1(where(positive, 0.0, x) / alpha)), dtype)


def softsign(x: Any) -> Tensor:
    """Returns x / (1 + |x|)."""
    x, dtype = _wide(x)
    near = less(abs(x), 1.0)  # elsewhere a quotient of two large numbers would have a derivative without correct digits
    small = where(near, x, 0.0)
    large = 1.0 - 1.0 / (1.0 + abs(where(near, 1.0, x)))
    return in_dtype(where(near, small / (1.0 + abs(small)), copysign(large, x)), dtype)


def softshrink(x: Any, lambd: float = 0.5) -> Tensor:
    """Returns x moved towards 0 by lambd, and 0 for |x| up to lambd. Raises PullbackError if lambd is negative."""
    if not real("softshrink", "lambd", lambd) >= 0:
        raise PullbackError(f"softshrink: lambd={lambd} is negative.")
    x, dtype = _wide(x)
    return in_dtype(x - where(greater(x, lambd), lambd, where(less(x, -lambd), -lambd, x)), dtype)


def hardshrink(x: Any, lambd: float = 0.5) -> Tensor:
    """Returns x, and 0 for |x| up to lambd."""
    x, dtype = _wide(x)
    return in_dtype(where(less_equal(abs(x), real("hardshrink", "lambd", lambd)), 0.0, x), dtype)


def tanhshrink(x: Any) -> Tensor:
    """Returns x - tanh(x)."""
    x, dtype = _wide(x)
    return in_dtype(x - tanh(x), dtype)


def threshold(x: Any, threshold: float, value: float) -> Tensor:
    """Returns x where it is above the threshold, `value` elsewhere. NaN stays NaN."""
    x, dtype = _wide(x)
    limit, instead = real("threshold", "threshold", threshold), real("threshold", "value", value, nan=True)
    return in_dtype(where(less_equal(x, limit), instead, x), dtype)


def glu(x: Any, axis: int = -1) -> Tensor:
    """Returns a * sigmoid(b) for the halves a and b of x along the axis (Dauphin et al. 2017).

    Shape: (…, 2 n, *) gives (…, n, *). Raises ShapeError for an axis of odd length.
    """
    x, dtype = _wide(x)
    along = normalize_axis("glu", axis, x.ndim)
    if x.shape[along] % 2:
        raise ShapeError(f"glu: axis {axis} of shape {x.shape} has an odd length and no halves.")
    a, b = shape.split(x, 2, axis=along)
    return in_dtype(a * sigmoid(b), dtype)


def prelu(x: Any, weight: Any) -> Tensor:
    """Returns x where x is positive, weight * x elsewhere (He et al. 2015). The derivative at 0 is the weight.

    weight: (1,) or one number for all elements, or (channels,) for x (n, channels, …). Raises ShapeError.
    """
    x, weight = as_tensors("prelu", x, weight)
    channels = x.shape[1] if x.ndim > 1 else 1
    if weight.ndim > 1 or weight.size not in (1, channels):
        raise ShapeError(
            f"prelu: weight has shape {weight.shape} and x {x.shape}; it must be one number, or one for each of the {channels} "
            f"channels."
        )
    slopes = (1, channels, *(1,) * (x.ndim - 2)) if weight.size > 1 else ()
    return elementwise.leaky_relu(x, shape.reshape(weight, slopes))


# ---- layers


class Activation(Module):
    """Base class of the layers that apply one function. A subclass names it: class ReLU(Activation, function=relu).

    The parameters of __init__ are the options of the function. The layer stores them as attributes and passes them by name.
    """

    _function: ClassVar[Callable[..., Tensor]]
    _options: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, function: Callable[..., Tensor] | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if function is None:  # A user's subclass keeps the function and the options of its base class.
            return
        cls._function = staticmethod(function)  # a layer's options are checked in its __init__
        cls._options = tuple(inspect.signature(cls.__init__).parameters)[1:] if "__init__" in vars(cls) else ()

    def forward(self, x: ArrayLike) -> Tensor:
        return self._function(x, **{name: getattr(self, name) for name in self._options})

    def extra_repr(self) -> str:
        return ", ".join([f"{name}={getattr(self, name)!r}" for name in self._options])


class ReLU(Activation, function=elementwise.relu):
    """Applies max(x, 0) elementwise. Its derivative at 0 is 0.

    >>> nn.ReLU()(pb.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """


class Tanh(Activation, function=elementwise.tanh):
    """Applies tanh elementwise."""


class Sigmoid(Activation, function=elementwise.sigmoid):
    """Applies 1 / (1 + exp(-x)) elementwise.

    >>> nn.Sigmoid()(pb.zeros(2))
    tensor([0.5, 0.5])
    """


class SiLU(Activation, function=elementwise.silu):
    """Applies x * sigmoid(x) elementwise."""


class LeakyReLU(Activation, function=elementwise.leaky_relu):
    """Returns x where x is positive, negative_slope * x elsewhere.

    >>> nn.LeakyReLU(0.25)(pb.tensor([-1.0, 2.0]))
    tensor([-0.25,  2.  ])
    """

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope


class ELU(Activation, function=elu):
    """Returns x where x is positive, alpha * (exp(x) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha


class GELU(Activation, function=gelu):
    """Applies x * Φ(x), where Φ is the standard normal distribution function; approximate="tanh" approximates it."""

    def __init__(self, approximate: Literal["none", "tanh"] = "none") -> None:
        self.approximate = approximate
        _gelu_kind(approximate)


class Softplus(Activation, function=softplus):
    """Returns log(1 + exp(beta x)) / beta, and x itself where beta x is above the threshold, as in PyTorch."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta, self.threshold = beta, threshold


class Softmax(Activation, function=rows.softmax):
    """Applies exp(x) / sum(exp(x)) along an axis.

    >>> nn.Softmax()(pb.ones((1, 4)))
    tensor([[0.25, 0.25, 0.25, 0.25]])
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis


class LogSoftmax(Activation, function=rows.log_softmax):
    """Applies log(softmax(x)) along an axis."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis


class Hardtanh(Activation, function=hardtanh):
    """Limits x to [min_val, max_val]. The derivative at the limits is 0."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        self.min_val, self.max_val = min_val, max_val


class ReLU6(Activation, function=relu6):
    """Limits x to [0, 6]. The derivative at 0 and at 6 is 0."""


class Hardsigmoid(Activation, function=hardsigmoid):
    """Applies x / 6 + 1/2, limited to [0, 1]."""


class Hardswish(Activation, function=hardswish):
    """Applies x * hardsigmoid(x) elementwise."""


class Mish(Activation, function=mish):
    """Applies x * tanh(softplus(x)) elementwise."""


class SELU(Activation, function=selu):
    """Applies elu with the scale and the alpha that keep means at 0 and variances at 1."""


class CELU(Activation, function=celu):
    """Returns x where x is positive, alpha * (exp(x / alpha) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha


class Softsign(Activation, function=softsign):
    """Applies x / (1 + |x|) elementwise."""


class Softshrink(Activation, function=softshrink):
    """Moves x towards 0 by lambd, and to 0 for |x| up to lambd."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd


class Hardshrink(Activation, function=hardshrink):
    """Returns x, and 0 for |x| up to lambd."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd


class Tanhshrink(Activation, function=tanhshrink):
    """Applies x - tanh(x) elementwise."""


class Threshold(Activation, function=threshold):
    """Returns x where it is above the threshold, `value` elsewhere."""

    def __init__(self, threshold: float, value: float) -> None:
        self.threshold, self.value = threshold, value


class GLU(Activation, function=glu):
    """Returns a * sigmoid(b) for the halves a and b of x along the axis."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis


class PReLU(Module):
    """Returns x where x is positive, weight * x elsewhere, with a trained weight.

    num_parameters: 1 for one weight, or the length of axis 1 for one weight per channel. init: the initial weights.
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        self.weight = Parameter(full((num_parameters,), init))

    def forward(self, x: Any) -> Tensor:
        return prelu(x, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.weight.size}"
