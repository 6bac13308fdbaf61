"""Optimizers: fused updates of all parameters in one launch, with their state on the device."""

from ..exports import exported
from . import schedules
from .optimizer import Optimizer
from .rules import SGD, Adam, AdamW

__all__ = exported(globals(), schedules)
