"""Optimizers: fused updates of all parameters in one launch, with their state on the device."""

from . import rules, schedules
from .optimizer import Optimizer
from .rules import *  # noqa: F403 (a rule is named once: where its class is)

__all__ = ["Optimizer", "schedules"]
__all__ += rules.__all__
