# Written by tools/generate.py from __init__.py.
# ruff: noqa

from . import schedules as schedules
from .moments import Adam as Adam
from .moments import AdamW as AdamW
from .moments import LAMB as LAMB
from .moments import Adamax as Adamax
from .moments import NAdam as NAdam
from .moments import RAdam as RAdam
from .optimizer import Optimizer as Optimizer
from .rules import SGD as SGD
from .rules import RMSprop as RMSprop
from .rules import Adagrad as Adagrad
from .rules import Adadelta as Adadelta
from .rules import Lion as Lion
from .schedule_free import ScheduleFreeSGD as ScheduleFreeSGD
from .schedule_free import ScheduleFreeAdamW as ScheduleFreeAdamW
