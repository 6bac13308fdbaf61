# Written by tools/generate.py from __init__.py.
# ruff: noqa

from .augmented_lagrangian import augmented_lagrangian as augmented_lagrangian
from .least_squares import least_squares as least_squares
from .levenberg_marquardt import LevenbergMarquardt as LevenbergMarquardt
from .minimize import minimize as minimize
from .root import root as root
