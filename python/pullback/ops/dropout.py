"""dropout, which draws its mask from a random generator."""

from __future__ import annotations

from typing import Any

from ..autodiff.primitive import apply
from ..errors import PullbackError
from ..tensors.operand import as_tensor, own
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from . import random
from ._shapes import flag, probability
from .by_name import per_example
from .conversion import settled
from .draws import drop
from .random import Generator, drawn


def dropout(x: ArrayLike, p: float = 0.5, training: bool = True, *, generator: Generator | None = None) -> Tensor:
    """Sets each element to zero with probability p and divides the others by 1 - p; returns x if not training.

    Args:
        x: float tensor of any shape.
        p: a probability, from 0 to 1.
        generator: draws the mask; None for that of `pb.random`. The backward pass draws the same mask again instead of keeping it.

    Returns: the shape of x. Raises PullbackError, DTypeError. Source: Srivastava et al. 2014.
    """
    probability("dropout", "p", p)
    if not flag("dropout", "training", training) or p == 0:
        return settled(own(x))
    x = as_tensor(x)
    if p == 1:
        return x * 0.0
    given: Any = generator
    if not isinstance(given, (Generator, type(None))):
        raise PullbackError(f"dropout: generator={generator!r} is not a pb.random.Generator.")
    state = Tensor((generator or random.default).next_state(x.device))
    return apply(drop, (x, per_example(state, drawn.alike)), (float(p),))
