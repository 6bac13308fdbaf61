"""Optimizers, which update all parameters in one fused launch and keep their state on the device."""

from ..exports import exported
from . import constraints, schedules
from .accumulator import Accumulator
from .adafactor_rule import Adafactor
from .by_formula import rule
from .moments import *  # noqa: F403 (a rule is named once: where its class is)
from .muon_rule import Muon
from .optimizer import Optimizer
from .rules import *  # noqa: F403
from .schedule_free import *  # noqa: F403
from .stages.pruning import Pruning
from .torch_state import from_torch, to_torch

__all__ = exported(globals(), constraints, schedules)
