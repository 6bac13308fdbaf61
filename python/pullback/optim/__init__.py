"""Optimizers: fused updates of all parameters in one launch, with their state on the device."""

from . import schedules
from .optimizer import Optimizer
from .rules import SGD, Adam, AdamW

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "schedules"]
