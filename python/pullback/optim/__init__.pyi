# Written by tools/generate.py from __init__.py.
# ruff: noqa

from . import schedules as schedules
from .adam import Adam as Adam
from .adam import AdamW as AdamW
from .adam import Adamax as Adamax
from .adam import NAdam as NAdam
from .adam import RAdam as RAdam
from .optimizer import Optimizer as Optimizer
from .rules import SGD as SGD
from .rules import RMSprop as RMSprop
from .rules import Adagrad as Adagrad
from .rules import Adadelta as Adadelta
from .rules import Lion as Lion
