"""pb.random: random numbers from a seed, the same on every device."""

from .exports import exported as _exported
from .ops.random import (
    Generator,
    bernoulli,
    load_state_dict,
    normal,
    permutation,
    randint,
    seed,
    state_dict,
    truncated_normal,
    uniform,
)

__all__ = _exported(globals())
