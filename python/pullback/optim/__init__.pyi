# Written by tools/generate.py from __init__.py.
# ruff: noqa

from . import constraints as constraints
from . import schedules as schedules
from .accumulator import Accumulator as Accumulator
from .adafactor_rule import Adafactor as Adafactor
from .by_formula import rule as rule
from .moments import Adam as Adam
from .moments import AdamW as AdamW
from .moments import LAMB as LAMB
from .moments import Adamax as Adamax
from .moments import NAdam as NAdam
from .moments import RAdam as RAdam
from .muon_rule import Muon as Muon
from .optimizer import Optimizer as Optimizer
from .rules import SGD as SGD
from .rules import RMSprop as RMSprop
from .rules import Adagrad as Adagrad
from .rules import Adadelta as Adadelta
from .rules import Lion as Lion
from .schedule_free import ScheduleFreeSGD as ScheduleFreeSGD
from .schedule_free import ScheduleFreeAdamW as ScheduleFreeAdamW
from .stages.pruning import Pruning as Pruning
from .torch_state import from_torch as from_torch
from .torch_state import to_torch as to_torch
