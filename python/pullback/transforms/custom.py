"""Functions whose derivative is not that of their value."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ..errors import ShapeError
from ..operand import as_tensor
from ..ops.cast import astype
from ..ops.shape import stop_gradient
from ..tensor import Tensor


def straight_through(f: Callable[..., Any]) -> Callable[..., Tensor]:
    """A function with the value of `f`, and the identity as the derivative by its first argument.

    For steps without a useful derivative (round, sign, one-hot of an argmax). The first argument is a finite tensor, and `f`
    must keep its shape; its dtype is restored. Nothing flows to the other arguments. Raises ShapeError.
    Source: Bengio, Léonard & Courville 2013.
    """

    @wraps(f)
    def passed(x: Any, *args: Any, **options: Any) -> Tensor:
        x = as_tensor(x)
        y = stop_gradient(astype(as_tensor(f(stop_gradient(x), *args, **options)), x.dtype))
        if y.shape != x.shape:
            name = getattr(f, "__name__", "f")
            raise ShapeError(
                f"straight_through: {name} turned shape {x.shape} into {y.shape}, and the identity cannot be its derivative. "
                f"Return the argument's shape."
            )
        return y + (x - stop_gradient(x))  # the bracket is exactly 0, and its derivative exactly 1

    return passed
