"""Optimizers: fused updates of all parameters in one launch, with their state on the device."""

from ..exports import exported
from . import schedules
from .optimizer import Optimizer
from .rules import *  # noqa: F403 (a rule is named once: where its class is)

__all__ = exported(globals(), schedules)
