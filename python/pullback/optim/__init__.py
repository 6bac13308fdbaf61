"""Optimizers, which update all parameters in one fused launch and keep their state on the device."""

from ..exports import exported
from . import schedules
from .accumulator import Accumulator
from .moments import *  # noqa: F403 (a rule is named once: where its class is)
from .optimizer import Optimizer
from .rules import *  # noqa: F403
from .schedule_free import *  # noqa: F403
from .torch_state import from_torch, to_torch

__all__ = exported(globals(), schedules)
