"""Optimizers, which update all parameters in one fused launch and keep their state on the device."""

import sys
from types import ModuleType
from typing import Any, NoReturn

from ..exports import exported
from . import constraints, schedules
from .accumulator import Accumulator
from .adafactor import Adafactor
from .by_formula import rule
from .moments import *  # noqa: F403 (a rule is named once: where its class is)
from .muon import Muon
from .optimizer import Optimizer
from .pruning import Pruning
from .rules import *  # noqa: F403
from .schedule_free import *  # noqa: F403
from .torch_state import from_torch, to_torch

__all__ = exported(globals(), constraints, schedules)


class _Uncallable(ModuleType):
    """A module of one optimizer. PyTorch and optax have functions of these names."""

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        module = self.__name__.rpartition(".")[2]
        raise TypeError(f"optim.{module} is a module; the optimizer is optim.{module.capitalize()}.")


for _module in ("adafactor", "muon"):
    sys.modules[f"{__name__}.{_module}"].__class__ = _Uncallable
