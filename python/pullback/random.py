"""pb.random: random numbers from a seed, the same on every device."""

from .exports import exported as _exported
from .ops.random import Generator, bernoulli, normal, permutation, randint, seed, truncated_normal, uniform

__all__ = _exported(globals())

from .ops.random import default, dropout
