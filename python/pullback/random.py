"""pb.random: random numbers from a seed, the same on every device."""

from .exports import export as _export
from .ops.random import (
    Generator,
    bernoulli,
    default as default,
    dropout as dropout,
    normal,
    permutation,
    randint,
    seed,
    truncated_normal,
    uniform,
)  # fmt: skip

__all__ = ["Generator", "bernoulli", "normal", "permutation", "randint", "seed", "truncated_normal", "uniform"]

_export(globals())
