# Written by tools/generate.py from random.py.
# ruff: noqa

from .ops.random import Generator as Generator
from .ops.random import bernoulli as bernoulli
from .ops.random import load_state_dict as load_state_dict
from .ops.random import normal as normal
from .ops.random import permutation as permutation
from .ops.random import randint as randint
from .ops.random import seed as seed
from .ops.random import state_dict as state_dict
from .ops.random import truncated_normal as truncated_normal
from .ops.random import uniform as uniform
