# Written by tools/generate.py from __init__.py.
# ruff: noqa

from . import schedules as schedules
from .optimizer import Optimizer as Optimizer
from .rules import SGD as SGD
from .rules import Adam as Adam
from .rules import AdamW as AdamW
from .rules import Lion as Lion
