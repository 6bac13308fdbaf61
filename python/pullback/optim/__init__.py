"""Optimizers, which update all parameters in one fused launch and keep their state on the device."""

from ..exports import exported
from . import schedules
from .moments import *  # noqa: F403 (a rule is named once: where its class is)
from .optimizer import Optimizer
from .rules import *  # noqa: F403
from .schedule_free import *  # noqa: F403

__all__ = exported(globals(), schedules)
