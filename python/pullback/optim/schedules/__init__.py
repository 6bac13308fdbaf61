"""Learning rates as functions of the step. They are evaluated on the device of the update, so that nothing waits for the host.

t is the number of steps that the optimizer has done before, so its first step uses rate(0). csrc/math/schedule.h has the same
formulas.
"""

from __future__ import annotations

from ...exports import exported as _exported
from ..sparsity import PolynomialSparsity
from .composed import Lambda, Multiplicative, Product, ReduceOnPlateau, Sequential, Table
from .schedule import Schedule
from .simple import (
    Constant,
    Cosine,
    CosineRestarts,
    Cyclic,
    Exponential,
    Linear,
    MultiStep,
    OneCycle,
    Polynomial,
    Step,
    WarmupCosine,
    WarmupStableDecay,
)

__all__ = (
    "Constant", "Cosine", "CosineRestarts", "Cyclic", "Exponential", "Lambda", "Linear", "MultiStep", "Multiplicative", "OneCycle",
    "Polynomial", "PolynomialSparsity", "Product", "ReduceOnPlateau", "Schedule", "Sequential", "Step", "Table",
    "WarmupCosine", "WarmupStableDecay",
)

_exported(globals())
